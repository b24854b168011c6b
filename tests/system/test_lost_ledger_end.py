"""A host alone whose ledger lost its end: what its own attempts know of it stops the start, and how it goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import actorgrid
from actorgrid.actors.raft.storage.durable_watermark import KnownGrant, refuse_lost_grant
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.newest_grant import newest_grant
from actorgrid.actors.work.work_records import lost_spec
from actorgrid.errors import LogCorrupted


def attempt(folder: Path, name: str, token: object) -> None:
    AttemptDir(folder, name).create({**lost_spec(name), "ledger_token": token})


def test_the_newest_grant_is_that_of_the_newest_epoch_and_entry(tmp_path: Path) -> None:
    assert newest_grant(tmp_path / "none") is None
    attempt(tmp_path, "a-1", [1, 70])
    attempt(tmp_path, "b-1", [2, 9])
    attempt(tmp_path, "c-1", [2, 8])
    assert newest_grant(tmp_path) == KnownGrant(2, 9, "b-1")


@pytest.mark.parametrize("token", [None, 7, [1], ["1", 2], [1, 2.5], [True, 2], [-1, 5], [1, 2, 3], {"a": 1}])
def test_a_token_that_is_none_says_nothing(tmp_path: Path, token: object) -> None:
    attempt(tmp_path, "a-1", token)
    assert newest_grant(tmp_path) is None


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        (None, False),
        (KnownGrant(5, 40, "a-1"), False),
        (KnownGrant(5, 41, "a-1"), True),
        (KnownGrant(4, 900, "a-1"), False),
        (KnownGrant(6, 1, "a-1"), True),
    ],
)
def test_only_a_grant_that_the_ledger_should_hold_stops_a_start(known: KnownGrant | None, refused: bool) -> None:
    if not refused:
        refuse_lost_grant(known, 40, 5)
        return
    with pytest.raises(LogCorrupted, match="acted upon"):
        refuse_lost_grant(known, 40, 5)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "actorgrid", *arguments], capture_output=True, text=True, timeout=60)


def test_a_lone_host_whose_log_was_cut_behind_its_work_stops_and_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    data_dir = tmp_path / "host"
    with actorgrid.LocalCluster(gpus=2, data_dir=data_dir) as cluster:
        cluster.client().run(["true"], check=True)
    segments = data_dir / "ledger" / "segments"
    (newest,) = segments.glob("*.log")
    content = newest.read_bytes()

    # As a disk that loses its newest writes: the log's end, the mark, and what state.db noted.
    (segments / "acknowledged").unlink()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (data_dir / "ledger" / name).unlink(missing_ok=True)
    newest.write_bytes(content[: len(content) // 4])
    for _ in range(3):  # a start that is refused appends nothing that would hide the loss from the next
        stopped = cli("up", "--json", "--port", "0", "--gpus", "2", "--data-dir", str(data_dir))
        assert stopped.returncode != 0
        assert "acted upon" in stopped.stdout + stopped.stderr, stopped.stdout + stopped.stderr
        assert "ledger restore" in stopped.stdout + stopped.stderr

    kept = tmp_path / "kept"
    for arguments in (("backup", str(kept)), ("restore", str(kept), "--replace")):
        done = cli("ledger", *arguments, "--data-dir", str(data_dir))
        assert done.returncode == 0, done.stderr
    with actorgrid.LocalCluster(gpus=2, data_dir=data_dir) as cluster:
        cluster.client().run(["true"], check=True)
    found = newest_grant(data_dir / "attempts")
    assert found is not None and found.epoch > 1
