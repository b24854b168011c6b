"""What ``client.map`` returns: values in order, with a bounded number of tasks under way."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from actorgrid.errors import BadRequest

from .chunks import call_each
from .keywords import name_of
from .options import TaskOptions

if TYPE_CHECKING:
    from .function_calls import FunctionCalls
    from .progress_bars import ProgressBar

T = TypeVar("T")


class MapResults(Iterator[T]):
    """An iterator of values, in order of the items; ``list(...)`` waits for all. ``cancel()`` gives up the rest."""

    def __init__(
        self,
        client: FunctionCalls,
        options: TaskOptions,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        *,
        chunksize: int,
        buffersize: int,
        progress: bool,
    ) -> None:
        if chunksize < 1 or buffersize < 1:
            asked = f"chunksize={chunksize}, buffersize={buffersize}"
            raise BadRequest("chunksize and buffersize are at least 1", asked=asked)
        if not iterables:
            raise BadRequest("map needs something to go over", hint="client.map(fn, items)")
        self._client = client
        self._options = options
        self._fn: Callable[..., Any] = fn if chunksize == 1 else partial(call_each, fn)
        self._buffersize = buffersize
        self._ready: deque[T] = deque()
        self._futures: deque[Future[Any]] = deque()
        self._chunked = chunksize > 1
        items = zip(*iterables, strict=False)
        self._calls: Iterator[tuple[Any, ...]] = (
            items
            if chunksize == 1
            else ((block,) for block in iter(lambda: list(itertools.islice(items, chunksize)), []))
        )
        self._until: float | None = None
        self._bar: ProgressBar | None = None
        if progress:
            from .progress_bars import ProgressBar

            self._bar = ProgressBar(name_of(fn), _length(iterables))
            weakref.finalize(self, self._bar.close)  # who leaves the loop early drops us
        self._refill()

    def __iter__(self) -> MapResults[T]:
        return self

    def __next__(self) -> T:
        if not self._ready:
            self._take()
        return self._ready.popleft()

    def within(self, timeout_s: float | None) -> MapResults[T]:
        """The same; a value that is not there in *timeout_s* from now raises TimeoutError. ``None``: whenever."""
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        return self

    def cancel(self) -> None:
        """Cancel what has not started; no further values come."""
        self._calls = iter(())
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        self._ready.clear()
        self._close_bar()

    def _take(self) -> None:
        if not self._futures:
            self._close_bar()
            raise StopIteration
        try:
            left_s = None if self._until is None else max(0.0, self._until - time.monotonic())
            value = self._futures[0].result(left_s)
            self._futures.popleft()
        except BaseException:
            self.cancel()
            raise
        if self._chunked:
            self._ready.extend(value)
        else:
            self._ready.append(value)
        self._refill()

    def _refill(self) -> None:
        while len(self._futures) < self._buffersize:
            call = next(self._calls, None)
            if call is None:
                return
            future = self._client.submit_with(self._options, self._fn, call, {})
            self._futures.append(future)
            if self._bar is not None:
                self._bar.follow([future], len(call[0]) if self._chunked else 1)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _length(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """How many items there are; ``None`` where one of them does not tell."""
    try:
        return min(len(each) for each in iterables)  # type: ignore[arg-type]
    except TypeError:
        return None
