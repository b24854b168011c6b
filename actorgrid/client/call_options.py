"""``client.options(gpus=1).submit(fn, ...)``: options are said first, so that each keyword is the function's."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from .keywords import refuse_words
from .options import TaskOptions

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from .client import Client
    from .futures import TaskFuture
    from .map_results import MapResults
    from .streams import TaskStream

P = ParamSpec("P")
T = TypeVar("T")
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

    def __init__(self, client: Client, options: TaskOptions) -> None:
        self._client = client
        self.task_options = options

    def options(self, **changes: Any) -> CallOptions:
        """The same but for *changes*. Raises BadRequest on one that does not exist."""
        return CallOptions(self._client, self.task_options.changed(**changes))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of the client, but that all keyword arguments are the function's own."""
        return self._client.submit_with(self.task_options, fn, args, kwargs)

    def stream(
        self, fn: Callable[..., Any], /, *args: Any, window: int = STREAM_WINDOW, **kwargs: Any
    ) -> TaskStream[Any]:
        """As of the client, but that all further keyword arguments are the function's own."""
        from .stream_items import StreamItems
        from .streams import TaskStream

        if window != STREAM_WINDOW:
            refuse_words(fn, len(args), ["window"], "stream")
        items = StreamItems(window)
        future = self._client.submit_with(self.task_options, fn, args, kwargs, items)
        return TaskStream(cast("TaskFuture[Any]", future), items)

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: bool = False,
        **kwargs: Any,
    ) -> MapResults[T]:
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


class AsyncCallOptions:
    """The same for asyncio: ``await client.options(gpus=1).submit(fn, ...)``."""

    def __init__(self, calls: CallOptions) -> None:
        self.sync = calls

    def options(self, **changes: Any) -> AsyncCallOptions:
        """The same but for *changes*. Raises BadRequest on one that does not exist."""
        return AsyncCallOptions(self.sync.options(**changes))

    def start(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin one call; cancelling the asyncio future cancels the task if it has not started."""
        import asyncio

        return asyncio.wrap_future(self.sync.submit(fn, *args, **kwargs))

    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The value of one call."""
        return await self.start(fn, *args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> TaskStream[Any]:
        """Values of a generator, for ``async for``; as of the client."""
        return self.sync.stream(fn, *args, **more)

    def map(self, fn: Callable[..., T], /, *iterables: Iterable[Any], **more: Any) -> AsyncIterator[T]:
        """Values in order, as of the client."""
        return values_of(self.sync.map(fn, *iterables, **more))


_END = object()


async def values_of(results: MapResults[T]) -> AsyncIterator[T]:
    """The values of a map, awaited; leaving the loop cancels the rest."""
    import asyncio

    try:
        while (value := await asyncio.to_thread(next, results, _END)) is not _END:
            yield value  # type: ignore[misc]
    finally:
        results.cancel()
