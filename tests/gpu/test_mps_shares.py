"""Which MPS daemons shares need, and which shares run under none: decisions alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from actorgrid.actors.gpu.mps_journal import DaemonProcess, MpsJournal
from actorgrid.actors.gpu.mps_program import PID_FILE, PROGRAM, START_LOG, MpsFolders
from actorgrid.actors.gpu.mps_shares import (
    BACKOFF_MAX_S,
    CLIENTS_MAX,
    DAEMONS_MAX,
    IDLE_S,
    REMEMBERED_S,
    STEADY_S,
    MpsKey,
    MpsShares,
    QuitDaemon,
    ShareHeld,
    StartDaemon,
)
from actorgrid.configs.paths import HostPaths

GPU = "GPU-1"
OURS, THEIRS = MpsKey(GPU, "default"), MpsKey(GPU, "other")


def held(*ids: str, key: MpsKey = OURS) -> list[ShareHeld]:
    return [ShareHeld(id, key) for id in ids]


def running(*keys: MpsKey) -> MpsShares:
    shares = MpsShares()
    for key in keys:
        assert shares.join(key, [], 0.0) == ("", [StartDaemon(key)])
        shares.started(key, 0.0)
    return shares


def test_a_second_share_of_a_tenant_joins_the_daemon_of_the_first() -> None:
    shares = running(OURS)
    assert shares.join(OURS, held("a"), 1.0) == ("", [])


def test_another_tenant_has_a_daemon_of_its_own() -> None:
    shares = running(OURS)
    assert shares.join(THEIRS, held("a"), 1.0) == ("", [StartDaemon(THEIRS)])


def test_a_daemon_that_nobody_uses_ends_after_a_while() -> None:
    shares = running(OURS)
    assert shares.look(held("a"), 100.0) == []
    assert shares.look([], 100.0 + IDLE_S - 1) == []
    assert shares.look([], 100.0 + IDLE_S) == [QuitDaemon(OURS)]
    assert shares.join(OURS, [], 131.0)[0] == "its MPS daemon is just ending"
    shares.gone(OURS)
    assert shares.join(OURS, [], 132.0) == ("", [StartDaemon(OURS)])


def test_who_was_under_a_daemon_that_died_is_without_until_it_ends_and_its_gpu_is_not_held() -> None:
    shares = running(OURS)
    assert shares.is_enforced(GPU, held("a"))
    shares.failed(OURS, "died", 10.0)
    assert shares.look(held("a"), 10.0) == []
    assert shares.join(OURS, held("a", "b"), 10.5) == ("died", [])
    assert not shares.is_enforced(GPU, held("a"))
    assert shares.look(held("a"), 11.0) == [StartDaemon(OURS)]
    assert not shares.is_enforced(GPU, held("a")), "it is not there yet"
    shares.started(OURS, 11.5)
    assert not shares.is_enforced(GPU, held("a")), "what it began is gone with the old one"
    assert shares.is_enforced(GPU, held("b"))
    assert shares.restarts_total == 1


def test_the_death_of_one_tenants_daemon_leaves_the_others_under_theirs() -> None:
    shares = running(OURS, THEIRS)
    shares.failed(OURS, "died", 10.0)
    shares.look([*held("a"), *held("b", key=THEIRS)], 10.0)
    assert set(shares.without) == {"a"}


def test_it_is_started_again_ever_more_slowly_and_at_once_after_a_steady_run() -> None:
    shares = MpsShares()
    shares.join(OURS, [], 0.0)
    now, waits = 0.0, []
    for _ in range(8):
        shares.failed(OURS, "no", now)
        waits.append(shares.next_retry() - now)
        now = shares.next_retry()
        assert shares.look(held("a"), now) == [StartDaemon(OURS)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, BACKOFF_MAX_S]
    shares.started(OURS, now)
    shares.failed(OURS, "again", now + STEADY_S)
    assert shares.next_retry() == now + STEADY_S + 1.0


def test_a_broken_daemon_that_nobody_wants_is_forgotten() -> None:
    shares = running(OURS)
    shares.failed(OURS, "died", 1.0)
    shares.look([], 1.0 + IDLE_S)
    assert not shares.daemons
    assert shares.is_enforced(GPU, [])


def test_no_more_clients_than_a_server_takes_and_no_more_daemons_than_are_kept() -> None:
    shares = running(OURS)
    full = held(*(f"a{number}" for number in range(CLIENTS_MAX + 1)))
    assert shares.join(OURS, full[:-1], 1.0) == ("", [])
    assert shares.join(OURS, full, 1.0) == (f"an MPS server takes {CLIENTS_MAX} clients", [])
    many = running(*(MpsKey(f"GPU-{number}", "default") for number in range(DAEMONS_MAX)))
    assert many.join(THEIRS, [], 1.0)[1] == []


def test_work_without_is_remembered_while_it_is_held_and_a_little_longer() -> None:
    shares = running(OURS)
    shares.go_without("a", 0.0)
    shares.look(held("a"), 1000.0)
    assert "a" in shares.without
    shares.look([], 1001.0)
    assert not shares.without


def test_the_journal_gives_back_what_it_was_given_and_nothing_of_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "mps.json"
    journal = MpsJournal(path)
    assert (journal.is_on, journal.daemons, journal.without) == (False, {}, frozenset())
    apart = MpsKey(GPU, "lab", 1_900_000_001)
    journal.write(True, {OURS: DaemonProcess(12, 3456), apart: DaemonProcess(13, 7)}, ["b", "a"], {"c": apart.uid})
    again = MpsJournal(path)
    assert (again.is_on, again.daemons) == (True, {OURS: (12, 3456), apart: (13, 7)})
    assert (again.without, again.uids) == (frozenset({"a", "b"}), {"c": apart.uid})
    path.write_text('{"on": true, "daemons": [["GPU-1", "default", 12, 3456]], "without": []}')
    assert MpsJournal(path).daemons == {OURS: (12, 3456)}, "from before there were uids"
    for broken in ("", "[]", '{"on": true}', '{"on": true, "daemons": [[1, 2]], "without": []}'):
        path.write_text(broken)
        assert MpsJournal(path).daemons == {}


def test_a_users_work_with_a_uid_of_its_own_has_a_daemon_of_its_own() -> None:
    ann, eve = MpsKey(GPU, "lab", 1_900_000_001), MpsKey(GPU, "lab", 1_900_000_002)
    shares = running(ann)
    shares.has_uid("a", ann.uid, 1.0)
    shares.has_uid("e", eve.uid, 1.0)
    assert (shares.uid_of("a"), shares.uid_of("e"), shares.uid_of("x")) == (ann.uid, eve.uid, 0)
    assert shares.join(eve, held("a", key=ann), 1.0) == ("", [StartDaemon(eve)]), "a server takes clients of one uid"
    shares.started(eve, 1.0)
    shares.failed(ann, "died", 2.0)
    shares.look([*held("a", key=ann), *held("e", key=eve)], 2.0)
    assert set(shares.without) == {"a"}, "the other's goes on"
    shares.look([], 1.0 + REMEMBERED_S)
    assert shares.uids == {}


def test_of_another_uids_daemon_only_processes_of_that_uid_are_believed(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    folders = MpsFolders(paths, MpsKey(GPU, "lab", 1_900_000_001))
    there = paths.own_sockets_dir(1_900_000_001) / folders.pipe.name
    there.mkdir(parents=True)
    assert there != folders.pipe
    os.mkfifo(there / PID_FILE)
    assert folders.daemon() is None, "and it does not wait for somebody to write"
    (there / PID_FILE).unlink()
    ours = [sys.executable, "-S", "-c", "input()", PROGRAM]
    with subprocess.Popen(ours, stdin=subprocess.PIPE) as process:
        (there / PID_FILE).write_text(str(process.pid))
        assert folders.daemon() is None, "root would signal it"
        for nonsense in ("-1", "x", "9" * 30, ""):
            (there / PID_FILE).write_text(nonsense)
            assert folders.daemon() is None
        process.communicate(b"\n")
    folders.own.mkdir(parents=True)
    (folders.own / START_LOG).write_text("it cannot be kept apart: no\n")
    assert folders.last_words() == "it cannot be kept apart: no"
    folders.remove()
    assert not there.exists()
