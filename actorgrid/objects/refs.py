"""References to values in the object store: what ``client.put`` gives."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from actorgrid.transports.object_frames import ObjectKey

from .here import space_of
from .space import Held
from .stored import collecting, load, load_small, load_stored

T = TypeVar("T")


class Ref(Generic[T]):
    """A value in the object store. ``result()`` gives it, and so does ``await ref``.

    Among the arguments of tasks and of actors' methods, at any depth, it stands for its value, as a future does. What a
    function captures, what tasks return and what ``put`` keeps has the reference itself, and ``ref.itself`` passes it
    as an argument. The value stays in the store as long as any process refers to it, and no longer than the session
    that put it there. Arrays in it are read-only and, on that host, not copied.
    """

    __slots__ = ("__weakref__", "_held", "_small")

    def __init__(self, held: Held | None, small: bytes = b"") -> None:
        self._held = held
        self._small = small  # the pickle of a value that is not worth a place in the store

    @property
    def size_bytes(self) -> int:
        """The size of the value's pickle, with its arrays."""
        return len(self._small) if self._held is None else self._held.key.size

    @property
    def object_id(self) -> str:
        """The name of the object in listings; empty for a small value, which goes along with its references."""
        return "" if self._held is None else object_id(self._held.key)

    @property
    def itself(self) -> RefItself:
        """What to pass as an argument for the function to get this reference, not its value."""
        return RefItself(self)

    def result(self, timeout: float | None = None) -> T:
        """The value. Raises ObjectLost, and TimeoutError when it is on another host and not here in *timeout* s."""
        value: T = load_small(self._small) if self._held is None else load(self._held.space, self._held.key, timeout)
        return value

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        if self._held is None:
            return self._value().__await__()
        return asyncio.to_thread(self.result).__await__()

    async def _value(self) -> T:
        return self.result()

    def __reduce__(self) -> Any:
        parts = collecting()
        if parts is None or not parts.as_values:
            return self.reduce_itself()
        if self._held is None:
            return load_small, (self._small,)
        parts.refers.append(self._held)
        space = self._held.space
        return load_stored, (space.secret, space.home, *self._held.key)

    def reduce_itself(self) -> Any:
        """How the reference is pickled, and not its value."""
        if self._held is None:
            return small_ref, (self._small,)
        parts = collecting()
        if parts is not None:
            parts.refers.append(self._held)
        space = self._held.space
        return load_ref, (space.secret, space.home, *self._held.key)

    def __repr__(self) -> str:
        name = self.object_id
        return f"<Ref {name + ' ' if name else ''}of {self.size_bytes} bytes>"


class RefItself:
    """Stands for a reference among arguments."""

    __slots__ = ("_ref",)

    def __init__(self, ref: Ref[Any]) -> None:
        self._ref = ref

    def __reduce__(self) -> Any:
        return self._ref.reduce_itself()


def small_ref(data: bytes) -> Ref[Any]:
    """A reference that brings its value along; called by pickle."""
    return Ref(None, data)


def load_ref(secret: bytes, home: str, *key: Any) -> Ref[Any]:
    """A reference to an object of that space; called by pickle."""
    object_key = ObjectKey(*key)
    return Ref(space_of(secret, home, object_key.host).hold(object_key))


def object_id(key: ObjectKey) -> str:
    """The name of an object for people."""
    return f"{key.store[:8]}-{key.number}"
