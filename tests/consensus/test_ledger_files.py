"""Checking, backing up and restoring a ledger's files, stopped and running, whole and damaged."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.ledger_backup import backup, restore
from actorgrid.actors.consensus.ledger_check import check, dump
from actorgrid.actors.ledger.commands import CancelJob, GrantAttempt, RegisterHost, SubmitJobs
from actorgrid.actors.raft.codec import encode_members
from actorgrid.actors.raft.messages import ConfState, Entry, HardState
from actorgrid.actors.raft.storage.disk import RaftStorage
from actorgrid.actors.raft.storage.log import Cut, SegmentLog
from actorgrid.actors.raft.storage.store import Store
from actorgrid.errors import ActorGridError, BadRequest, DataDirUnusable, LogCorrupted
from tests.consensus.rig import AT, Host, host_record, job_record

MakeHost = Callable[..., Host]
FORMATS = Path(__file__).parent / "formats"
ONE = ConfState(voters=(1,))


def quiet(_label: str, _done: int, _total: int) -> None: ...


def lived(make_host: MakeHost, folder: Path, jobs: int = 60) -> Host:
    """A host that has worked: segments, two snapshots, an allocation."""
    host = make_host(folder, ledger_snapshot_every=20, ledger_segment_bytes=4096)
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    for number in range(jobs):
        host.propose(SubmitJobs([job_record(f"j{number}")], at=AT))
    host.propose(GrantAttempt("j0", 1, "h1", 1, [0], 1, at=AT))
    host.propose(CancelJob("j4", "me", at=AT))
    return host


def test_checking_gives_the_state_of_the_host(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data")
    running = check(host.context.paths.ledger_dir, quiet)
    assert running.state.snapshot() == host.live._replica.ledger.snapshot()
    assert running.problems == []
    host.kill()
    assert check(host.context.paths.ledger_dir, quiet).state.index == running.state.index
    assert running.log.records["commands"] > 0
    assert len(running.snapshots) == 2


def test_checking_changes_nothing(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data")
    host.kill()
    folder = host.context.paths.ledger_dir
    newest = sorted((folder / "segments").glob("*.log"))[-1]
    with newest.open("ab") as file:
        file.write(b"AGR2 torn")
    before = {path: path.read_bytes() for path in folder.rglob("*.log")}
    found = check(folder, quiet)
    assert found.log.torn_bytes == 9
    assert {path: path.read_bytes() for path in folder.rglob("*.log")} == before


def test_a_flipped_byte_anywhere_in_the_log_is_found(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data", 25)
    host.kill()
    folder = host.context.paths.ledger_dir
    for path in sorted((folder / "segments").glob("*.log")):
        data = path.read_bytes()
        for position in range(0, len(data), 211):
            flipped = bytearray(data)
            flipped[position] ^= 0x20
            path.write_bytes(flipped)
            with pytest.raises(LogCorrupted):
                check(folder, quiet)
        path.write_bytes(data)
    assert check(folder, quiet).problems == []


def test_a_lost_tail_is_found(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data", 25)
    host.kill()
    folder = host.context.paths.ledger_dir
    newest = sorted((folder / "segments").glob("*.log"))[-1]
    newest.write_bytes(newest.read_bytes()[:-16])
    with pytest.raises(LogCorrupted, match="acknowledged"):
        check(folder, quiet)


def test_a_damaged_snapshot_is_a_problem_while_the_one_before_does(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data")
    host.kill()
    folder = host.context.paths.ledger_dir
    db = sqlite3.connect(folder / "state.db")
    db.execute("UPDATE snapshots SET digest = 'wrong' WHERE idx = (SELECT max(idx) FROM snapshots)")
    db.commit()
    db.close()
    found = check(folder, quiet)
    assert len(found.problems) == 1
    assert found.state.index == found.log.last_index


def test_no_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataDirUnusable):
        check(tmp_path, quiet)
    with pytest.raises(DataDirUnusable):
        list(dump(tmp_path / "segments", 0, 9))
    with pytest.raises(DataDirUnusable):
        backup(tmp_path, tmp_path / "b", quiet)


def test_what_is_not_committed_is_neither_applied_nor_backed_up_as_state(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    log = SegmentLog.open(folder / "segments", 1 << 20)
    shown = json.dumps(["", 0, SubmitJobs([job_record("a")], at=AT).to_plain()]).encode()
    members = encode_members(ConfState(voters=(1, 2, 3)))
    log.write([[Entry(1, 1, "conf_change", members), Entry(2, 1, "command", shown), Entry(3, 1, "command", shown)]])
    log.write([Cut(2), [Entry(3, 2, "command", b""), Entry(4, 2, "command", shown)], HardState(2, 0, 3)])
    log.close()
    found = check(folder, quiet)
    assert (found.state.index, found.committed_index, found.log.last_index) == (3, 3, 4)
    assert set(found.state.jobs) == {"a"}
    records = list(dump(folder / "segments", 0, 100))
    assert [(record["kind"], record["index"]) for record in records] == [
        ("conf_change", 1),
        ("command", 2),
        ("command", 3),
        ("cut", 2),
        ("command", 3),
        ("command", 4),
        ("hard_state", 3),
    ]
    assert records[1]["type"] == "submit_jobs"
    assert [record["index"] for record in dump(folder / "segments", 4, 4)] == [4]


# -- backup and restore


def test_a_restored_ledger_has_the_state_and_newer_tokens(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "one")
    made = backup(host.context.paths.ledger_dir, tmp_path / "backup", quiet)
    assert made["index"] == host.live._replica.ledger.index
    host.propose(SubmitJobs([job_record("later")], at=AT))
    token = host.live._replica.ledger.allocations["j0.1"]["token"]
    before = host.live._replica.ledger
    other = make_host(tmp_path / "two")
    done = restore(tmp_path / "backup", other.context.paths.ledger_dir, AT, ONE, False, quiet)
    assert done["epoch"] == int(AT)
    other.start()
    ledger = other.live._replica.ledger
    assert ledger.epoch == int(AT)
    assert ledger.term > before.term
    assert set(ledger.jobs) == set(before.jobs) - {"later"}
    assert ledger.allocations == before.allocations
    other.propose(RegisterHost(host_record(incarnation=2), at=AT))
    other.propose(GrantAttempt("j1", 1, "h1", 2, [1], ledger.term, at=AT))
    assert ledger.allocations["j1.1"]["token"] > token
    other.kill()
    other.start()
    assert other.live._replica.ledger.allocations["j1.1"]["token"] > token


def test_a_restored_ledger_is_that_of_one_voter(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "one")
    backup(host.context.paths.ledger_dir, tmp_path / "backup", quiet)
    done = restore(tmp_path / "backup", tmp_path / "two", AT, ONE, False, quiet)
    store = Store(tmp_path / "two" / "state.db")
    log = SegmentLog.open(tmp_path / "two" / "segments", 4096)
    storage = RaftStorage(log, store, ConfState())
    assert storage.initial_state() == (HardState(done["term"], 0, done["index"]), ONE)
    assert (storage.first_index(), storage.last_index()) == (done["index"] + 1, done["index"])
    assert storage.snapshot().index == done["index"]
    log.close()
    store.close()


def test_each_restore_of_one_backup_begins_a_newer_epoch(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "one", 5)
    backup(host.context.paths.ledger_dir, tmp_path / "backup", quiet)
    epochs = [
        restore(tmp_path / "backup", tmp_path / f"to{at}", at, ONE, False, quiet)["epoch"] for at in (AT, AT + 1, 0.0)
    ]
    # A clock that says less than the last epoch still gives a newer one than the backup's.
    assert epochs == [int(AT), int(AT) + 1, 2]


def test_a_restore_keeps_the_ledger_that_is_there(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data", 5)
    folder = host.context.paths.ledger_dir
    backup(folder, tmp_path / "backup", quiet)
    host.kill()
    with pytest.raises(BadRequest):
        restore(tmp_path / "backup", folder, AT, ONE, False, quiet)
    for number in (1, 2):
        done = restore(tmp_path / "backup", folder, AT + number, ONE, True, quiet)
        assert done["kept"] == str(folder.with_name(f"ledger.before-restore-{number}"))
        assert check(Path(done["kept"]), quiet).problems == []
    host.start()
    assert host.live._replica.ledger.epoch == int(AT) + 2


def test_a_backup_of_format_1_restores(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "log_1", tmp_path / "old")
    expected = json.loads((tmp_path / "old" / "expected.json").read_text())
    backup(tmp_path / "old", tmp_path / "backup", quiet)
    done = restore(tmp_path / "backup", tmp_path / "new", AT, ONE, False, quiet)
    assert (done["index"], done["jobs"]) == (expected["index"] + 1, expected["jobs"])


def test_a_backup_has_a_name_of_its_own(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data", 5)
    folder = host.context.paths.ledger_dir
    (tmp_path / "there").touch()
    for target in (tmp_path / "there", tmp_path / "no" / "folder"):
        with pytest.raises(BadRequest):
            backup(folder, target, quiet)
    backup(folder, tmp_path / "backup", quiet)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"data", "there", "backup"}


def damaged(backup_file: Path, how: str) -> None:
    data = bytearray(backup_file.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    elif how == "no manifest":
        with tarfile.open(backup_file) as tar:
            at = tar.getmember("manifest.json").offset
        data[at:] = bytes(10240)
    elif how == "flipped":
        data[len(data) // 3] ^= 8
    elif how == "empty":
        data.clear()
    backup_file.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "no manifest", "flipped", "empty"])
def test_a_damaged_backup_is_refused_and_nothing_is_touched(make_host: MakeHost, tmp_path: Path, how: str) -> None:
    host = lived(make_host, tmp_path / "data", 5)
    backup(host.context.paths.ledger_dir, tmp_path / "backup", quiet)
    host.kill()
    damaged(tmp_path / "backup", how)
    with pytest.raises(LogCorrupted):
        restore(tmp_path / "backup", host.context.paths.ledger_dir, AT, ONE, True, quiet)
    host.start()
    assert len(host.live._replica.ledger.jobs) == 5
    assert [path.name for path in (tmp_path / "data").iterdir() if "restor" in path.name] == []


@pytest.mark.parametrize("name", ["../escape", "segments/../../escape", "/tmp/escape", "other", "segments"])
def test_a_backup_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_text("x")
    with tarfile.open(tmp_path / "backup", "w") as tar:
        tar.add(tmp_path / "x", name)
    with pytest.raises(LogCorrupted):
        restore(tmp_path / "backup", tmp_path / "ledger", AT, ONE, False, quiet)
    assert not (tmp_path / "escape").exists()


WORK = """
import sys
from pathlib import Path
from actorgrid.actors.ledger.commands import SubmitJobs
from tests.consensus.rig import AT, Host, job_record
host = Host(Path(sys.argv[1]), ledger_segment_bytes=8192, ledger_snapshot_every=40)
host.start()
number = 0
while True:
    host.propose(SubmitJobs([job_record(f"j{number}")], at=AT))
    number += 1
    print(number, flush=True)
"""


def test_backups_beside_a_host_at_work_are_each_consistent(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        for number in range(5):
            for _ in range(30):
                done = int(child.stdout.readline())
            made = backup(tmp_path / "data" / "ledger", tmp_path / f"backup{number}", quiet)
            # One entry for the term; what was acknowledged before is in it.
            assert made["index"] >= done + 1
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    for number in range(5):
        restore(tmp_path / f"backup{number}", tmp_path / f"to{number}", AT, ONE, False, quiet)


# -- the commands


def run(data_dir: Path, *words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid", "ledger", *words, "--data-dir", str(data_dir), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return done.returncode, lines if words[0] == "dump" else lines[0]


def test_the_commands_answer_in_json(make_host: MakeHost, tmp_path: Path) -> None:
    host = lived(make_host, tmp_path / "data", 30)
    data = tmp_path / "data"
    code, found = run(data, "verify")
    assert (code, found["ok"], found["last_index"]) == (0, True, host.live._replica.ledger.index)
    code, records = run(data, "dump", "--limit", "3")
    assert (code, len(records)) == (0, 3)
    code, made = run(data, "backup", str(tmp_path / "backup"))
    assert (code, made["index"]) == (0, host.live._replica.ledger.index)
    host.kill()
    code, refused = run(data, "restore", str(tmp_path / "backup"))
    assert (code, refused["error"]["code"]) == (2, "BadRequest")
    code, done = run(data, "restore", str(tmp_path / "backup"), "--replace")
    assert (code, done["jobs"]) == (0, 30)
    code, again = run(data, "verify")
    assert (code, again["epoch"]) == (0, done["epoch"])
    newest = sorted((data / "ledger" / "segments").glob("*.log"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    code, broken = run(data, "verify")
    assert (code, broken["error"]["code"]) == (6, "LogCorrupted")
    assert "restore" in broken["error"]["hint"]


def test_every_refusal_has_a_hint_or_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(ActorGridError) as caught:
        restore(tmp_path / "nothing", tmp_path / "ledger", AT, ONE, False, quiet)
    assert caught.value.asked
