"""What people are told who come to an attempt's socket while it begins or ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.job_channels import channel_path
from actorgrid.actors.work.live_attempt import LiveAttempt, channel_of
from actorgrid.actors.work.work_records import lost_spec
from actorgrid.errors import JobNotRunning, NotSupported


@pytest.fixture
def attempt(tmp_path: Path) -> LiveAttempt:
    made = LiveAttempt(AttemptDir(tmp_path, "a.1"), [1, 2], 5.0)
    spec = lost_spec("a.1")
    spec["control_path"], spec["ledger_token"], spec["pty"] = str(tmp_path / "control"), [1, 2], True
    made.directory.create(spec)
    return made


def test_one_that_is_being_started_or_has_ended_is_said_to_be_so(attempt: LiveAttempt, tmp_path: Path) -> None:
    with pytest.raises(JobNotRunning) as told:
        channel_of(attempt, "a.1")
    assert told.value.found == "its attempt is being started"
    with pytest.raises(JobNotRunning) as told:
        channel_of(None, "a.1")
    assert told.value.found == "its attempt has ended"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(channel_path(str(tmp_path / "control")))
        assert channel_of(attempt, "a.1")["terminal"]
    attempt.state = "running"
    Path(channel_path(str(tmp_path / "control"))).unlink()
    with pytest.raises(NotSupported, match="earlier version"):
        channel_of(attempt, "a.1")


def test_one_whose_end_has_not_come_to_us_yet_has_ended(attempt: LiveAttempt) -> None:
    attempt.state = "running"
    attempt.directory.status_file.write_bytes(b"")
    with pytest.raises(JobNotRunning) as told:
        channel_of(attempt, "a.1")
    assert told.value.found == "its attempt has ended"
