"""Calls of ``async def`` functions in a worker: on one event loop of its main thread, one call after another."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_END: Any = object()


class AsyncCalls:
    """Runs coroutines to their end. The loop is made at the first, and kept, so that clients can be kept on it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._task_id = 0
        self._task: asyncio.Task[Any] | None = None

    def iterate(self, items: AsyncIterator[T], task_id: int) -> Iterator[T]:
        """The items of an asynchronous generator; closed early, it is closed as well."""

        async def one() -> Any:
            return await anext(items, _END)

        async def close() -> None:
            if isinstance(items, AsyncGenerator):
                await items.aclose()

        try:
            while (item := self.run(one(), task_id, keeps_tasks=True)) is not _END:
                yield item
        finally:
            self.run(close(), task_id)

    def run(
        self, coroutine: Coroutine[Any, Any, T], task_id: int, is_stopped: bool = False, keeps_tasks: bool = False
    ) -> T:
        """The value of *coroutine*. What it sets in its context is its own; tasks that it leaves behind are cancelled,
        unless it *keeps_tasks* for what runs next.

        Raises what it raises; CancelledError when it was asked to stop, before (*is_stopped*) or while it runs.
        """
        runner = self._runner = self._runner or asyncio.Runner()
        try:
            return runner.run(
                self._call(coroutine, task_id, is_stopped, keeps_tasks), context=contextvars.copy_context()
            )
        except Exception:
            raise
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self._runner = None  # it may have been left amid anything
                with contextlib.suppress(RuntimeError):
                    runner.close()
            raise

    def stop(self, task_id: int) -> bool:
        """Cancel the call of that task, if it runs; from any thread, and from a signal's handler."""
        runner, task = self._runner, self._task
        if runner is None or task is None or self._task_id != task_id:
            return False
        with contextlib.suppress(RuntimeError):  # the loop has closed
            runner.get_loop().call_soon_threadsafe(self._stop, task)
        return True

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if self._task is task:
            task.cancel()

    async def _call(self, coroutine: Coroutine[Any, Any, T], task_id: int, is_stopped: bool, keeps_tasks: bool) -> T:
        task = asyncio.current_task()
        self._task_id, self._task = task_id, task
        try:
            if is_stopped:
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._task = None
            left = set() if keeps_tasks else asyncio.all_tasks() - {task}
            for one in left:
                one.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)
