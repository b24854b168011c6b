"""``@actorgrid.service`` and ``@actorgrid.batch``: a class as a service, and methods that take several requests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from actorgrid.errors import BadRequest, NotAService

from .batch_runner import BatchRunner
from .batching import USUAL, BatchLimits
from .model_threads import ModelThreads

C = TypeVar("C", bound=type)
OPTIONS = "__actorgrid_service__"
_RUNTIME = "__actorgrid_runtime__"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service. Raises BadRequest where one makes no sense.

    * ``model``: under which name ``/v1/models`` has it (else the name of the class, in lower case)
    * ``threads``: how many of its methods may compute at once (1)
    * ``in_flight_max``: how many requests a replica holds; one more is refused with 429 (1,024)
    * ``drain_s``: how long it finishes what it has begun when it is told to end (30 s)
    * ``wedged_after_s``: after how long a call makes ``/health`` say that the replica hangs (600 s; 0: never)
    """

    model: str | None = None
    threads: int = 1
    in_flight_max: int = 1024
    drain_s: float = 30.0
    wedged_after_s: float = 600.0

    def __post_init__(self) -> None:
        for name, least, most in (("threads", 1, 256), ("in_flight_max", 1, 1_000_000)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise BadRequest(f"{name} is a whole number from {least} to {most:,}", asked=f"{name}={value!r}")
        for name in ("drain_s", "wedged_after_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise BadRequest(f"{name} is from 0 to a day", asked=f"{name}={getattr(self, name)!r}")
        if self.model is not None and not (0 < len(self.model) <= 200 and self.model.isprintable()):
            raise BadRequest("the name of a model has 1 to 200 printable characters", asked=repr(self.model)[:80])


@overload
def service(cls: C, /) -> C: ...
@overload
def service(
    *,
    model: str | None = None,
    threads: int = 1,
    in_flight_max: int = 1024,
    drain_s: float = 30.0,
    wedged_after_s: float = 600.0,
) -> Callable[[C], C]: ...
def service(cls: type | None = None, /, **options: Any) -> Any:
    """Mark a class as a service; with or without options, which ServiceOptions lists. It stays the class it is."""

    def mark(cls: type) -> type:
        if not isinstance(cls, type):
            raise BadRequest("@actorgrid.service stands above a class", asked=repr(cls)[:80])
        setattr(cls, OPTIONS, ServiceOptions(**options))
        return cls

    return mark if cls is None else mark(cls)


def options_of(cls: type) -> ServiceOptions:
    """The options of a service's class; those of a class without any are the usual ones."""
    found = getattr(cls, OPTIONS, None)
    return found if isinstance(found, ServiceOptions) else ServiceOptions()


@dataclass(slots=True)
class ObjectRuntime:
    """What calls the methods of one object: its threads, and a runner for each batched method."""

    loop: asyncio.AbstractEventLoop
    threads: ModelThreads
    runners: dict[str, BatchRunner] = field(default_factory=dict)


def runtime_of(owner: object, threads: ModelThreads | None = None) -> ObjectRuntime:
    """That of *owner* in the running loop; it is made where there is none, with *threads* or one of its own."""
    loop = asyncio.get_running_loop()
    found = getattr(owner, _RUNTIME, None)
    if isinstance(found, ObjectRuntime) and found.loop is loop:
        return found
    if isinstance(found, ObjectRuntime):
        found.threads.close()
    made = ObjectRuntime(loop, threads or ModelThreads(loop))
    try:
        setattr(owner, _RUNTIME, made)
    except AttributeError as error:
        raise NotAService(
            f"{type(owner).__name__} has __slots__ and no room for what calls its batched methods",
            hint=f"add {_RUNTIME!r} to its __slots__",
        ) from error
    return made


class BatchedMethod:
    """A method that takes a list of items and gives a list of results, one for each.

    Of an object, ``await object.method(item)`` is the result of one item, whoever else asks meanwhile;
    ``object.method.direct(items)`` calls the function itself.
    """

    def __init__(self, function: Callable[..., Any], limits: BatchLimits, rows_of: Callable[[Any], int] | None) -> None:
        self.function = function
        self.limits = limits
        self.rows_of = rows_of
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "batch")
        self.__wrapped__ = function

    @overload
    def __get__(self, owner: None, cls: type) -> BatchedMethod: ...
    @overload
    def __get__(self, owner: object, cls: type) -> BoundBatch: ...
    def __get__(self, owner: object | None, cls: type) -> BatchedMethod | BoundBatch:
        return self if owner is None else BoundBatch(self, owner)


class BoundBatch:
    """A batched method of an object."""

    __slots__ = ("_method", "_owner")

    def __init__(self, method: BatchedMethod, owner: object) -> None:
        self._method = method
        self._owner = owner

    async def __call__(self, item: Any, *, priority: int = USUAL, timeout_s: float | None = None) -> Any:
        """The result of one item. Raises as BatchRunner.submit does."""
        return await self.runner.submit(item, priority=priority, timeout_s=timeout_s)

    def direct(self, items: list[Any]) -> Any:
        """What the function itself gives for *items*."""
        return self._method.function(self._owner, items)

    @property
    def runner(self) -> BatchRunner:
        """What makes batches of it in the running loop."""
        runtime = runtime_of(self._owner)
        name = self._method.__name__
        found = runtime.runners.get(name)
        if found is None:
            bound = self._method.function.__get__(self._owner)
            found = BatchRunner(bound, self._method.limits, runtime.threads, self._method.rows_of)
            runtime.runners[name] = found
        return found


@overload
def batch(function: Callable[..., Any], /) -> BatchedMethod: ...
@overload
def batch(
    *,
    max_size: int = 32,
    max_wait_ms: float = 2.0,
    queue_max: int = 1024,
    target_p99_ms: float | None = None,
    rerun_alone: bool = True,
    rows: Callable[[Any], int] | None = None,
) -> Callable[[Callable[..., Any]], BatchedMethod]: ...
def batch(
    function: Callable[..., Any] | None = None,
    /,
    *,
    max_size: int = 32,
    max_wait_ms: float = 2.0,
    queue_max: int = 1024,
    target_p99_ms: float | None = None,
    rerun_alone: bool = True,
    rows: Callable[[Any], int] | None = None,
) -> Any:
    """A method of a list, called with what several requests brought.

    * ``max_size``: rows of a batch at most (32); ``rows``: how many an item has (1 each)
    * ``max_wait_ms``: how long an item may wait for others while nothing runs (2 ms); it does so only where that pays
    * ``queue_max``: how many items may wait (1,024)
    * ``target_p99_ms``: batches are kept small enough for that (no target)
    * ``rerun_alone``: whether a batch that raised is tried again item by item (yes)
    """
    target_s = None if target_p99_ms is None else target_p99_ms / 1000
    limits = BatchLimits(max_size, max_wait_ms / 1000, queue_max, target_s, rerun_alone)

    def wrap(function: Callable[..., Any]) -> BatchedMethod:
        if not callable(function) or isinstance(function, type):
            raise BadRequest("@actorgrid.batch stands above a method", asked=repr(function)[:80])
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadRequest(
                "a batched method gives a list; a generator cannot be batched",
                asked=getattr(function, "__qualname__", repr(function)),
                hint="batch the step that the generator awaits",
            )
        return BatchedMethod(function, limits, rows)

    return wrap if function is None else wrap(function)
