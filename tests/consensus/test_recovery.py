"""Consensus through crashes, damage, full disks and failing ones."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    FailJob,
    GrantAttempt,
    GrantLease,
    RegisterHost,
    SetSetting,
    SubmitJobs,
)
from actorgrid.actors.ledger.snapshot import decode
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.storage.failure_marker import FailureMarker
from actorgrid.actors.raft.storage.log import EndMark
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed, StorageError
from actorgrid.supervisors.envelope import SettingChanged
from tests.consensus.rig import AT, Host, host_record, job_record

MakeHost = Callable[..., Host]


def segments(host: Host) -> list[Path]:
    return sorted((host.context.paths.ledger_dir / "segments").glob("*.log"))


def fill(host: Host, count: int, prefix: str = "j") -> None:
    for number in range(count):
        host.propose(SubmitJobs([job_record(f"{prefix}{number}")], at=AT))


def digest(host: Host) -> str:
    """Of the state without the term that the last start began."""
    header, sections = decode(host.live._replica.ledger.snapshot())
    return json.dumps([{key: value for key, value in header.items() if key not in ("index", "term")}, sections])


def test_snapshot_and_tail_give_the_state_of_the_whole_log(make_host: MakeHost, tmp_path: Path) -> None:
    some, none = make_host(tmp_path / "some", ledger_snapshot_every=10), make_host(tmp_path / "none")
    for host in (some, none):
        host.start()
        host._session = "the same"
        host.propose(RegisterHost(host_record(), at=AT))
        fill(host, 37)
        host.propose(CancelJob("j3", "me", at=AT))
    assert some.live._replica.ledger.digest() == none.live._replica.ledger.digest()
    some.node.settle()
    assert some.live.status()["snapshot_index"] == 40
    assert none.live.status()["snapshot_index"] == 0
    for host in (some, none):
        host.kill()
        host.start()
    assert some.live._replica.ledger.digest() == none.live._replica.ledger.digest()


def test_log_behind_the_snapshot_before_is_dropped(make_host: MakeHost) -> None:
    host = make_host(ledger_snapshot_every=20, ledger_segment_bytes=4096)
    host.start()
    fill(host, 100)
    assert host.live._replica.log.first_index > 60
    before = digest(host)
    host.kill()
    host.start()
    assert digest(host) == before
    host.stop()
    host.start()
    assert digest(host) == before
    assert len(host.live._replica.ledger.jobs) == 100


def damage_snapshot(host: Host, which: str) -> None:
    db = sqlite3.connect(host.context.paths.ledger_dir / "state.db")
    data, index = db.execute(f"SELECT data, idx FROM snapshots ORDER BY idx {which} LIMIT 1").fetchone()
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 1
    db.execute("UPDATE snapshots SET data = ? WHERE idx = ?", (bytes(damaged), index))
    db.commit()
    db.close()


def test_a_damaged_snapshot_gives_way_to_the_one_before(make_host: MakeHost) -> None:
    host = make_host(ledger_snapshot_every=20, ledger_segment_bytes=4096)
    host.start()
    fill(host, 100)
    before = digest(host)
    host.kill()
    damage_snapshot(host, "DESC")
    host.start()
    assert digest(host) == before
    host.kill()
    damage_snapshot(host, "ASC")
    with pytest.raises(LogCorrupted) as caught:
        host.start()
    assert caught.value.hint
    host.consensus = None


def test_damaged_snapshots_with_the_whole_log_there_lose_nothing(make_host: MakeHost) -> None:
    host = make_host(ledger_snapshot_every=20)
    host.start()
    fill(host, 50)
    before = digest(host)
    host.kill()
    damage_snapshot(host, "DESC")
    damage_snapshot(host, "ASC")
    host.start()
    assert digest(host) == before


@pytest.mark.parametrize("where", [0, 40, 300, -1])
def test_a_flipped_bit_in_the_log_keeps_consensus_down_and_says_where(make_host: MakeHost, where: int) -> None:
    host = make_host()
    host.start()
    fill(host, 5)
    host.kill()
    path = segments(host)[0]
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(LogCorrupted) as caught:
            host.start()
        assert caught.value.details["segment"] == str(path)
        assert "restore" in caught.value.hint
    assert path.read_bytes() == bytes(data)


def test_a_log_that_ends_before_what_was_acknowledged_is_corrupt(make_host: MakeHost) -> None:
    host = make_host(ledger_segment_bytes=4096)
    host.start()
    fill(host, 30)
    host.node.advance(2.0)  # the history is written, and with it how far the log was durable
    host.kill()
    last = segments(host)[-1]
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(LogCorrupted, match="ends before"):
        host.start()
    last.write_bytes(kept[:-10])
    with pytest.raises(LogCorrupted, match="ends before"):
        host.start()


def test_a_damaged_store_is_named(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    fill(host, 5)
    host.stop()
    before = len(segments(host))
    path = host.context.paths.ledger_dir / "state.db"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(LogCorrupted, match="store"):
        host.start()
    path.unlink()
    host.start()
    assert len(host.live._replica.ledger.jobs) == 5
    assert len(segments(host)) == before


def test_too_little_free_space_refuses_new_work_only(make_host: MakeHost) -> None:
    host = make_host(reserve_bytes=1 << 16)
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    host.propose(SubmitJobs([job_record("runs"), job_record("waits"), job_record("doomed")], at=AT))
    token = host.propose(GrantAttempt("runs", 1, "h1", 1, [0], 1, at=AT)).result["token"]
    host.context.settings.set_live("performance.min_free_bytes", 1 << 59)
    for command in (
        SubmitJobs([job_record("new")], at=AT),
        GrantAttempt("waits", 1, "h1", 1, [1], 1, at=AT),
        GrantLease("L", "S", "h1", 1, [1], {}, pool="general", env={}, term=1, at=AT),
    ):
        with pytest.raises(DiskFull) as caught:
            host.propose(command)
        assert caught.value.asked
        assert caught.value.found
        assert caught.value.hint
    host.propose(EndAttempt("runs.1", token, "succeeded", at=AT))
    host.propose(CancelJob("waits", "me", at=AT))
    host.propose(FailJob("doomed", {}, at=AT))
    assert host.live.status()["accepts_new_work"] is False
    host.propose(SetSetting("performance.min_free_bytes", 0, "me", at=AT))
    host.context.settings.set_live("performance.min_free_bytes", 0)
    host.propose(SubmitJobs([job_record("new")], at=AT))
    assert host.live.status()["accepts_new_work"] is True


@pytest.mark.root
def test_a_full_disk_keeps_recording_accepted_work_and_recovers(make_host: MakeHost, small_disk: Path) -> None:
    host = make_host(small_disk / "data", reserve_bytes=128 << 10)
    host.start()
    reserve = host.context.paths.ledger_dir / "reserve"
    assert reserve.stat().st_blocks * 512 >= 128 << 10
    host.propose(RegisterHost(host_record(gpus=2), at=AT))
    host.propose(SubmitJobs([job_record("runs"), job_record("waits")], at=AT))
    token = host.propose(GrantAttempt("runs", 1, "h1", 1, [0], 1, at=AT)).result["token"]
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    accepted = []
    with pytest.raises(DiskFull):
        for number in range(1000):
            host.propose(SubmitJobs([job_record(f"j{number}", env={"A": "x" * 500})], at=AT))
            accepted.append(f"j{number}")
    assert not reserve.exists()
    for _ in range(2):
        with pytest.raises(DiskFull):
            host.propose(SubmitJobs([job_record("late")], at=AT))
    host.propose(EndAttempt("runs.1", token, "succeeded", at=AT))
    host.propose(CancelJob("waits", "me", at=AT))
    # A restart on the full disk forgets nothing either.
    host.kill()
    host.start()
    assert host.query("job", job_id="runs")["state"] == "succeeded"
    assert host.query("job", job_id="waits")["state"] == "cancelled"
    filler.unlink()
    host.node.advance(3.0)
    assert reserve.exists()
    host.propose(SubmitJobs([job_record("late")], at=AT))
    host.kill()
    host.start()
    assert set(accepted) | {"runs", "waits", "late"} == set(host.live._replica.ledger.jobs)


COMMIT_UNTIL_IT_FAILS = """
import resource, sys
from pathlib import Path
from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.ledger.commands import SubmitJobs
from actorgrid.errors import LogFailed
from tests.consensus.rig import AT, Host, job_record
host = Host(Path(sys.argv[1]))
host.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
acknowledged = 0
try:
    while True:
        host.propose(SubmitJobs([job_record(f"j{acknowledged}")], at=AT))
        acknowledged += 1
except LogFailed:
    print(acknowledged)
for _ in range(2):
    try:
        Host(Path(sys.argv[1])).start()
    except LogFailed as error:
        print(error.code)
"""


def test_a_failed_write_stops_consensus_for_this_boot_and_loses_nothing(make_host: MakeHost, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMIT_UNTIL_IT_FAILS, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    acknowledged, *refusals = done.stdout.split()
    assert refusals == ["LogFailed", "LogFailed"]
    assert int(acknowledged) > 10
    host = make_host(tmp_path / "data")
    with pytest.raises(LogFailed):
        host.start()
    host.context.boot_id = "boot-2"
    host.start()
    assert set(host.live._replica.ledger.jobs) == {f"j{number}" for number in range(int(acknowledged))}
    host.propose(SubmitJobs([job_record("next")], at=AT))
    host.kill()
    host.start()
    assert "next" in host.live._replica.ledger.jobs


def test_a_half_written_failure_mark_does_not_stop_the_next_boot(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    fill(host, 3)
    FailureMarker(host.context.paths.ledger_dir / "failed").write(
        "another boot", EndMark("0000000000000001.log", 1 << 40), "test"
    )
    host.kill()
    host.start()
    assert len(host.live._replica.ledger.jobs) == 3
    host.kill()
    (host.context.paths.ledger_dir / "failed").write_text('{"boot_id": ')
    host.start()
    assert len(host.live._replica.ledger.jobs) == 3


COMMIT_FOR_EVER = """
import sys
from pathlib import Path
from actorgrid.actors.ledger.commands import SubmitJobs
from tests.consensus.rig import AT, Host, job_record
host = Host(Path(sys.argv[1]), ledger_segment_bytes=20_000, ledger_snapshot_every=40)
host.start()
number = len(host.live._replica.ledger.jobs)
print("ready", number, flush=True)
while True:
    index = host.propose(SubmitJobs([job_record(f"j{number}")], at=AT)).index
    print(index, f"j{number}", flush=True)
    number += 1
"""


def test_kill_nine_in_the_middle_of_committing_keeps_every_acknowledged_entry(
    make_host: MakeHost, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    acknowledged: set[str] = set()
    for life in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        ready, count = child.stdout.readline().split()
        assert ready == "ready"
        assert int(count) >= len(acknowledged)
        for _ in range(37 + 41 * life):
            acknowledged.add(child.stdout.readline().split()[1])
        os.kill(child.pid, signal.SIGKILL)
        acknowledged.update(
            line.split()[1] for line in child.stdout.read().splitlines(keepends=True) if line[-1:] == "\n"
        )
        child.wait()
        child.stdout.close()
    host = make_host(folder)
    host.start()
    assert acknowledged <= set(host.live._replica.ledger.jobs)
    assert len(host.live._replica.ledger.jobs) <= len(acknowledged) + 4
    assert host.live.status()["term"] == 5


def test_an_uncommitted_end_of_the_log_becomes_part_of_the_state(make_host: MakeHost) -> None:
    """Written but not acknowledged, then kill -9: the entry may come true, and its proposer learns it by repeating."""
    host = make_host()
    host.start()
    command = SubmitJobs([job_record("a")], at=AT)
    path = segments(host)[0]
    mark = path.with_name("acknowledged")
    before = mark.read_bytes()
    index = host.propose(command, "s", 1).index
    host.kill()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    mark.write_bytes(before)
    host.start()
    assert "a" not in host.live._replica.ledger.jobs
    assert host.propose(command, "s", 1).result["jobs"][0]["duplicate"] is False
    host.kill()
    host.start()
    again = host.propose(command, "s", 1)
    assert again.result["jobs"][0]["duplicate"] is False
    assert again.index >= index


def test_settings_come_in_through_the_runtime(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.node.request("consensus", SettingChanged("performance.min_free_bytes", 12345))
    assert host.context.settings.performance.min_free_bytes == 12345


def test_proposals_after_a_stop_are_refused(make_host: MakeHost) -> None:
    host = make_host()
    server = host.start()
    fill(host, 2)
    server.stop("test")
    with pytest.raises(StorageError):
        fill(host, 1, "late")
    host.node.remove("consensus")
    host.consensus = None
    assert isinstance(server, Consensus)
    host.start()
    assert Ledger.restore(host.live._replica.ledger.snapshot()).jobs.keys() == {"j0", "j1"}


@pytest.mark.root
def test_a_start_on_a_full_disk_uses_the_reserve(make_host: MakeHost, small_disk: Path) -> None:
    host = make_host(small_disk / "data", reserve_bytes=256 << 10)
    host.start()
    host.propose(SubmitJobs([job_record("a")], at=AT))
    host.stop()
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    host.start()
    host.propose(CancelJob("a", "me", at=AT))
    assert host.query("job", job_id="a")["state"] == "cancelled"
