"""``@actorgrid.actor``: a class whose objects live in workers of their own, with devices, and are called from anywhere.

Not to be confused with ``actorgrid.actors``, the servers that a host is made of.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from actorgrid.checkpoints import EVERY_MAX_S, EVERY_MIN_S, CheckpointPolicy
from actorgrid.errors import BadRequest, NameTaken, NoSuchActor

from .actor_handles import OWN_NAMES, ActorHandle
from .actor_names import ActorName, find
from .detached_actors import make_detached, named_job
from .options import DEFAULTS, OPTION_NAMES, TaskOptions
from .task import default_client

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .client import Client

P = ParamSpec("P")
T = TypeVar("T")
MAX_PENDING = 10_000
_OF_WORKERS = (
    *("gpus", "gpu_memory", "gpu_models", "gpu_affinity", "gpu_profile", "gpu_topology"),
    *("cpus", "memory", "pool", "env", "priority"),
)
"""The options of tasks that an actor has too."""
_OF_JOBS = ("max_isolation_s", "grace_s")
"""The options of jobs that a detached actor has, too."""
_OWN = (
    "max_restarts",
    "max_concurrency",
    "max_pending",
    "name",
    "detached",
    "checkpoint_every",
    "checkpoint_every_s",
)
TAKEN_S = 5.0
"""How long get_or_create looks again for an actor whose name is taken, and which is not there."""


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """The options of an actor. Those of its worker (``gpus``, ``cpus``, ``memory``, ``env``, ...) are as of tasks.

    * ``max_restarts``: how often it is begun again when its worker dies (0 unless said, at most 1,000)
    * ``max_concurrency``: how many of its methods may run at once (1 unless said, at most 1,000)
    * ``name``: by which clients of the same user find it: ``client.actor(name)``; it then lives until it is stopped, or
      its creator's client closes
    * ``detached``: a job, which goes on when its creator is gone, until it is stopped or cancelled
    * ``checkpoint_every``, ``checkpoint_every_s``: after so many calls, or seconds, what the method ``save()`` gives is
      kept, and given to ``load(state)`` of the next incarnation (0: only when ``handle.checkpoint()`` is called, and of
      detached actors on SIGTERM)
    * ``max_pending``: how many calls of one process may be unfinished; further ones wait (10,000 unless said)
    """

    worker: TaskOptions = DEFAULTS
    max_restarts: int = 0
    max_concurrency: int = 1
    max_pending: int = MAX_PENDING
    name: str | None = None
    detached: bool = False
    checkpoint_every: int | None = None
    checkpoint_every_s: float | None = None
    client: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_restarts", 0, 1000),
            ("max_concurrency", 1, 1000),
            ("max_pending", 1, 1_000_000),
        ):
            if not least <= getattr(self, name) <= most:
                raise BadRequest(f"{name} is from {least} to {most:,}", asked=f"{name}={getattr(self, name)!r}")
        calls, seconds = self.checkpoint_every, self.checkpoint_every_s
        if calls is not None and not (isinstance(calls, int) and 0 <= calls <= 10**9):
            raise BadRequest("checkpoint_every is a number of calls", asked=repr(calls)[:40], hint="0, or 100")
        if seconds is not None and not EVERY_MIN_S <= seconds <= EVERY_MAX_S:
            raise BadRequest(
                f"checkpoint_every_s is from {EVERY_MIN_S:g} to {EVERY_MAX_S:g} seconds", asked=str(seconds)[:40]
            )

    @property
    def checkpoints(self) -> CheckpointPolicy | None:
        """When its state is saved; ``None``: it keeps no checkpoints."""
        if self.checkpoint_every is None and self.checkpoint_every_s is None:
            return None
        return CheckpointPolicy(self.checkpoint_every or 0, float(self.checkpoint_every_s or 0))

    def changed(self, changes: dict[str, Any]) -> ActorOptions:
        """The same but for *changes*. Raises BadRequest on an option that actors do not have."""
        own = {name: changes[name] for name in changes if name in _OWN}
        rest = {name: value for name, value in changes.items() if name not in own}
        for name in rest:
            if name not in _OF_WORKERS and name not in _OF_JOBS:
                known = (*_OWN, *_OF_WORKERS, *_OF_JOBS)
                hint = "timeout and retries are of calls: handle.method.options(timeout=...)(...)"
                raise BadRequest(
                    f"an actor has no option {name!r}",
                    asked=f"{name}={changes[name]!r}",
                    found="options: " + ", ".join(known),
                    hint=hint if name in OPTION_NAMES else "check the spelling",
                )
        return replace(self, worker=self.worker.changed(**rest) if rest else self.worker, **own)


class ActorClass(Generic[P, T]):
    """A class with its options. Called, it makes a plain object here; ``create`` makes an actor of it."""

    def __init__(self, cls: Callable[P, T], options: ActorOptions) -> None:
        self._cls = cls
        self._methods = _methods_of(cls)
        self.actor_options = options
        self.__doc__, self.__module__ = cls.__doc__, cls.__module__
        self.__name__, self.__qualname__ = self.cls.__name__, self.cls.__qualname__

    @property
    def cls(self) -> type[T]:
        """The class itself: ``handle.call(Counter.cls.add, 1)`` is checked by a type checker."""
        return cast("type[T]", self._cls)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make an object of the class in this process, as if it were not decorated."""
        return self._cls(*args, **kwargs)

    def options(self, **changes: Any) -> ActorClass[P, T]:
        """The same class with other options: ``Counter.options(gpus=0.25).create(5)``. Raises BadRequest."""
        return ActorClass(self._cls, self.actor_options.changed(changes))

    def on(self, client: Client | AsyncClient) -> ActorClass[P, T]:
        """The same class, for actors of that client. Without, they are of the innermost ``with client:``."""
        return ActorClass(self._cls, replace(self.actor_options, client=getattr(client, "sync", client)))

    def create(self, *args: P.args, **kwargs: P.kwargs) -> ActorHandle[T]:
        """Make an actor; its handle, at once. It has a worker of its own as soon as there is room, as a task would.

        All arguments are the class's own; futures among them stand for their values. What its ``__init__`` raises
        is the cause of the ActorDied that its calls, and ``handle.ready()``, then raise. Raises UnpicklableFunction,
        QueueFull, ClientClosed, NameTaken.
        """
        options = self.actor_options
        if not options.detached:
            for each in _OF_JOBS:
                if getattr(options.worker, each) is not None:
                    raise BadRequest(f"{each} is of detached actors", asked=each, hint="detached=True")
        if options.checkpoints is not None and not {"save", "load"} <= self._methods:
            raise BadRequest(
                "an actor with checkpoints has the methods save() and load(state)",
                asked=f"checkpoint_every of {self.__qualname__}",
                found="no " + " and no ".join(sorted({"save", "load"} - self._methods)),
                hint="save() gives what load(state) of the next incarnation takes",
            )
        client: Client = options.client or default_client()
        name = None if options.name is None else ActorName(client, options.name)
        try:
            if options.detached:
                return ActorHandle(make_detached(client, self.cls, args, kwargs, options, self._methods, name))
            if name is not None and named_job(client, str(options.name)) is not None:
                raise NameTaken(f"a detached actor has the name {options.name!r}", asked=str(options.name))
            actors = client._open_session().actors()
            use = actors.make(
                self.cls,
                args,
                kwargs,
                options.worker,
                self._methods,
                options.max_restarts,
                options.max_concurrency,
                options.max_pending,
                name,
                options.checkpoints,
            )
        except BaseException:
            if name is not None:
                name.release()
            raise
        return ActorHandle(use.link.reference)

    def get_or_create(self, *args: P.args, **kwargs: P.kwargs) -> ActorHandle[T]:
        """The actor that has the option ``name``, or a new one. Raises BadRequest without one, else as ``create``."""
        name = self.actor_options.name
        if name is None:
            raise BadRequest("which actor?", hint=f"{self.__name__}.options(name=...).get_or_create(...)")
        until = time.monotonic() + TAKEN_S
        while True:
            with contextlib.suppress(NoSuchActor):
                return find(self.actor_options.client or default_client(), name)
            try:
                return self.create(*args, **kwargs)
            except NameTaken:  # somebody else was faster
                if time.monotonic() > until:
                    raise

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type[Any], ...]:
        return (self.cls,)

    def __repr__(self) -> str:
        return f"<ActorClass {self.__module__}.{self.__qualname__}>"


def _methods_of(cls: object) -> frozenset[str]:
    if not inspect.isclass(cls):
        raise BadRequest("an actor is made of a class", asked=repr(cls)[:80], hint="@actorgrid.task is for functions")
    found = frozenset(
        name
        for name in dir(cls)
        if (not name.startswith("_") and callable(getattr(cls, name, None)))
        or (name == "__call__" and inspect.isfunction(getattr(cls, name, None)))
    )
    taken = sorted(found & OWN_NAMES)
    if taken:
        raise BadRequest(
            f"an actor's handle has {', '.join(OWN_NAMES & found)} of its own",
            asked=f"the method {taken[0]} of {cls.__qualname__}",
            hint="name the method otherwise, or make the actor of a class that wraps this one",
        )
    return found


@overload
def actor(cls: Callable[P, T], /) -> ActorClass[P, T]: ...


@overload
def actor(**options: Any) -> Callable[[Callable[P, T]], ActorClass[P, T]]: ...


def actor(cls: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a class one of actors: ``@actor``, or ``@actor(gpus=0.25, max_restarts=3)``. Raises BadRequest."""
    chosen = ActorOptions().changed(options)
    if cls is not None:
        return ActorClass(cls, chosen)
    return lambda decorated: ActorClass(decorated, chosen)
