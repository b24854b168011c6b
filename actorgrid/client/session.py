"""A client's session with its host: opened at the first task, renewed, its leases asked for and given back.

The control side only. Tasks themselves go straight to the leased workers (dispatcher.py), so they do not notice when
the agent or its gateway restarts; when the session is unknown afterwards, a new one is opened and what is unfinished
is sent again.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import (
    ActorError,
    ActorGridError,
    BadRequest,
    EnvironmentFailed,
    HostUnreachable,
    NotFound,
    NotSupported,
    Overloaded,
    PeerGone,
    PeerRefused,
    PythonMismatch,
    TransportError,
    UnknownSession,
    WorkerLost,
    WrongToken,
)
from actorgrid.import_environment import of_this_process
from actorgrid.objects import here as objects_here
from actorgrid.objects.space import Held, ObjectSpace
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.object_frames import SECRET_BYTES, SpaceAbout
from actorgrid.transports.task_frames import (
    ClientRefused,
    ClientWelcome,
    ObjectsOfClient,
    encode_hello,
    parse_worker_frame,
)

from .actor_doors import actor_doors
from .dispatcher import Dispatcher
from .environment import Environment
from .environment_entry import EnvironmentEntry
from .futures import LazyFuture, TaskFuture
from .http import AdminHttp, segment
from .lanes import Lane, TaskCall
from .lending import own_cpus
from .lineage import Lineage, ValueOrigin
from .nested import NESTED_WAIT_S, inside_work, starved
from .options import TaskOptions
from .output import OutputPrinter
from .owned_actors import OwnedActors
from .pickling import PYTHON, FunctionCode
from .stream_items import StreamItems
from .user import user_name
from .worker_losses import Judgement, Loss, cancelled, end_lease, with_ending
from .worker_route import own_socket
from .working_dir import WorkingDir

if TYPE_CHECKING:
    from .relay import Relay
    from .relayed_socket import RelayedSocket

FIRST_LEASE_WAIT_S = 20.0
GROWTH_WAIT_S = 0.5
GROWTH_QUIET_S = 1.0
UNREACHABLE_PATIENCE_S = 60.0
MAX_FAILED_LEASES = 5
CANCELLED = "cancelled"
"""Why the worker of a lease ended that somebody cancelled, in the word of its host."""
WELCOME_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 1.0
LOOK_S = 0.25
LOSS_ASK_S = 5.0
TAKE_OVER_S = 10.0
"""For values in the object store that somebody may still ask for when a client closes."""


class Session:
    """Leases workers as tasks wait and returns them after *keep_alive_s* without work.

    Inside of work, tasks that got none in *nested_wait_s* fail with NoRoomForNestedTask (``None``: they wait on).
    """

    def __init__(
        self,
        http: AdminHttp,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        stream_output: bool = True,
        nested_wait_s: float | None = NESTED_WAIT_S,
        balancing: str | None = None,
        working_dir: WorkingDir | None = None,
        environment: Environment | None = None,
        relayed: bool | None = None,
    ) -> None:
        self._http = http
        self._environment = environment
        self._relayed = relayed
        self._relay: Relay | None = None
        self._working_dir = working_dir
        self._patience_s = nested_wait_s if nested_wait_s is not None and inside_work() else math.inf
        self._keep_alive_s = keep_alive_s
        self._lock = threading.Lock()
        self._actors: OwnedActors | None = None
        self._id = ""
        self._objects: ObjectSpace | None = None
        self._whereabouts = objects_here.NOWHERE
        self._kept: weakref.WeakSet[TaskFuture[Any]] = weakref.WeakSet()
        self._objects_secret = os.urandom(SECRET_BYTES)
        self._renew_s = 2.0
        self._stop = threading.Event()
        self._orphans = False
        self._asking: set[str] = set()
        self._returns: queue.SimpleQueue[tuple[str, str] | Loss | Judgement | None] = queue.SimpleQueue()
        self._printer = OutputPrinter() if stream_output else None
        self._dispatcher = Dispatcher(self, self._printer, own_cpus() if inside_work() else 0.0)
        self._dispatcher.balancing = balancing
        self._lineage = Lineage(self._dispatcher, self._dispatcher.renewals)
        self._keeper = threading.Thread(target=self._keep, name="actorgrid-session", daemon=True)
        self._returner = threading.Thread(target=self._return_leases, name="actorgrid-returns", daemon=True)
        self._keeper.start()
        self._returner.start()

    def submit(
        self,
        code: FunctionCode,
        args: bytes,
        options: TaskOptions,
        inputs: Sequence[LazyFuture[Any]] = (),
        stream: StreamItems | None = None,
        held: tuple[Held, ...] = (),
    ) -> TaskFuture[Any]:
        """Run one call on some worker, once its *inputs* are there; what it yields goes into *stream*. *held*: what its
        arguments need of the object store."""
        future = self._dispatcher.submit(code, args, options, inputs, stream, held)
        if options.pure and stream is None:
            self._lineage.note(future, ValueOrigin(code, args, options, inputs, held))
        return future

    def renews(self, call: TaskCall, body: bytes) -> bool:
        """Take care of a call that failed as inputs of it were lost which can be made again; ``False`` for others."""
        return self._lineage.renew(call, body)

    def objects(self) -> ObjectSpace | None:
        """Where this session keeps large values; ``None`` where the host has no object store, or is another machine.

        Raises what opening the session does.
        """
        if not self._id:
            self._open("")  # whether workers have our Python, a lease says
        return self._objects

    @property
    def whereabouts(self) -> objects_here.Whereabouts:
        """The host by which it comes to objects and actors; empty before it is open, and where that has no store."""
        own = self._whereabouts
        return own if own.store or not objects_here.is_of_work() else objects_here.whereabouts()

    def kill(self, future: TaskFuture[Any]) -> bool:
        """Cancel a call even if it runs."""
        return self._dispatcher.kill(future)

    def ask_to_stop(self, future: TaskFuture[Any]) -> bool:
        """Cancel a call that has not started, and tell one that runs."""
        return self._dispatcher.ask_to_stop(future)

    def figures(self) -> dict[str, Any]:
        """Counts of the session's tasks and workers, by name."""
        return {"session_id": self._id, **self._dispatcher.figures()}

    def cancel_waiting(self) -> None:
        """Cancel what has not started."""
        self._dispatcher.cancel_waiting()

    def wait_until_done(self) -> None:
        """Wait until nothing is unfinished. Actors end when tasks, which may call them, have ended."""
        self._dispatcher.wait_until_done()
        if self._actors is not None:
            self._actors.finish()

    def actors(self) -> OwnedActors:
        """The actors that were made with this session."""
        with self._lock:
            if self._actors is None:
                self._actors = OwnedActors(self)
            return self._actors

    def finish(self) -> None:
        """Close when nothing is unfinished: the client is gone, and futures may still be waited for."""
        self._dispatcher.wait_until_done()
        self.close()

    def close(self) -> None:
        """Give everything back; what is unfinished is cancelled."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._dispatcher.close()
        if self._actors is not None:
            self._actors.close()
        if self._objects is not None and self._objects.about.owner:
            self._take_over()
            objects_here.leave(self._objects)
        if self._relay is not None:
            self._relay.close()
        self._returns.put(None)
        with self._lock:
            session_id, self._id = self._id, ""
        if session_id:
            with contextlib.suppress(ActorGridError):  # not renewed any more, the host closes it by itself
                self._http.delete(f"/api/sessions/{segment(session_id)}", patient=False)
        for thread in (self._keeper, self._returner):
            if thread is not threading.current_thread():
                thread.join(2.0)
        if self._printer is not None:
            self._printer.close()

    # -- what the dispatcher asks

    def want(self, lane: Lane, first: bool) -> None:
        """Ask for a lease in the background; the dispatcher bounds how many at once."""
        threading.Thread(target=self._acquire, args=(lane, first), name="actorgrid-lease", daemon=True).start()

    def want_on_loan(self, lane: Lane, cpus: float) -> None:
        """Ask for a worker on *cpus* that this process's own work holds, in the background."""
        threading.Thread(target=self._borrow, args=(lane, cpus), name="actorgrid-loan", daemon=True).start()

    def give_back(self, lease_id: str) -> None:
        """Release a lease in the background."""
        self._returns.put((self._id, lease_id))

    def tell_loss(self, lease_id: str, error: WorkerLost, settle: Callable[[ActorGridError], None]) -> None:
        """Ask the host how the worker ended, then settle; in the background."""
        self._returns.put(Loss(self._id, lease_id, error, settle))

    def judge_loss(self, lease_id: str, settle: Callable[[ActorGridError | None], None]) -> None:
        """Ask the host whether somebody ended the lease; in the background."""
        self._returns.put(Judgement(self._id, lease_id, settle))

    # -- leases

    def _acquire(self, lane: Lane, first: bool) -> None:
        started = time.monotonic()
        lease_id = self._ask_for(None)
        try:
            while not self._stop.is_set():
                session_id = ""
                try:
                    environment = self._environment_of(lane)
                    session_id = self._open("" if environment else PYTHON)
                    left_s = max(0.0, started + self._patience_s - time.monotonic())
                    wait_s = min(FIRST_LEASE_WAIT_S, left_s) if first else GROWTH_WAIT_S
                    grant = self._http.post(
                        f"/api/sessions/{segment(session_id)}/leases",
                        lane.shape.lease_request(PYTHON, wait_s, lease_id, environment=environment),
                        timeout_s=FIRST_LEASE_WAIT_S + WELCOME_TIMEOUT_S,
                    )
                    self._join(lane, grant, session_id)
                    return
                except UnknownSession:
                    self._session_lost(session_id)
                    lease_id = self._ask_for(lease_id)
                    continue
                except (BadRequest, WrongToken, PythonMismatch, EnvironmentFailed, NotSupported) as error:
                    self._dispatcher.no_lease(lane, GROWTH_QUIET_S, None if lane.links else error)
                    return
                except Overloaded as error:
                    if lane.links or not self._dispatcher.waits(lane):
                        self._dispatcher.no_lease(lane, GROWTH_QUIET_S)
                        return
                    first = True
                    waited_s = time.monotonic() - started
                    if waited_s >= self._patience_s:
                        self._dispatcher.no_lease(lane, GROWTH_QUIET_S, starved(error.asked, waited_s, error.message))
                        return
                    if "TooManySessions" in error.code and time.monotonic() - started > UNREACHABLE_PATIENCE_S:
                        self._dispatcher.no_lease(lane, GROWTH_QUIET_S, error)
                        return
                    lease_id = self._ask_for(lease_id)
                except (HostUnreachable, ActorError) as error:
                    # A part of the host is restarting, and may have granted it: the same id is asked for again.
                    self._orphans = True
                    if time.monotonic() - started > UNREACHABLE_PATIENCE_S:
                        self._dispatcher.no_lease(lane, GROWTH_QUIET_S, None if lane.links else error)
                        return
                except ActorGridError as error:
                    lane.failures += 1
                    if lane.failures >= MAX_FAILED_LEASES:
                        lane.failures = 0
                        self._dispatcher.no_lease(lane, GROWTH_QUIET_S, None if lane.links else error)
                        return
                    lease_id = self._ask_for(lease_id)
                self._stop.wait(0.1 * 2 ** min(lane.failures, 4))
            self._dispatcher.no_lease(lane, GROWTH_QUIET_S)
        finally:
            with self._lock:
                self._asking.discard(lease_id)

    def _borrow(self, lane: Lane, cpus: float) -> None:
        lease_id, session_id = self._ask_for(None), ""
        try:
            environment = self._environment_of(lane)
            session_id = self._open("" if environment else PYTHON)
            request = lane.shape.lease_request(PYTHON, GROWTH_WAIT_S, lease_id, cpus, environment)
            grant = self._http.post(
                f"/api/sessions/{segment(session_id)}/leases", request, timeout_s=FIRST_LEASE_WAIT_S + WELCOME_TIMEOUT_S
            )
            self._join(lane, grant, session_id, on_loan=True)
        except (ActorGridError, TransportError) as error:
            if isinstance(error, UnknownSession):
                self._session_lost(session_id)
            self._orphans |= isinstance(error, (HostUnreachable, ActorError))
            self._dispatcher.no_loan(GROWTH_QUIET_S)
        finally:
            with self._lock:
                self._asking.discard(lease_id)

    def _ask_for(self, done: str | None) -> str:
        """A new lease id, in place of *done*, which is not asked for any more."""
        lease_id = secrets.token_hex(8)
        with self._lock:
            self._asking.discard(done or "")
            self._asking.add(lease_id)
        return lease_id

    def _join(self, lane: Lane, grant: dict[str, Any], session_id: str, on_loan: bool = False) -> None:
        """Connect to the leased worker. Raises what the worker refuses with."""
        lease_id = str(grant["lease_id"])
        route: RelayedSocket | None = None
        try:
            sock, route = self._connect(grant, lane.is_actors)
        except OSError as error:
            self.give_back(lease_id)
            raise PeerGone(f"cannot reach the leased worker: {error}", asked=str(grant["socket_path"])) from error
        try:
            sock.settimeout(WELCOME_TIMEOUT_S)
            said_s = time.monotonic()
            environment = lane.shape.environment or self._environment
            sent, plain = self._working_dir, environment is None
            here = of_this_process(installed=plain) if sent is None else sent.environment(plain)
            space = self._objects
            objects = None if space is None else ObjectsOfClient(space.secret, space.about.home or _home(session_id))
            sock.sendall(encode_hello(str(grant["secret"]), PYTHON if plain else "", session_id, here, objects))
            decoder = FrameDecoder()
            frames: list[list[Any]] = []
            while not frames:
                data = sock.recv(65536)
                if not data:
                    raise PeerGone("the leased worker closed the connection", asked=str(grant["worker_id"]))
                frames = decoder.feed(data)
            travel_s = time.monotonic() - said_s
            answer = parse_worker_frame(frames[0])
            if isinstance(answer, ClientRefused):
                raise answer.error
            if not isinstance(answer, ClientWelcome):
                raise PeerRefused("the leased worker did not say welcome", found=str(frames[0][0]))
            if environment is not None:
                self._enter(environment, answer.worker_id, sock, decoder)
            if answer.elsewhere and self._working_dir is not None:
                self._working_dir.send_to_worker(sock, decoder)
        except (OSError, ActorGridError, TransportError) as error:
            sock.close()
            self.give_back(lease_id)
            if route is not None and route.failure is not None:
                raise route.failure from error
            if not isinstance(error, OSError):
                raise
            raise PeerGone(f"cannot reach the leased worker: {error}", asked=str(grant["worker_id"])) from error
        token = (int(grant["token"][0]), int(grant["token"][1]))
        can = answer.numbers_attempts, on_loan, answer.answers_recalls, answer.takes_values, answer.takes_about
        if route is not None:
            travel_s = min(travel_s, route.travel_s)
        know = answer.worker_id, sock, decoder, travel_s, token
        self._dispatcher.add(lane, lease_id, *know, *can, answer.keeps_objects, route=route)

    def _connect(self, grant: dict[str, Any], lasts: bool) -> tuple[socket.socket, RelayedSocket | None]:
        """A socket to the leased worker: its own, where this machine has that; else by a relay. Raises OSError.

        *lasts*: whether the call is an actor, which is not to end with a link between hosts.
        """
        if not (lasts and grant.get("host_id")):
            own = None if self._relayed else own_socket(str(grant["socket_path"]), self._relayed is None)
            if own is not None:
                return own, None
        route = self.relay().open_worker(str(grant["lease_id"]), str(grant["secret"]))
        return route.sock, route

    def relay(self) -> Relay:
        """This session's way through the door of its host."""
        with self._lock:
            if self._relay is None:
                from .relay import Relay

                self._relay = Relay(self._http)
            return self._relay

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self._stop.is_set()

    @property
    def http(self) -> AdminHttp:
        """The way to its host's door."""
        return self._http

    @property
    def is_afar(self) -> bool:
        """Whether its client counts as one of another machine, which has no socket of workers, or of actors."""
        return bool(self._relayed or self._http.is_afar)

    def _environment_of(self, lane: Lane) -> str:
        """The digest of the environment that the workers of a lane are of; empty where they are the host's."""
        environment = lane.shape.environment or self._environment
        return "" if environment is None else environment.spec().digest

    def _enter(self, environment: Environment, worker_id: str, sock: socket.socket, decoder: FrameDecoder) -> None:
        """Have a worker enter the environment; what a build says is shown as output is."""
        printer = self._printer

        def show(line: str) -> None:
            if printer is not None:
                printer.put("environment", worker_id, "stderr", line.encode())

        EnvironmentEntry(environment.spec()).enter(sock, decoder, show, self._stop.is_set)

    def _return_leases(self) -> None:
        while (given_back := self._returns.get()) is not None:
            if isinstance(given_back, Loss):
                given_back.settle(self._explained(given_back))
                continue
            if isinstance(given_back, Judgement):
                ending = self._ending(given_back.session_id, given_back.lease_id)
                given_back.settle(cancelled(given_back.lease_id) if ending.get("reason") == CANCELLED else None)
                continue
            session_id, lease_id = given_back
            if not session_id or session_id != self._id:
                continue  # its session is gone, and the lease with it
            try:
                self._http.delete(f"/api/sessions/{segment(session_id)}/leases/{segment(lease_id)}")
            except NotFound:
                continue
            except ActorGridError:
                self._orphans = True

    def _explained(self, loss: Loss) -> ActorGridError:
        """The error with how the worker ended, where the host knows; TaskCancelled where somebody ended it."""
        ending = self._ending(loss.session_id, loss.lease_id)
        if ending.get("reason") == CANCELLED:
            return cancelled(loss.lease_id)
        if ending.get("ended"):
            return with_ending(loss.error, ending)
        loss.error.details["lease_id"] = loss.lease_id  # its worker may go on, for all that is known
        return loss.error

    def end_lease(self, lease_id: str, unwanted: threading.Event) -> None:
        """As ``end_lease`` of worker_losses.py, for as long as this session is open."""
        end_lease(self._http, lease_id, lambda delay_s: unwanted.wait(delay_s) or self._stop.is_set())

    def _ending(self, session_id: str, lease_id: str) -> dict[str, Any]:
        path = f"/api/sessions/{segment(session_id)}/leases/{segment(lease_id)}/end"
        try:
            ending: dict[str, Any] = self._http.get(path, timeout_s=LOSS_ASK_S)
        except ActorGridError:
            return {}  # the host is gone as well, or older than this client
        return ending

    # -- the session

    def _open(self, python: str) -> str:
        """The session's id. *python*: ours, which workers have to have; empty where they are of another environment."""
        with self._lock:
            if not self._id:
                who: dict[str, Any] = {"user_id": user_name(), "python": python}
                if self.is_afar:
                    who["afar"] = True
                    actor_doors.opened(self)
                opened = self._http.post("/api/sessions", who, repeat=True)
                self._id = str(opened["session_id"])
                self._renew_s = float(opened.get("renew_s", 2.0))
                self._dispatcher.pool_balancing = _policies(opened.get("balancing"))
                self._open_objects(str(opened.get("objects") or ""))
            return self._id

    def _open_objects(self, path: str) -> None:
        if not path or self._stop.is_set() or not os.path.isdir(os.path.dirname(path)):
            self._whereabouts = objects_here.NOWHERE
            objects_here.forget_session(self._objects_secret)
            return
        # Once: the space stays when the session is lost, and another is opened in its place, maybe on another host.
        self._objects = self._objects or objects_here.served_space()
        if self._objects is not None and not self._objects.about.owner:
            return  # what we keep is of the session that we work for: its references outlive us
        host = _home(self._id)
        self._whereabouts = objects_here.Whereabouts(path, host)
        if self._objects is not None:
            objects_here.note_session(self._objects_secret, path, host)
            return
        about = SpaceAbout(True, "", user_name(), self._id, os.getpid())
        self._objects = objects_here.own_space(path, host, self._objects_secret, about)

    def _take_over(self) -> None:
        """Have values of this process that lie in the store, and may still be asked for, be objects here."""
        until = time.monotonic() + TAKE_OVER_S
        for future in list(self._kept):
            if time.monotonic() > until:
                return
            with contextlib.suppress(Exception):  # whoever asks for the value is told what was wrong
                future.unfold()

    def take_gifts(self, gifts: Iterable[Any], future: TaskFuture[Any] | None = None) -> tuple[Held, ...]:
        """Take what is kept in the object store for values that came: for that of *future*."""
        if future is not None:
            self._kept.add(future)
        try:
            return objects_here.take_gifts(gifts)
        except ActorGridError:
            return ()  # the worker is the user's own: what it says is the user's affair

    def _session_lost(self, session_id: str) -> None:
        with self._lock:
            if self._id != session_id:
                return  # another thread has seen to it
            self._id = ""
        self._dispatcher.drop_all()

    def _keep(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(min(LOOK_S, self._keep_alive_s / 2 or LOOK_S)):
            now = time.monotonic()
            for lease_id in self._dispatcher.idle(self._keep_alive_s, now):
                self.give_back(lease_id)
            session_id = self._id
            if session_id and now - renewed >= self._renew_s:
                renewed = now
                try:
                    renewed_as = self._http.post(f"/api/sessions/{segment(session_id)}/renew", timeout_s=5.0)
                    self._dispatcher.leave(renewed_as.get("leave") or ())  # none from a host of an earlier version
                    if self._orphans:
                        self._return_orphans(session_id)
                except UnknownSession:
                    self._session_lost(session_id)
                except ActorGridError:
                    continue  # the door is closed just now; workers go on meanwhile

    def _return_orphans(self, session_id: str) -> None:
        """Give back leases whose grant, or whose return, got lost with a connection."""
        self._orphans = False
        try:
            allocations = self._http.get("/api/allocations")["allocations"]
        except ActorGridError:
            self._orphans = True
            raise
        with self._lock:
            known = set(self._asking)
        # In this order: a lease stops being asked for only once it is held.
        known |= self._dispatcher.held()
        for allocation in allocations:
            owner = allocation.get("owner") or {}
            if owner.get("session_id") == session_id and owner.get("lease_id") not in known:
                self.give_back(str(owner["lease_id"]))


def _home(session_id: str) -> str:
    """The host that a session was opened on."""
    return session_id.rpartition(".")[0]


def _policies(told: Any) -> dict[str, str]:
    """By pool, the policies that a host told, those that this version knows."""
    policies = told.items() if isinstance(told, dict) else ()
    return {str(pool): str(policy) for pool, policy in policies if policy in tuple(BalancingPolicy)}
