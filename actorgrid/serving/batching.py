"""Which requests run together, and when: the decisions of dynamic batching, without clock, thread or socket.

Events in (an item arrived, left, a batch ended), instructions out (start this batch, ask again at that time, these
items are settled). Promises, each held by a property test:

* An item is settled once, or it was cancelled.
* Items of one priority start in the order in which they arrived; of several priorities the lowest number goes first.
* No batch has more rows than ``max_size``.
* While an executor is idle no item waits longer than ``max_wait_s`` after its arrival.
* What is expired or cancelled when a batch is made is not in it.
* What waits is never more than ``queue_max`` items; one more is refused with ServiceBusy.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from actorgrid.errors import BadRequest, ExecutorDied, ItemExpired, ItemTooLarge, ServiceBusy, WrongResultLength

from .arrivals import ArrivalRate
from .batch_cost import BatchCost
from .batch_size import BatchSize

T = TypeVar("T")
FIRST, USUAL, LAST = 0, 5, 9
"""Priorities: which are served before all others, which is meant where none is said, which are served last."""
SLACK = 64
"""How many items that have left may stay in a queue or the table of ends, beside as many as wait."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The bounds of a batcher. Raises BadRequest where one makes no sense."""

    max_size: int = 32
    """Rows of a batch."""
    max_wait_s: float = 0.002
    """How long an item may wait for others while an executor is idle."""
    queue_max: int = 1024
    """Items that wait."""
    target_p99_s: float | None = None
    """What 99 of 100 items should take at most, from arrival to answer; ``None``: batches are as large as they may."""
    rerun_alone: bool = True
    """Whether the items of a batch that raised are tried again one by one."""

    def __post_init__(self) -> None:
        for name, least, most in (("max_size", 1, 65_536), ("queue_max", 1, 1_000_000)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise BadRequest(f"{name} is a whole number from {least} to {most:,}", asked=f"{name}={value!r}")
        if not 0 <= self.max_wait_s <= 10:
            raise BadRequest("a batch waits from 0 to 10 seconds", asked=f"{self.max_wait_s} s")
        if self.target_p99_s is not None and not 0 < self.target_p99_s <= 3600:
            raise BadRequest("the target of p99 is over 0 and at most an hour", asked=f"{self.target_p99_s} s")


class ItemState(enum.Enum):
    """Where an item is."""

    WAITING = "waiting"
    RUNNING = "running"
    SETTLED = "settled"
    LEFT = "left"
    """Cancelled by whoever brought it: nobody is told of it any more."""


@dataclass(slots=True, eq=False)
class BatchItem(Generic[T]):
    """A request that waits or runs."""

    value: T
    rows: int
    priority: int
    arrived_at_s: float
    expires_at_s: float | None
    state: ItemState = ItemState.WAITING


@dataclass(slots=True, eq=False)
class ItemBatch(Generic[T]):
    """Items that run together on one executor."""

    items: tuple[BatchItem[T], ...]
    started_at_s: float
    alone: bool = False
    """A single item of a batch that raised, tried again."""

    @property
    def rows(self) -> int:
        """Of all its items."""
        return sum(item.rows for item in self.items)


@dataclass(frozen=True, slots=True)
class ItemOutcome(Generic[T]):
    """How an item ended: with *value*, or with *error*."""

    item: BatchItem[T]
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class BatchDecision(Generic[T]):
    """What is to be done now."""

    start: list[ItemBatch[T]] = field(default_factory=list)
    settled: list[ItemOutcome[T]] = field(default_factory=list)
    wake_at_s: float | None = None
    """When to ask again, if nothing happens before."""


class Batcher(Generic[T]):
    """Items of one function, from their arrival to their outcome."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.size = BatchSize(limits.max_size, limits.target_p99_s)
        self.cost = BatchCost()
        self.arrivals = ArrivalRate()
        self.waiting = 0
        """Items that wait."""
        self._rows_waiting = 0
        self._queues: dict[int, deque[BatchItem[T]]] = {}
        self._alone: deque[BatchItem[T]] = deque()
        self._ends: list[tuple[float, int, BatchItem[T]]] = []
        self._numbered = 0

    def offer(
        self, value: T, now_s: float, *, rows: int = 1, priority: int = USUAL, expires_at_s: float | None = None
    ) -> BatchItem[T]:
        """Let an item wait. Raises ServiceBusy, ItemTooLarge or BadRequest, and has then not taken it."""
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise BadRequest("an item has one row or more", asked=f"{rows!r} rows", hint="see rows= of @batch")
        if rows > self.limits.max_size:
            raise ItemTooLarge(f"an item has at most {self.limits.max_size} rows, as a batch has", asked=f"{rows} rows")
        if not FIRST <= priority <= LAST:
            raise BadRequest(f"priorities are from {FIRST} (first) to {LAST}", asked=str(priority)[:40])
        if self.waiting >= self.limits.queue_max:
            raise ServiceBusy(
                "as many requests wait as may",
                asked="one more",
                found=f"{self.waiting} waiting",
                hint="try again a little later, or add replicas",
            )
        item = BatchItem(value, rows, priority, now_s, expires_at_s)
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
        queue.append(item)
        self._wait(item)
        self.arrivals.arrived(now_s)
        return item

    def cancel(self, item: BatchItem[T]) -> bool:
        """Forget an item. True: it had not begun, and never will. False: it runs or is settled; nobody is told."""
        before = item.state
        item.state = ItemState.LEFT
        if before is ItemState.WAITING:
            self._no_longer_waits(item)
            return True
        return False

    def decide(self, now_s: float, idle: int) -> BatchDecision[T]:
        """What is to be done, with *idle* executors that have nothing to do. What it starts takes one of them each."""
        found: BatchDecision[T] = BatchDecision()
        self._expire(now_s, found.settled)
        while len(found.start) < idle and self.waiting:
            if self._alone:
                batch = self._take_alone(now_s)
                if batch is not None:
                    found.start.append(batch)
                continue
            until = self._worth_waiting_until(now_s)
            if until is not None:
                found.wake_at_s = until
                break
            found.start.append(self._take(now_s))
        if self.waiting and self._ends and (found.wake_at_s is None or self._ends[0][0] < found.wake_at_s):
            found.wake_at_s = self._ends[0][0]
        return found

    def finished(self, batch: ItemBatch[T], results: object, now_s: float) -> list[ItemOutcome[T]]:
        """The function gave *results* for the batch: one for each item, in their order. One that is an exception is its
        item's failure. Anything else than so many results fails all of them with WrongResultLength."""
        self._ran(batch, now_s)
        given = _as_sequence(results)
        if given is None or len(given) != len(batch.items):
            error = WrongResultLength(
                "a batched method gives a list with one result for each item, in their order",
                asked=f"{len(batch.items)} items",
                found=f"{len(given)} results" if given is not None else f"a {type(results).__name__}",
            )
            return self._settle(batch, [error] * len(batch.items))
        return self._settle(batch, given)

    def failed(self, batch: ItemBatch[T], error: Exception, now_s: float) -> list[ItemOutcome[T]]:
        """The function raised: its items fail with that, or wait to be tried again, each alone and before others."""
        self._ran(batch, now_s)
        if batch.alone or len(batch.items) == 1 or not self.limits.rerun_alone:
            return self._settle(batch, [error] * len(batch.items))
        for item in batch.items:
            if item.state is ItemState.RUNNING:
                item.state = ItemState.WAITING
                self._alone.append(item)
                self._wait(item)
        return []

    def executor_died(self, batch: ItemBatch[T], why: str) -> list[ItemOutcome[T]]:
        """What ran the batch is gone: its items fail at once. Nothing of them is tried again; they may be the cause."""
        error = ExecutorDied("what ran the batch ended before it gave an answer", found=why)
        return self._settle(batch, [error] * len(batch.items))

    def abandon(self, error: Exception) -> list[ItemOutcome[T]]:
        """Fail all that wait: nothing will run any more."""
        waiting = [item for queue in (self._alone, *self._queues.values()) for item in queue]
        self._alone.clear()
        self._queues.clear()
        self._ends.clear()
        found = []
        for item in waiting:
            if item.state is ItemState.WAITING:
                self._no_longer_waits(item)
                item.state = ItemState.SETTLED
                found.append(ItemOutcome(item, error=error))
        return found

    # -- when

    def _worth_waiting_until(self, now_s: float) -> float | None:
        """Until when those that wait should go on waiting for another; ``None``: they run now."""
        if self.limits.max_wait_s <= 0 or self._rows_waiting >= self.size.limit:
            return None
        end = min(queue[0].arrived_at_s for queue in self._heads()) + self.limits.max_wait_s
        gap = self.arrivals.expected_gap_s(now_s)
        if gap is None or now_s + gap > end or not self.cost.waiting_pays(self._rows_waiting, gap):
            return None
        return now_s + gap

    # -- taking

    def _heads(self) -> list[deque[BatchItem[T]]]:
        """The queues with somebody in them, in the order of their priority; who left is no longer at their heads."""
        found = []
        for priority in sorted(self._queues):
            queue = self._queues[priority]
            while queue and queue[0].state is not ItemState.WAITING:
                queue.popleft()
            if queue:
                found.append(queue)
            else:
                del self._queues[priority]
        return found

    def _take(self, now_s: float) -> ItemBatch[T]:
        """The next batch. Somebody waits, and nobody of those whose end has come."""
        taken: list[BatchItem[T]] = []
        rows = 0
        for queue in self._heads():
            while queue:
                item = queue[0]
                if item.state is ItemState.WAITING:
                    # One that is larger than batches are just now goes alone; nobody passes it.
                    if taken and rows + item.rows > self.size.limit:
                        return self._started(taken, now_s)
                    taken.append(item)
                    rows += item.rows
                queue.popleft()
                if rows >= self.size.limit:
                    return self._started(taken, now_s)
        return self._started(taken, now_s)

    def _take_alone(self, now_s: float) -> ItemBatch[T] | None:
        item = self._alone.popleft()
        if item.state is not ItemState.WAITING:
            return None
        return self._started([item], now_s, alone=True)

    def _started(self, items: list[BatchItem[T]], now_s: float, alone: bool = False) -> ItemBatch[T]:
        assert items, "a batch has an item"
        for item in items:
            self._no_longer_waits(item)
            item.state = ItemState.RUNNING
        return ItemBatch(tuple(items), now_s, alone)

    def _wait(self, item: BatchItem[T]) -> None:
        self.waiting += 1
        self._rows_waiting += item.rows
        if item.expires_at_s is not None:
            self._numbered += 1
            heapq.heappush(self._ends, (item.expires_at_s, self._numbered, item))

    def _no_longer_waits(self, item: BatchItem[T]) -> None:
        self.waiting -= 1
        self._rows_waiting -= item.rows
        bound = 2 * self.waiting + SLACK
        if len(self._ends) > bound:
            self._ends = [each for each in self._ends if each[2].state is ItemState.WAITING and each[2] is not item]
            heapq.heapify(self._ends)
        queue = self._queues.get(item.priority)
        if queue is not None and len(queue) > bound:
            kept = [each for each in queue if each.state is ItemState.WAITING or each is item]
            queue.clear()
            queue.extend(kept)

    # -- ends

    def _expire(self, now_s: float, settled: list[ItemOutcome[T]]) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, _, item = heapq.heappop(self._ends)
            if item.state is ItemState.WAITING:
                self._no_longer_waits(item)
                item.state = ItemState.SETTLED
                error = ItemExpired(
                    "the request was not begun in the time that it was given",
                    found=f"it waited {now_s - item.arrived_at_s:.3f} s",
                    hint="give it more time, or add replicas",
                )
                settled.append(ItemOutcome(item, error=error))

    def _ran(self, batch: ItemBatch[T], now_s: float) -> None:
        seconds = now_s - batch.started_at_s
        rows = batch.rows
        self.cost.ran(rows, seconds)
        if self.limits.target_p99_s is not None:
            self.size.ran(rows, seconds, [now_s - item.arrived_at_s for item in batch.items])

    def _settle(self, batch: ItemBatch[T], results: Sequence[Any]) -> list[ItemOutcome[T]]:
        found = []
        for item, result in zip(batch.items, results, strict=True):
            if item.state is not ItemState.RUNNING:
                continue  # who brought it has left
            item.state = ItemState.SETTLED
            if isinstance(result, BaseException):
                found.append(ItemOutcome(item, error=result))
            else:
                found.append(ItemOutcome(item, value=result))
        return found


def _as_sequence(results: object) -> Sequence[Any] | None:
    """What a batched method gave as a sequence of results: a list, a tuple, an array; ``None`` where it is none."""
    if isinstance(results, list | tuple):
        return results
    if isinstance(results, str | bytes | bytearray | dict | set | frozenset):
        return None
    if hasattr(results, "__len__") and hasattr(results, "__getitem__"):
        try:
            return list(results)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            return None
    return None
