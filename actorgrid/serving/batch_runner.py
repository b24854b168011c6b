"""A batcher at work: requests of a loop wait for their results, batches run on the model's threads or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from actorgrid.errors import ServiceEnding, ServingError

from .batching import USUAL, Batcher, BatchItem, BatchLimits, ItemBatch, ItemOutcome
from .model_threads import CallRaised, ModelThreads, ThreadDeath

Waiting = asyncio.Future[Any]


class BatchRunner:
    """Calls *function* with lists of values, for whoever awaits :meth:`submit`. Belongs to one loop.

    A coroutine function runs in the loop, at most as many at once as there are threads.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        limits: BatchLimits,
        threads: ModelThreads,
        rows_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._function = function
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._rows_of = rows_of
        self._core: Batcher[tuple[Any, Waiting]] = Batcher(limits)
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._coroutines: set[asyncio.Task[None]] = set()
        self._ending = False
        self.batches = 0
        """Batches that were started; ``items``: what was in them."""
        self.items = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._core.waiting

    @property
    def core(self) -> Batcher[tuple[Any, Waiting]]:
        """Who decides."""
        return self._core

    async def submit(self, value: Any, *, priority: int = USUAL, timeout_s: float | None = None) -> Any:
        """The result for *value*. Raises what the function raised or gave for it, ServiceBusy when too many wait,
        ItemExpired when it has not begun after *timeout_s*; to be cancelled takes it out of what waits."""
        if self._ending:
            raise ServiceEnding("the service ends: it takes nothing new", hint="ask another replica")
        rows = 1 if self._rows_of is None else self._rows_of(value)
        now = self._loop.time()
        answer: Waiting = self._loop.create_future()
        expires = None if timeout_s is None else now + timeout_s
        item = self._core.offer((value, answer), now, rows=rows, priority=priority, expires_at_s=expires)
        self._pump_soon()
        try:
            return await answer
        except asyncio.CancelledError:
            self._leave(item)
            raise

    def end(self) -> None:
        """Take nothing new. What waits still runs."""
        self._ending = True

    def abandon(self) -> None:
        """Take nothing new, and fail what waits with ServiceEnding."""
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._deliver(self._core.abandon(ServiceEnding("the service has ended", hint="ask another replica")))

    # -- the loop's side

    def _leave(self, item: BatchItem[tuple[Any, Waiting]]) -> None:
        if self._core.cancel(item):
            self._pump_soon()

    def _pump_soon(self) -> None:
        """Decide after all that arrives in this turn of the loop has arrived: it may go together."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle = self._threads.free if not self._is_coroutine else self._threads.count - len(self._coroutines)
        decision = self._core.decide(self._loop.time(), idle)
        self._deliver(decision.settled)
        for batch in decision.start:
            self._start(batch)
        if decision.wake_at_s is not None:
            self._timer = self._loop.call_at(decision.wake_at_s, self._pump)
        if self._core.waiting and not self._is_coroutine and not self._threads.free:
            self._threads.when_free(self._pump)

    def _start(self, batch: ItemBatch[tuple[Any, Waiting]]) -> None:
        self.batches += 1
        self.items += len(batch.items)
        values = [item.value[0] for item in batch.items]
        if self._is_coroutine:
            task = self._loop.create_task(self._await(values, batch))
            self._coroutines.add(task)
            task.add_done_callback(self._coroutines.discard)
        else:
            self._threads.call(self._function, (values,), lambda result: self._ended(batch, result))

    async def _await(self, values: list[Any], batch: ItemBatch[tuple[Any, Waiting]]) -> None:
        result: Any
        try:
            result = await self._function(values)
        except asyncio.CancelledError:
            result = ThreadDeath("the call was cancelled")
        except Exception as error:  # noqa: BLE001  (user code: whatever it raises is its callers' to hear)
            result = CallRaised(error)
        self._loop.call_soon(self._ended, batch, result)  # when the task is no longer among those that run

    def _ended(self, batch: ItemBatch[tuple[Any, Waiting]], result: Any) -> None:
        if isinstance(result, ThreadDeath):
            outcomes = self._core.executor_died(batch, result.why)
        elif isinstance(result, CallRaised):
            outcomes = self._core.failed(batch, result.error, self._loop.time())
        else:
            outcomes = self._core.finished(batch, result, self._loop.time())
        self._deliver(outcomes)
        if self._core.waiting:
            self._pump_soon()

    def _deliver(self, outcomes: Sequence[ItemOutcome[tuple[Any, Waiting]]]) -> None:
        for outcome in outcomes:
            answer = outcome.item.value[1]
            if answer.done():
                continue
            if outcome.error is None:
                answer.set_result(outcome.value)
            else:
                answer.set_exception(_raisable(outcome.error))


def _raisable(error: BaseException) -> BaseException:
    """*error* as a future takes it: StopIteration, and what ends a process, only as the cause of another."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = ServingError(f"the method gave {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
