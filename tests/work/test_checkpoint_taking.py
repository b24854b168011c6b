"""What a shim's taker does when a checkpoint was due and is not kept; and whose the link is in a gang."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.checkpoint_link import link_checkpoint
from actorgrid.actors.work.checkpoint_spec import unpack_checkpoint
from actorgrid.actors.work.checkpoint_spool import SpoolAnswer, leave, remove, tell, waiting
from actorgrid.actors.work.checkpoint_taking import CheckpointTaker
from actorgrid.actors.work.isolation.work_folder import WorkFolder
from actorgrid.checkpoints import CHECKPOINT_BYTES_MAX, READY_MARK, head_of
from actorgrid.errors import DiskFull


def spec_of(tmp_path: Path, attempt_id: str) -> Any:
    folder = tmp_path / "attempts" / attempt_id
    folder.mkdir(parents=True, exist_ok=True)
    own = {"state": "", "folder": str(folder / "checkpoint"), "link": str(tmp_path / "ckpt"), "every_s": None}
    return {"job_id": "a", "checkpoint": {**own, "takes": True}}


def had_checkpoint(spec: Any) -> None:
    """As the child does before it becomes the work."""
    unpack_checkpoint(spec)
    link_checkpoint(spec)


@pytest.fixture
def taker(tmp_path: Path) -> CheckpointTaker:
    spec = spec_of(tmp_path, "a.1")
    had_checkpoint(spec)
    (tmp_path / "ckpt" / "n").write_text("1")
    return CheckpointTaker(spec["checkpoint"], tmp_path / "attempts" / "a.1", "stderr", WorkFolder(spec, tmp_path))


def reap(taker: CheckpointTaker) -> bool:
    """As the shim does: hand on a child that has ended."""
    pid, status = os.waitpid(taker._packer, os.WNOHANG) if taker._packer else (0, 0)
    if pid:
        taker.child_ended(pid, status)
    return True


def take_marked(taker: CheckpointTaker, tmp_path: Path) -> None:
    (tmp_path / "ckpt" / READY_MARK).touch()
    taker.turn(time.monotonic() + 10)
    assert taker.child_ended(*os.waitpid(taker._packer, 0))


def test_one_that_was_refused_is_taken_again_at_the_end_and_said(taker: CheckpointTaker, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "a.1"
    take_marked(taker, tmp_path)
    assert waiting(folder) == [1]
    tell(folder, SpoolAnswer(1, 0, DiskFull("no room").to_dict()))
    remove(folder)
    taker.last(False, lambda: reap(taker))
    assert waiting(folder) == [2]
    assert "number 1 is not kept: no room" in (folder / "stderr").read_text()


def test_one_that_is_kept_is_not_taken_again(taker: CheckpointTaker, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "a.1"
    take_marked(taker, tmp_path)
    tell(folder, SpoolAnswer(1, 3, None))
    remove(folder)
    taker.last(False, lambda: reap(taker))
    assert waiting(folder) == []
    taker.clear()
    assert not (folder / "checkpoint").exists()


def test_what_could_not_be_packed_stays_for_people(taker: CheckpointTaker, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "a.1"
    os.truncate(tmp_path / "ckpt" / "n", CHECKPOINT_BYTES_MAX + 1)
    take_marked(taker, tmp_path)
    taker.last(False, lambda: reap(taker))
    taker.clear()
    assert waiting(folder) == [] and (folder / "checkpoint" / "n").exists()


def test_a_cancel_is_heard_while_the_last_one_is_packed(taker: CheckpointTaker, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "a.1"
    os.truncate(tmp_path / "ckpt" / "n", CHECKPOINT_BYTES_MAX)  # sparse; takes seconds to pack
    (tmp_path / "ckpt" / READY_MARK).touch()
    asked: list[int] = []

    def goes_on() -> bool:
        asked.append(taker._packer)
        assert taker.is_last_heard("preempted"), "the work is gone: there is nothing to stop"
        if len(asked) == 3:
            assert taker.is_last_heard("cancelled")
        return reap(taker)

    assert not taker.is_last_heard("cancelled"), "the work lives"
    taker.last(False, goes_on)
    assert len(asked) == 3 and asked[0] > 0
    with pytest.raises(ProcessLookupError):
        os.kill(asked[0], 0)
    taker.clear()
    assert waiting(folder) == [] and not (folder / "checkpoint").exists()


def test_what_is_past_its_deadline_packs_no_longer_and_stays_for_people(taker: CheckpointTaker, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "a.1"
    (tmp_path / "ckpt" / READY_MARK).touch()
    taker.last(False, lambda: False)
    taker.clear()
    assert (folder / "checkpoint" / "n").exists()


def test_what_was_unpacked_is_not_packed_again_before_it_changes(taker: CheckpointTaker, tmp_path: Path) -> None:
    take_marked(taker, tmp_path)
    kept = tmp_path / "kept"
    kept.write_bytes(head_of("a.1", 1) + (tmp_path / "attempts" / "a.1" / "checkpoint-1.new").read_bytes())
    spec = spec_of(tmp_path, "a.2")
    spec["checkpoint"] |= {"state": str(kept), "every_s": 1.0}
    had_checkpoint(spec)
    folder = tmp_path / "attempts" / "a.2"
    later = CheckpointTaker(spec["checkpoint"], folder, "stderr", WorkFolder(spec, tmp_path))

    def interval() -> list[int]:
        later.turn(time.monotonic() + 10)
        assert later.child_ended(*os.waitpid(later._packer, 0))
        later._look_at = 0.0
        return waiting(folder)

    assert interval() == [] and interval() == []
    (tmp_path / "ckpt" / "n").write_text("2")
    assert interval() == [3]
    later.last(False, lambda: reap(later))
    assert waiting(folder) == [3], "it is as it was"


@pytest.mark.parametrize("order", [("a.2-0", "a.2-1", "a.2-2"), ("a.2-2", "a.2-1", "a.2-0")])
def test_the_link_of_a_gang_in_one_directory_is_rank_0s(order: tuple[str, ...], tmp_path: Path) -> None:
    had_checkpoint(spec_of(tmp_path, "a.1-1"))  # left by the attempt before
    for member in order:
        had_checkpoint(spec_of(tmp_path, member))
    assert os.readlink(tmp_path / "ckpt") == str(tmp_path / "attempts" / "a.2-0" / "checkpoint")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "ckpt"]


def test_work_that_fills_the_folder_of_its_attempt_holds_up_nobody(tmp_path: Path) -> None:
    for number in range(1, 1_200):
        (tmp_path / f"checkpoint-{number}.new").touch()
    assert len(waiting(tmp_path)) == 1_000
    (tmp_path / "one").mkdir()
    leave(tmp_path / "one", 2, lambda file: file.write(b"x"))
    assert waiting(tmp_path / "one") == [2]
