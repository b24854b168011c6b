"""A space of the object store as one process uses it: what it refers to there, and the memory that it sees.

All objects of a space belong to one session. They lie in one file in memory, or in one on the disk; either is mapped
once, when the first object is read there. Pages that a reader writes to (layout.py says who can) become its own, and
nobody else sees that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, MalformedBody, ObjectStoreFull, PeerGone
from actorgrid.transports.object_frames import (
    MAX_NUMBER,
    MEMORY,
    SECRET_BYTES,
    SMALL_BYTES,
    Data,
    Made,
    ObjectKey,
    Place,
    SpaceAbout,
    encode_word,
    key_of,
)

from .connection import StoreConnection
from .layout import Buffer, LaidOut

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Of a mapping as large as all of a store, only what is written to takes memory: none of it is reserved."""
WRITE_BYTES = 64 * 2**20
MAX_TOKEN = 2**62


class Gift(NamedTuple):
    """An object that is kept in the store for whoever takes it: goes along with a value that refers to it."""

    secret: bytes
    key: ObjectKey
    token: int

    def to_plain(self) -> list[Any]:
        """For a frame."""
        return [self.secret, list(self.key), self.token]


def gift_of(fields: Any) -> Gift:
    """Read a gift. Raises MalformedBody."""
    match fields:
        case [bytes(secret), list(key), int(token)] if len(secret) == SECRET_BYTES and 0 < token <= MAX_NUMBER:
            return Gift(secret, key_of(key), token)
    raise MalformedBody("not a gift of an object store", found=type(fields).__name__)


class Held:
    """A reference to an object: the object stays as long as somebody has one."""

    __slots__ = ("__weakref__", "_generation", "key", "space")

    def __init__(self, space: ObjectSpace, key: ObjectKey, generation: int) -> None:
        self.space = space
        self.key = key
        self._generation = generation

    def __del__(self) -> None:
        # At the interpreter's end, what it needs may be gone.
        with suppress(Exception):
            self.space.let_go(self.key, self._generation)


class Pin:
    """Keeps an object where it is read; ends with the last view of it."""

    __slots__ = ("_generation", "_key", "_mapped", "_offset", "_size", "_space", "written")

    def __init__(self, space: ObjectSpace, key: ObjectKey, mapped: mmap.mmap, place: Place, generation: int) -> None:
        self._space = space
        self._key = key
        self._mapped = mapped
        self._offset = place.offset
        self._size = place.size
        self._generation = generation
        self.written = False  # whether a reader may have written to its pages, which are not the object's any more

    def __call__(self) -> None:
        """End it."""
        if self.written:
            with suppress(OSError, ValueError):
                # What comes to lie here next is to be seen.
                self._mapped.madvise(mmap.MADV_DONTNEED, self._offset, self._size)
        self._space.unpin(self._key, self._generation)


class Reading(NamedTuple):
    """The bytes of an object: *pin* says whether they are written to. A copy has none."""

    view: memoryview
    pin: Pin | None


class ObjectSpace:
    """The space of that *secret*, over a connection that other spaces of the process share. For any thread."""

    def __init__(self, connection: StoreConnection, secret: bytes, about: SpaceAbout) -> None:
        self.secret = secret
        self.about = about
        self.closed = False
        self._pid = os.getpid()  # a fork of the owner is none
        self._connection = connection
        self._slot = connection.take_slot()
        self._opened = -1  # the connection's generation in which the store knows us
        self._opening = threading.Lock()
        self._counts: dict[ObjectKey, list[int]] = {}  # references here, and what the store was told; under its lock
        self._maps: dict[str, mmap.mmap | int] = {}  # by kind, to read: the whole, or where that cannot be, the file
        self._memory: mmap.mmap | None = None  # to write to
        self._disk_fd = -1  # to write to

    @property
    def path(self) -> str:
        """The socket of its store."""
        return self._connection.path

    @property
    def home(self) -> str:
        """The host of its owner; empty where that is the only one."""
        welcome = self._connection.welcome
        return self.about.home or (welcome.host if welcome is not None else "")

    # -- references

    def hold(self, key: ObjectKey, token: int = 0) -> Held:
        """Refer to an object; with *token*, take over what was given by it."""
        self._open_if_there()
        generation = self._connection.generation

        def word() -> bytes:
            count = self._counts.setdefault(key, [0, 0])
            count[0] += 1
            if count[1] and not token:
                return b""
            count[1] += 1
            self._connection.unconfirmed = True
            return encode_word("hold", self._slot, list(key), token)

        self._connection.say(word)
        return Held(self, key, generation)

    def let_go(self, key: ObjectKey, generation: int) -> None:
        """Refer to an object once less: for finalizers."""
        if generation == self._connection.generation and not self.closed:
            self._connection.say_soon(partial(self._drop, key))

    def _drop(self, key: ObjectKey) -> bytes:
        count = self._counts.get(key)
        if count is None or self.closed:
            return b""
        count[0] -= 1
        if count[0] > 0:
            return b""
        del self._counts[key]
        return encode_word("drop", self._slot, [[list(key), count[1]]])

    def give(self, key: ObjectKey) -> Gift:
        """Have an object kept until somebody holds it by the token of the gift."""
        self._open_if_there()
        token = 1 + secrets.randbelow(MAX_TOKEN)
        self._connection.say(lambda: encode_word("give", self._slot, list(key), token))
        return Gift(self.secret, key, token)

    def confirm(self) -> None:
        """Have the store know of all that is referred to here, before whoever we have it from lets go of it."""
        self._connection.flush()
        if self._connection.unconfirmed:
            with suppress(ActorGridError):  # where the store is gone, so is what is referred to
                self._connection.ask("sync")

    # -- objects

    def put(self, value: LaidOut, refers: Sequence[ObjectKey] = ()) -> Held:
        """Have the store keep a value, which refers to other objects. Raises ObjectStoreFull, HostUnreachable."""
        try:
            return self._put(value, refers)
        except PeerGone:
            return self._put(value, refers)  # the store died, and there is another by now

    def _put(self, value: LaidOut, refers: Sequence[ObjectKey]) -> Held:
        keys = [list(key) for key in refers]
        if value.size <= SMALL_BYTES:
            made: Made = self._ask("put", b"".join(value.parts), keys)
            number = made.number
        else:
            number = self._write(value, keys)
        welcome, generation = self._connection.welcome, self._connection.generation
        assert welcome is not None, "the store has just answered"
        key = ObjectKey(welcome.store, number, welcome.host, value.size)

        def word() -> bytes:
            count = self._counts.setdefault(key, [0, 0])
            count[0] += 1
            count[1] += 1
            return b""

        self._connection.say(word)
        return Held(self, key, generation)

    def _write(self, value: LaidOut, keys: list[list[Any]]) -> int:
        place: Place = self._ask("create", value.size, writable=True)
        try:
            if place.kind == MEMORY:
                self._fill(place.offset, value.parts)
            else:
                self._write_to_disk(place.offset, value.parts)
        except BaseException as error:
            self._connection.say(lambda: encode_word("abort", self._slot, place.number))
            if isinstance(error, OSError):
                raise ObjectStoreFull(
                    f"the disk of the object store takes no more: {error.strerror}",
                    asked=f"{value.size} bytes",
                    hint="make room on the disk of the host's data directory, or drop references and futures",
                ) from error
            raise
        self._ask("seal", place.number, keys)
        return place.number

    def _fill(self, offset: int, parts: Sequence[Buffer]) -> None:
        assert self._memory is not None, "its descriptor came with the first place"
        with memoryview(self._memory) as memory:
            for part in parts:
                flat = memoryview(part)
                memory[offset : offset + flat.nbytes] = flat
                offset += flat.nbytes

    def _write_to_disk(self, offset: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            flat = memoryview(part)
            while flat:
                # In steps, so that signals are looked at in between. Not through memory: a full disk were a SIGBUS.
                written = os.pwrite(self._disk_fd, flat[:WRITE_BYTES], offset)
                offset += written
                flat = flat[written:]

    def read(self, key: ObjectKey, wait_s: float | None = None) -> Reading:
        """The bytes of an object; of a large one where they lie, and it stays as long as any part of it is in use.

        *wait_s* bounds the wait for one that is on another host. Raises ObjectLost, TimeoutError, HostUnreachable.
        """
        try:
            answer: Place | Data = self._ask("get", list(key), wait_s)
        except PeerGone:
            answer = self._ask("get", list(key), wait_s)  # of another store, which says what became of it
        if isinstance(answer, Data):
            return Reading(memoryview(bytearray(answer.data)), None)
        generation = self._connection.generation
        try:
            mapped, begin = self._mapped(answer)
            pin = Pin(self, key, mapped, answer, generation)
            lying = (ctypes.c_char * answer.size).from_buffer(mapped, begin)
            weakref.finalize(lying, pin).atexit = False
        except BaseException:
            self.unpin(key, generation)
            raise
        return Reading(memoryview(lying).cast("B"), pin)

    def _mapped(self, place: Place) -> tuple[mmap.mmap, int]:
        whole = self._maps[place.kind]
        if not isinstance(whole, int):
            return whole, place.offset
        return mmap.mmap(whole, place.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=place.offset), 0

    def unpin(self, key: ObjectKey, generation: int) -> None:
        """Read an object no more: for finalizers."""
        if generation == self._connection.generation and not self.closed:
            self._connection.say_soon(lambda: encode_word("unpin", self._slot, [list(key)]))

    def took_descriptor(self, kind: str, fd: int, writable: bool) -> None:
        """Use the file that the objects of that kind lie in; it is ours to close."""
        if writable and kind != MEMORY:
            before, self._disk_fd = self._disk_fd, fd
            if before >= 0:
                os.close(before)
            return
        size = os.fstat(fd).st_size
        if writable:
            self._memory = mmap.mmap(fd, size)
            os.close(fd)
            return
        try:
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            mapped = mmap.mmap(fd, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError):
            self._maps[kind] = fd  # so much address space is not allowed here: each object gets its own
            return
        self._maps[kind] = mapped
        os.close(fd)

    def look(self) -> dict[str, Any]:
        """What there is in the spaces that this process has opened here."""
        self._open()
        found: dict[str, Any] = self._connection.ask("look").what
        return found

    # -- being known to the store

    def open(self) -> None:
        """Have the store know the space now. Raises HostUnreachable, ObjectLost."""
        self._open()

    def close(self) -> None:
        """End this process's use of the space; of its owner, the space itself. What is in use here stays readable."""
        if self.closed:
            return
        self.closed = True
        self._connection.say_soon(partial(self._close, self._opened, self._slot))
        for kept in (self._disk_fd, *self._maps.values()):
            if isinstance(kept, int) and kept >= 0:
                os.close(kept)
        self._disk_fd = -1
        self._maps.clear()
        self._memory = None

    def hang_up(self) -> None:
        """End the connection: for a space that has one of its own."""
        self._connection.close()

    def _close(self, opened: int, slot: int) -> bytes:
        known = opened == self._connection.generation
        self._connection.free_slot(slot)
        return encode_word("close", slot) if known else b""

    def __del__(self) -> None:
        # At the interpreter's end, what it needs may be gone.
        with suppress(Exception):
            self.close()

    def _open(self) -> None:
        while self._opened != self._connection.generation or self._connection.welcome is None:
            with self._opening:
                if self._opened == self._connection.generation:
                    return
                self._connection.connect()
                generation = self._connection.generation
                self._connection.say(self._forget_counts)
                about = self.about if os.getpid() == self._pid else self.about._replace(owner=False)
                self._connection.ask("open", self._slot, self.secret, about._asdict())
                self._opened = generation

    def _forget_counts(self) -> bytes:
        self._counts.clear()
        return b""

    def _open_if_there(self) -> None:
        if not self._connection.is_lost:  # else what is referred to has gone with it, and nobody waits for another
            with suppress(ActorGridError):
                self._open()

    def _ask(self, kind: str, *fields: Any, writable: bool = False) -> Any:
        self._open()
        return self._connection.ask(kind, self._slot, *fields, taker=self, writable=writable)
