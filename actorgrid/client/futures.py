"""Promises of values: of session tasks and of durable jobs.

Both are ``concurrent.futures.Future``: ``concurrent.futures.wait``, ``as_completed`` and ``asyncio.wrap_future``
take them. Callbacks run in the client's reader thread: keep them short.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from typing import Any, Protocol, TypeVar, cast

from actorgrid.errors import ActorGridError, ObjectLost
from actorgrid.objects.space import Held
from actorgrid.transports.task_inputs import input_value

from .forks import of_the_parent, this_process
from .lean_condition import LeanCondition
from .nested import LOOK_S, inside_work

T = TypeVar("T")
_PENDING = "PENDING"
_FINISHED = "FINISHED"
_pickling = threading.local()
REMAKES_MAX = 3
"""So often a value that is lost again and again is made again for one who asks."""


class PickledValue:
    """A value as it arrived, unpickled by whoever asks and not by the reader thread: unpickling may import."""

    __slots__ = ("body", "decode", "failed", "held")

    def __init__(
        self, decode: Callable[[bytes], Any], body: bytes, failed: bool | None, held: tuple[Held, ...] = ()
    ) -> None:
        self.decode = decode
        self.body = body
        self.failed = failed  # False: the body is the pickled value; None: only decoding tells
        self.held = held  # what it needs of the object store


class LazyFuture(Future[T]):
    """A future whose value is unpickled by whoever asks for it first. ``await future`` gives it in asyncio.

    Among the arguments of a session task it stands for its value: pickled inside of ``futures_as_inputs``, it is a
    name that the worker knows the value by, and elsewhere refused.
    """

    use: weakref.ref[Any] | None = None
    """The record of what calls wait for it (dependencies.py), while there are any."""
    used_by: object = None
    """Whose record that is."""
    _in_store: PickledValue | None = None
    """How its value arrived, where it needs something of the object store."""
    origin: Any = None
    """How that value came to be, if it is of a pure task (lineage.py)."""
    was_made_again = False
    """Whether it is another one than its task gave, which was lost."""

    def __init__(self) -> None:
        # As Future.__init__, but for the condition (a test holds it to that).
        self._condition = LeanCondition()
        self._state = _PENDING
        self._result = None
        self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._process = this_process()

    def check_process(self) -> None:
        """Raise WrongState in a forked child, where nothing would ever settle it."""
        if self._process is not this_process() and self._state == _PENDING:
            raise of_the_parent(f"this {type(self).__name__}")

    def settle(
        self, decode: Callable[[bytes], Any], body: bytes, failed: bool | None = None, held: tuple[Held, ...] = ()
    ) -> None:
        """Settle the future: ``decode(body)`` gives the value, or raises the error, when it is asked for.

        *failed*: whether it raises, where that is known; if ``False``, *body* is the pickled value itself. *held*: what
        that needs of the object store; the future keeps it.
        """
        value: Any = PickledValue(decode, body, failed, held)
        if held:
            self._in_store = value
        if not failed:
            self.set_result(value)
            return
        # As set_exception does: wait(FIRST_EXCEPTION) and others are told that it is one.
        with self._condition:
            if self.done():
                raise InvalidStateError(f"{self._state}: {self!r}")
            self._result = value
            self._state = _FINISHED
            for waiter in self._waiters:
                waiter.add_exception(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]

    def __await__(self) -> Generator[Any, None, T]:
        """Give the value to a coroutine. Cancelling that cancels the work, if it has not started."""
        import asyncio

        self.check_process()
        return asyncio.wrap_future(self).__await__()

    def says_failed(self) -> bool:
        """Whether it is done and known to give no value but an error; unpickles nothing."""
        result: Any = self._result
        return self._exception is not None or (type(result) is PickledValue and result.failed is True)

    def _repr_html_(self) -> str:
        """What a notebook shows. Unpickles nothing and waits for nothing."""
        from .html_cards import card

        error = self._exception
        return card(type(self).__name__, [*self._facts(), ("error", error and repr(error))], *self._looks())

    def _facts(self) -> list[tuple[str, object]]:
        return []

    def _looks(self) -> tuple[str, str]:
        if self.cancelled():
            return "cancelled", "over"
        if not self.done():
            return ("running" if self.running() else "waiting"), "busy"
        result: Any = self._result
        if type(result) is PickledValue and result.failed is None:
            return "ended", "over"
        return ("failed", "bad") if LazyFuture.says_failed(self) else ("done", "good")

    def cancel(self, *, force: bool = False, cooperative: bool = False) -> bool:
        """Cancel it if it has not started; ``True`` when it will give no value. What more can be asked: see those of
        tasks and of jobs.
        """
        return Future.cancel(self)

    @property
    def is_in_store(self) -> bool:
        """Whether its value, which is there, needs something of the object store."""
        return self._in_store is not None

    def is_unfolded(self) -> bool:
        """Whether its value was asked for already, and so is an object of this process alone."""
        return self._state == _FINISHED and type(self._result) is not PickledValue and self._in_store is None

    def result(self, timeout: float | None = None) -> T:
        """The value. Raises the task's ActorGridError, CancelledError, or TimeoutError after *timeout* seconds.

        Raises WrongState in a forked child, which does not hear of the end of what its parent submitted.
        """
        self.check_process()
        value: Any = super().result(timeout)
        if type(value) is PickledValue:
            self._unfold(value)
            value = super().result(0)
        return cast(T, value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or ``None``. Raises CancelledError, WrongState, or TimeoutError after *timeout* seconds."""
        self.check_process()
        error = super().exception(timeout)
        if error is None and type(self._result) is PickledValue:
            self._unfold(self._result)
            return super().exception(0)
        return error

    def unfold(self) -> None:
        """Make the value an object of this process, if it is done and that was not asked for."""
        raw: Any = self._result
        if type(raw) is PickledValue:
            self._unfold(raw)

    def _unfold(self, raw: PickledValue) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._decoded(raw)
        except Exception as found:  # noqa: BLE001 - what a task raised is of any type
            error = found
        with self._condition:
            if self._result is raw:
                self._result, self._exception = value, error

    def _decoded(self, raw: PickledValue) -> Any:
        return raw.decode(raw.body)

    def _cancelled(self) -> bool:
        """Cancel for good and tell those who wait; ``False`` when it was done already."""
        if not Future.cancel(self):
            return False
        if self._state == "CANCELLED":
            self.set_running_or_notify_cancel()
        return True

    def __reduce__(self) -> Any:
        inputs: dict[LazyFuture[Any], int] | None = getattr(_pickling, "inputs", None)
        if inputs is None:
            raise TypeError(f"a {type(self).__name__} stays in its process")
        self.check_process()
        return input_value, (inputs.setdefault(self, len(inputs)),)


class futures_as_inputs:
    """Pickle futures in this thread as names of values; which they were is in *inputs* then, with their indexes."""

    __slots__ = ("_before", "_inputs")

    def __init__(self, inputs: dict[LazyFuture[Any], int]) -> None:
        self._inputs = inputs

    def __enter__(self) -> None:
        self._before = getattr(_pickling, "inputs", None)
        _pickling.inputs = self._inputs

    def __exit__(self, *_: object) -> None:
        _pickling.inputs = self._before


def pickled_value(future: LazyFuture[Any]) -> PickledValue | None:
    """How *future* ended, as it arrived; ``None`` where it has been unpickled, or has to be to tell.

    What is in the object store goes on as it arrived, unpickled or not.
    """
    if future._in_store is not None:
        return future._in_store
    result: Any = future._result
    return result if type(result) is PickledValue and result.failed is not None else None


class TaskOwner(Protocol):
    """What runs session tasks, as their futures see it."""

    lends: bool
    """Whether the CPUs of whoever waits are lent meanwhile, so that it wants to know who waits."""

    def wait_begins(self, future: TaskFuture[Any], *, blocked: bool) -> None:
        """Note that a thread waits for the future. With *blocked* no lock of a future is held by the caller."""

    def wait_ends(self, future: TaskFuture[Any]) -> None:
        """Note that a thread which waited for the future goes on."""

    def take_back(self, future: TaskFuture[Any]) -> bool:
        """Cancel the task unless a worker has started it."""

    def has_started(self, future: TaskFuture[Any]) -> bool:
        """Whether a worker has started the task."""

    def kill(self, future: TaskFuture[Any]) -> bool:
        """Cancel the task even if it runs: its worker is killed."""

    def tell(self, future: TaskFuture[Any], frame: bytes) -> None:
        """Send a frame about the task to the worker that has it."""

    def ask_to_stop(self, future: TaskFuture[Any]) -> bool:
        """Cancel the task if it has not started, and tell it if it runs."""


class _Waiters(list[Any]):
    """The waiters of a future, to which ``concurrent.futures.wait`` and ``as_completed`` add themselves."""

    def __init__(self, future: TaskFuture[Any], owner: TaskOwner) -> None:
        super().__init__()
        self._future = future
        self._owner = owner

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._owner.wait_begins(self._future, blocked=False)

    def remove(self, waiter: Any) -> None:
        super().remove(waiter)
        self._owner.wait_ends(self._future)


class TaskFuture(LazyFuture[T]):
    """The value of a session task."""

    def __init__(self, owner: TaskOwner) -> None:
        super().__init__()
        self._owner = owner
        self.call: Any = None  # the dispatcher's record of it
        self.remake: Callable[[Any], PickledValue] | None = None  # makes a lost value again
        self._blocked = 0
        if owner.lends:
            self._waiters: list[Any] = _Waiters(self, owner)

    def result(self, timeout: float | None = None) -> T:
        """As of every future. Inside of work our CPUs are lent to what we wait for (docs/what_work_gets.md)."""
        if not self._owner.lends or self._state != _PENDING:
            return super().result(timeout)
        with self._awaited():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of every future."""
        if not self._owner.lends or self._state != _PENDING:
            return super().exception(timeout)
        with self._awaited():
            return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, T]:
        """As of every future. Inside of work our CPUs are lent to it meanwhile, as with ``result``."""
        if not self._owner.lends or self._state != _PENDING:
            return super().__await__()
        return self._await_lending()

    def _await_lending(self) -> Generator[Any, None, T]:
        with self._awaited():
            return (yield from super().__await__())

    def is_awaited(self) -> bool:
        """Whether a thread is blocked on it now: in ``result``, or in ``wait`` and ``as_completed`` of the library."""
        # as_completed stays among the waiters while its caller works on a value: whether it sleeps, its event tells.
        return self._blocked > 0 or any(waiter.event._cond._waiters for waiter in list(self._waiters))

    def awaited(self) -> contextlib.AbstractContextManager[None]:
        """While a thread is blocked on something of the task: inside of work our CPUs are lent meanwhile."""
        return self._awaited() if self._owner.lends else contextlib.nullcontext()

    def tell(self, frame: bytes) -> None:
        """Send a frame about the task to the worker that has it, if one does."""
        self._owner.tell(self, frame)

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        self.check_process()
        with self._condition:
            self._blocked += 1
        self._owner.wait_begins(self, blocked=True)
        try:
            yield
        finally:
            with self._condition:
                self._blocked -= 1
            self._owner.wait_ends(self)

    def cancel(self, *, force: bool = False, cooperative: bool = False) -> bool:
        """Take the task back if it has not started; ``True`` when it will give no value.

        *cooperative* tells one that runs, which goes on until it looks: ``current_task().cancelled`` is true,
        ``raise_if_cancelled()`` raises, an ``async def`` gets CancelledError where it awaits. Then ``True`` says that
        it was told; ``result()`` raises TaskCancelled, or gives the value of one that came to its end all the same.

        With *force* also when it runs: its worker is killed and given back, other tasks there go elsewhere, and
        ``result()`` raises TaskCancelled. One that had not started raises CancelledError, as of every future.
        """
        if self._state != _PENDING:
            return Future.cancel(self)
        if self._process is not this_process():
            return False  # a fork's copy: the workers are the parent's
        if force:
            return self._owner.kill(self)
        return self._owner.ask_to_stop(self) if cooperative else self._owner.take_back(self)

    def _facts(self) -> list[tuple[str, object]]:
        call = self.call
        return [("function", getattr(getattr(call, "code", None), "name", ""))]

    def settle(
        self, decode: Callable[[bytes], Any], body: bytes, failed: bool | None = None, held: tuple[Held, ...] = ()
    ) -> None:
        """As of every future."""
        super().settle(decode, body, failed, held)
        self._ended()

    def set_exception(self, exception: BaseException | None) -> None:
        """As of every future."""
        super().set_exception(exception)
        self._ended()

    def _cancelled(self) -> bool:
        is_over = super()._cancelled()
        self._ended()
        return is_over

    def comes_again(self, raw: PickledValue) -> None:
        """Stand for a value that was made again: what it was made of before is lost."""
        if self._in_store is not None:
            self._in_store, self.was_made_again = raw, True

    def _decoded(self, raw: PickledValue) -> Any:
        for _ in range(REMAKES_MAX):
            raw = self._in_store or raw
            try:
                return raw.decode(raw.body)
            except ObjectLost:
                if self.origin is None or self.remake is None or raw.failed is not False:
                    raise
            if self._in_store is raw:  # else it was made again meanwhile
                self.comes_again(self.remake(self.origin))
        raw = self._in_store or raw
        return raw.decode(raw.body)

    def _ended(self) -> None:
        """Let go of the call, which has this future: nothing waits for the collector, least of all large values."""
        call = self.call
        if call is not None and self.done():
            self.call = call.ended()

    def running(self) -> bool:
        """Whether a worker has started it, as far as is known here."""
        return self._state == _PENDING and self._owner.has_started(self)


class JobFuture(LazyFuture[T]):
    """The value of a durable job. Passed inside the arguments of another durable submit, it stands for its value.

    ``job_id`` is known at once; ``accepted()`` tells when the job is on disk.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        cancel: Callable[[str], bool],
        never_starts: Callable[[str], ActorGridError | None] | None = None,
    ) -> None:
        super().__init__()
        self._never_starts = never_starts
        self.job_id = job_id
        self.name = name
        self._cancel = cancel
        self._accepted = threading.Event()
        self._refused: ActorGridError | None = None
        self.add_done_callback(lambda _: self._accepted.set())

    def result(self, timeout: float | None = None) -> T:
        """As of every future; inside of work also NoRoomForNestedTask, when it waits for room that only we hold."""
        self.check_process()
        until = None if timeout is None else time.monotonic() + timeout
        while self._never_starts is not None and inside_work() and not self.done():
            left_s = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
            wait((self,), max(0.0, left_s))
            if self.done() or (until is not None and time.monotonic() >= until):
                break
            hopeless = self._never_starts(self.job_id)
            if hopeless is not None:
                raise hopeless
        return super().result(0 if until is not None and until <= time.monotonic() else timeout)

    def accepted(self, timeout: float | None = None) -> bool:
        """Wait until the host has the job on disk; ``False`` after *timeout*. Raises why it was refused."""
        self.check_process()
        if not self._accepted.wait(timeout):
            return False
        if self._refused is not None:
            raise self._refused
        return True

    def refuse(self, error: ActorGridError) -> None:
        """Fail the future: the host did not take the job."""
        self._refused = error
        self.set_exception(error)

    def cancel(self, *, force: bool = True, cooperative: bool = False) -> bool:
        """Ask the host to cancel the job, running or not; ``False`` when it has ended or cannot be reached.

        Neither changes anything: a job is ended by signals, SIGTERM first.
        """
        if self.done():
            return self.cancelled()
        return self._cancel(self.job_id)

    def _facts(self) -> list[tuple[str, object]]:
        return [("job", self.job_id), ("name", self.name)]

    def _looks(self) -> tuple[str, str]:
        # Whether it has started only the host knows.
        return super()._looks() if self.done() else ("not done", "busy")

    def __repr__(self) -> str:
        return f"<JobFuture {self.job_id} {self.name!r} {self._state.lower()}>"


def is_future(value: object) -> bool:
    """Whether *value* is a promise of ours."""
    return isinstance(value, LazyFuture)
