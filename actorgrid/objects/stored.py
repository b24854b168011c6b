"""Values that lie in the object store, and what stands for them in pickles.

A value that is sent to another process is a pickle. Of one that is kept in the store, it is a short pickle whose
loading reads the value there: so it goes wherever pickles go, and nobody on the way unpickles anything. References
(refs.py) are pickled in two ways: among the arguments of a call they stand for their values, everywhere else they
arrive as references.
"""

from __future__ import annotations

import pickle  # nosec B403 - what a user's processes send each other; the store itself never unpickles
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pickle import PickleBuffer
from typing import Any, NamedTuple

from actorgrid.errors import UnpicklableFunction
from actorgrid.transports.object_frames import ObjectKey

from .here import space_of
from .layout import OWN_COPY, Buffer, find_parts, lay_out
from .space import Held, ObjectSpace, Pin

KEPT_BYTES = 2**20
"""A value up to so large goes with what is said of it; a larger one is kept where it was made."""
OUT_OF_BAND_BYTES = 256 * 1024
"""A buffer below that is copied into the pickle."""

_here = threading.local()


class PickledBeside:
    """What pickling found beside the pickle: large buffers, and references to objects.

    ``with parts:`` collects references of this thread; it is pickle's ``buffer_callback`` as well.
    """

    __slots__ = ("_before", "as_values", "buffers", "own_copies", "refers", "size")

    def __init__(self, as_values: bool = False) -> None:
        self.as_values = as_values  # whether references stand for their values
        self.buffers: list[tuple[memoryview, int]] = []
        self.refers: list[Held] = []
        self.own_copies: set[int] = set()  # ids of buffers that their reader writes to
        self.size = 0

    def __enter__(self) -> PickledBeside:
        self._before = getattr(_here, "parts", None)
        _here.parts = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.parts = self._before

    def __call__(self, buffer: PickleBuffer) -> bool:
        """Whether pickle is to copy the buffer; if not, it is kept here."""
        try:
            flat = buffer.raw()
        except BufferError:
            return True  # not in one piece
        if flat.nbytes < OUT_OF_BAND_BYTES:
            return True
        self.buffers.append((flat, OWN_COPY if id(buffer) in self.own_copies else 0))
        self.size += flat.nbytes
        return False

    def clear(self) -> None:
        """Forget what was found, to pickle anew."""
        self.buffers.clear()
        self.refers.clear()
        self.own_copies.clear()
        self.size = 0


def collecting() -> PickledBeside | None:
    """What is being pickled in this thread, if references are to say that they are part of it."""
    return getattr(_here, "parts", None)


class Packed(NamedTuple):
    """A value as bytes that any process of the session can load."""

    body: bytes
    held: tuple[Held, ...]
    """Objects that loading it reads: it can be loaded as long as somebody refers to them."""


def pack(
    dump: Callable[[PickledBeside | None], bytes],
    open_space: Callable[[], ObjectSpace | None],
    as_values: bool = False,
) -> Packed:
    """Pickle a value, and keep it in the store if it is large. *dump* is called with pickle's ``buffer_callback``.

    *open_space*: where to keep it; where there is no store, all of it is in the body. Raises what *dump* raises,
    ObjectStoreFull, and HostUnreachable.
    """
    parts = PickledBeside(as_values)
    with parts:
        data = dump(parts)
        if len(data) + parts.size <= KEPT_BYTES:
            if parts.buffers:
                parts.clear()
                data = dump(None)
            return Packed(data, tuple(parts.refers))
        space = open_space()
        if space is None:
            parts.clear()
            return Packed(dump(None), tuple(parts.refers))
        held = keep(space, [data], parts)
    # References that stand for their values: the store keeps these for the whole, bring_along needs them itself. What
    # lies on other hosts no store keeps for it: whoever has the value refers to that as well.
    beside = parts.refers if as_values else [each for each in parts.refers if each.key.host != held.key.host]
    return Packed(stand_in(held), (held, *beside))


class LargeBytes:
    """Pickles bytes beside the pickle, which would have a copy of them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return bytes, (PickleBuffer(self._data),)


def large(value: Any) -> Any:
    """*value*, or what to pickle in its place."""
    return LargeBytes(value) if type(value) is bytes and len(value) >= OUT_OF_BAND_BYTES else value


def keep(space: ObjectSpace, pickled: list[Buffer], parts: PickledBeside) -> Held:
    """Keep a pickled value in the store."""
    return space.put(lay_out(pickled, parts.buffers), [each.key for each in parts.refers])


def stand_in(held: Held) -> bytes:
    """A pickle whose loading gives the value that is kept."""
    return pickle.dumps(StandIn(held), 5)


class StandIn:
    """Pickled, it stands for a value in the store."""

    __slots__ = ("held",)

    def __init__(self, held: Held) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return load_stored, (self.held.space.secret, self.held.space.home, *self.held.key)


def load_stored(secret: bytes, home: str, *key: Any) -> Any:
    """The value of an object; called by pickle. Raises ObjectLost, and what loading it does."""
    brought: bytes | None = getattr(_here, "brought", {}).get(key)
    if brought is not None:
        return _value_in(memoryview(brought), None)
    object_key = ObjectKey(*key)
    return load(space_of(secret, home, object_key.host), object_key)


def load_small(data: bytes) -> Any:
    """A small value that came along; called by pickle."""
    return pickle.loads(data)  # nosec B301 - from the user's own process


def load(space: ObjectSpace, key: ObjectKey, wait_s: float | None = None) -> Any:
    """The value of an object: arrays and the like lie where they lie in the store, and are read-only.

    Raises ObjectLost, TimeoutError, and what unpickling does.
    """
    return _value_in(*space.read(key, wait_s))


def _value_in(view: memoryview, pin: Pin | None) -> Any:
    pickled, places = find_parts(view)
    buffers: list[Buffer] = []
    for offset, size, flags in places:
        part = view[offset : offset + size]
        if flags & OWN_COPY and pin is not None:
            pin.written = True
        if flags & OWN_COPY and view.readonly:
            buffers.append(bytearray(part))
        else:
            buffers.append(part if flags & OWN_COPY else part.toreadonly())
    return pickle.loads(pickled, buffers=buffers)  # nosec B301 - of the user's own session


# -- for a process that is not at the store


def bring_along(body: bytes, held: Sequence[Held], bytes_max: int) -> bytes:
    """*body* with the values that it loads from the store, for a worker without one: of such a host, or of before.

    Raises ObjectLost, HostUnreachable, and UnpicklableFunction where that is more than *bytes_max*.
    """
    if not held:
        return body
    each_once = {tuple(each.key): each for each in held}  # a reference may be part of a value several times
    size = len(body) + sum(each.key.size for each in each_once.values())
    if size > bytes_max:
        raise UnpicklableFunction(
            f"{size} bytes are too much to send to a worker whose host has no object store",
            asked=f"at most {bytes_max} bytes",
            hint="switch it on there (objects.enabled), run it on another host, or write them to a file that both see",
        )
    brought = {key: bytes(each.space.read(each.key).view) for key, each in each_once.items()}
    if len(brought) == 1 and body == stand_in(held[0]):
        return pickle.dumps(_Whole(*brought.values()), 5)
    return pickle.dumps(_Along(body, brought), 5)


class _Whole:
    """Pickled, a value as it lies in the store; loaded by pickle alone, as workers of any version have it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        view = memoryview(self._data)
        pickled, places = find_parts(view)
        buffers = [
            (bytearray if each.flags & OWN_COPY else bytes)(view[each.offset : each.offset + each.size])
            for each in places
        ]
        return partial(pickle.loads, buffers=buffers), (bytes(pickled),)


class _Along:
    """Pickled, a pickle and what it loads from the store."""

    def __init__(self, body: bytes, brought: dict[tuple[Any, ...], bytes]) -> None:
        self._parts = body, brought

    def __reduce__(self) -> Any:
        return load_with, self._parts


def load_with(body: bytes, brought: dict[tuple[Any, ...], bytes]) -> Any:
    """Load a pickle with values of the store that came along; called by pickle. Raises what loading it does."""
    before = getattr(_here, "brought", {})
    _here.brought = {**before, **brought}
    try:
        return pickle.loads(body)  # nosec B301 - from the user's own process
    finally:
        _here.brought = before
