"""``client.stream(fn, ...)``: the values that a generator yields on a worker, as they are asked for."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from actorgrid.errors import NotSupported
from actorgrid.objects.space import Held
from actorgrid.transports.task_frames import encode_more

from .pickling import loads_value
from .stream_items import StreamItems

if TYPE_CHECKING:
    from .futures import TaskFuture

T = TypeVar("T")
_END = object()


class TaskStream(Generic[T]):
    """The values of a generator that runs on a worker, to be taken with ``for`` or ``async for``.

    The generator runs ahead of what was taken by *window* values at most, and then waits. What it raises is raised
    when the values before it have been taken. To leave early, ``close()`` the stream, leave a ``with`` on it, or drop
    it: the generator is closed at its next ``yield``. One consumer at a time.
    """

    def __init__(self, future: TaskFuture[Any], items: StreamItems) -> None:
        self.future = future
        self._items = items
        self._untold = 0  # taken, and the worker does not know
        self._taken = 0
        future.add_done_callback(lambda _: items.end())
        self._finalizer = weakref.finalize(self, _let_go, future, items)
        self._finalizer.atexit = False  # the client is closed then

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """The next value. Raises what the generator raised, WorkerLost, TaskTimedOut; StopIteration at the end."""
        item = self._next_item()
        if item is None:
            self._check_end()
            raise StopIteration
        self._taken += 1
        self._untold += 1
        if self._untold * 2 >= self._items.window:
            self.future.tell(encode_more(self.future.call.task_id, self._untold))
            self._untold = 0
        value: T = loads_value(item[0])
        return value

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        """The next value; waiting holds a thread of the loop's default executor."""
        if self._items.is_ready:
            value: Any = next(self, _END)
        else:
            value = await asyncio.to_thread(next, self, _END)
        if value is _END:
            raise StopAsyncIteration
        taken: T = value
        return taken

    def close(self, *, force: bool = False) -> None:
        """Take no more: the generator is closed at its next ``yield``; with *force* its worker is killed at once."""
        self._finalizer.detach()
        _let_go(self.future, self._items, force)

    async def aclose(self) -> None:
        """``close()``, which does not wait for anything, for ``contextlib.aclosing``."""
        self.close()

    def __enter__(self) -> TaskStream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TaskStream {self._taken} taken{' of it, done' if self.future.done() else ''}>"

    def _next_item(self) -> tuple[bytes, tuple[Held, ...]] | None:
        if self._items.is_ready:
            return self._items.take()
        with self.future.awaited():
            return self._items.take()

    def _check_end(self) -> None:
        if not self._finalizer.alive:
            return  # closed here
        try:
            count = self.future.result()
        except CancelledError:
            return
        if count != self._items.received:
            raise NotSupported(
                "the worker does not stream",
                hint="it is of an earlier version: submit a function that gives a list",
            )


def _let_go(future: TaskFuture[Any], items: StreamItems, force: bool = False) -> None:
    items.end(forget=True)
    with contextlib.suppress(Exception):  # a finalizer's: the client may be closing, or its loop gone
        if not future.done():
            future.cancel(force=force, cooperative=not force)
