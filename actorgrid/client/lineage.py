"""How values in the object store came to be, of tasks that are declared pure: what was lost is made again from that.

What is kept of a value is what it takes to call its function again, not the values that went into it: small ones as
they are, large ones as how *they* came to be. So intermediate values of a chain are freed as ever.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from actorgrid.errors import ActorGridError, ClientClosed, ObjectLost
from actorgrid.objects.space import Held
from actorgrid.transports.task_frames import decode_failure_body

from .futures import LazyFuture, PickledValue, TaskFuture, pickled_value

if TYPE_CHECKING:
    from .dependencies import TaskInput
    from .lanes import TaskCall
    from .options import TaskOptions
    from .pickling import FunctionCode
    from .renewals import Renewals

MAX_DEPTH = 10_000
"""A value at the end of a longer chain of pure tasks is not made again."""


class ValueOrigin:
    """One call of a pure function. *inputs* are futures until it has ended."""

    __slots__ = ("args", "code", "depth", "future", "held", "inputs", "made_again", "options")

    def __init__(
        self,
        code: FunctionCode,
        args: bytes,
        options: TaskOptions,
        inputs: Sequence[LazyFuture[Any]],
        held: tuple[Held, ...] = (),
    ) -> None:
        self.code = code
        self.args = args
        self.options = options
        self.inputs: tuple[LazyFuture[Any] | ValueOrigin | None, ...] = tuple(inputs)
        self.held = held  # what its arguments need of the object store, as long as it may be called again
        self.depth = 0
        self.made_again: TaskFuture[Any] | None = None  # while it is
        self.future: weakref.ref[TaskFuture[Any]] | None = None  # which promised the value to a user

    def ended(self, future: Future[Any]) -> None:
        """Keep of the inputs what it takes to have them again: a callback of the call's future."""
        if isinstance(future, LazyFuture) and future.is_in_store and future.origin is self:
            self.inputs = tuple(_source(each) for each in self.inputs)
            self.depth = 1 + max((each.depth for each in self.inputs if isinstance(each, ValueOrigin)), default=0)
        elif isinstance(future, LazyFuture):
            future.origin = None  # its value came along

    def was_made_again(self, future: Future[Any]) -> None:
        """Have the user's future stand for the new value from now on: a callback of the call that made it."""
        self.made_again = None
        promised = None if self.future is None else self.future()
        if promised is not None and isinstance(future, LazyFuture) and not future.cancelled():
            raw = pickled_value(future)
            if raw is not None and not raw.failed:
                promised.comes_again(raw)


def _source(used: LazyFuture[Any] | ValueOrigin | None) -> LazyFuture[Any] | ValueOrigin | None:
    if isinstance(used, LazyFuture) and used.is_in_store:
        found: ValueOrigin | None = used.origin
        return found if found is not None and found.depth < MAX_DEPTH else None
    return used


class Resubmits(Protocol):
    """A dispatcher, as far as making again goes."""

    def submit(
        self,
        code: FunctionCode,
        args: bytes,
        options: TaskOptions,
        futures: Sequence[LazyFuture[Any]] = (),
        stream: None = None,
        held: tuple[Held, ...] = (),
    ) -> TaskFuture[Any]:
        """Send, queue or hold one call."""

    def is_reader(self) -> bool:
        """Whether the caller is the thread that all results come by."""


class _Renewal(NamedTuple):
    """A call that failed, as inputs of it lay in stores that are gone."""

    call: TaskCall
    stores: frozenset[str]


class Lineage:
    """What pure tasks of a session have lost, made again. One thread submits it, as that may wait for room."""

    def __init__(self, dispatcher: Resubmits, calls: Renewals) -> None:
        self._dispatcher = dispatcher
        self._calls = calls
        self._lock = threading.Lock()
        self._renewals: queue.SimpleQueue[_Renewal] = queue.SimpleQueue()
        self._runs = False
        self.made_again_total = 0

    def note(self, future: TaskFuture[Any], origin: ValueOrigin) -> None:
        """Note how the value of *future* comes to be."""
        origin.future = weakref.ref(future)
        future.origin = origin
        future.remake = self.make_again
        future.add_done_callback(origin.ended)

    def make_again(self, origin: ValueOrigin) -> PickledValue:
        """Have a value made again, and what went into it; gives it as it arrived. Raises ObjectLost where that cannot
        be, and what the function raised."""
        if self._dispatcher.is_reader():
            raise ObjectLost(
                "the object is gone, and cannot be waited for in a callback",
                asked=origin.code.name,
                hint="ask for the value in a thread of your own: it is made again there",
            )
        future = self._submitted(origin)
        wait([future])
        return _value_of(future)

    def _submitted(self, origin: ValueOrigin) -> TaskFuture[Any]:
        with self._lock:
            made: dict[ValueOrigin, TaskFuture[Any]] = {}
            stack = [origin]
            while stack:
                each = stack[-1]
                if each in made:
                    stack.pop()
                    continue
                if each.made_again is not None and not each.made_again.done():
                    made[each] = each.made_again
                    continue
                before = [used for used in each.inputs if isinstance(used, ValueOrigin) and used not in made]
                if before:
                    stack += before
                    continue
                if any(used is None for used in each.inputs):
                    raise ObjectLost(
                        "the object is gone, and cannot be made again: an input of its task was not made by a pure one",
                        asked=each.code.name,
                        hint="declare the tasks that it hangs on pure=True as well, or submit them again",
                    )
                futures = [made[used] if isinstance(used, ValueOrigin) else used for used in each.inputs]
                made[each] = self._submit(each, [used for used in futures if used is not None])
            return made[origin]

    def _submit(self, origin: ValueOrigin, inputs: list[LazyFuture[Any]]) -> TaskFuture[Any]:
        self.made_again_total += 1
        future = self._dispatcher.submit(origin.code, origin.args, origin.options, inputs, None, origin.held)
        future.origin, future.remake = origin, self.make_again
        origin.made_again = future
        future.add_done_callback(origin.was_made_again)
        return future

    # -- calls whose inputs were lost

    def renew(self, call: TaskCall, body: bytes) -> bool:
        """Take care of a call that failed, if it did because inputs of pure tasks were lost: in the background they
        are made again, and it is sent again. ``False`` for any other. For the thread that results come by."""
        error, _ = decode_failure_body(body)
        if not isinstance(error, ObjectLost) or call.losses_left <= 0:
            return False
        keys = error.details.get("objects")
        stores = (
            frozenset(str(key[0]) for key in keys if isinstance(key, (list, tuple)) and key) if keys else frozenset()
        )
        found = [used for used in call.inputs if _lies_in(used, stores) or not used.lost_with.isdisjoint(stores)]
        if not found or any(used.origin is None for used in found):
            return False
        call.losses_left -= 1
        self._renewals.put(_Renewal(call, stores))
        if not self._runs:
            self._runs = True
            threading.Thread(target=self._renew_all, name="actorgrid-lineage", daemon=True).start()
        return True

    def _renew_all(self) -> None:
        while True:
            renewal = self._renewals.get()
            try:
                self._begin(renewal)
            except ActorGridError as error:
                self._calls.give_up(renewal.call, error)

    def _begin(self, renewal: _Renewal) -> None:
        # What was renewed for another call meanwhile lies elsewhere by now.
        lost = [used for used in dict.fromkeys(renewal.call.inputs) if _lies_in(used, renewal.stores)]
        if not lost:
            self._calls.send_again(renewal.call)
            return
        outcome = _Outcome(self._calls, renewal, len(lost))
        for used in lost:
            assert used.origin is not None, "renew has looked"
            self._submitted(used.origin).add_done_callback(partial(outcome.came, used))


class _Outcome:
    """What becomes of a call while its inputs are made again: sent when all are there, ended when one is not to be."""

    def __init__(self, calls: Renewals, renewal: _Renewal, missing: int) -> None:
        self._calls = calls
        self._renewal = renewal
        self._missing = missing
        self._over = False
        self._lock = threading.Lock()

    def came(self, used: TaskInput, future: Future[Any]) -> None:
        """Take what was made: a callback of its future."""
        assert isinstance(future, TaskFuture)
        with self._lock:
            self._missing -= 1
            try:
                raw = _value_of(future)
            except BaseException as error:  # noqa: BLE001 - what a user's function raised when it was called again
                over, self._over = self._over, True
                if not over:
                    self._calls.give_up(self._renewal.call, error)
                return
            if _lies_in(used, self._renewal.stores):
                used.lost_with |= self._renewal.stores
                self._calls.renew_input(used, raw.body, raw.held)
            if not self._missing and not self._over:
                self._calls.send_again(self._renewal.call)


def _lies_in(used: TaskInput, stores: frozenset[str]) -> bool:
    return any(held.key.store in stores for held in used.held)


def _value_of(future: TaskFuture[Any]) -> PickledValue:
    """How a task that is done gave its value. Raises what it did."""
    if future.cancelled():
        raise ClientClosed("the client was closed while a lost value was made again")
    raw = pickled_value(future)
    if raw is None or raw.failed:
        error = future.exception()
        assert error is not None, "it has no value"
        raise error
    return raw
