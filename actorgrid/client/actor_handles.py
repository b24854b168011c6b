"""Handles of actors of the user's: what methods are called by, here, in tasks and in other actors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from actorgrid import user_actor_context
from actorgrid.errors import BadRequest, NotSupported, OutsideTask
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.objects import here
from actorgrid.transports.user_actor_frames import CHECKPOINT_METHOD, READY_METHOD
from actorgrid.user_actor_context import ActorReference

from .actor_doors import actor_doors
from .actor_jobs import actor_jobs
from .actor_link import ActorLink
from .actor_links import ActorFuture, links
from .forks import this_process
from .futures import LazyFuture
from .pickling import arguments, no_space

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
JOB_WAIT_S = 20.0
OWN_NAMES = frozenset({"actor_id", "call", "ready", "stop"})
"""What a handle has itself, so that no class of an actor may have methods of these names."""


class ActorMethod:
    """A method of an actor: called, it gives a future."""

    __slots__ = ("_handle", "_name", "_retries", "_timeout_s")

    def __init__(self, handle: ActorHandle[Any], name: str, timeout_s: float | None = None, retries: int = 0) -> None:
        self._handle = handle
        self._name = name
        self._timeout_s = timeout_s
        self._retries = retries

    def __call__(self, *args: Any, **kwargs: Any) -> ActorFuture[Any]:
        """Have the method called; the future of its value. All keyword arguments are the method's own."""
        inputs: dict[LazyFuture[Any], int] = {}
        # From a machine that is no host all goes along.
        space = here.current_space if actor_doors.session_for(self._handle._reference) is None else no_space
        body, held = arguments(args, kwargs, inputs, space)
        link = self._handle._link()
        return links.submit(link, self._name, body, tuple(inputs), self._timeout_s, self._retries, held)

    def options(self, *, timeout: float | None = None, retries: int = 0) -> ActorMethod:
        """The same method, with a limit in seconds from its begin on, and begun so many times again when the actor dies
        under it and is restarted: for what may be repeated. Raises BadRequest."""
        if timeout is not None and not 0 < timeout < 1e9:
            raise BadRequest("a timeout is a number of seconds above 0", asked=str(timeout))
        if not 0 <= retries <= 100:
            raise BadRequest("retries are from 0 to 100", asked=str(retries))
        return ActorMethod(self._handle, self._name, timeout, retries)

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._handle!r}>"


class ActorHandle(Generic[T]):
    """Calls the methods of an actor of class ``T``: ``handle.add(1)`` gives a future, as does the typed
    ``handle.call(Counter.cls.add, 1)``.

    May be passed to tasks and to other actors, and used from many threads. Calls of one process begin in the order in
    which they were made. An actor ends when its creator drops its last handle, unless one was passed on;
    at the latest with the creator's client.
    """

    def __init__(self, reference: ActorReference) -> None:
        self._reference = reference
        self._process = this_process()
        self._use = links.use(reference)

    @property
    def actor_id(self) -> str:
        """The actor's id."""
        return self._reference.actor_id

    @overload
    def call(
        self, method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> ActorFuture[R]: ...

    @overload
    def call(self, method: Callable[Concatenate[T, P], R], /, *args: P.args, **kwargs: P.kwargs) -> ActorFuture[R]: ...

    def call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ActorFuture[Any]:
        """Call a method that is named by itself, so that a type checker sees its arguments and its value."""
        return self._method(str(getattr(method, "__name__", method)))(*args, **kwargs)

    def ready(self) -> ActorFuture[None]:
        """A future that is done when the actor is there; its error says why it never will be."""
        made: ActorFuture[None] = ActorMethod(self, READY_METHOD)()
        return made

    def stop(self, *, force: bool = False, wait: bool = True) -> None:
        """End the actor when it has done what it was asked here before; with *force* at once, amid its calls.

        With *wait* it returns when the actor has ended, if this process made it or it is a detached one. Raises
        NotSupported for *force* in another process, of one that is not.
        """
        link = self._link()
        if self._reference.job_id:
            self._stop_job(force, wait)
            return
        owner = link.owner
        if owner is not None:
            owner.stop(force)
        elif force:
            raise NotSupported(
                "only the process that made an actor can end it by force",
                asked=repr(self),
                hint="stop() without force=True, or actorgrid cancel with the id of its lease",
            )
        else:
            links.stop(link)
        if wait and owner is not None:
            link.over.wait()

    def _stop_job(self, force: bool, wait: bool) -> None:
        if force:
            actor_jobs.cancel(self._reference)
        else:
            links.stop(self._link())
        while wait and actor_jobs.job(self._reference, JOB_WAIT_S)["state"] not in FINAL_STATES:
            pass

    def _link(self) -> ActorLink:
        if self._process is not this_process():  # forked since: the connection is the parent's
            self._process = this_process()
            self._use = links.use(self._reference)
        return self._use.link

    def _method(self, name: str) -> ActorMethod:
        if name not in self._reference.methods:
            near = difflib.get_close_matches(name, self._reference.methods, 1)
            raise AttributeError(
                f"the actor {self._reference.class_name} has no method {name!r}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        return ActorMethod(self, name)

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        methods = self._reference.methods
        if name == "checkpoint" and name not in methods and {"save", "load"} <= methods:
            # Not a method of its own: a class may well have one of that name.
            return ActorMethod(self, CHECKPOINT_METHOD)
        return self._method(name)

    def __call__(self, *args: Any, **kwargs: Any) -> ActorFuture[Any]:
        """Call the actor itself, where its class has a ``__call__``."""
        return self._method("__call__")(*args, **kwargs)

    def __enter__(self) -> ActorHandle[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(force=kind is not None and self._link().is_ours)

    def __reduce__(self) -> Any:
        self._link().is_shared = True
        return _handle, (self._reference,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other.actor_id == self.actor_id

    def __hash__(self) -> int:
        return hash(self._reference.actor_id)

    def __repr__(self) -> str:
        return f"<ActorHandle {self._reference.class_name} {self._reference.actor_id}>"


def _handle(reference: ActorReference) -> ActorHandle[Any]:
    return ActorHandle(reference)


def current_actor() -> ActorHandle[Any]:
    """The handle of the actor that this process holds, to be passed on. Raises OutsideTask in any other process."""
    held = user_actor_context.here
    if held is None:
        raise OutsideTask("this process holds no actor", hint="call it in a method of an actor, or in its __init__")
    return ActorHandle(held.reference)
