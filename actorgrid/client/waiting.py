"""Waiting for several promises at once: ``wait`` and ``as_completed`` of the standard library, and ``gather``.

The first two are as the library's own: session tasks, durable jobs and futures of any other executor may be mixed.
In a forked child they raise WrongState for what its parent submitted and has not ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from concurrent import futures as library
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
)
from typing import TYPE_CHECKING, Any, TypeVar

from actorgrid.errors import BadRequest

from .futures import LazyFuture

if TYPE_CHECKING:
    from concurrent.futures._base import DoneAndNotDoneFutures

    from .progress_bars import ProgressBar

T = TypeVar("T")

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "GatheredFuture",
    "as_completed",
    "gather",
    "wait",
]


def wait(
    fs: Iterable[Future[T]],
    timeout: float | None = None,
    return_when: str = ALL_COMPLETED,
    *,
    progress: bool | str = False,
) -> DoneAndNotDoneFutures[T]:
    """``concurrent.futures.wait``; *progress* shows a bar meanwhile, named by it if it is a text. Raises WrongState."""
    futures = _of_this_process(fs)
    if not progress:
        return library.wait(futures, timeout, return_when)
    with _bar(futures, progress):
        return library.wait(futures, timeout, return_when)


def as_completed(
    fs: Iterable[Future[T]], timeout: float | None = None, *, progress: bool | str = False
) -> Iterator[Future[T]]:
    """``concurrent.futures.as_completed``; *progress* as of wait. Raises WrongState."""
    futures = _of_this_process(fs)
    completed = library.as_completed(futures, timeout)
    return _with_bar(futures, completed, progress) if progress else completed


def _with_bar(futures: list[Future[T]], completed: Iterator[Future[T]], progress: bool | str) -> Iterator[Future[T]]:
    with _bar(futures, progress):
        yield from completed


def _bar(futures: list[Future[T]], progress: bool | str) -> ProgressBar:
    from .progress_bars import ProgressBar

    bar = ProgressBar(progress if isinstance(progress, str) else "tasks", len(futures))
    bar.follow(futures)
    return bar


def _of_this_process(futures: Iterable[Future[T]]) -> list[Future[T]]:
    found = list(futures)
    for future in found:
        if isinstance(future, LazyFuture):
            future.check_process()
    return found


class GatheredFuture(LazyFuture[list[T]]):
    """The values of several futures, in their order. Cancelled, it cancels those that have not started."""

    def __init__(self, parts: list[Future[T]], return_exceptions: bool) -> None:
        super().__init__()
        self._parts = parts
        self._return_exceptions = return_exceptions
        self._counting = threading.Lock()
        self._left = len(parts)
        if not parts:
            self.set_result([])
        for part in parts:
            part.add_done_callback(self._ended)

    def cancel(self, *, force: bool = False, cooperative: bool = False) -> bool:
        """Cancel it and what has not started of its parts, or with *force* or *cooperative* what runs as well.

        ``False`` when it is done.
        """
        if not self._cancelled():
            return self.cancelled()
        for part in self._parts:
            if isinstance(part, LazyFuture):
                part.cancel(force=force, cooperative=cooperative)
            else:
                part.cancel()
        return True

    def _ended(self, part: Future[T]) -> None:
        with self._counting:
            self._left -= 1
            last = self._left == 0
        # Errors of tasks are unpickled by whoever asks: whether this is one is seen when all are there, or at once
        # where it needs no unpickling.
        if last or (not self._return_exceptions and _failed(part)):
            with contextlib.suppress(InvalidStateError):  # it has failed, or was cancelled, before
                self.settle(self._values, b"", True if not self._return_exceptions and _failed(part) else None)

    def _values(self, _: bytes) -> list[Any]:
        if not self._return_exceptions:
            failed = next((part for part in self._parts if part.done() and _failed(part)), None)
            return [failed.result()] if failed is not None else [part.result() for part in self._parts]
        return [_outcome(part) for part in self._parts]


def gather(*futures: Future[T] | Iterable[Future[T]], return_exceptions: bool = False) -> GatheredFuture[T]:
    """One future for the values of all, in their order: ``gather(a, b).result()``, ``await gather(a, b)``.

    Takes futures, or one iterable of them. The first that fails fails it at once, and the others go on; with
    *return_exceptions* errors, and cancellations, are among the values, as of ``asyncio.gather``. Raises BadRequest.
    """
    parts: list[Any] = list(futures)
    if len(parts) == 1 and not isinstance(parts[0], Future) and isinstance(parts[0], Iterable):
        parts = list(parts[0])
    for part in parts:
        if not isinstance(part, Future):
            raise BadRequest(
                "gather takes futures",
                asked=f"a {type(part).__name__}",
                hint="client.submit() gives one; for awaitables there is asyncio.gather",
            )
    return GatheredFuture(_of_this_process(parts), return_exceptions)


def _failed(part: Future[Any]) -> bool:
    if part.cancelled():
        return True
    return part.says_failed() if isinstance(part, LazyFuture) else part.exception() is not None


def _outcome(part: Future[Any]) -> Any:
    if part.cancelled():
        return CancelledError()
    error = part.exception()
    return part.result() if error is None else error
