"""A replica: one object of a served class, what it has in hand, and how it begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from actorgrid.errors import ServiceBusy, ServiceEnding, ServiceLoading, ServingError

from .batch_runner import BatchRunner
from .batching import BatchLimits
from .endpoints import EndpointKind, kind_of
from .model_threads import CallRaised, ModelThreads, ThreadDeath
from .service import ObjectRuntime, options_of, runtime_of

LOG = logging.getLogger(__name__)
_END = object()


class ServiceReplica:
    """Loads the class, calls its methods, counts what it has in hand. Belongs to one loop."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.options = options_of(cls)
        self.in_flight = 0
        self.ending = False
        self.failed: Exception | None = None
        """What the class raised when it was made."""
        self._object: Any = None
        self._kinds: dict[str, EndpointKind] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._runtime: ObjectRuntime | None = None
        self._calls: BatchRunner | None = None

    # -- its life

    async def load(self) -> None:
        """Make the object, in the thread that its methods are called in. Raises what the class raises."""
        loop = asyncio.get_running_loop()
        threads = ModelThreads(loop, self.options.threads)
        made: asyncio.Future[Any] = loop.create_future()
        threads.call(self.cls, (), made.set_result)
        result = await made
        if isinstance(result, ThreadDeath | CallRaised):
            threads.close()
            if isinstance(result, CallRaised):
                self.failed = result.error
                raise result.error
            self.failed = ServingError(f"making a {self.cls.__qualname__} ended with {result.why}")
            raise self.failed
        self._object = result
        self._runtime = runtime_of(result, threads)
        if self._runtime.threads is not threads:  # the class made one of its own, as it called a batched method
            self._runtime.threads.close()
            self._runtime.threads = threads
        limits = BatchLimits(max_size=1, max_wait_s=0, queue_max=self.options.in_flight_max, rerun_alone=False)
        self._calls = BatchRunner(_called, limits, threads)

    @property
    def state(self) -> str:
        """``loading``, ``ok``, ``hangs`` or ``ending``, for ``/health``."""
        if self.ending:
            return "ending"
        if self._runtime is None:
            return "loading"
        patience = self.options.wedged_after_s
        return "hangs" if patience and self._runtime.threads.longest_s > patience else "ok"

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread or a batch."""
        return sum(runner.waiting for runner in self.runners.values())

    @property
    def runners(self) -> dict[str, BatchRunner]:
        """The runners by the names of their methods; that of unbatched ones has the name "" ."""
        if self._runtime is None or self._calls is None:
            return {}
        return {"": self._calls, **self._runtime.runners}

    async def end(self) -> bool:
        """Take nothing new, finish what is in hand within ``drain_s``, and close. Whether all was finished."""
        self.ending = True
        done = True
        try:
            await asyncio.wait_for(self._empty.wait(), self.options.drain_s)
        except TimeoutError:
            done = False
        for runner in self.runners.values():
            runner.abandon()
        if done and self._runtime is not None and hasattr(self._object, "close"):
            await self._close(self._runtime.threads)
        if self._runtime is not None:
            self._runtime.threads.close()
        return done

    async def _close(self, threads: ModelThreads) -> None:
        closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        threads.call(self._object.close, (), closed.set_result)
        try:
            result = await asyncio.wait_for(closed, self.options.drain_s)
            if isinstance(result, CallRaised):
                LOG.error("close() raised", exc_info=result.error)
            elif asyncio.iscoroutine(result):
                await asyncio.wait_for(result, self.options.drain_s)
        except TimeoutError:
            LOG.error("close() did not return in %.0f s", self.options.drain_s)

    # -- its requests

    @contextlib.contextmanager
    def in_hand(self) -> Iterator[None]:
        """While a request is served. Raises ServiceEnding, ServiceLoading or ServiceBusy."""
        if self.ending:
            raise ServiceEnding("this replica ends and takes nothing new", hint="ask another replica")
        if self._calls is None:
            raise ServiceLoading("this replica is still loading its model", hint="try again a little later")
        if self.in_flight >= self.options.in_flight_max:
            raise ServiceBusy(
                f"the replica holds {self.in_flight} requests", asked="one more", hint="try again a little later"
            )
        self.in_flight += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._empty.set()

    def has(self, name: str) -> bool:
        """Whether the class has a method of that name."""
        return hasattr(self.cls, name)

    def is_batched(self, name: str) -> bool:
        """Whether that method takes the items of several requests."""
        return self._kind(name) is EndpointKind.BATCHED

    async def call(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], *, priority: int, timeout_s: float | None
    ) -> Any:
        """What the method gives. Raises what it raises."""
        kind = self._kind(name)
        method = getattr(self._object, name)
        if kind is EndpointKind.BATCHED:
            return await method(*arguments, **keywords, priority=priority, timeout_s=timeout_s)
        if kind is EndpointKind.COROUTINE:
            return await method(*arguments, **keywords)
        return await self._in_thread(method, arguments, keywords, priority, timeout_s)

    async def stream(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], *, priority: int, timeout_s: float | None
    ) -> AsyncGenerator[Any, None]:
        """What a generator gives, one after the other; of other methods, what they give, as the only one. To close this
        closes the generator."""
        kind = self._kind(name)
        if kind is EndpointKind.COROUTINE_STREAM:
            given = getattr(self._object, name)(*arguments, **keywords)
            async with contextlib.aclosing(given):
                async for value in given:
                    yield value
        elif kind is EndpointKind.STREAM:
            steps = _Steps(getattr(self._object, name)(*arguments, **keywords))
            try:
                # Only the first step may come too late: what has begun is not stopped by the time it was given.
                value = await self._in_thread(steps.next, (), {}, priority, timeout_s)
                while value is not _END:
                    yield value
                    value = await self._in_thread(steps.next, (), {}, priority, None)
            finally:
                assert self._runtime is not None
                self._runtime.threads.call(steps.close, (), _noted)
        else:
            yield await self.call(name, arguments, keywords, priority=priority, timeout_s=timeout_s)

    def _kind(self, name: str) -> EndpointKind:
        found = self._kinds.get(name)
        if found is None:
            found = self._kinds[name] = kind_of(self.cls, name)
        return found

    async def _in_thread(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        priority: int,
        timeout_s: float | None,
    ) -> Any:
        assert self._calls is not None
        return await self._calls.submit((function, arguments, keywords), priority=priority, timeout_s=timeout_s)


class _Steps:
    """A generator whose steps run in any of the threads, and which is closed only between two of them."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._lock = threading.Lock()

    def next(self) -> Any:
        with self._lock:
            return next(self._generator, _END)

    def close(self) -> None:
        with self._lock:
            self._generator.close()


def _called(calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    """A batch of one: the call of a method that is not batched."""
    ((function, arguments, keywords),) = calls
    return [function(*arguments, **keywords)]


def _noted(result: Any) -> None:
    if isinstance(result, CallRaised):
        LOG.error("closing a generator raised", exc_info=result.error)
