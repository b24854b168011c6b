"""The TCP ports on which a job listens, and connections to them, each one end of a channel.

A job has the network of its host. So a port counts as the job's only where a process of the job has the socket that
listens there: nobody comes by a job to what others, or the agent, listen on.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from contextlib import suppress

from actorgrid.errors import PortNotOpen
from actorgrid.transports.channel_frames import CLOSED, ChannelEnding, ClientFrame, InputEnd, InputPiece
from actorgrid.transports.frames import encode_frame

from .job_channels import Channel
from .listening_sockets import ListeningSocket, listening_sockets, sockets_of

PORTS_SHOWN_MAX = 32


def ports_of(pids: list[int]) -> list[int]:
    """The ports on which these processes listen, the lowest first."""
    own = sockets_of(pids)
    return sorted({each.port for each in listening_sockets() if each.inode in own})


def find_port(port: int, pids: list[int]) -> ListeningSocket:
    """Where one of these processes listens on *port*. Raises PortNotOpen."""
    there = listening_sockets(port)
    own = sockets_of(pids) if there else set()
    for each in there:
        if each.inode in own:
            return each
    ports = ", ".join(map(str, ports_of(pids)[:PORTS_SHOWN_MAX]))
    others = "another process of its host does; " if there else ""
    raise PortNotOpen(
        f"the job does not listen on port {port}",
        asked=str(port),
        found=others + (f"it listens on {ports}" if ports else "it listens on none"),
        hint="wait until it does, or name one of its own: its output may say which",
    )


class PortConnection:
    """A connection to a port of the job, as of ChannelEnd."""

    def __init__(self, target: ListeningSocket, channel: Channel) -> None:
        """Raises OSError."""
        self._socket = socket.socket(target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._connected = False
        self._to_write = b""
        self._input_ends = False
        self._output_ended = False
        self._open = True
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = self._socket.connect_ex((target.reached_at, target.port))
        if number not in (0, errno.EINPROGRESS):
            self._socket.close()
            raise OSError(number, os.strerror(number))
        self._note_connected(channel)

    def take(self, frame: ClientFrame) -> bool:
        """See ChannelEnd."""
        if self._to_write or not self._connected:
            return False
        match frame:
            case InputPiece(data):
                self._to_write = data
                self._write()
            case InputEnd():
                self._input_ends = True
                self._write()
        return True

    def fill(self, channel: Channel) -> None:
        """See ChannelEnd."""
        if not self._connected:
            self._note_connected(channel)
        if self._connected and not self._output_ended and (room := channel.room) > 0:
            try:
                data = self._socket.recv(room)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data:
                channel.put(encode_frame(["out", data]))
            elif data is not None:
                self._output_ended = True
                channel.say(["end"])
        if self._output_ended and self._input_ends and not self._to_write:
            channel.finish(ChannelEnding(why=CLOSED).frame())

    def wanted(self, channel: Channel) -> dict[int, int]:
        """See ChannelEnd."""
        mask = select.POLLIN if self._connected and not self._output_ended and channel.room > 0 else 0
        if self._to_write or not self._connected:
            mask |= select.POLLOUT
        return {self._socket.fileno(): mask} if self._open else {}

    def ready(self, fd: int, channel: Channel) -> None:
        """See ChannelEnd."""
        if not self._connected:
            self._note_connected(channel)
        self._write()

    def leave(self) -> None:
        """See ChannelEnd."""
        self._open = False
        self._socket.close()

    def _note_connected(self, channel: Channel) -> None:
        """Look whether the connection is made. Raises PortNotOpen when it is refused."""
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise PortNotOpen("the job has just stopped listening there", found=os.strerror(number))
        try:
            self._socket.getpeername()
        except OSError:
            return  # not yet
        self._connected = True
        channel.say(["begun", {}])

    def _write(self) -> None:
        if not self._connected:
            return
        try:
            while self._to_write:
                self._to_write = self._to_write[self._socket.send(self._to_write) :]
        except BlockingIOError:
            return
        except OSError:
            self._to_write = b""  # it has hung up, which reading tells
            self._input_ends = True
        if self._input_ends:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
