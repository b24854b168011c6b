"""This process's connections to actors of the user's: one to each, over which calls go in the order they were made.

Of a call that its actor had not begun when it died, nothing has happened: it is sent to the next incarnation. Which
were begun is told by the file in memory that goes along with the connection (user_actor_frames.py).
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from actorgrid.errors import (
    ActorDied,
    ActorGridError,
    QueueFull,
    TransportError,
    error_from_dict,
)
from actorgrid.objects import here
from actorgrid.objects.space import Held
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import FAILED, encode_cancel
from actorgrid.transports.user_actor_frames import BEGUN, encode_actor_hello, encode_call, encode_stop
from actorgrid.user_actor_context import ActorReference

from .actor_deaths import cut_off, dead_for, interrupted, refused
from .actor_doors import actor_doors
from .actor_jobs import actor_jobs
from .actor_link import RETRY_S, ActorCall, ActorLink, begun_last
from .actor_places import found_dead, found_place, local_path, relay_here, relay_to, what_is_said
from .call_errors import raise_failure
from .dependencies import TaskInput
from .far_actors import far_actors
from .forks import renew_in_children
from .futures import LazyFuture
from .pickling import PYTHON, loads_value
from .worker_sockets import WorkerSockets

T = TypeVar("T")
MAX_SENT = 1000
"""Calls of one caller that an actor has and has not answered; the others wait here."""
MAX_UNSENT_BYTES = 2**20
READ_BYTES = 256 * 1024
RETRY_MAX_S = 0.25
JOB_LOOK_S = 0.25
"""How often it is asked whether a detached actor runs."""
LAST_WORDS_S = 5.0
"""So long what an actor on another host has answered may be under way when we know that it is no more."""


class ActorFuture(LazyFuture[T]):
    """The value of a call of an actor's method."""

    def __init__(self, links: ActorLinks, call: ActorCall) -> None:
        super().__init__()
        self._links = links
        self._call: ActorCall = call
        self._what = f"{call.link.reference.class_name}.{call.method}"
        # It has this future, which would keep itself alive, and with it a large value, until the collector comes.
        self.add_done_callback(_let_call_go)

    def cancel(self, *, force: bool = False, cooperative: bool = False) -> bool:
        """Take the call back if it was not sent to the actor; ``True`` when it will give no value.

        *cooperative* asks the actor too: what it has not begun ends with TaskCancelled, and so does an ``async def``
        that is under way, where it awaits. Then ``True`` says that it was asked. *force* does no more than that.
        """
        if self.done():
            return self.cancelled()
        if self._links.take_back(self._call):
            return self._cancelled()
        return (cooperative or force) and self._links.ask_to_stop(self._call)

    def running(self) -> bool:
        """Whether the actor has begun the call."""
        return not self.done() and self._links.has_begun(self._call)

    def _facts(self) -> list[tuple[str, object]]:
        return [("method", self._what)]


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _let_call_go(future: Future[Any]) -> None:
    del future._call  # type: ignore[attr-defined]  # what asks for it looks whether it is done before


class ActorUse:
    """What the handles of one actor in this process share: when the last of them goes, it goes too."""

    __slots__ = ("__weakref__", "link")

    def __init__(self, link: ActorLink) -> None:
        self.link = link


class ActorLinks:
    """All connections to actors of this process, read by one thread."""

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self._links: dict[str, ActorLink] = {}
        self._uses: weakref.WeakValueDictionary[str, ActorUse] = weakref.WeakValueDictionary()
        self._sockets: WorkerSockets[ActorLink] | None = None

    def after_fork(self) -> None:
        """Begin anew in a forked child: connections and pending calls are the parent's."""
        self._begin()

    # -- handles

    def use(self, reference: ActorReference) -> ActorUse:
        """What a new handle holds."""
        with self.lock:
            use = self._uses.get(reference.actor_id)
            if use is None:
                link = self._links.get(reference.actor_id)
                if link is None:
                    link = self._links[reference.actor_id] = ActorLink(reference, self.lock)
                link.unused = False
                use = self._uses[reference.actor_id] = ActorUse(link)
                # A finalizer runs wherever objects are dropped, maybe with our lock held: it only leaves word.
                weakref.finalize(use, self._io().soon, partial(self._let_go, link)).atexit = False
            return use

    def _let_go(self, link: ActorLink) -> None:
        with self.lock:
            if link.reference.actor_id in self._uses:
                return  # another handle came in between
            link.unused = True
            owner = None if link.is_shared or link.death is not None else link.owner
            self._forget_if_idle(link)
        if owner is not None:
            owner.stop(False)

    def _forget_if_idle(self, link: ActorLink) -> None:
        if link.unused and not link.pending and (link.death is not None or not link.is_ours):
            self._hang_up(link)
            self._links.pop(link.reference.actor_id, None)

    # -- calls

    def submit(
        self,
        link: ActorLink,
        method: str,
        args: bytes,
        inputs: Sequence[LazyFuture[Any]],
        timeout_s: float | None,
        retries: int,
        held: tuple[Held, ...] = (),
    ) -> ActorFuture[Any]:
        """Make a call: it begins when those that were made before have, and its inputs are there.

        Waits while as many as the actor's ``max_pending`` are unfinished (in a callback: raises QueueFull).
        """
        call = ActorCall(link, method, args, timeout_s, retries)
        future: ActorFuture[Any] = ActorFuture(self, call)
        call.future = future
        call.missing = len(inputs)
        call.kept = inputs
        call.held = held
        call.inputs = [TaskInput(0, None) for _ in inputs]
        died: ActorDied | None
        with self.lock:
            while link.pending >= link.reference.max_pending and link.death is None:
                if self._io().is_reader():
                    raise QueueFull(
                        f"{link.reference.max_pending} calls of the actor are unfinished",
                        hint="do not call from callbacks, or ask for a larger max_pending=",
                    )
                link.room.wait()
            died = link.death
            if died is None:
                link.unsent.append(call)
                if link.welcome:
                    self._pump(link)
                elif link.lost and not link.is_ours and link.next_try == float("inf"):
                    self._try(link, time.monotonic())
        if died is not None:
            future.set_exception(dead_for(died))
        for used, one in zip(call.inputs, inputs, strict=True):
            one.add_done_callback(partial(self._input_came, call, used))
        return future

    def _input_came(self, call: ActorCall, used: TaskInput, future: Any) -> None:
        used.take(future)
        with self.lock:
            if call.over:
                return
            call.missing -= 1
            if used.failure is not None:
                self._remove(call)
            elif call.missing == 0:
                self._pump(call.link)
        if used.failure is not None:
            used.failure(call.future)

    def take_back(self, call: ActorCall) -> bool:
        """Forget a call that was not sent."""
        with self.lock:
            if call.over or call.call_id:
                return False
            self._remove(call)
            return True

    def _remove(self, call: ActorCall) -> None:
        call.over = True
        link = call.link
        link.unsent.remove(call)
        link.room.notify_all()
        self._pump(link)
        self._forget_if_idle(link)

    def ask_to_stop(self, call: ActorCall) -> bool:
        """Tell the actor that a call is not wanted any more; ``False`` when it had ended."""
        with self.lock:
            link = call.link
            if call.call_id not in link.sent:
                return False
            link.out += encode_cancel(call.call_id)
            self._io().flush(link)
            return True

    def has_begun(self, call: ActorCall) -> bool:
        """Whether the actor has begun a call."""
        with self.lock:
            link = call.link
            # Of an actor on another host that is known afterwards only: what was sent may be under way.
            return call.call_id in link.sent and (link.far is not None or call.call_id <= begun_last(link))

    def stop(self, link: ActorLink) -> None:
        """Have the actor end when it has done all that it was asked here."""
        with self.lock:
            link.stop_wanted = True
            if link.lost and not link.is_ours and link.death is None:
                self._try(link, time.monotonic())
            self._pump(link)

    # -- what the creator says

    def came_up(self, link: ActorLink, at: str) -> None:
        """Connect: the actor has begun to listen, on host *at*. Callable with any lock held."""
        self._io().soon(partial(self._connect_now, link, at))

    def _connect_now(self, link: ActorLink, at: str) -> None:
        with self.lock:
            link.at = "" if at == link.reference.host_id else at
            if link.death is None and link.lost:
                link.delay_s = RETRY_S
                self._try(link, time.monotonic())

    def soon(self, call: Callable[[], None]) -> None:
        """Have *call* called by the thread that reads. Callable with any lock held."""
        self._io().soon(call)

    def restarts(self, link: ActorLink, cause: ActorGridError) -> None:
        """Note why the incarnation before ended, for the calls that it had begun."""
        with self.lock:
            link.cause = cause

    def die(self, link: ActorLink, death: ActorDied) -> None:
        """End the actor for this process: all that is unfinished fails with *death*, and so will all that comes.

        By the thread that reads, which takes first what the actor has answered and nobody has read yet.
        """
        if self._io().is_reader():
            self._die(link, death)
        else:
            self._io().soon(partial(self._die, link, death))

    def _die(self, link: ActorLink, death: ActorDied) -> None:
        with self.lock:
            if link.far is not None and not link.far.is_over and link.doom is None and link.death is None:
                link.doom, link.doom_at = death, time.monotonic() + LAST_WORDS_S
                self._io().tick_soon()
                return  # its end is told when all is read
        while link.sock is not None and _readable(link.sock):
            self._read(link)
        with self.lock:
            if link.death is not None:
                return
            self._hang_up(link)
            link.doom = None
            link.death = death
            link.next_try = float("inf")
            calls = [*link.interrupted, *link.unsent]
            link.interrupted.clear()
            link.unsent.clear()
            for call in calls:
                call.over = True
            link.room.notify_all()
            link.over.set()
            self._forget_if_idle(link)
        for call in calls:
            call.future.set_exception(dead_for(death))

    def wait_until_done(self, link: ActorLink) -> None:
        """Wait until no call of this process is unfinished, or the actor is no more."""
        with self.lock:
            while link.pending and link.death is None:
                link.room.wait()

    # -- with the lock held

    def _io(self) -> WorkerSockets[ActorLink]:
        if self._sockets is None:
            self._sockets = WorkerSockets(self.lock, self._read, self._tick)
            self._sockets.start()
        return self._sockets

    def _pump(self, link: ActorLink) -> None:
        """Send what may be sent."""
        if not link.welcome or link.lost:
            return
        while link.unsent and len(link.sent) < MAX_SENT and len(link.out) < MAX_UNSENT_BYTES:
            call = link.unsent[0]
            if call.missing:
                break  # those behind it wait too: a caller's calls begin in order
            link.unsent.popleft()
            link.last_id += 1
            call.call_id = link.last_id
            values = [used.body for used in call.inputs]
            link.out += encode_call(call.call_id, call.method, call.args, call.timeout_s, values)
            link.sent[call.call_id] = call
        if link.stop_wanted and not link.unsent and not link.interrupted:
            link.stop_wanted = False
            link.out += encode_stop()
        self._io().flush(link)

    def _try(self, link: ActorLink, now: float) -> None:
        """Connect, or say when to try again, or that there is no use."""
        asks = link.reference.is_asked_about and not link.is_ours
        if link.reference.is_asked_about and not link.at:
            self._ask_where(link)
            return
        session = actor_doors.session_for(link.reference)
        place = actor_doors.whereabouts_for(link.reference, link.at)
        at, relay = link.at, ""
        if session is None:
            relay = relay_to(link.at or link.reference.host_id, place)
            if not relay and (relay := relay_here(local_path(link.reference, link.at, place), place)):
                at = place.host_id
        sock: socket.socket | None = None
        begun_fd = -1
        hello = encode_actor_hello(link.reference.secret, PYTHON, session is None)
        link.far = None
        try:
            begun_fd = os.memfd_create("actorgrid-begun", os.MFD_CLOEXEC)
            os.pwrite(begun_fd, BEGUN.pack(0), 0)
            if relay or session is not None:
                away = partial(self._io().soon, partial(self._is_away, link)) if asks else None
                if session is not None:
                    link.far = session.relay().open_actor(link.reference, link.at, begun_fd, away)
                else:
                    link.far = far_actors.open(relay, at, link.reference, begun_fd, away)
                sock = link.far.sock
                sock.send(hello)
            else:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                sock.connect(local_path(link.reference, link.at, place))
                socket.send_fds(sock, [hello], [begun_fd])
        except OSError:
            if sock is not None:
                sock.close()
            if begun_fd >= 0:
                os.close(begun_fd)
            self._try_later(link, now)
            return
        link.sock, link.fd, link.begun_fd = sock, sock.fileno(), begun_fd
        link.decoder = FrameDecoder()
        link.out.clear()
        link.lost = link.watches_out = link.welcome = False
        link.next_try = float("inf")
        self._io().add(link)

    def _try_later(self, link: ActorLink, now: float) -> None:
        if link.doom is not None:
            self._io().soon(partial(self._die, link, link.doom))
            return
        if not link.is_ours:
            death: ActorDied | None
            if link.far is not None:
                link.at, death = what_is_said(link.far, link.reference)
            else:
                place = actor_doors.whereabouts_for(link.reference, link.at)
                death = found_dead(link.reference, link.at, place)
                link.at = found_place(link.reference, place)
            if death is not None:
                self._io().soon(partial(self.die, link, death))
                return
        if link.reference.is_asked_about and not link.is_ours:
            link.at = ""
        link.next_try = now + link.delay_s
        link.delay_s = min(RETRY_MAX_S, link.delay_s * 2)
        self._io().tick_soon()

    def _ask_where(self, link: ActorLink) -> None:
        """Ask where the job of a detached actor runs."""
        if not link.asked:
            link.asked = True
            actor_jobs.ask(link.reference, lambda at, death: self._io().soon(partial(self._told, link, at, death)))

    def _is_away(self, link: ActorLink) -> None:
        with self.lock:
            if link.death is None:
                self._ask_where(link)

    def _told(self, link: ActorLink, at: str, death: ActorDied | None) -> None:
        """Take what was answered: connect there, or leave a way to where it is not any more."""
        with self.lock:
            link.asked = False
            if link.death is not None:
                return
            if death is None and link.lost:
                link.at = at
                if at:
                    self._try(link, time.monotonic())
                else:
                    link.next_try = time.monotonic() + JOB_LOOK_S
                    self._io().tick_soon()
            elif death is None and at and link.far is not None and link.far.host_id != at:
                link.far.leave()
        if death is not None:
            self.die(link, death)

    def _hang_up(self, link: ActorLink) -> None:
        """Close the connection. What the actor had begun is interrupted; what it had not is not sent any more."""
        if link.lost or link.sock is None:
            return
        begun = begun_last(link)
        self._io().remove(link)
        link.lost, link.welcome = True, False
        link.sock.close()
        link.sock = None
        os.close(link.begun_fd)
        link.begun_fd = -1
        again: list[ActorCall] = []
        for call_id, call in link.sent.items():
            if call_id <= begun and call.retries <= 0:
                link.interrupted.append(call)
                continue
            call.retries -= call_id <= begun
            call.call_id = 0
            again.append(call)
        link.sent.clear()
        link.unsent.extendleft(reversed(again))

    # -- the reader thread

    def _read(self, link: ActorLink) -> None:
        assert link.sock is not None, "a link is read while it has a socket"
        found: ActorGridError | TransportError | None = None
        frames: list[list[Any]] = []
        try:
            data = link.sock.recv(READ_BYTES)
            frames = link.decoder.feed(data)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except (ActorGridError, TransportError) as error:
            data, found = b"", error
        done: list[tuple[ActorCall, int, bytes, list[Any]]] = []
        broken: list[tuple[ActorCall, ActorDied]] = []
        with self.lock:
            for frame in frames:
                match frame:
                    case ["result", int(call_id), int(status), bytes(body), *gifts]:
                        call = link.sent.pop(call_id, None)
                        if call is not None:
                            call.over = True
                            call.kept = call.held = ()
                            done.append((call, status, body, gifts[0] if gifts else []))
                    case ["welcome", {"incarnation": int(incarnation)}]:
                        broken = self._welcome(link, incarnation)
                    case ["refused", dict(record)]:
                        found = error_from_dict(record)
            if not data:
                self._hang_up(link)
                if found is None and link.death is None and (link.pending or link.stop_wanted or link.doom):
                    link.delay_s = RETRY_S
                    self._try_later(link, time.monotonic())
            else:
                self._pump(link)
            link.room.notify_all()
            self._forget_if_idle(link)
        for call, status, body, kept in done:
            try:
                held = here.take_gifts(kept)
            except ActorGridError:
                held = ()  # loading the value says what is wrong
            if not call.future.cancelled():
                call.future.settle(raise_failure if status == FAILED else loads_value, body, status == FAILED, held)
        for call, broke in broken:
            call.future.set_exception(broke)
        if found is not None:
            self.die(link, refused(link.reference, found))

    def _welcome(self, link: ActorLink, incarnation: int) -> list[tuple[ActorCall, ActorDied]]:
        """Begin with an incarnation; gives the calls that the one before had begun, with their errors."""
        gone = incarnation != link.incarnation
        broken = [(call, (interrupted if gone else cut_off)(link, call)) for call in link.interrupted]
        for call, _ in broken:
            call.over = True
        link.interrupted.clear()
        link.welcome = True
        link.incarnation = incarnation
        link.delay_s = RETRY_S
        return broken

    def _tick(self, now: float) -> None:
        with self.lock:
            doomed = [link for link in self._links.values() if link.doom is not None and link.death is None]
            tries = [link for link in self._links.values() if link.next_try <= now and link.lost]
            for link in tries:
                link.next_try = float("inf")
                self._try(link, now)
            self._io().ticking = bool(doomed) or any(link.next_try < float("inf") for link in self._links.values())
        for link in doomed:
            if link.doom is not None and link.doom_at <= now:
                self._die(link, link.doom)


links = ActorLinks()
