"""Bytes between two local sockets, both ways, as fast as the slower one takes them.

Holds at most one read of each direction. Ends when both have ended, or one is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from actorgrid.transports.peer.calls import NetLoop

READ_BYTES = 256 * 2**10


class SocketJoin:
    """Joins two sockets, which are its own from then on. *on_over* is called once. *said*: what was read of the first
    before."""

    def __init__(
        self,
        loop: NetLoop,
        first: socket.socket,
        second: socket.socket,
        on_over: Callable[[SocketJoin], None],
        said: bytes = b"",
    ) -> None:
        self._loop = loop
        self._on_over = on_over
        self._other = {first: second, second: first}
        self._held = {first: b"", second: said}  # what a socket has not taken yet
        self._ended: set[socket.socket] = set()  # say no more
        self._over = False
        for sock in (first, second):
            sock.setblocking(False)
        for sock in (first, second):
            self._watch(sock)

    def close(self) -> None:
        """End both."""
        if self._over:
            return
        self._over = True
        for sock in self._other:
            self._loop.unwatch(sock.fileno())
            sock.close()
        self._on_over(self)

    def _watch(self, sock: socket.socket) -> None:
        reads = not self._held[self._other[sock]] and sock not in self._ended
        writes = bool(self._held[sock])
        if not (reads or writes):
            self._loop.unwatch(sock.fileno())
            return
        self._loop.watch(
            sock.fileno(),
            (lambda: self._read(sock)) if reads else None,
            (lambda: self._write(sock)) if writes else None,
        )

    def _read(self, sock: socket.socket) -> None:
        if self._over:
            return
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        other = self._other[sock]
        if data:
            self._held[other] = data
            self._write(other)
            return
        self._ended.add(sock)
        try:
            other.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        if len(self._ended) == len(self._other):
            self.close()
        else:
            self._watch(sock)

    def _write(self, sock: socket.socket) -> None:
        if self._over:
            return
        try:
            sent = sock.send(self._held[sock])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._held[sock] = self._held[sock][sent:]
        self._watch(sock)
        self._watch(self._other[sock])
