"""``@actorgrid.task``: a function that knows what it needs, and the client it goes to when none is named."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from .forks import renew_in_children
from .keywords import refuse_words
from .options import TaskOptions, options_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .client import Client
    from .map_results import MapResults

P = ParamSpec("P")
T = TypeVar("T")


class _Choice:
    """The lock under which the default client is chosen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        """Choose in a forked child under a lock that nobody holds."""
        self.lock = threading.Lock()


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
        """Run the function in this process, as if it were not decorated."""
        return self.fn(*args, **kwargs)

    def submit(self, *args: Any, client: Client | None = None, **kwargs: Any) -> Future[T]:
        """Run the function on a worker; gives a future. All keyword arguments but ``client`` are the function's own.

        Raises AmbiguousKeyword when the function takes a ``client`` as well: ``client.submit(task, ..., client=x)``
        gives it one.
        """
        if client is not None:
            refuse_words(self.fn, len(args), ("client",), "submit")
        return (client or default_client()).submit_with(self.task_options, self.fn, args, kwargs)

    def map(self, *iterables: Iterable[Any], client: Client | None = None, chunksize: int = 1) -> MapResults[T]:
        """Run the function over the items, side by side; values in order."""
        from .call_options import CallOptions

        return CallOptions(client or default_client(), self.task_options).map(self.fn, *iterables, chunksize=chunksize)

    def options(self, **changes: Any) -> Task[P, T]:
        """The same function with other options: ``f.options(gpus=2).submit(x)``."""
        return Task(self.fn, self.task_options.changed(**changes))


@overload
def task(fn: Callable[P, T], /) -> Task[P, T]: ...


@overload
def task(**options: Any) -> Callable[[Callable[P, T]], Task[P, T]]: ...


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
