"""``client.options(gpus=1).submit(fn, ...)``: options are said first, so that each keyword is the function's."""

# mypy: disable-error-code="overload-cannot-match, overload-overlap"
# Overloads for arguments that stand for values: mypy takes them for hidden by the first, and finds them all the same.

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast, overload

from .keywords import refuse_words
from .options import TaskOptions

if TYPE_CHECKING:
    from .call_words import Later, MapOwnWords, StreamOwnWords, TaskWords
    from .function_calls import FunctionCalls
    from .futures import LazyFuture, TaskFuture
    from .map_results import MapResults
    from .streams import TaskStream

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")
STREAM_WINDOW = 16
"""How many values of a stream a generator is ahead of what was taken, unless said."""
WINDOW = 4096
"""How many tasks of a map are ahead of what was taken, unless said."""


def with_own_keywords(
    fn: Callable[..., T], by_position: int, kwargs: dict[str, Any], said: dict[str, bool]
) -> Callable[..., T]:
    """*fn* with keyword arguments that are the same for all items of a map.

    Raises AmbiguousKeyword for one that map was *said* for itself and that *fn* takes as well.
    """
    refuse_words(fn, by_position, [word for word in said if said[word]], "map")
    if not kwargs:
        return fn
    own = functools.partial(fn, **kwargs)
    functools.update_wrapper(own, fn, ("__module__", "__name__", "__qualname__"), ())
    del own.__dict__["__wrapped__"]  # it would travel as well
    return own


class CallOptions:
    """A client's calls with one set of options, checked once. Cheap: it holds nothing but the two."""

    def __init__(self, client: FunctionCalls, options: TaskOptions) -> None:
        self._client = client
        self.task_options = options

    def options(self, **changes: Unpack[TaskWords]) -> CallOptions:
        """The same but for *changes*. Raises BadRequest on one that does not exist."""
        return CallOptions(self._client, self.task_options.changed(**changes))

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> LazyFuture[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> LazyFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Later, /, *args: Any, **keywords: Any
    ) -> LazyFuture[T]: ...

    @overload
    def submit(self, fn: Callable[..., T], a: Later, /, *args: Any, **keywords: Any) -> LazyFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Later, /, *args: Any, **keywords: Any
    ) -> LazyFuture[T]: ...

    @overload
    def submit(self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, **keywords: Any) -> LazyFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> LazyFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., T], a: Any, b: Any, c: Later, /, *args: Any, **keywords: Any
    ) -> LazyFuture[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """As of the client, but that all keyword arguments are the function's own."""
        return self._client.submit_with(self.task_options, fn, args, kwargs)

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

    def stream(self, fn: Callable[..., Any], /, *args: Any, window: int = STREAM_WINDOW, **kwargs: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """As of the client, but that all further keyword arguments are the function's own."""
        from .stream_items import StreamItems
        from .streams import TaskStream

        if window != STREAM_WINDOW:
            refuse_words(fn, len(args), ["window"], "stream")
        items = StreamItems(window)
        future = self._client.submit_with(self.task_options, fn, args, kwargs, items)
        return TaskStream(cast("TaskFuture[Any]", future), items)

    @overload
    def map(
        self, fn: Callable[[A], Coroutine[Any, Any, T]], a: Iterable[A], /, **words: Unpack[MapOwnWords]
    ) -> MapResults[T]: ...

    @overload
    def map(self, fn: Callable[[A], T], a: Iterable[A], /, **words: Unpack[MapOwnWords]) -> MapResults[T]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], Coroutine[Any, Any, T]],
        a: Iterable[A],
        b: Iterable[B],
        /,
        **words: Unpack[MapOwnWords],
    ) -> MapResults[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], T], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapOwnWords]
    ) -> MapResults[T]: ...

    @overload
    def map(
        self,
        fn: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
        a: Iterable[A],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> MapResults[T]: ...

    @overload
    def map(
        self, fn: Callable[Concatenate[A, P], T], a: Iterable[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> MapResults[T]: ...

    @overload
    def map(
        self, fn: Callable[..., Any], a: Iterable[Later], /, *iterables: Iterable[Any], **keywords: Any
    ) -> MapResults[Any]: ...

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
    ) -> MapResults[Any]: ...

    def map(  # type: ignore[misc]  # its signatures are those above
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As of the client, but that all further keyword arguments are the function's own, the same for all items.

        How long values are waited for is said to what it returns: ``within(5)``.
        """
        from .map_results import MapResults

        said = {"chunksize": chunksize != 1, "buffersize": buffersize is not None, "progress": progress}
        own = with_own_keywords(fn, len(iterables), kwargs, said)
        return MapResults(
            self._client,
            self.task_options,
            own,
            iterables,
            chunksize=chunksize,
            buffersize=WINDOW if buffersize is None else buffersize,
            progress=progress,
        )

    def get(self, graph: Any, keys: Any, **_: Any) -> Any:
        """As of the client: ``dask.compute(x, scheduler=client.options(gpus=0.5).get)``."""
        from .dask_graph import get

        return get(self, graph, keys)

    def __repr__(self) -> str:
        return f"<CallOptions {self.task_options} of {self._client!r}>"
