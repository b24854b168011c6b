"""A wire between a client and a host's port that can be cut, as often as a test likes: what was under way is lost."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType


class CutWire:
    """Listens on loopback, and passes on to *host*, *port* whoever connects."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_open = True
        self._over = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CutWire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """Break all connections that there are."""
        with self._lock:
            ends, self._ends = self._ends, set()
            self.cuts += 1
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        """Break all, and take none, until ``open``."""
        self._is_open = False
        self.cut()

    def open(self) -> None:
        """Take connections again."""
        self._is_open = True

    def _accept(self) -> None:
        while not self._over:
            try:
                if not select.select([self._listener], [], [], 0.5)[0]:
                    continue
                near, _ = self._listener.accept()
            except (OSError, ValueError):
                return  # closed
            try:
                far = socket.create_connection(self._to, 10) if self._is_open else None
            except OSError:
                far = None
            if far is None:
                near.close()
                continue
            for end in (near, far):
                end.settimeout(None)
            with self._lock:
                self._ends |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends -= {source, sink}
        source.close()
