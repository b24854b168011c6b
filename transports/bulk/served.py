"""Connections for pieces that other hosts have opened, each served by a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from ..peer.link import Admit
from ..peer.tls import TlsPipe
from .connection import PiecesConnection
from .transfer import serve_pieces


class PiecesServer:
    """*open_source*: what ``serve_pieces`` reads of. At most *most* connections are served, *most_of_host* of one host;
    further ones are closed, and who opened them goes on without. *title*: of the threads."""

    def __init__(
        self,
        open_source: Callable[[str, bytes], AbstractContextManager[memoryview]],
        title: str,
        most: int,
        most_of_host: int,
    ) -> None:
        self.sent_bytes_total = 0
        self._open_source, self._title = open_source, title
        self._most, self._most_of_host = most, most_of_host
        self._connections: list[PiecesConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        """How many are served now."""
        return len(self._connections)

    def serve(self, host_id: str, fingerprint: str, connected: socket.socket, tls: TlsPipe, unsent: bytes) -> None:
        """Serve a connection, by a thread; with too many it is closed."""
        connection = PiecesConnection(connected, tls, host_id, fingerprint, unsent)
        with self._lock:
            of_host = sum(each.host_id == host_id for each in self._connections)
            if self._closed or len(self._connections) >= self._most or of_host >= self._most_of_host:
                connection.close()
                return
            self._connections.append(connection)
        threading.Thread(target=self._serve, args=(connection,), name=self._title, daemon=True).start()

    def drop_refused(self, admit: Admit) -> set[str]:
        """End the connections of hosts that the ledger does not know any more; gives those hosts."""
        with self._lock:
            refused = [each for each in self._connections if admit(each.host_id, each.fingerprint) is not None]
            for connection in refused:
                connection.break_off()
        return {each.host_id for each in refused}

    def close(self) -> None:
        """Serve nobody any more."""
        with self._lock:
            self._closed = True
            for connection in self._connections:
                connection.break_off()

    def _serve(self, connection: PiecesConnection) -> None:
        sent = 0
        try:
            sent = serve_pieces(connection, self._open_source)
        finally:
            with self._lock:
                self._connections.remove(connection)
                self.sent_bytes_total += sent
