"""What ``client.map`` returns: values in order, with a bounded number of tasks under way."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from actorgrid.errors import BadRequest

from .chunks import call_each
from .options import TaskOptions

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")


class MapResults(Generic[T]):
    """An iterator of values, in order of the items; ``list(...)`` waits for all. ``cancel()`` gives up the rest."""

    def __init__(
        self,
        client: Client,
        options: TaskOptions,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        *,
        chunk: int,
        window: int,
        progress: bool,
    ) -> None:
        if chunk < 1 or window < 1:
            raise BadRequest("chunk and window are at least 1", asked=f"chunk={chunk}, window={window}")
        if not iterables:
            raise BadRequest("map needs something to go over", hint="client.map(fn, items)")
        self._client = client
        self._options = options
        self._fn: Callable[..., Any] = fn if chunk == 1 else partial(call_each, fn)
        self._window = window
        self._ready: deque[T] = deque()
        self._futures: deque[Future[Any]] = deque()
        self._chunked = chunk > 1
        items = zip(*iterables, strict=False)
        self._calls: Iterator[tuple[Any, ...]] = (
            items if chunk == 1 else ((block,) for block in iter(lambda: list(itertools.islice(items, chunk)), []))
        )
        self._done = 0
        self._progress = progress and sys.stderr.isatty()
        self._refill()

    def __iter__(self) -> MapResults[T]:
        return self

    def __next__(self) -> T:
        if not self._ready:
            self._take()
        self._done += 1
        return self._ready.popleft()

    def cancel(self) -> None:
        """Cancel what has not started; no further values come."""
        self._calls = iter(())
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        self._ready.clear()

    def _take(self) -> None:
        if not self._futures:
            self._show(end=True)
            raise StopIteration
        try:
            value = self._futures.popleft().result()
        except BaseException:
            self.cancel()
            raise
        if self._chunked:
            self._ready.extend(value)
        else:
            self._ready.append(value)
        self._refill()
        self._show()

    def _refill(self) -> None:
        while len(self._futures) < self._window:
            call = next(self._calls, None)
            if call is None:
                return
            self._futures.append(self._client.submit_with(self._options, self._fn, call, {}))

    def _show(self, end: bool = False) -> None:
        if self._progress and (end or self._done % 64 == 0):
            sys.stderr.write(f"\r{self._done} done, {len(self._futures)} under way" + ("\n" if end else " "))
            sys.stderr.flush()
            self._progress = not end
