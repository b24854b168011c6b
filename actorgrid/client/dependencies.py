"""Calls whose arguments hold futures of others: held until those have values, failed when one of them fails.

A call with inputs is in no queue while one of them is missing, and so takes no worker from what it waits for; an input
is a future that exists before the call does, so there are no cycles. What is decided here is carried out by the
dispatcher; the values themselves go as the pickled bytes in which they came.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from actorgrid.errors import ActorGridError, DependencyFailed
from actorgrid.objects.space import Held

from .call_errors import copy_of
from .futures import LazyFuture, TaskFuture, pickled_value
from .lanes import LeasedWorker, Pace, TaskCall
from .pickling import dumps

MAX_FOLLOWED_INPUTS = 8
"""A call with more inputs is not sent behind them before they have ended: looking at all of them for each would cost
the square of their number."""
NEAR_BYTES = 4096
"""So many bytes of inputs at a worker make it the nearest; less is sent as quickly as it is found."""


class TaskInput:
    """The value of a future as an argument of calls: one record, as long as one of these calls is unfinished."""

    __slots__ = (
        "__weakref__",
        "body",
        "call",
        "dependents",
        "failure",
        "held",
        "key",
        "lost_with",
        "origin",
        "settled",
    )

    def __init__(self, key: int, call: TaskCall | None) -> None:
        self.key = key  # by which workers know the value: the id of the task, where it is theirs
        self.call = call  # which gives it, while it is unfinished
        self.settled = False
        self.body = b""
        self.held: tuple[Held, ...] = ()  # what the body needs of the object store
        self.origin: Any = None  # how it came to be, where it may be made again (lineage.py)
        self.lost_with: frozenset[str] = frozenset()  # the stores that it was lost with, and made again
        self.failure: Callable[[LazyFuture[Any]], None] | None = None  # ends a call as its input ended
        self.dependents: list[TaskCall] = []

    def take(self, future: LazyFuture[Any]) -> None:
        """Note how *future*, which is done, ended."""
        raw = pickled_value(future)
        if future.cancelled():
            self.failure = _cancelled
        elif raw is not None and raw.failed:
            self.failure = lambda dependent: dependent.settle(raw.decode, raw.body, True)
        elif raw is not None:
            self.body, self.held, self.origin = raw.body, raw.held, future.origin
        else:
            error = future.exception()
            if error is None:
                try:
                    self.body = dumps(future.result(), "the value of an argument's task")
                except ActorGridError as found:
                    error = found
            if error is not None:
                cause = error
                self.failure = lambda dependent: dependent.set_exception(_another(cause))


class CallDependencies:
    """Which calls wait for which futures. *lock* is the dispatcher's.

    *release* is called with the calls that have all they need, *abandon* with one that never will, both with the lock
    held.
    """

    def __init__(
        self,
        lock: threading.Lock,
        new_key: Callable[[], int],
        release: Callable[[list[TaskCall]], None],
        abandon: Callable[[TaskCall], None],
    ) -> None:
        self._lock = lock
        self._new_key = new_key
        self._release = release
        self._abandon = abandon
        # Ends are taken one after another and not from within each other: a chain may be longer than Python's stack.
        self._ended: deque[tuple[weakref.ref[TaskInput], Future[Any]]] = deque()
        self._taking = False

    def inputs_for(self, futures: Sequence[LazyFuture[Any]], owner: object) -> tuple[TaskInput, ...]:
        """The records of *futures*, made where there is none. Without the lock."""
        found: list[TaskInput] = []
        made: list[tuple[LazyFuture[Any], TaskInput]] = []
        with self._lock:
            for future in futures:
                use = None if future.use is None else future.use()
                if use is None or future.used_by is not self:
                    use = self._record(future, owner)
                    future.use, future.used_by = weakref.ref(use), self
                    made.append((future, use))
                found.append(use)
        for future, use in made:
            future.add_done_callback(_Heard(self, weakref.ref(use)))
        return tuple(found)

    def _record(self, future: LazyFuture[Any], owner: object) -> TaskInput:
        # Unpickled and maybe changed since, or made again, a value is another than workers keep under the task's id.
        is_another = future.is_unfolded() or future.was_made_again
        if isinstance(future, TaskFuture) and future._owner is owner and not is_another:
            call: TaskCall = future.call
            return TaskInput(call.task_id, call)
        return TaskInput(self._new_key(), None)

    def hear(self, use: weakref.ref[TaskInput], future: Future[Any]) -> None:
        """Take the end of an input: release what waited for it alone, or end it as that ended."""
        self._ended.append((use, future))
        with self._lock:
            if self._taking:
                return  # whoever takes finds ours, maybe we ourselves further up the stack
            self._taking = True
        while True:
            with self._lock:
                if not self._ended:
                    self._taking = False
                    return
            reference, ended = self._ended.popleft()
            record = reference()
            if record is not None:
                record.take(ended)  # type: ignore[arg-type]
                for call in self._settle(record):
                    assert record.failure is not None
                    record.failure(call.future)

    def _settle(self, record: TaskInput) -> list[TaskCall]:
        """Count the input as there; gives the calls to end as it ended."""
        ready: list[TaskCall] = []
        hopeless: list[TaskCall] = []
        with self._lock:
            record.settled = True
            record.call = None
            dependents, record.dependents = record.dependents, []
            for call in dependents:
                if call.done or call.cancelled:
                    continue
                if record.failure is not None:
                    self._abandon(call)
                    hopeless.append(call)
                    continue
                call.missing -= 1
                if call.missing == 0 and call in call.lane.held:
                    call.lane.held.discard(call)
                    ready.append(call)
            if ready:
                self._release(ready)
        return hopeless


class _Heard:
    """A callback that keeps neither the record nor its value alive, unlike a bound method of it."""

    __slots__ = ("dependencies", "use")

    def __init__(self, dependencies: CallDependencies, use: weakref.ref[TaskInput]) -> None:
        self.dependencies = dependencies
        self.use = use

    def __call__(self, future: Future[Any]) -> None:
        self.dependencies.hear(self.use, future)


def hold(call: TaskCall, inputs: tuple[TaskInput, ...]) -> Callable[[LazyFuture[Any]], None] | None:
    """Give a new call its inputs, with the lock held. Gives how to end it, when one of them has failed already."""
    call.inputs = inputs
    for used in inputs:
        if used.failure is not None and used.settled:
            return used.failure
    for used in inputs:
        if not used.settled:
            call.missing += 1
            used.dependents.append(call)
    return None


def leader(call: TaskCall, estimate_s: float) -> LeasedWorker | None:
    """The worker to which a new call may be sent behind what it waits for, at once."""
    first = next(used for used in call.inputs if not used.settled)
    link = first.call.link if first.call is not None else None
    return link if link is not None and link.has_capacity(estimate_s) and can_follow(call, link) else None


def lacking_values(call: TaskCall, link: LeasedWorker) -> list[TaskInput]:
    """The inputs to send to *link* ahead of *call*, as it does not have them."""
    return [used for used in call.inputs if used.settled and used.key not in link.values]


def can_follow(call: TaskCall, link: LeasedWorker) -> bool:
    """Whether a call may be sent to *link* behind those of its inputs that have not ended, as they are all there."""
    return (
        link.takes_values
        and link.may_take(call)
        and call.lane is link.lane
        and not call.lane.waiting
        and len(call.inputs) <= MAX_FOLLOWED_INPUTS
        and all(used.settled or (used.call is not None and used.call.link is link) for used in call.inputs)
    )


def followers(call: TaskCall, link: LeasedWorker, pace: Pace) -> Iterator[tuple[TaskCall, float]]:
    """The calls to send right behind *call*, with their estimates: each is to be sent before the next is asked for.

    They travel while what they wait for runs; a worker runs in the order sent. As much as a worker is given of
    independent calls at a time, and no more.
    """
    pending = deque([call])
    while pending:
        use = pending.popleft().future.use
        record: TaskInput | None = None if use is None else use()
        for dependent in () if record is None else record.dependents:
            if dependent.missing and dependent in dependent.lane.held and not dependent.cancelled:
                estimate_s = pace.estimate_s(dependent.code.kin)
                if not link.has_capacity(estimate_s):
                    return
                if can_follow(dependent, link):
                    dependent.lane.held.discard(dependent)
                    yield dependent, estimate_s
                    pending.append(dependent)


def nearest(call: TaskCall, estimate_s: float) -> LeasedWorker | None:
    """The worker with room that has most of the call's inputs already; ``None`` where that is not worth a word."""
    best, most = None, NEAR_BYTES - 1
    for link in call.lane.links:
        if link.takes_values and link.has_capacity(estimate_s):
            there = sum(link.values.get(used.key) or 0 for used in call.inputs)
            if there > most:
                best, most = link, there
    return best


def unstarted_input(call: TaskCall) -> TaskCall:
    """What *call* waits for in the end: itself, or the call of one of its inputs that waits for no other."""
    while call.missing and call.link is None:
        inner = next((used.call for used in call.inputs if not used.settled and used.call is not None), None)
        if inner is None:
            return call
        call = inner
    return call


def _cancelled(dependent: LazyFuture[Any]) -> None:
    dependent.set_exception(
        DependencyFailed(
            "an argument is the future of a task that was cancelled", hint="submit it again if you still want it"
        )
    )


def _another(error: BaseException) -> BaseException:
    """*error* for one more future: a copy where it is ours, since a traceback belongs to one raise."""
    return copy_of(error) if type(error).__module__ == "actorgrid.errors" else error  # type: ignore[arg-type]
