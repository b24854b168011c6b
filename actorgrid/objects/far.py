"""A space of a session as it is on another host: what lies there is referred to from here, and read from here.

What this process refers to there is told to that store over the agents' link, as to our own: an object stays as long as
this process, or anybody, does. Its bytes come in pieces, over several streams at once, each piece with a checksum; they
are in memory of this process then.
"""

from __future__ import annotations

import logging
import mmap
import socket
import threading
import time
import zlib
from typing import Any

from actorgrid.errors import ActorGridError, HostUnreachable, MalformedBody, ObjectLost, Overloaded, PeerGone
from actorgrid.transports.object_frames import (
    SMALL_BYTES,
    Data,
    ObjectKey,
    Part,
    SpaceAbout,
    bulk_path,
    encode_far_line,
    far_path,
)

from .bring import bring
from .connection import StoreConnection
from .space import ObjectSpace, Reading

PIECE_BYTES = 2**20
BULK_BYTES = 8 * 2**20
"""An object of at least so much is asked of the agent, which brings it over several connections."""
STREAM_BYTES = 8 * 2**20
"""An object of more is read over two streams, and so on, up to ``STREAMS_MAX``."""
STREAMS_MAX = 4
FAR_PATIENCE_S = 5.0
"""A host that is not reached for so long is taken to be lost."""
AWAY_S = 10.0
"""For so long a host that was not reached is not tried again: what came of it before may refer to much there."""
AGAIN_S = 0.1
HELP_PATIENCE_S = 1.0
"""A stream that is not there by then is done without."""
log = logging.getLogger("actorgrid.objects")

DAMAGED_MAX = 3
"""So often a piece is asked for again that does not have its checksum."""


class FarConnection(StoreConnection):
    """A connection to the store of another host, through the agents of both. *path*: of this host's own store."""

    patience_s = FAR_PATIENCE_S
    again_s = AGAIN_S

    def __init__(self, path: str, host: str) -> None:
        super().__init__(far_path(path))
        self.prelude = encode_far_line(host)
        self.whose = f"host {host}"
        self._away_until = 0.0

    def _connected(self) -> socket.socket:
        if self._socket is None and time.monotonic() < self._away_until:
            raise HostUnreachable(f"{self.whose} was not reached a moment ago", asked=self.path)
        try:
            return super()._connected()
        except HostUnreachable:
            self._away_until = time.monotonic() + AWAY_S
            raise


class FarSpace(ObjectSpace):
    """The space of that *secret* on *host*."""

    def __init__(self, path: str, host: str, secret: bytes, about: SpaceAbout) -> None:
        super().__init__(FarConnection(path, host), secret, about)
        self.host = host
        self._store_path = path

    def read(self, key: ObjectKey, wait_s: float | None = None) -> Reading:
        """A copy of an object's bytes. Raises ObjectLost, TimeoutError, MalformedBody."""
        until = None if wait_s is None else time.monotonic() + wait_s
        try:
            try:
                return self._read(key, until)
            except PeerGone:
                return self._read(key, until)  # over another connection: somebody else may refer to it
        except (PeerGone, HostUnreachable) as error:
            raise ObjectLost(
                f"the object is gone: it was on host {self.host}, which is not reached: {error.message}",
                asked=f"{key.store[:8]}-{key.number}, {key.size} bytes",
                hint="make it again; results of tasks that are declared pure=True are made again by themselves",
                objects=[list(key)],
            ) from error

    def _read(self, key: ObjectKey, until: float | None) -> Reading:
        if key.size > SMALL_BYTES:
            return Reading(_Fetch(self, key, until).run(), None)
        found: Any = self._ask("get", list(key), None)
        if not isinstance(found, Data):
            raise MalformedBody("a small object comes with the frame", found=type(found).__name__)
        return Reading(memoryview(bytearray(found.data)), None)

    @property
    def bulk_path(self) -> str:
        """Where this host's agent brings large objects from others."""
        return bulk_path(self._store_path)

    def piece(self, key: ObjectKey, offset: int, size: int) -> bytes:
        """A piece of an object, which has its checksum."""
        for _ in range(DAMAGED_MAX):
            found: Any = self._ask("piece", list(key), offset, size)
            if isinstance(found, Part) and len(found.data) == size and zlib.crc32(found.data) == found.checksum:
                return found.data
        raise MalformedBody(
            f"pieces of an object come damaged from host {self.host}",
            asked=f"{size} bytes at {offset} of {key.store[:8]}-{key.number}",
        )

    def another(self) -> FarSpace:
        """The same over a connection of its own."""
        space = FarSpace(self._store_path, self.host, self.secret, self.about)
        space._connection.patience_s = HELP_PATIENCE_S
        return space


class _Fetch:
    """Brings one object here."""

    def __init__(self, space: FarSpace, key: ObjectKey, until: float | None) -> None:
        self._space = space
        self._key = key
        self._until = until
        try:
            self._memory = memoryview(mmap.mmap(-1, key.size))
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(f"no memory for an object of {key.size} bytes of host {space.host}: {error}") from error
        self._next = 0
        self._missed: list[int] = []  # pieces whose stream was lost
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._over = False

    def run(self) -> memoryview:
        """All of it. Raises what went wrong first."""
        self._space.open()  # before the others take its place
        if self._key.size >= BULK_BYTES:
            self._bring()
        others = [self._space.another() for _ in range(min(STREAMS_MAX - 1, self._key.size // STREAM_BYTES))]
        threads = [threading.Thread(target=self._help, args=(each,), daemon=True) for each in others]
        try:
            for thread in threads:
                thread.start()
            self._stream(self._space)
            for thread in threads:
                thread.join()
            self._stream(self._space)  # what the others did not bring
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._over = True  # of an interrupt: threads that go on end with their piece
            for each in others:
                each.close()
                each.hang_up()
        if self._error is not None:
            raise self._error
        return self._memory

    def _bring(self) -> None:
        """Have our host's agent bring it over several connections; the rest comes over the agents' streams."""
        try:
            brought = bring(self._space.bulk_path, self._space.host, self._space.secret, self._key, self._until)
        except (OSError, ActorGridError) as error:
            log.debug("an object of host %s comes over one connection: %s", self._space.host, error)
            return
        self._memory = brought.memory
        self._next = self._key.size
        self._missed = [at for piece in brought.missing for at in range(piece.offset, sum(piece), PIECE_BYTES)]

    def _help(self, space: FarSpace) -> None:
        try:
            self._stream(space)
        except (PeerGone, HostUnreachable, Overloaded):
            return  # the others do it without
        except BaseException as error:  # noqa: BLE001 - raised by whoever asked for the object
            self._error = self._error or error

    def _stream(self, space: FarSpace) -> None:
        while self._error is None and not self._over:
            with self._lock:
                offset = self._missed.pop() if self._missed else self._next
                size = min(PIECE_BYTES, self._key.size - offset)
                self._next = max(self._next, offset + size)
            if not size:
                return
            try:
                if self._until is not None and time.monotonic() >= self._until:
                    raise TimeoutError(f"an object of host {space.host} has not come in time")
                self._memory[offset : offset + size] = space.piece(self._key, offset, size)
            except BaseException:
                self._missed.append(offset)
                raise
