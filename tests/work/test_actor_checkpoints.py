"""The state of an actor in its own process: when it is saved, how it is taken up, and what is no checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.actors.work import actor_checkpoints
from actorgrid.actors.work.actor_checkpoints import JobCheckpoints
from actorgrid.actors.work.checkpoint_spool import SpoolAnswer, name_of, tell, waiting
from actorgrid.checkpoints import SPOOL_VARIABLE, STATE_VARIABLE, CheckpointPolicy, head_of
from actorgrid.errors import BodyTooLarge, DiskFull, MalformedBody, UnpicklableResult


class Thing:
    def __init__(self) -> None:
        self.state: Any = None

    def save(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def load(self, state: Any) -> None:
        self.state = state


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path))
    monkeypatch.setenv("ACTORGRID_JOB_ID", "j")
    monkeypatch.setenv("ACTORGRID_ATTEMPT_NUMBER", "4")
    return tmp_path


def kept(spool: Path, number: int, attempt_id: str = "j.3") -> Path:
    """The file that the agent makes of a checkpoint."""
    data = head_of(attempt_id, number) + (spool / name_of(number)).read_bytes()
    path = spool / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path


def test_the_next_incarnation_takes_up_what_was_saved_and_nothing_else(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = Thing()
    checkpoints = JobCheckpoints(thing, CheckpointPolicy(0, 0))
    checkpoints.load()
    assert thing.state is None, "there was none yet"
    thing.state = {"best": [1, 2]}
    assert checkpoints.save() == 1
    monkeypatch.setenv(STATE_VARIABLE, str(kept(spool, 1)))
    other = Thing()
    JobCheckpoints(other, CheckpointPolicy(0, 0)).load()
    assert other.state == {"best": [1, 2]}
    for path in (kept(spool, 1, "another.1"), spool / name_of(1)):
        monkeypatch.setenv(STATE_VARIABLE, str(path))
        with pytest.raises(MalformedBody):
            JobCheckpoints(Thing(), CheckpointPolicy(0, 0)).load()


def test_it_is_saved_after_so_many_calls_and_after_so_long(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(actor_checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    checkpoints = JobCheckpoints(Thing(), CheckpointPolicy(2, 5))
    checkpoints.called()
    assert waiting(spool) == [] and checkpoints.wait_s() == 5.0
    checkpoints.called()
    assert waiting(spool) == [1] and checkpoints.wait_s() == -1.0, "nothing has changed since"
    clock[0] += 60
    checkpoints.look()
    assert waiting(spool) == [1]
    checkpoints.called()
    assert waiting(spool) == [2], "the one before is not needed any more"
    checkpoints.last()
    assert waiting(spool) == [2]
    checkpoints.called()
    checkpoints.last()
    assert waiting(spool) == [3]


def test_what_cannot_be_saved_is_told_and_the_one_before_stays(
    spool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thing = Thing()
    checkpoints = JobCheckpoints(thing, CheckpointPolicy(1, 0))
    checkpoints.called()
    thing.state = KeyError("broken")
    checkpoints.called()
    assert "KeyError" in capsys.readouterr().err
    with pytest.raises(KeyError):
        checkpoints.save()
    thing.state = (each for each in "ab")
    with pytest.raises(UnpicklableResult):
        checkpoints.save()
    monkeypatch.setattr(JobCheckpoints, "bytes_max", 10)
    thing.state = "x" * 100
    with pytest.raises(BodyTooLarge):
        checkpoints.save()
    assert waiting(spool) == [1]
    # What became of one is told by the agent, of the newest that it took.
    tell(spool, SpoolAnswer(1, 17, None))
    assert checkpoints.wait(1) == (4, 1, 17)
    tell(spool, SpoolAnswer(2, 0, DiskFull("no room").to_dict()))
    with pytest.raises(DiskFull, match="no room"):
        checkpoints.wait(2)
