"""``@actorgrid.task``: a function that knows what it needs, and the client it goes to when none is named."""

# mypy: disable-error-code="overload-cannot-match, overload-overlap"
# As in call_words.py: arguments may stand for values.

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from .forks import renew_in_children
from .keywords import refuse_words
from .options import TaskOptions, options_of

if TYPE_CHECKING:
    from .call_words import Later, MapOwnWords, TaskWords
    from .client import Client
    from .futures import LazyFuture
    from .map_results import MapResults
    from .streams import TaskStream

P = ParamSpec("P")
T = TypeVar("T", covariant=True)
R = TypeVar("R")
A = TypeVar("A")


class _Choice:
    """The lock under which the default client is chosen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        """Choose in a forked child under a lock that nobody holds."""
        self.lock = threading.Lock()


_steps_instead: Callable[[Task[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
"""Set by ``dag.py`` once it is loaded: what makes a step of a call inside of ``with dag:``."""
_choice = _Choice()
renew_in_children(_choice)
_entered: list[Client] = []
_connected: list[Client] = []


class Task(Generic[P, T]):
    """A function with its options. Called, it runs here and now; ``submit`` and ``map`` send it to a worker."""

    def __init__(self, fn: Callable[P, T], options: TaskOptions) -> None:
        self.fn = fn
        self.task_options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in this process, as if it were not decorated; inside of ``with dag:``, add a step."""
        if _steps_instead is not None and (step := _steps_instead(self, args, kwargs)) is not None:
            return cast("T", step)  # stands for the value
        return self.fn(*args, **kwargs)

    @overload
    def submit(self: Task[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> LazyFuture[R]: ...

    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> LazyFuture[T]: ...

    @overload
    def submit(self: Task[P, Coroutine[Any, Any, R]], *args: Any, client: Client, **kwargs: Any) -> LazyFuture[R]: ...

    @overload
    def submit(self, *args: Any, client: Client, **kwargs: Any) -> LazyFuture[T]: ...

    @overload
    def submit(self: Task[P, Coroutine[Any, Any, R]], a: Later, /, *args: Any, **kwargs: Any) -> LazyFuture[R]: ...

    @overload
    def submit(self, a: Later, /, *args: Any, **kwargs: Any) -> LazyFuture[T]: ...

    @overload
    def submit(
        self: Task[P, Coroutine[Any, Any, R]], a: Any, b: Later, /, *args: Any, **kwargs: Any
    ) -> LazyFuture[R]: ...

    @overload
    def submit(self, a: Any, b: Later, /, *args: Any, **kwargs: Any) -> LazyFuture[T]: ...

    def submit(self, *args: Any, client: Client | None = None, **kwargs: Any) -> Any:  # type: ignore[misc]  # its signatures are those above
        """Run the function on a worker; gives a future. All keyword arguments but ``client`` are the function's own.

        Raises AmbiguousKeyword when the function takes a ``client`` as well: ``client.submit(task, ..., client=x)``
        gives it one.
        """
        if client is not None:
            refuse_words(self.fn, len(args), ("client",), "submit")
        return (client or default_client()).submit_with(self.task_options, self.fn, args, kwargs)

    @overload
    def stream(self: Task[P, Iterable[R]], *args: P.args, **kwargs: P.kwargs) -> TaskStream[R]: ...

    @overload
    def stream(self: Task[P, AsyncIterable[R]], *args: P.args, **kwargs: P.kwargs) -> TaskStream[R]: ...

    @overload
    def stream(self, *args: Any, client: Client, window: int = 16, **kwargs: Any) -> TaskStream[Any]: ...

    @overload
    def stream(self, *args: Any, window: int, **kwargs: Any) -> TaskStream[Any]: ...

    @overload
    def stream(self, a: Later, /, *args: Any, **kwargs: Any) -> TaskStream[Any]: ...

    def stream(  # type: ignore[misc]  # its signatures are those above
        self, *args: Any, client: Client | None = None, window: int | None = None, **kwargs: Any
    ) -> Any:
        """The values that the function yields on a worker, as of ``Client.stream``.

        All keyword arguments but ``client`` and ``window`` are the function's own. Raises AmbiguousKeyword when it
        takes one of those as well, BadRequest for a function that is a job (``durable=True``): a job has no stream.
        """
        from .call_options import STREAM_WINDOW, CallOptions

        said = [word for word, value in (("client", client), ("window", window)) if value is not None]
        refuse_words(self.fn, len(args), said, "stream")
        calls = CallOptions(client or default_client(), self.task_options)
        return calls.stream(
            cast("Callable[..., Iterable[Any]]", self.fn),
            *args,
            window=STREAM_WINDOW if window is None else window,
            **kwargs,
        )

    @overload
    def map(  # type: ignore[misc]  # a Task is one
        self: Callable[[A], Coroutine[Any, Any, R]],
        a: Iterable[A],
        /,
        *,
        client: Client | None = None,
        **words: Unpack[MapOwnWords],
    ) -> MapResults[R]: ...

    @overload
    def map(
        self: Callable[[A], R],
        a: Iterable[A],
        /,
        *,
        client: Client | None = None,
        **words: Unpack[MapOwnWords],
    ) -> MapResults[R]: ...

    @overload
    def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        client: Client | None = None,
        **words: Unpack[MapOwnWords],
    ) -> MapResults[T]: ...

    def map(self, *iterables: Iterable[Any], client: Client | None = None, **words: Any) -> Any:
        """Run the function over the items, side by side; values in order. Keywords as of ``client.options().map``."""
        from .call_options import CallOptions

        if client is not None:
            refuse_words(self.fn, len(iterables), ("client",), "map")
        return CallOptions(client or default_client(), self.task_options).map(self.fn, *iterables, **words)

    def options(self, **changes: Unpack[TaskWords]) -> Task[P, T]:
        """The same function with other options: ``f.options(gpus=2).submit(x)``."""
        return Task(self.fn, self.task_options.changed(**changes))


@overload
def task(fn: Callable[P, T], /) -> Task[P, T]: ...


@overload
def task(**options: Unpack[TaskWords]) -> Callable[[Callable[P, T]], Task[P, T]]: ...


def task(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Give a function options, as ``@task`` or ``@task(gpus=0.25, gpu_memory="2GiB", retries=3)``."""
    chosen = options_of(options)
    if fn is not None:
        return Task(fn, chosen)
    return lambda function: Task(function, chosen)


def default_client() -> Client:
    """The client of the innermost ``with``, else one that ``connect()`` makes once per process."""
    with _choice.lock:
        if _entered:
            return _entered[-1]
        if _connected and _connected[0]._closed:
            _connected.clear()
        if not _connected:
            from .client import connect

            _connected.append(connect())
        return _connected[0]


def push_default(client: Client) -> None:
    """Make *client* the default: its ``with`` was entered."""
    with _choice.lock:
        _entered.append(client)


def pop_default(client: Client) -> None:
    """Take *client* from the defaults: its ``with`` was left."""
    with _choice.lock:
        for index in range(len(_entered) - 1, -1, -1):
            if _entered[index] is client:
                del _entered[index]
                return
