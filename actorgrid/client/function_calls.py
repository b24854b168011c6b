"""The verbs of a client that send functions to workers, typed: ``submit``, ``stream``, ``map`` and ``options``."""

# mypy: disable-error-code="overload-cannot-match, overload-overlap"
# Overloads for arguments that stand for values: mypy takes them for hidden by the first, and finds them all the same.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from .call_options import STREAM_WINDOW, CallOptions
from .keywords import divide, refuse_words
from .options import DEFAULTS, TaskOptions, options_of
from .task import Task

if TYPE_CHECKING:
    from .call_words import JobWords, Later, MapWords, StreamWords, SubmitWords, TaskWords
    from .futures import JobFuture, LazyFuture
    from .map_results import MapResults
    from .stream_items import StreamItems
    from .streams import TaskStream

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")


class FunctionCalls(Executor):
    """What a client does with functions. The overloads are one function, as type checkers see it (call_words.py)."""

    @abstractmethod
    def submit_with(
        self,
        options: TaskOptions,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        stream: StreamItems | None = None,
    ) -> LazyFuture[T]:
        """``submit`` with ready-made options; of a *stream* its future, whose value is how many values it had."""

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> LazyFuture[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> LazyFuture[T]: ...

    @overload
    def submit(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        durable: Literal[True],
        **options: Unpack[JobWords],
    ) -> JobFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[[*Ts], T], /, *args: *Ts, durable: Literal[True], **options: Unpack[JobWords]
    ) -> JobFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], /, *args: *Ts, **options: Unpack[SubmitWords]
    ) -> LazyFuture[T]: ...

    @overload
    def submit(self, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[SubmitWords]) -> LazyFuture[T]: ...

    @overload
    def submit(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        a: Later,
        /,
        *args: Any,
        durable: Literal[True],
        **keywords: Any,
    ) -> JobFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., T], a: Later, /, *args: Any, durable: Literal[True], **keywords: Any
    ) -> JobFuture[T]: ...

    @overload
    def submit(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        a: Any,
        b: Later,
        /,
        *args: Any,
        durable: Literal[True],
        **keywords: Any,
    ) -> JobFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[..., T], a: Any, b: Later, /, *args: Any, durable: Literal[True], **keywords: Any
    ) -> JobFuture[T]: ...

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

    def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """Run ``fn(*args, ...)`` on a worker; the future of its value.

        Keywords are options of the task (see TaskOptions) or the function's own arguments, whoever knows them; what
        both know is refused: ``client.options(timeout=30).submit(fn, ...)`` says the options first, and gives all
        keywords to the function. ``kwargs={...}`` holds further ones of the function. A ``@task`` brings its options.

        A session task runs at least once: again when its worker dies, at most ``retries`` times. With
        ``durable=True`` it is a job, and the future a JobFuture, which may be passed to further durable submits. The
        function is pickled once: later changes inside what it captures are not seen.
        Raises UnpicklableFunction, AmbiguousKeyword and BadRequest here; everything else comes with ``result()``.
        """
        base, fn = (fn.task_options, fn.fn) if isinstance(fn, Task) else (DEFAULTS, fn)
        if not keywords:
            return self.submit_with(base, fn, args, keywords)
        options, kwargs = divide(fn, len(args), keywords, base)
        return self.submit_with(options, fn, args, kwargs)

    def options(self, **options: Unpack[TaskWords]) -> CallOptions:
        """Calls with these options, all of whose keywords are the function's: ``client.options(gpus=1).submit(fn)``.

        Raises BadRequest for an option that does not exist.
        """
        return CallOptions(self, options_of(dict(options)))

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

    def stream(self, fn: Callable[..., Any], /, *args: Any, window: int = STREAM_WINDOW, **keywords: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """The values that a generator (or ``async`` generator, or any iterable) gives on a worker, as it gives them.

        ``for value in client.stream(fn, ...)``, or ``async for``. It runs ahead by *window* values (1 to 1,024) at
        most, of up to 64 MiB each; dropping the stream, or its ``close()``, closes it. A session task that is begun
        again only if its worker died before a value came. Keywords as of submit.
        """
        base, fn = (fn.task_options, fn.fn) if isinstance(fn, Task) else (DEFAULTS, fn)
        options, kwargs = divide(fn, len(args), keywords, base)
        return CallOptions(self, options).stream(fn, *args, window=window, **kwargs)

    @overload  # type: ignore[override]  # its function has no name for keywords to take
    def map(
        self, fn: Callable[[A], Coroutine[Any, Any, T]], a: Iterable[A], /, **words: Unpack[MapWords]
    ) -> MapResults[T]: ...

    @overload
    def map(self, fn: Callable[[A], T], a: Iterable[A], /, **words: Unpack[MapWords]) -> MapResults[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], Coroutine[Any, Any, T]], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapWords]
    ) -> MapResults[T]: ...

    @overload
    def map(
        self, fn: Callable[[A, B], T], a: Iterable[A], b: Iterable[B], /, **words: Unpack[MapWords]
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
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: bool = False,
        **keywords: Any,
    ) -> Any:
        """``fn`` over the items, side by side; an iterator of the values in order.

        Work starts at once, with at most *buffersize* tasks (4,096 unless said) ahead of what was taken. *chunksize*
        items travel in one task: worth it below some 100 µs each. A value that is not there *timeout* seconds after
        the call raises TimeoutError. The first failure is raised where its value would be, and cancels the rest.
        *progress* shows a bar on a terminal or in a notebook. Further keywords as of submit; the function's are the
        same for all, and so is ``client.options(timeout=...).map``, a limit for each task. Raises BadRequest.
        """
        base, fn = (fn.task_options, fn.fn) if isinstance(fn, Task) else (DEFAULTS, fn)
        options, kwargs = divide(fn, len(iterables), keywords, base)
        own = {} if timeout is None else {"timeout": timeout}
        refuse_words(fn, len(iterables), own, "map")
        return (
            CallOptions(self, options)
            .map(fn, *iterables, chunksize=chunksize, buffersize=buffersize, progress=progress, **kwargs)
            .within(timeout)
        )

    asynchronous = False
    """For dask, which takes a client as its scheduler: values are given, not awaited."""

    def get(self, graph: Any, keys: Any, **_: Any) -> Any:
        """The values of *keys* of a dask graph, as session tasks: ``dask.compute(x, scheduler=client)``.

        Further keywords are dask's, for its own schedulers. Raises what a task raised, KeyError, NotSupported.
        """
        return CallOptions(self, DEFAULTS).get(graph, keys)
