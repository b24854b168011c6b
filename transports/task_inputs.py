"""Values of tasks among the arguments of another: what stands for each in the pickle, and which values a worker keeps.

A client that pickles the future of a task puts a call of ``input_value(index)`` in its place, and names the keys of
its inputs in the task's frame, in that order. The worker that unpickles the arguments has their pickled values there:
its own latest results, or what the client sent ahead of the task. Both sides count the same way which values a worker
still keeps (``LatestValues``); where they differ, the worker says which it lacks, and is sent them.
"""

from __future__ import annotations

import pickle  # nosec B403 - only a worker unpickles here, what its authenticated owner sent
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from actorgrid.errors import MalformedBody

V = TypeVar("V")
MAX_KEPT_VALUES = 4096
MAX_KEPT_BYTES = 32 * 2**20

_here = threading.local()


def input_value(index: int) -> Any:
    """The value of the input of that *index*; called by pickle, inside of ``loads_with_inputs``.

    Each place that names the input gets an object of its own. Raises MalformedBody elsewhere.
    """
    values: Sequence[bytes] = getattr(_here, "values", ())
    if not 0 <= index < len(values):
        raise MalformedBody("the arguments name an input that the task does not have", found=f"number {index}")
    return pickle.loads(values[index])  # nosec B301 - as above


def loads_with_inputs(args: bytes, values: Sequence[bytes]) -> Any:
    """Unpickle a task's arguments, with *values*, pickled, in the places of its inputs. Raises what unpickling does."""
    before = getattr(_here, "values", ())
    _here.values = values
    try:
        return pickle.loads(args)  # nosec B301 - as above
    finally:
        _here.values = before


class LatestValues(Generic[V]):
    """The latest values of a worker, by key: 4,096 at most, of 32 MiB in all; the oldest give way.

    ``V`` is the pickled value in the worker, and its size in the client.
    """

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: dict[int, tuple[V, int]] = {}
        self._bytes = 0

    def add(self, key: int, value: V, size_bytes: int) -> None:
        """Keep a value as the latest; one that is too large for all the room is not kept."""
        self.discard(key)
        if size_bytes > MAX_KEPT_BYTES:
            return
        kept = self._kept
        kept[key] = (value, size_bytes)
        self._bytes += size_bytes
        while self._bytes > MAX_KEPT_BYTES or len(kept) > MAX_KEPT_VALUES:
            self._bytes -= kept.pop(next(iter(kept)))[1]

    def discard(self, key: int) -> None:
        """Forget a value, if it is there."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found[1]

    def get(self, key: int) -> V | None:
        """The value, if it is kept."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def __contains__(self, key: int) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._bytes = 0
