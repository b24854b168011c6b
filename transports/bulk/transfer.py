"""A large thing from another host's memory into ours, over several connections; and the other side of that.

Who serves says ``["pieces", version]``. Who fetches sends ``["get", source, offset, size]``, two ahead on each
connection, and is answered each in its turn with ``["piece", offset, size, crc32]`` and the bytes, or ``["failed",
error]``. *source* is opaque here: the server's opener reads it.

Bounds: ``STREAMS_MAX`` connections of one fetch, ``AHEAD`` pieces asked for on each, ``BREAKS_MAX`` that broke.
"""

from __future__ import annotations

import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from actorgrid.errors import ActorGridError, MalformedBody, PeerGone, TaskCancelled, error_from_dict

from .connection import PIECES_VERSION, PiecesConnection
from .pieces import PIECE_BYTES, BulkPiece, PiecePlan

STREAMS_MAX = 4
AHEAD = 2
BREAKS_MAX = 8
BYTES_A_STREAM = 8 * 2**20
"""A thing of more is brought over two connections, and so on, up to ``STREAMS_MAX``."""
SIZE_MAX = 2**40

Dial = Callable[[], PiecesConnection]
OpenSource = Callable[[str, bytes], AbstractContextManager[memoryview]]
"""(host id of who asks, source) -> its bytes. Raises ActorGridError, which is told to who asks."""


class BulkFetch:
    """Brings *source*, which has as many bytes as *into*, there. *dial*: one more connection to its host."""

    def __init__(self, dial: Dial, source: bytes, into: memoryview) -> None:
        self.plan = PiecePlan(len(into))
        self.streams = 0
        self.breaks = 0
        self._dial = dial
        self._source = source
        self._into = into
        self._lock = threading.Lock()
        self._connections: set[PiecesConnection] = set()
        self._error: ActorGridError | None = None
        self._over = False

    def run(self, within_s: float | None = None) -> None:
        """All of it, or what comes in time. Raises why it could not be had, TaskCancelled when it was cancelled or is
        late: ``plan.missing`` says what has not come."""
        late = None if within_s is None else threading.Timer(within_s, self.cancel)
        if late is None:
            self._run()
            return
        late.daemon = True
        late.start()
        try:
            self._run()
        finally:
            late.cancel()

    def _run(self) -> None:
        count = min(STREAMS_MAX, 1 + len(self._into) // BYTES_A_STREAM)
        threads = [threading.Thread(target=self._stream, name="bulk", daemon=True) for _ in range(count - 1)]
        for thread in threads:
            thread.start()
        self._stream()
        for thread in threads:
            thread.join()
        if not self.plan.is_done:
            raise self._error or TaskCancelled("the fetch was cancelled")

    def _is_cancelled(self) -> bool:
        return self._over

    def cancel(self) -> None:
        """Have ``run`` end soon, from another thread."""
        with self._lock:
            self._over = True
            for connection in self._connections:
                connection.break_off()

    def _stream(self) -> None:
        """Carry pieces over one connection after the other until nothing is left to ask for."""
        while not self._over and not self.plan.is_done:
            try:
                connection = self._dial()
            except ActorGridError as error:
                self._error = self._error or _without_frames(error)
                return
            with self._lock:
                self._connections.add(connection)
                self.streams += 1
            if self._is_cancelled():
                connection.break_off()
            asked: deque[BulkPiece] = deque()
            try:
                if self._carry(connection, asked):
                    return
            except PeerGone as error:
                self.breaks += 1
                if self.breaks > BREAKS_MAX:
                    self._give_up(error)
                    return
            except ActorGridError as error:
                self._give_up(error)
                return
            finally:
                with self._lock:
                    self._connections.discard(connection)
                    for piece in asked:
                        self.plan.lost(piece)
                connection.close()

    def _give_up(self, error: ActorGridError) -> None:
        self._error = _without_frames(error)
        self.cancel()

    def _carry(self, connection: PiecesConnection, asked: deque[BulkPiece]) -> bool:
        """Whether nothing is left to ask for. Raises PeerGone, and what the other side says."""
        while not self._over:
            while len(asked) < AHEAD:
                with self._lock:
                    piece = self.plan.next()
                if piece is None:
                    break
                asked.append(piece)
                connection.send_frame(["get", self._source, *piece])
            if not asked:
                return True
            self._receive(connection, asked[0])
            with self._lock:
                self.plan.came(asked.popleft())
        return True

    def _receive(self, connection: PiecesConnection, piece: BulkPiece) -> None:
        match connection.receive_frame():
            case ["piece", int(offset), int(size), int(checksum)] if (offset, size) == piece:
                part = self._into[offset : offset + size]
                connection.receive_into(part)
                if zlib.crc32(part) != checksum:
                    raise PeerGone("a piece came damaged")  # this connection is not used any more; the piece is lost
            case ["failed", dict(error)]:
                raise error_from_dict(error)
            case other:
                raise MalformedBody("not the piece that was asked for", found=str(other[0])[:40])


def _without_frames(error: ActorGridError) -> ActorGridError:
    """*error* without the frames it came through: they would hold parts of the memory, which then cannot be closed."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def serve_pieces(connection: PiecesConnection, open_source: OpenSource) -> int:
    """Answer what the other side asks until it is gone; gives how many bytes were sent. Closes the connection."""
    serving = _Serving(connection, open_source)
    try:
        try:
            serving.run()
        except PeerGone:
            pass
        except ActorGridError as error:
            with suppress(PeerGone):
                connection.send_frame(["failed", error.to_dict()])
        # Not before the error is gone: its frames hold parts of what was opened, which could not be closed.
        serving.close()
    finally:
        connection.close()
    return serving.sent


class _Serving:
    """One connection that is served, and the source that is open for it."""

    def __init__(self, connection: PiecesConnection, open_source: OpenSource) -> None:
        self.sent = 0
        self._connection = connection
        self._open_source = open_source
        self._source = b""
        self._view: memoryview | None = None
        self._context: AbstractContextManager[memoryview] | None = None

    def run(self) -> None:
        """Serve. Raises PeerGone in the end, and what cannot be served."""
        self._connection.send_frame(["pieces", PIECES_VERSION])
        while True:
            source, piece = _asked(self._connection.receive_frame())
            view = self._opened(source)
            if piece.offset + piece.size > len(view):
                raise MalformedBody("a piece beyond the end", asked=str(piece), found=f"{len(view)} bytes")
            with view[piece.offset : piece.offset + piece.size] as part:
                self._connection.send_frame(["piece", *piece, zlib.crc32(part)])
                self._connection.send(part)
            self.sent += piece.size

    def close(self) -> None:
        """Close the source."""
        view, context, self._view, self._context = self._view, self._context, None, None
        if view is not None:
            view.release()
        if context is not None:
            context.__exit__(None, None, None)

    def _opened(self, source: bytes) -> memoryview:
        if self._view is None or source != self._source:
            self.close()
            context = self._open_source(self._connection.host_id, source)
            self._view, self._context, self._source = context.__enter__(), context, source
        return self._view


def _asked(frame: list[Any]) -> tuple[bytes, BulkPiece]:
    match frame:
        case ["get", bytes(source), int(offset), int(size)] if 0 <= offset <= SIZE_MAX and 0 < size <= PIECE_BYTES:
            return source, BulkPiece(offset, size)
    raise MalformedBody("not a question for a piece", found=str(frame[0])[:40])
