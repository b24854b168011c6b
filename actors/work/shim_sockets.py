"""The sockets of a shim: where agents come to it, and the one to its worker. What is said there is the shim's."""

from __future__ import annotations

import hmac
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.transports.frames import FrameDecoder, encode_frame

READ_BYTES = 64 * 1024
MAX_CONTROLLERS = 4
BACKLOG = 128
"""Of an object store, many workers come at once."""
MAX_CONTROL_FRAME = 4 * 2**20


def listen(path: str) -> socket.socket:
    """An AF_UNIX listener only our user may connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class _Controller:
    """One connection from an agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder(MAX_CONTROL_FRAME)
        self.token = b""  # the one it has proved; empty before

    @property
    def known(self) -> bool:
        """Whether it has proved a token."""
        return bool(self.token)


class AgentSockets:
    """The door for agents. The first frame must prove the token, or another one that was let in since; then *greeting*
    is told, and *obey* takes each frame with the token that its sender has proved.

    One that breaks the protocol, or that *obey* says False of, is hung up on. At most four are connected at once.
    *on_gone* is called with the token of each that has left.
    """

    def __init__(
        self,
        listener: socket.socket,
        poll: select.poll,
        token: str,
        greeting: Callable[[], list[Any]],
        obey: Callable[[list[Any], str], bool],
        on_gone: Callable[[str], None] = lambda _token: None,
    ) -> None:
        self._listener = listener
        self._poll = poll
        self._tokens = [token.encode()]
        self._on_gone = on_gone
        self._greeting = greeting
        self._obey = obey
        self._controllers: dict[int, _Controller] = {}

    def listen(self) -> None:
        """Have the poll tell of agents from here on."""
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)

    def ready(self, fd: int) -> bool:
        """Deal with a ready descriptor; ``False`` when it is none of these."""
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._controllers:
            self._read(self._controllers[fd])
        else:
            return False
        return True

    def tell_all(self, frame: list[Any], token: str = "") -> None:
        """Send to every agent that has proved a token, or that *token*."""
        for controller in [each for each in self._controllers.values() if each.known]:
            if not token or controller.token == token.encode():
                self._tell(controller, frame)

    def let_in(self, token: str) -> None:
        """Take agents with that token, too."""
        self._tokens.append(token.encode())

    def shut_out(self, token: str) -> None:
        """Take no more agents with that token, and hang up on those there are."""
        self._tokens = [each for each in self._tokens if each != token.encode()]
        for controller in [each for each in self._controllers.values() if each.token == token.encode()]:
            self._drop(controller)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._controllers) >= MAX_CONTROLLERS:
            connection.close()
            return
        connection.setblocking(False)
        self._controllers[connection.fileno()] = _Controller(connection)
        self._poll.register(connection, select.POLLIN)

    def _drop(self, controller: _Controller) -> None:
        if self._controllers.pop(controller.socket.fileno(), None) is None:
            return  # dropped before, when it could not be told something
        self._poll.unregister(controller.socket)
        controller.socket.close()
        if controller.known:
            self._on_gone(controller.token.decode())

    def _read(self, controller: _Controller) -> None:
        try:
            data = controller.socket.recv(READ_BYTES)
            if not data:
                self._drop(controller)
                return
            for frame in controller.decoder.feed(data):
                if not self._take(controller, frame):
                    self._drop(controller)
                    return
        except BlockingIOError:
            return
        except (OSError, ActorGridError):
            self._drop(controller)  # it broke the protocol or left; the lease goes on counting

    def _take(self, controller: _Controller, frame: list[Any]) -> bool:
        if controller.known:
            return self._obey(frame, controller.token.decode())
        match frame:
            case ["hello", str(token)]:
                said = token.encode("utf-8", "replace")
                # All are compared, so that the time it takes tells nothing of which was nearly right.
                proved = [each for each in self._tokens if hmac.compare_digest(said, each)]
                if proved:
                    controller.token = proved[0]
                    self._tell(controller, self._greeting())
                    return True
        return False

    def _tell(self, controller: _Controller, frame: list[Any]) -> None:
        try:
            controller.socket.sendall(encode_frame(frame))
        except OSError:
            self._drop(controller)  # it does not read: it has to come back


class WorkerSocket:
    """The shim's end of the socket to its worker."""

    def __init__(self, end: socket.socket, poll: select.poll) -> None:
        self.closed = False
        self._socket = end
        self._poll = poll
        self._decoder = FrameDecoder(MAX_CONTROL_FRAME)
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def listen(self) -> None:
        """Have the poll tell of the socket from here on."""
        self._poll.register(self._socket, select.POLLIN)

    def tell(self, data: bytes) -> bool:
        """Queue *data*: we may not wait for a worker that is busy. ``False`` when it has not read for very long."""
        if len(self._outgoing) > MAX_CONTROL_FRAME:
            return False
        self._outgoing += data
        self._flush()
        return True

    def read(self) -> list[list[Any]]:
        """Read what the worker said; ``closed`` is true once it is gone."""
        self._flush()
        try:
            data = self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            frames = self._decoder.feed(data)
        except BlockingIOError:
            return []  # there was only room
        except (OSError, ActorGridError):
            data, frames = b"", []
        if not data:
            self._poll.unregister(self._socket)
            self._socket.close()
            self.closed = True
        return frames

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # it is ending: its exit tells us
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
