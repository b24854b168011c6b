"""A local socket at which processes of this host say, on one line, whom on another host they want.

Bounds: ``STRANGERS_MAX`` that have not said it yet (the oldest gives way), a line of *line_max* bytes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from actorgrid.errors import ActorGridError, StartFailed
from actorgrid.transports.peer.calls import NetLoop
from actorgrid.transports.peer_uid import uid_of_peer

from ..work.isolation.own_sockets import DOOR_MODE, make_door

STRANGERS_MAX = 64
BACKLOG = 64

L = TypeVar("L")


class LineDoor(Generic[L]):
    """*parse*: the line, and what was said behind it; ``None`` while it is not complete; raises on what is no line.

    *lead* takes the socket then. An error that either raises is given to *refuse*, and the socket is closed.
    """

    def __init__(
        self,
        loop: NetLoop,
        line_max: int,
        parse: Callable[[bytes], tuple[L, bytes] | None],
        lead: Callable[[socket.socket, L, bytes], None],
        refuse: Callable[[socket.socket, ActorGridError], None] = lambda _local, _error: None,
    ) -> None:
        self._loop = loop
        self._line_max = line_max
        self._parse = parse
        self._lead = lead
        self._refuse = refuse
        self._listener: socket.socket | None = None
        self._strangers: dict[socket.socket, bytes] = {}  # with what they have said

    def listen(self, path: Path, what: str) -> None:
        """Take processes at *path*. Raises StartFailed, which names *what* there is not."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            door = make_door(path)
            listener.bind(str(door))
            door.chmod(DOOR_MODE)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise StartFailed(f"no {what}: {error}", asked=str(path)) from error
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)

    def close(self) -> None:
        """Take nobody any more."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            with suppress(OSError):
                Path(self._listener.getsockname()).unlink(missing_ok=True)
            self._listener.close()
            self._listener = None
        for local in list(self._strangers):
            self._dismiss(local)

    def _accept(self) -> None:
        assert self._listener is not None, "it is watched while it is there"
        try:
            local, _ = self._listener.accept()
        except OSError:
            return  # it went away again
        self._make_room(uid_of_peer(local))
        local.setblocking(False)
        self._strangers[local] = b""
        self._loop.watch(local.fileno(), lambda: self._hear(local))

    def _make_room(self, uid: int) -> None:
        """Dismiss a stranger where there are as many as there may be: the oldest of that uid, if it has more than one
        in four, so that no user's work keeps all others out."""
        if uid != os.geteuid():
            own = [each for each in self._strangers if uid_of_peer(each) == uid]
            if len(own) >= STRANGERS_MAX // 4:
                self._dismiss(own[0])
        while len(self._strangers) >= STRANGERS_MAX:
            self._dismiss(next(iter(self._strangers)))

    def _hear(self, local: socket.socket) -> None:
        said = self._strangers.get(local)
        if said is None:
            return  # it gave way to another one
        try:
            data = local.recv(self._line_max - len(said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(local)
            return
        said += data
        self._strangers[local] = said
        try:
            found = self._parse(said)
            if found is None:
                return  # more is to come
            del self._strangers[local]
            self._loop.unwatch(local.fileno())
            self._lead(local, *found)
        except ActorGridError as error:
            self._refuse(local, error)
            self._dismiss(local)

    def _dismiss(self, local: socket.socket) -> None:
        if self._strangers.pop(local, None) is not None:
            self._loop.unwatch(local.fileno())
        local.close()
