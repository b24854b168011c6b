"""The actors that a session has made: begun, begun again when their worker dies, and ended with the session.

An actor is a task of the session that lasts, on a lease of its own. Its socket, and what it died of, are in a folder of
this process (0700), where whoever holds a handle finds them. The file ``owner`` in it is locked as long as we live.
Where this machine is no host, the shared state says where actors are, and what they died of (actor_board.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from actorgrid.checkpoints import CheckpointPolicy
from actorgrid.errors import ActorDied, ActorGridError, MalformedBody, QueueFull, TaskCancelled, WorkerLost
from actorgrid.objects.space import Held
from actorgrid.transports.actor_states import StateJoiner
from actorgrid.transports.task_frames import encode_more, fn_id_of
from actorgrid.transports.user_actor_frames import DEATH_SUFFIX, FOLDER_HEX, OWNER_FILE, PLACE_SUFFIX
from actorgrid.user_actor_context import AFAR_PREFIX, MARK, ActorReference, mark

from .actor_board import ActorBoard
from .actor_doors import actor_doors
from .actor_links import ActorUse, links
from .actor_places import folder_name, place_of_creator
from .futures import LazyFuture, TaskFuture
from .options import TaskOptions
from .own_user import own_user
from .pickling import FunctionCode, arguments
from .stream_items import StreamItems

if TYPE_CHECKING:
    from .actor_names import ActorName
    from .session import Session

MAX_ACTORS = 1000
"""Of one client at a time."""
RESTART_DELAY_MAX_S = 5.0
ELSEWHERE_S = 60.0
"""So long a worker on this host is asked for, while those that are granted are on other hosts."""
LIVED_S = 60.0
"""An actor that lived so long is begun again at once, however often it died before."""
_BEGIN = b"cactorgrid.actors.work.user_actor\nbegin\n."
"""The function that a worker runs, pickled: clients and servers import nothing of each other."""


class _CameUp(StreamItems):
    """Tells when the worker says that the actor listens, by the first item of its stream, and what states it saves, by
    the others."""

    def __init__(self, actor: OwnedActor, incarnation: int) -> None:
        super().__init__(1)
        self._actor = actor
        self._incarnation = incarnation
        self._states: StateJoiner | None = StateJoiner()

    def put(self, body: bytes, held: tuple[Held, ...] = ()) -> None:
        self.received += 1
        if self.received == 1:
            self._actor.came_up(body.decode("ascii", "replace"))
            return
        try:
            state = None if self._states is None else self._states.feed(body)
        except MalformedBody:
            self._states = None  # the worker is the user's own: what it says is the user's affair
            return
        if state is not None:
            self._actor.saved(self._incarnation, state.data)


class OwnedActor:
    """One actor, over all its incarnations."""

    def __init__(
        self,
        owned: OwnedActors,
        session: Session,
        reference: ActorReference,
        use: ActorUse,
        made: type[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: TaskOptions,
        max_restarts: int,
        max_concurrency: int,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        self.reference = reference
        self.restarts_left = max_restarts
        self.name: ActorName | None = None
        self._owned = owned
        self._session = session
        self._options = options
        self._incarnation = 0
        self._begun = 0  # of which incarnation the future is
        self._early_deaths = 0
        self._elsewhere_since = 0.0
        self._began = 0.0
        self._stopping = False
        self._forced = False
        self._lock = threading.Lock()
        self._future: TaskFuture[Any] | None = None
        self._kept: LazyFuture[tuple[int, bytes] | None] = LazyFuture()  # by which incarnation, and the state
        self._kept.set_result(None)
        call: tuple[Any, ...] = (reference, max_concurrency, made, args, dict(kwargs))
        if policy is not None:  # what not every version knows is there only where it was asked for
            call = (*call, tuple(policy), self._kept)
        inputs: dict[LazyFuture[Any], int] = {}
        self._args = arguments(call, {}, inputs, session.objects)
        self._inputs = [one for one in inputs if one is not self._kept]
        self._kept_at = inputs.get(self._kept, -1)
        self._link = use.link
        self._link.owner = self

    def begin(self) -> None:
        """Begin the next incarnation. Raises what submitting raises."""
        self._incarnation += 1
        marked = self._options.with_variables(**{MARK: mark(self.reference.actor_id, self._incarnation)})
        options = marked.changed(retries=0, name=self.reference.class_name)
        code = FunctionCode(fn_id_of(_BEGIN), _BEGIN, self.reference.class_name, f"actor {self.reference.class_name}")
        self._began = time.monotonic()
        args = self._args
        inputs = list(self._inputs)
        if self._kept_at >= 0:
            with self._lock:
                inputs.insert(self._kept_at, self._kept)
        future = self._session.submit(code, args.body, options, inputs, _CameUp(self, self._incarnation), args.held)
        self._future, self._begun = future, self._incarnation
        future.add_done_callback(self._ended)  # type: ignore[arg-type]

    def came_up(self, host_id: str) -> None:
        """Connect to it, and leave word of where it is. Called with the dispatcher's lock held."""
        if not self.reference.host_id:
            host_id = ""  # it is here, where alone it can be
        self._owned.placed(self.reference, host_id)
        links.came_up(self._link, host_id)

    def saved(self, incarnation: int, state: bytes) -> None:
        """Keep what it has saved for the next incarnation. Called with the dispatcher's lock held."""
        with self._lock:
            if incarnation != self._incarnation:
                return  # of one that is over
            self._kept = LazyFuture()
            self._kept.set_result((incarnation, state))
        links.soon(partial(self._tell_kept, incarnation))

    def _tell_kept(self, incarnation: int) -> None:
        begun, future = self._begun, self._future
        if begun < incarnation:  # its submit is about to return
            links.soon(partial(self._tell_kept, incarnation))
        elif begun == incarnation and future is not None:
            future.tell(encode_more(future.call.task_id, 1))

    def stop(self, force: bool) -> None:
        """End it: when all is done that it was asked here, or by force."""
        future = self._future
        with self._lock:
            self._stopping = True
            self._forced = self._forced or force
        if future is None or force:
            if future is not None:
                self._session.kill(future)
            return
        links.stop(self._link)
        if not self._link.pending and not future.running():
            future.cancel()  # it was not even begun

    def wait_until_done(self) -> None:
        """Wait until no call of this process is unfinished."""
        links.wait_until_done(self._link)

    def wait_until_over(self) -> None:
        """Wait for its end."""
        self._link.over.wait()

    def _ended(self, future: TaskFuture[Any]) -> None:
        if future.cancelled():
            self.die(_died(self.reference, "its client was closed, or it was stopped before it was begun"))
        elif not future.says_failed():
            self.die(_died(self.reference, "it was stopped"))
        else:  # what it failed of is unpickled, which may take long, and this may be the thread that reads workers
            threading.Thread(target=self._judge, args=(future,), name="actorgrid-actor", daemon=True).start()

    def _judge(self, future: TaskFuture[Any]) -> None:
        error = future.exception()
        assert error is not None, "it said that it failed"
        with self._lock:
            again = isinstance(error, WorkerLost) and not self._stopping and self.restarts_left > 0
            self.restarts_left -= again
            moves = not self._stopping and _is_elsewhere(error) and self._may_move()
        if not (again or moves):
            self.die(_fatal(self.reference, error, self._forced))
            return
        if isinstance(error, WorkerLost):
            links.restarts(self._link, error)
            lease_id = error.details.get("lease_id")
            if isinstance(
                lease_id, str
            ):  # its host was not reached: it is begun again when it cannot be there any more
                self._session.end_lease(lease_id, self._owned.closed)
        lived_s = time.monotonic() - self._began
        self._early_deaths = 0 if lived_s > LIVED_S else self._early_deaths + 1
        delay_s = 0.0 if self._early_deaths < 2 else min(RESTART_DELAY_MAX_S, 0.1 * 2 ** min(self._early_deaths, 10))
        self._owned.closed.wait(delay_s)
        try:
            self.begin()
        except ActorGridError as refused:  # the client is closed, or its queue is full
            self.die(_fatal(self.reference, refused, False))

    def _may_move(self) -> bool:
        """Whether to ask for another worker after one on another host: there was no room here."""
        now = time.monotonic()
        self._elsewhere_since = self._elsewhere_since or now
        return now - self._elsewhere_since < ELSEWHERE_S

    def die(self, death: ActorDied) -> None:
        """Be over, for everybody."""
        name, self.name = self.name, None
        if name is not None:
            name.release()
        self._owned.forget(self, death)
        links.die(self._link, death)


class OwnedActors:
    """All actors of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._actors: dict[str, OwnedActor] = {}
        self.closed = threading.Event()
        self._folder: Path | None = None
        self._host_id = ""  # where others of the cluster may call from elsewhere
        self._owner_fd = -1
        self._board: ActorBoard | None = None  # where it is said where they are, if not in that folder

    def make(
        self,
        made: type[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: TaskOptions,
        methods: frozenset[str],
        max_restarts: int,
        max_concurrency: int,
        max_pending: int,
        name: ActorName | None = None,
        policy: CheckpointPolicy | None = None,
    ) -> ActorUse:
        """Begin an actor; what its handle holds.

        Raises QueueFull beyond 1,000 of them, UnpicklableFunction, and what submitting raises.
        """
        actor_id = secrets.token_hex(8)
        self._session.objects()  # opens it: then this process knows which host this is
        with self._lock:
            if len(self._actors) >= MAX_ACTORS:
                raise QueueFull(f"this client has {MAX_ACTORS} actors already", hint="stop() those that are not needed")
            path = str(self._own_folder() / actor_id)
        secret = secrets.token_hex(16)
        reference = ActorReference(actor_id, path, secret, made.__name__, methods, max_pending, self._host_id)
        actor_doors.remember(actor_id, self._session)
        if self._board is not None:
            self._board.place(reference, "")
        use = links.use(reference)
        actor = OwnedActor(
            self, self._session, reference, use, made, args, kwargs, options, max_restarts, max_concurrency, policy
        )
        with self._lock:
            self._actors[actor_id] = actor
        try:
            if name is not None:
                actor.name, use.link.is_shared = name, True
                name.say(reference)
            actor.begin()
        except ActorGridError as error:
            actor.die(_fatal(reference, error, False))
            raise
        return use

    def placed(self, reference: ActorReference, host_id: str) -> None:
        """Leave word of where an actor is."""
        if self._board is not None:
            self._board.place(reference, host_id)
            return
        path = reference.path + PLACE_SUFFIX
        with contextlib.suppress(OSError):  # a full disk: others are told that it is not there
            if host_id and host_id != reference.host_id:
                with open(path + ".draft", "w", encoding="ascii") as file:
                    file.write(host_id)
                os.rename(path + ".draft", path)
            else:
                os.unlink(path)

    def forget(self, actor: OwnedActor, death: ActorDied) -> None:
        """Note the end of an actor, and leave word of it for who holds its handle elsewhere."""
        with self._lock:
            if self._actors.pop(actor.reference.actor_id, None) is None or self.closed.is_set():
                return
        if self._board is not None:
            self._board.over(actor.reference, death)
            return
        draft = f"{actor.reference.path}.draft"
        with contextlib.suppress(OSError):  # a full disk, or the folder was removed: they learn it by our own end
            Path(draft).write_bytes(msgpack.packb(death.to_dict(), default=str))
            os.rename(draft, actor.reference.path + DEATH_SUFFIX)

    def finish(self) -> None:
        """Wait for the calls that are unfinished here, end all actors, and wait for that."""
        actors = self._all()
        for actor in actors:
            actor.wait_until_done()
        for actor in actors:
            actor.stop(False)
        for actor in actors:
            actor.wait_until_over()

    def close(self) -> None:
        """Remove the folder: whoever looks for an actor there finds that we are gone."""
        self.closed.set()
        with self._lock:
            folder, fd = self._folder, self._owner_fd
            self._folder, self._owner_fd = None, -1
        for actor in self._all():
            actor.die(_died(actor.reference, "the client that made it was closed"))
        if self._board is not None:
            self._board.close()
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)

    def _all(self) -> Sequence[OwnedActor]:
        with self._lock:
            return list(self._actors.values())

    def _own_folder(self) -> Path:
        if self._folder is None and self._session.is_afar:
            # Nobody else looks into a folder here: actors have one of that name where they run.
            self._folder = Path("/", folder_name(secrets.token_hex(FOLDER_HEX // 2)))
            user = own_user(self._session.http)
            self._host_id = AFAR_PREFIX + user
            self._board = ActorBoard(self._session.http, user)
        if self._folder is None:
            host_folder, self._host_id = place_of_creator(self._session.whereabouts)
            runtime = os.environ.get("XDG_RUNTIME_DIR", "")
            base = runtime if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK) else None
            if base is None and len(tempfile.gettempdir()) > 60:
                base = "/tmp"  # nosec B108 - a fresh 0700 folder in it; the path of a socket holds 107 bytes
            if host_folder:
                folder = Path(host_folder, folder_name(secrets.token_hex(FOLDER_HEX // 2)))
                folder.mkdir(mode=0o700)
            else:
                folder = Path(tempfile.mkdtemp(prefix="actorgrid-actors-", dir=base))
            fd = os.open(folder / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(fd, fcntl.LOCK_EX)  # of this process, and not of those it forks
            self._folder, self._owner_fd = folder, fd
        return self._folder


def _is_elsewhere(error: BaseException) -> bool:
    return isinstance(error, ActorGridError) and error.details.get("actor_elsewhere") is True


def _died(reference: ActorReference, why: str) -> ActorDied:
    return ActorDied(f"the actor {reference.class_name} is no more: {why}", asked=reference.actor_id)


def _fatal(reference: ActorReference, error: BaseException, forced: bool) -> ActorDied:
    if isinstance(error, TaskCancelled) and forced:
        return _died(reference, "it was stopped by force")
    hint = "max_restarts= says how often it is begun again" if isinstance(error, WorkerLost) else ""
    what = "it was ended" if isinstance(error, TaskCancelled) else "it could not be begun"
    if isinstance(error, WorkerLost):
        what = "it died"
    text = error.message if isinstance(error, ActorGridError) else f"{type(error).__name__}: {error}"
    died = ActorDied(
        f"the actor {reference.class_name} is no more: {what}: {text}",
        asked=reference.actor_id,
        found=getattr(error, "found", ""),
        hint=hint or getattr(error, "hint", ""),
        **getattr(error, "details", {}),
    )
    died.__cause__ = error
    return died
