"""A channel to a job from the client's side, over a socket whose other end the test holds."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any, cast

import pytest

from actorgrid.cli.channel_session import ChannelSession
from actorgrid.client.job_channel import ChannelAddress, JobChannel
from actorgrid.client.relay import Relay
from actorgrid.errors import PeerGone
from actorgrid.transports.channel_frames import TOO_SLOW, ChannelEnding, ExecCommand
from actorgrid.transports.frames import FrameDecoder

ADDRESS = ChannelAddress("j", "j.1", 1, "secret", False)


class OneSocket:
    """In place of a relay: every channel is over that socket."""

    failure = None

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def open_job(self, _attempt_id: str, _secret: str) -> OneSocket:
        return self


def channel_over(sock: socket.socket) -> JobChannel:
    return JobChannel(cast("Relay", OneSocket(sock)), ADDRESS, ExecCommand(("cat",)))


def test_who_was_let_go_as_too_slow_is_told_and_has_not_succeeded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = channel_over(ours)
        theirs.sendall(ChannelEnding(why=TOO_SLOW).frame())
        with pytest.raises(PeerGone, match="let go"):
            list(channel.events())
        assert channel.ending is None


class Interrupted(socket.socket):
    """A socket whose user is interrupted right behind the sending of input, once."""

    armed = False

    def send(self, data: Any, flags: int = 0) -> int:
        sent = super().send(data, flags)
        if self.armed:
            self.armed = False
            os.kill(os.getpid(), signal.SIGINT)
        return sent


def test_ctrl_c_in_the_middle_of_sending_sends_nothing_twice() -> None:
    one, theirs = socket.socketpair()
    read, write = os.pipe()
    with Interrupted(fileno=one.detach()) as ours, theirs:
        channel = channel_over(ours)
        came: list[list[Any]] = []

        def job() -> None:
            decoder = FrameDecoder()
            while not came or came[-1][0] != "signal":
                came.extend(decoder.feed(theirs.recv(65536)))
            theirs.sendall(ChannelEnding(exit_code=5).frame())

        ours.armed = True
        os.write(write, b"typed")
        thread = threading.Thread(target=job)
        thread.start()
        ending = ChannelSession(channel, raw=False, input_fd=read).run()
        thread.join()
    for fd in (read, write):
        os.close(fd)
    assert ending.exit_code == 5
    assert came[1:] == [["in", b"typed"], ["signal", int(signal.SIGINT)]]
