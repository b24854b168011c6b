"""The verbs of the asynchronous client that send functions to workers, typed as the synchronous client's are."""

# mypy: disable-error-code="overload-cannot-match, overload-overlap"
# Overloads for arguments that stand for values: mypy takes them for hidden by the first, and finds them all the same.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from .call_options import CallOptions

if TYPE_CHECKING:
    from .call_words import Later, MapOwnWords, MapWords, StreamOwnWords, StreamWords, SubmitWords, TaskWords
    from .client import Client
    from .map_results import MapResults
    from .streams import TaskStream

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")


class AsyncFunctionCalls:
    """What an asynchronous client does with functions. Its overloads are one function, as type checkers see it."""

    sync: Client

    @overload
    def start(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], /, *args: *Ts, **options: Unpack[SubmitWords]
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[SubmitWords]) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[..., T], a: Later, /, *args: Any, **keywords: Any) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, **keywords: Any) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., T], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    def start(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """Begin one call; cancelling the asyncio future cancels the task if it has not started."""
        return asyncio.wrap_future(self.sync.submit(fn, *args, **keywords))

    @overload
    async def submit(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], /, *args: *Ts, **options: Unpack[SubmitWords]
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[SubmitWords]) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Later, /, *args: Any, **keywords: Any) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, **keywords: Any) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any) -> T: ...

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """The value of one call. Keywords as of ``Client.submit``."""
        return await self.start(fn, *args, **keywords)

    def options(self, **options: Unpack[TaskWords]) -> AsyncCallOptions:
        """Calls with these options, all of whose keywords are the function's. Raises BadRequest."""
        return AsyncCallOptions(self.sync.options(**options))

    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> TaskStream[T]: ...

    @overload
    def stream(self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[[*Ts], Iterable[T]], /, *args: *Ts, **words: Unpack[StreamWords]
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[[*Ts], AsyncIterable[T]], /, *args: *Ts, **words: Unpack[StreamWords]
    ) -> TaskStream[T]: ...

    @overload
    def stream(self, fn: Callable[..., Iterable[T]], a: Later, /, *args: Any, **keywords: Any) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., AsyncIterable[T]], a: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., Iterable[T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., AsyncIterable[T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    def stream(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """Values of a generator as it gives them: ``async for value in client.stream(fn, ...)``, as of ``Client``."""
        return self.sync.stream(fn, *args, **keywords)

    @overload
    def map(
        self, fn: Callable[[A], Coroutine[Any, Any, T]], a: Iterable[A], /, **words: Unpack[MapWords]
    ) -> AsyncIterator[T]: ...

    @overload
    def map(self, fn: Callable[[A], T], a: Iterable[A], /, **words: Unpack[MapWords]) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], Coroutine[Any, Any, T]], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapWords]
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], T], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapWords]
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
        a: Iterable[A],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[Concatenate[A, P], T], a: Iterable[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[..., Any], a: Iterable[Later], /, *iterables: Iterable[Any], **keywords: Any
    ) -> AsyncIterator[Any]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Any],
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        **keywords: Any,
    ) -> AsyncIterator[Any]: ...

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any], **keywords: Any) -> Any:
        """Values in order: ``async for value in client.map(fn, items)``. Keywords as of ``Client.map``."""
        return values_of(self.sync.map(fn, *iterables, **keywords))


class AsyncCallOptions:
    """The same for asyncio: ``await client.options(gpus=1).submit(fn, ...)``."""

    def __init__(self, calls: CallOptions) -> None:
        self.sync = calls

    def options(self, **changes: Unpack[TaskWords]) -> AsyncCallOptions:
        """The same but for *changes*. Raises BadRequest on one that does not exist."""
        return AsyncCallOptions(self.sync.options(**changes))

    @overload
    def start(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[..., T], a: Later, /, *args: Any, **keywords: Any) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, **keywords: Any) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    @overload
    def start(
        self, fn: Callable[..., T], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> asyncio.Future[T]: ...

    def start(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Begin one call; cancelling the asyncio future cancels the task if it has not started."""
        return asyncio.wrap_future(self.sync.submit(fn, *args, **kwargs))

    @overload
    async def submit(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Later, /, *args: Any, **keywords: Any) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, **keywords: Any) -> T: ...

    @overload
    async def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> T: ...

    @overload
    async def submit(self, fn: Callable[..., T], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any) -> T: ...

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The value of one call."""
        return await self.start(fn, *args, **kwargs)

    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> TaskStream[T]: ...

    @overload
    def stream(self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[[*Ts], Iterable[T]], /, *args: *Ts, **words: Unpack[StreamOwnWords]
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[[*Ts], AsyncIterable[T]], /, *args: *Ts, **words: Unpack[StreamOwnWords]
    ) -> TaskStream[T]: ...

    @overload
    def stream(self, fn: Callable[..., Iterable[T]], a: Later, /, *args: Any, **keywords: Any) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., AsyncIterable[T]], a: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., Iterable[T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    @overload
    def stream(
        self, fn: Callable[..., AsyncIterable[T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> TaskStream[T]: ...

    def stream(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """Values of a generator, for ``async for``; as of the client."""
        return self.sync.stream(fn, *args, **more)

    @overload
    def map(
        self, fn: Callable[[A], Coroutine[Any, Any, T]], a: Iterable[A], /, **words: Unpack[MapOwnWords]
    ) -> AsyncIterator[T]: ...

    @overload
    def map(self, fn: Callable[[A], T], a: Iterable[A], /, **words: Unpack[MapOwnWords]) -> AsyncIterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], Coroutine[Any, Any, T]],
        a: Iterable[A],
        b: Iterable[B],
        /,
        **words: Unpack[MapOwnWords],
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], T], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapOwnWords]
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
        a: Iterable[A],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[Concatenate[A, P], T], a: Iterable[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]: ...

    @overload
    def map(
        self, fn: Callable[..., Any], a: Iterable[Later], /, *iterables: Iterable[Any], **keywords: Any
    ) -> AsyncIterator[Any]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Any],
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        **keywords: Any,
    ) -> AsyncIterator[Any]: ...

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any], **more: Any) -> Any:
        """Values in order, as of the client."""
        return values_of(self.sync.map(fn, *iterables, **more))


_END = object()


async def values_of(results: MapResults[T]) -> AsyncIterator[T]:
    """The values of a map, awaited; leaving the loop cancels the rest."""
    try:
        while (value := await asyncio.to_thread(next, results, _END)) is not _END:
            yield value  # type: ignore[misc]
    finally:
        results.cancel()
