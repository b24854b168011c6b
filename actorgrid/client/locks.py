"""Locks and semaphores: ``client.lock(name)``, ``client.semaphore(name, slots=4)``, and the same awaited.

One object may be shared: each thread that acquires it is an owner of its own, and so is each asyncio task. It is not
reentrant.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from actorgrid.errors import ActorGridError, BadRequest, HostUnreachable, LockLost, WrongState
from actorgrid.fencing import FencingToken

from .http import AdminHttp
from .lock_hold import LockHold

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")
OnLost = Callable[[LockLost], None]
_ITS_OWN: Any = object()

log = logging.getLogger("actorgrid.client")


class HeldLocks:
    """The holdings of one client's threads; given back when it closes."""

    def __init__(self, http: AdminHttp) -> None:
        self.http = http
        self._all: weakref.WeakSet[LockHold] = weakref.WeakSet()
        self._guard = threading.Lock()

    def keep(self, hold: LockHold) -> None:
        """Keep a holding until it is over."""
        with self._guard:
            self._all.add(hold)

    def close(self) -> None:
        """Give all back."""
        with self._guard:
            holds = list(self._all)
        for hold in holds:
            hold.drop()


class LockTerms:
    """The checked terms of one lock object."""

    def __init__(
        self, holds: HeldLocks, name: str, ttl_s: float, slots: int, wait_s: float | None, on_lost: OnLost | None
    ) -> None:
        if not 0 < len(name) <= 256 or not name.isprintable():
            raise BadRequest("not the name of a lock", asked=repr(name)[:100], hint="1 to 256 printable characters")
        self.name, self.ttl_s, self.slots, self.wait_s = name, ttl_s, slots, wait_s
        self._holds = holds
        self._on_lost = on_lost

    def new_hold(self, alive: Callable[[], bool], on_lost: OnLost | None) -> LockHold:
        """A new try for the lock, by an owner that lives for as long as *alive* says so."""
        from .user import user_name

        hold = LockHold(
            self._holds.http,
            self.name,
            ttl_s=self.ttl_s,
            slots=self.slots,
            user=user_name(),
            on_lost=on_lost,
            alive=alive,
        )
        self._holds.keep(hold)
        return hold

    @property
    def on_lost(self) -> OnLost | None:
        """The callback that is told of a loss."""
        return self._on_lost

    def wait_or(self, wait_s: Any) -> float | None:
        """The seconds to wait: those given now, else the lock's own."""
        chosen: float | None = self.wait_s if wait_s is _ITS_OWN else wait_s
        return chosen

    def held_already(self) -> WrongState:
        """The error for acquiring a lock twice: nobody waits for what only oneself can give back."""
        return WrongState(
            f"lock {self.name} is held by this thread or task already",
            asked="it once more",
            hint="release it first; it is not reentrant",
        )

    def not_held(self) -> LockLost:
        """The error for using a lock that was not acquired."""
        return LockLost(f"this thread or task does not hold lock {self.name}", hint="acquire it here first")


class Lock:
    """A lock, or a semaphore of several slots, of the cluster. ``with`` holds it; ``token`` is the fencing token.

    It renews itself while its thread lives. A holder that is cut off, stopped or too slow loses it: ``check()`` raises
    LockLost then, ``lost`` says so, ``on_lost`` is called (in a thread of its own). The end of a ``with`` block raises
    LockLost when the lock was lost inside it, unless another exception is under way.
    """

    def __init__(self, terms: LockTerms) -> None:
        self._terms = terms
        self._mine = threading.local()

    @property
    def name(self) -> str:
        """The lock's name in the cluster."""
        return self._terms.name

    @property
    def token(self) -> FencingToken:
        """The fencing token of this thread's holding. Raises LockLost when it has none."""
        token = self._held().token
        assert token is not None, "a holding that was acquired has its token"
        return token

    @property
    def owner(self) -> str:
        """The ledger's owner id of this thread's holding. Raises LockLost when it has none."""
        return self._held().owner

    @property
    def left_s(self) -> float:
        """How long this thread holds it for sure, if it is not renewed any more; 0 when it does not."""
        hold = self._hold
        return 0.0 if hold is None else hold.left_s

    @property
    def lost(self) -> bool:
        """Whether this thread acquired it and lost it since."""
        hold = self._hold
        return hold is not None and hold.lost

    def acquire(self, wait_s: float | None = _ITS_OWN) -> FencingToken:
        """Hold it, within *wait_s* (0: at once or not at all; ``None``: whenever), by default the lock's own.

        Raises LockHeld (0) or LockTimeout, LockSlotsDiffer, QueueFull, NoQuorum, HostUnreachable.
        """
        if self._hold is not None and not self._hold.lost:
            raise self._terms.held_already()
        hold = self._terms.new_hold(threading.current_thread().is_alive, self._terms.on_lost)
        token = hold.acquire(self._terms.wait_or(wait_s))
        self._mine.hold = hold
        return token

    def check(self) -> None:
        """Raise LockLost unless this thread holds it, by its own clock and as far as the ledger has told."""
        self._held().check()

    def release(self) -> None:
        """Give it back. Raises LockLost when it was not held to this moment, HostUnreachable when nobody took it."""
        hold = self._held()
        self._mine.hold = None
        hold.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost:
            if error is None:
                raise
        except ActorGridError as failure:
            _not_given_back(self.name, failure)

    def __repr__(self) -> str:
        return f"<actorgrid.Lock {self.name!r} of {self._terms.slots} slot(s){' held' if self._hold else ''}>"

    @property
    def _hold(self) -> LockHold | None:
        hold: LockHold | None = getattr(self._mine, "hold", None)
        return hold

    def _held(self) -> LockHold:
        hold = self._hold
        if hold is None:
            raise self._terms.not_held()
        return hold


class AsyncLock:
    """The same for asyncio: each task that acquires it is an owner. ``check()``, ``token`` and ``lost`` need no await.

    A task that is cancelled while it waits leaves the line. ``on_lost`` is called in the loop.
    """

    def __init__(self, terms: LockTerms) -> None:
        self._terms = terms
        self._mine: weakref.WeakKeyDictionary[asyncio.Task[Any], LockHold] = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The lock's name in the cluster."""
        return self._terms.name

    @property
    def token(self) -> FencingToken:
        """The fencing token of this task's holding. Raises LockLost when it has none."""
        token = self._held().token
        assert token is not None, "a holding that was acquired has its token"
        return token

    @property
    def left_s(self) -> float:
        """How long this task holds it for sure, if it is not renewed any more; 0 when it does not."""
        hold = self._mine.get(_task())
        return 0.0 if hold is None else hold.left_s

    @property
    def lost(self) -> bool:
        """Whether this task acquired it and lost it since."""
        hold = self._mine.get(_task())
        return hold is not None and hold.lost

    async def acquire(self, wait_s: float | None = _ITS_OWN) -> FencingToken:
        """As Lock.acquire()."""
        task = _task()
        before = self._mine.get(task)
        if before is not None and not before.lost:
            raise self._terms.held_already()
        loop, on_lost = asyncio.get_running_loop(), self._terms.on_lost
        there = weakref.ref(task)

        def tell(loss: LockLost) -> None:
            if on_lost is not None and not loop.is_closed():
                loop.call_soon_threadsafe(on_lost, loss)

        hold = self._terms.new_hold(lambda: not loop.is_closed() and _lives(there()), tell)
        try:
            token = await _in_thread(partial(hold.acquire, self._terms.wait_or(wait_s)))
        except asyncio.CancelledError:
            threading.Thread(target=hold.abandon, daemon=True).start()
            raise
        self._mine[task] = hold
        return token

    def check(self) -> None:
        """Raise LockLost unless this task holds it, by its own clock and as far as the ledger has told."""
        self._held().check()

    async def release(self) -> None:
        """As Lock.release()."""
        hold = self._held()
        del self._mine[_task()]
        await _in_thread(hold.release)

    async def __aenter__(self) -> AsyncLock:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockLost:
            if error is None:
                raise
        except ActorGridError as failure:
            _not_given_back(self.name, failure)

    def _held(self) -> LockHold:
        hold = self._mine.get(_task())
        if hold is None:
            raise self._terms.not_held()
        return hold


def _not_given_back(name: str, failure: ActorGridError) -> None:
    """Log a lock that could not be given back: its lease ends it."""
    log.warning("lock %s is given back by the end of its lease: %s", name, failure)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise LockLost("a lock for asyncio is held by tasks", hint="call it inside of one")
    return task


def _lives(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and not task.done()


async def _in_thread(work: Callable[[], T]) -> T:
    """*work* in a thread of its own: those of the loop may all be taken by others who wait for the same lock."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        if ended.done():
            return  # nobody waits any more
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def carry_out() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = work()
        except ActorGridError as error:
            failure = error
        except RuntimeError as error:  # the interpreter is going: no thread can be started
            failure = HostUnreachable(f"the program is ending: {error}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, failure)

    threading.Thread(target=carry_out, name="lock question", daemon=True).start()
    return await ended
