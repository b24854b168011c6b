"""A job's terminal when its work has ended, and people are still at it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from actorgrid.actors.work.job_channels import Channel
from actorgrid.actors.work.job_terminal import AttachedClient, JobTerminal
from actorgrid.actors.work.output import OutputStream
from actorgrid.transports.channel_frames import AttachToTerminal, InputPiece, Resize, TerminalSize
from actorgrid.transports.kept_stream import Keep


def test_what_is_typed_after_the_end_goes_into_no_other_file(tmp_path: Path) -> None:
    terminal = JobTerminal()
    channel = Channel(Keep("secret", "0" * 32, 0), time.monotonic())
    client = AttachedClient(terminal, AttachToTerminal(TerminalSize(30, 100)), channel)
    kept = os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT)
    stream = OutputStream(terminal.ours, kept, 1000, heard=terminal.wrote)
    terminal.work_has_ended()
    assert not stream.drain(0.0) and stream.pipe is None
    others = [os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)]
    while terminal.ours not in others:  # the number of what was closed is given out again
        others.append(os.dup(others[0]))
    assert client.take(InputPiece(b"keys"))
    assert client.take(Resize(TerminalSize(40, 120)))
    assert (tmp_path / "other").read_bytes() == b""
    client.leave()
    stream.close()
    for other in others:
        os.close(other)
