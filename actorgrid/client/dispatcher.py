"""Carries calls to leased workers and results back.

An empty task takes some 25 µs of CPU here, most of it msgpack, one ``send`` per submit and the future itself.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from actorgrid import task_context
from actorgrid.errors import (
    ActorGridError,
    ClientClosed,
    QueueFull,
    TaskCancelled,
    TransportError,
    WorkerLost,
)
from actorgrid.objects.space import Held
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import (
    FAILED,
    OK,
    encode_cancel,
)

from .call_errors import copy_of, only_older_tokens, past_limit, raise_failure, worker_lost
from .dependencies import CallDependencies, hold, leader
from .futures import LazyFuture, TaskFuture
from .lanes import MAX_LEASE_REQUESTS, Lane, LeasedWorker, Pace, TaskCall, Token, add_lane, forget_unused, look_over
from .lease_source import LeaseSource
from .lending import AskForWorker, Lending, Return, SendCall
from .options import TaskOptions, WorkerShape
from .output import OutputPrinter
from .pickling import FunctionCode, loads_value
from .renewals import Renewals
from .sending import Sender, must_resend
from .stealing import ask_back, given_back, ran_after_all
from .stream_items import StreamItems, about
from .worker_route import WorkerRoute
from .worker_sockets import WorkerSockets

MAX_UNFINISHED = 100_000
_READ_BYTES = 256 * 1024


class Dispatcher:
    """All unfinished session tasks of a client: at most 100,000, then ``submit`` waits."""

    def __init__(self, source: LeaseSource, printer: OutputPrinter | None, own_cpus: float = 0.0) -> None:
        self._source = source
        self._lending = Lending(own_cpus)
        self.lends = own_cpus > 0
        self._printer = printer
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._lanes: dict[WorkerShape, Lane] = {}
        self._pace = Pace()
        self._last_task_id = 0
        self._unfinished = 0
        # Running when their worker went: it is being asked whether somebody ended it.
        self._judged: set[TaskCall] = set()
        self.renewals = Renewals(self._lock, self._new_key, self._finished, self._again)
        self._blocked = 0
        self._stolen = 0
        self.balancing: str | None = None  # the client's policy for calls that do not say
        self.pool_balancing: dict[str, str] = {}  # the host's, by pool, for clients that do not either
        self._closed = False
        self._sockets: WorkerSockets[LeasedWorker] = WorkerSockets(self._lock, self._read, self._tick)
        self._sender = Sender(self._sockets, self._pace, self._refuse)
        self._dependencies = CallDependencies(self._lock, self._new_key, self._sender.release, self._abandon)
        self._sockets.start()

    # -- for the client

    def submit(
        self,
        code: FunctionCode,
        args: bytes,
        options: TaskOptions,
        futures: Sequence[LazyFuture[Any]] = (),
        stream: StreamItems | None = None,
        held: tuple[Held, ...] = (),
    ) -> TaskFuture[Any]:
        """Send, queue or hold one call, whose arguments name the values of *futures*.

        Waits while 100,000 are unfinished (in a callback: raises QueueFull).
        """
        future: TaskFuture[Any] = TaskFuture(self)
        inputs = self._dependencies.inputs_for(futures, self) if futures else ()
        shape = options.shape
        first = False
        with self._lock:
            if self._unfinished >= MAX_UNFINISHED:
                self._wait_for_room()
            if self._closed:
                raise ClientClosed("the client is closed", hint="make another with actorgrid.connect()")
            lane = self._lanes.get(shape)
            if lane is None:
                lane = add_lane(self._lanes, shape)
            call = TaskCall(
                self._new_key(), code, args, options.timeout, options.priority, options.worker_losses, lane, future
            )
            future.call = call
            call.held = held
            if options.name is not None or task_context.running is not None or stream is not None:
                call.about, call.stream = about(options, stream), stream
            failed = hold(call, inputs) if inputs else None
            call.done = failed is not None
            self._unfinished += not call.done
            estimate_s = self._pace.estimate_s(code.kin)
            now = time.monotonic()
            if inputs:
                call.choice = options.balancing, options.affinity
                link = leader(call, estimate_s) if call.missing else self._sender.choose(call, estimate_s)
            else:
                link = None if lane.waiting else lane.pick(estimate_s, options.balancing, options.affinity)
            if call.done:
                pass
            elif link is not None:
                self._sender.put(link, call, estimate_s, now)
                self._sockets.flush(link)
                if len(link.calls) > 1 or call.timeout_s is not None:
                    self._sockets.tick_soon()
            else:
                lane.push(call, now)
                first = not (call.missing or lane.links or lane.requests)
                if first:
                    lane.requests += 1
                self._sockets.tick_soon()
        if first:
            self._source.want(lane, True)
        if failed is not None:
            failed(future)
        return future

    def take_back(self, future: TaskFuture[Any]) -> bool:
        """Cancel a call that no worker has started."""
        call: TaskCall = future.call
        with self._lock:
            if call.cancelled or call.done:
                return future.cancelled()
            if call.link is not None and call.link.head is call:
                return False
            self._abandon(call)
        return future._cancelled()

    def has_started(self, future: TaskFuture[Any]) -> bool:
        """Whether a worker has begun the call."""
        with self._lock:
            call: TaskCall = future.call
            return call.link is not None and call.link.head is call

    def wait_begins(self, future: TaskFuture[Any], *, blocked: bool) -> None:
        """Note that a thread waits for the call; *blocked*: nothing else goes on in that thread."""
        self._lending.begins(future)
        if blocked:
            with self._lock:
                self._lend(time.monotonic())

    def wait_ends(self, future: TaskFuture[Any]) -> None:
        """Note that a thread which waited for the call goes on."""
        self._lending.ends(future)

    def tell(self, future: TaskFuture[Any], frame: bytes) -> None:
        """Send a frame about a call to the worker that has it, if one does."""
        with self._lock:
            link = future.call.link
            if link is not None:
                link.out += frame
                self._sockets.flush(link)

    def ask_to_stop(self, future: TaskFuture[Any]) -> bool:
        """Cancel a call that has not started, and tell one that runs; ``False`` when it had ended."""
        call: TaskCall = future.call
        while not call.done:
            with self._lock:
                link = call.link
                if link is not None and link.head is call and not call.cancelled:
                    call.stopping = True
                    link.out += encode_cancel(call.task_id)
                    self._sockets.flush(link)
                    return True
            if self.take_back(future):
                return True
            if call.cancelled:
                break
        return future.cancelled()

    def kill(self, future: TaskFuture[Any]) -> bool:
        """Cancel a call even if it runs: its worker dies, other calls there go elsewhere. ``False`` if it had ended."""
        call: TaskCall = future.call
        with self._lock:
            link = call.link
            running = link is not None and link.head is call and not call.cancelled
        if not running or link is None:
            return self.take_back(future)
        return self._drop(link, {call.task_id: TaskCancelled("the task was cancelled while it ran")})

    def idle(self, keep_alive_s: float, now: float) -> list[str]:
        """Let go of workers without work for *keep_alive_s* (at once when another lane has none); their leases."""
        given_up = []
        with self._lock:
            starved = any(lane.waiting and not lane.links for lane in self._lanes.values())
            patience_s = 0.0 if starved else keep_alive_s
            for lane in self._lanes.values():
                if lane.waiting:
                    continue
                for link in list(lane.links):
                    if not link.calls and (lane.is_actors or now - link.idle_since >= patience_s):
                        self._unlink(link)
                        given_up.append(link)
            forget_unused(self._lanes)
        for link in given_up:
            link.sock.close()
        return [link.lease_id for link in given_up]

    def leave(self, lease_ids: Iterable[str]) -> None:
        """Let go of workers that are to leave their host: at once, or when what they have has ended."""
        wanted = set(lease_ids)
        with self._lock:
            for link in [link for link in self._sockets.links.values() if link.lease_id in wanted]:
                link.leaving = link.moving = True
                if not link.calls:
                    self._hand_back(link)
            self._sockets.tick_soon()

    def cancel_waiting(self) -> None:
        """Cancel what no worker has begun, as far as is known here."""
        with self._lock:
            calls = [call for lane in self._lanes.values() for call in lane.queued()]
            calls += [call for link in self._sockets.links.values() for call in list(link.calls.values())[1:]]
        for call in calls:
            call.future.cancel()

    def wait_until_done(self) -> None:
        """Wait until nothing is unfinished but actors, which last."""
        with self._lock:
            self._blocked += 1
            try:
                while self._unfinished > self._lasting() and not self._closed:
                    self._room.wait()
            finally:
                self._blocked -= 1

    def held(self) -> set[str]:
        """The leases in use."""
        with self._lock:
            return {link.lease_id for link in self._sockets.links.values()}

    def figures(self) -> dict[str, int]:
        """The numbers of unfinished calls, workers, lanes, and calls taken from one worker's queue for another's."""
        with self._lock:
            counts = {"unfinished": self._unfinished, "workers": len(self._sockets.links), "lanes": len(self._lanes)}
            return {**counts, "stolen": self._stolen}

    def close(self) -> None:
        """Let go of all workers; what is unfinished is cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._sockets.close()
            self._room.notify_all()
            calls = [call for lane in self._lanes.values() for call in lane.drain()]
            calls += [*self._judged, *self.renewals.calls]
            self._judged.clear()
            self.renewals.calls.clear()
            links = list(self._sockets.links.values())
            for link in links:
                calls += [call for call in link.calls.values() if not call.cancelled]
                self._unlink(link)
            self._lanes.clear()
            for call in calls:
                call.cancelled = True
        self._sockets.join(5.0)
        for link in links:
            link.sock.close()
        for call in calls:
            call.future._cancelled()

    # -- for the lease source

    def add(
        self,
        lane: Lane,
        lease_id: str,
        worker_id: str,
        sock: socket.socket,
        decoder: FrameDecoder,
        travel_s: float = 0.0,
        token: Token | None = None,
        numbers_attempts: bool = False,
        on_loan: bool = False,
        *can: bool,
        route: WorkerRoute | None = None,
    ) -> None:
        """Add a leased worker, welcome after *travel_s*. *can*: see LeasedWorker; *route*: the way to one elsewhere."""
        sock.setblocking(False)
        hopeless: list[TaskCall] = []
        closed = True
        with self._lock:
            if on_loan:
                self._lending.asked = False
            else:
                lane.requests -= 1
                lane.failures = 0
            if not self._closed:
                closed = False
                hopeless = [] if on_loan else lane.granted(token)
                self._finished(len(hopeless))
                said = sock, decoder, time.monotonic(), travel_s, token, numbers_attempts
                link = LeasedWorker(lane, lease_id, worker_id, *said, *can, route=route)
                lane.balancing = self.balancing or self.pool_balancing.get(lane.shape.pool_name)
                lane.links.append(link)
                self._sockets.add(link)
                if on_loan:
                    link.on_loan, self._lending.link = True, link
                    self._lend(time.monotonic())
                self._sender.refill(link)
                self._sockets.flush(link)
                self._sockets.tick_soon()
                for call in hopeless:
                    call.done = True
        for call in hopeless:
            call.future.set_exception(only_older_tokens(call, token))
        if closed:
            sock.close()
            self._source.give_back(lease_id)

    def no_lease(self, lane: Lane, quiet_s: float, error: ActorGridError | None = None) -> None:
        """No lease now: ask again after *quiet_s*, or never: *error* fails all that waits in the lane."""
        calls: list[TaskCall] = []
        with self._lock:
            lane.requests -= 1
            lane.quiet_until = time.monotonic() + quiet_s
            if error is not None:
                calls = lane.drain()
                self._finished(len(calls))
                for call in calls:
                    call.done = True
            if lane.waiting:
                self._sockets.tick_soon()
        for call in calls:
            call.future.set_exception(copy_of(error))

    def no_loan(self, quiet_s: float) -> None:
        """Note that no worker came on the lent CPUs: ask again after *quiet_s*."""
        self._lending.asked = False
        self._lending.quiet_until = time.monotonic() + quiet_s

    def drop_all(self) -> None:
        """Drop all leases, as the host does not know the session; everything is sent again."""
        with self._lock:
            links = list(self._sockets.links.values())
        for link in links:
            self._drop(link, {}, charge=False)

    def waits(self, lane: Lane) -> bool:
        """Whether anything waits in *lane*."""
        return lane.waiting > 0 and not self._closed

    def is_reader(self) -> bool:
        """Whether the caller is the thread that all results come by."""
        return self._sockets.is_reader()

    # -- with the lock held

    def _new_key(self) -> int:
        self._last_task_id += 1
        return self._last_task_id

    def _lasting(self) -> int:
        return sum(lane.unfinished for lane in self._lanes.values() if lane.is_actors)

    def _wait_for_room(self) -> None:
        if self._sockets.is_reader():
            raise QueueFull(f"{MAX_UNFINISHED} tasks are unfinished", hint="do not submit from callbacks")
        self._blocked += 1
        try:
            while self._unfinished >= MAX_UNFINISHED and not self._closed:
                self._room.wait()
        finally:
            self._blocked -= 1

    def _finished(self, count: int) -> None:
        self._unfinished -= count
        if self._blocked:
            self._room.notify_all()

    def _abandon(self, call: TaskCall) -> None:
        """Let nobody begin a call whose value is not wanted any more."""
        call.cancelled = True
        if call.link is not None:
            call.link.out += encode_cancel(call.task_id)
            self._sockets.flush(call.link)
            return
        if call in self._judged or call in self.renewals.calls:
            self._judged.discard(call)
            self.renewals.calls.discard(call)
        else:
            call.lane.forget(call)
        self._finished(1)

    def _refuse(self, call: TaskCall, error: ActorGridError) -> None:
        """Fail a call that cannot be sent to its worker."""
        call.done = True
        self._finished(1)
        self._sockets.soon(partial(call.future.set_exception, error))

    def _lend(self, now: float) -> None:
        if not self.lends:
            return
        match self._lending.decide(now, self._judged):
            case SendCall(link, call):
                call.lane.take(call)
                self._sender.put(link, call, self._pace.estimate_s(call.code.kin), now)
                self._sockets.flush(link)
            case Return(link):
                self._hand_back(link)
            case AskForWorker(lane):
                self._lending.asked = True
                self._source.want_on_loan(lane, self._lending.cpus)

    def _unlink(self, link: LeasedWorker) -> None:
        link.lost = True
        if self._lending.link is link:
            self._lending.link = None
        link.lane.links.remove(link)
        self._sockets.remove(link)

    def _hand_back(self, link: LeasedWorker) -> None:
        self._unlink(link)
        link.sock.close()
        self._source.give_back(link.lease_id)

    # -- the reader thread

    def _read(self, link: LeasedWorker) -> None:
        try:
            data = link.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # reset, or closed by another thread
        try:
            frames = link.decoder.feed(data)
        except (TransportError, ActorGridError) as error:
            self._drop(link, {}, found=str(error))
            return
        if not data:
            self._drop(link, {}, found="its connection closed")
            return
        done: list[tuple[TaskCall, int, bytes, Any]] = []
        now = time.monotonic()
        with self._lock:
            for frame in frames:
                if frame[0] == "result":
                    call = link.gave(frame[1], now) or ran_after_all(link, frame, now)
                    if call is None or (frame[2] == FAILED and must_resend(link, call, frame[3], now)):
                        continue
                    call.done = True
                    if frame[2] == OK:
                        link.values.add(call.task_id, len(frame[3]), len(frame[3]))
                    done.append((call, frame[2], frame[3], frame[4] if len(frame) > 4 else ()))
                elif frame[0] == "item":
                    call = link.calls.get(frame[1])
                    if call is not None and call.stream is not None:
                        call.stream.put(frame[2], self._source.take_gifts(frame[3]) if len(frame) > 3 else ())
                elif frame[0] == "recalled":
                    self._take_given_back(link, frame[1], now)
                elif frame[0] == "output" and self._printer is not None:
                    call = link.calls.get(frame[1])
                    self._printer.put(call.code.name if call else "", link.worker_id, frame[2], frame[3])
            if done:
                each_s = link.ended(len(done), now)
                for kin in {call.code.kin for call, _, _, _ in done}:
                    self._pace.observe(kin, each_s)
                link.lane.observe(each_s)
                self._finished(len(done) - self.renewals.keep(done))
            self._sender.refill(link)
            self._sockets.flush(link)
            if link.on_loan:
                self._lend(now)
        for call, status, body, gifts in done:
            held = self._source.take_gifts(gifts, call.future) if gifts else ()
            if not (self.renewals.is_renewed(call, body, self._source.renews) or call.cancelled):
                call.future.settle(raise_failure if status == FAILED else loads_value, body, status == FAILED, held)

    def _take_given_back(self, link: LeasedWorker, task_ids: Any, now: float) -> None:
        """Let calls wait again that *link* has not begun, and send them to who has nothing to do."""
        stolen, unwanted = given_back(link, task_ids, now)
        self._finished(unwanted)
        self._stolen += stolen
        self._sender.supply(link.lane)

    def _tick(self, now: float) -> None:
        wanted: list[tuple[Lane, bool]] = []
        overdue: list[tuple[LeasedWorker, TaskCall]] = []
        with self._lock:
            busy = False
            for lane in self._lanes.values():
                if lane.waiting:
                    busy = True
                    self._sender.supply(lane)
                if ask_back(lane, now):
                    self._sender.supply(lane)
                look = look_over(lane, now)
                busy = busy or look.busy
                overdue += look.overdue
                for link in look.to_leave:
                    self._hand_back(link)
                    lane.quiet_until = now
                while lane.wants_lease(now):
                    wanted.append((lane, not lane.links and not lane.requests))
                    lane.requests += 1
                    if lane.requests >= MAX_LEASE_REQUESTS:
                        break
            self._lend(now)
            self._sockets.ticking = busy
        for lane, first in wanted:
            self._source.want(lane, first)
        for link, call in overdue:
            self._drop(link, {call.task_id: past_limit(call)})

    def _drop(
        self, link: LeasedWorker, verdicts: dict[int, ActorGridError], *, charge: bool = True, found: str = ""
    ) -> bool:
        """Drop a worker that is gone or must go. Its calls end with their verdict or are sent elsewhere."""
        ended: list[tuple[TaskCall, ActorGridError]] = []
        judged: TaskCall | None = None
        now = time.monotonic()
        with self._lock:
            if link.lost or (verdicts and verdicts.keys().isdisjoint(link.calls)):
                return False
            self._unlink(link)
            calls = list(link.calls.values())
            for number, call in reversed(list(enumerate(calls))):
                call.link = None
                call.may_have_begun(link.token)  # each: answers of calls in front of it may be lost with the worker
                if call.cancelled:
                    self._finished(1)
                elif call.task_id in verdicts:
                    ended.append((call, verdicts[call.task_id]))
                elif call.stopping:
                    ended.append((call, TaskCancelled("the task was asked to stop, and its worker went")))
                else:
                    if number == 0 and charge and not verdicts:  # workers run one call at a time: the first was it
                        call.losses_left -= 1
                    if call.losses_left < 0 or (call.stream is not None and call.stream.received):
                        ended.append((call, worker_lost(link, found, call)))
                    elif number == 0 and charge and not verdicts:
                        judged = call
                        self._judged.add(call)
                    else:
                        call.lane.push(call, now, front=True)
            for call, _ in ended:
                call.done = True
            self._finished(len(ended))
            self._sender.supply(link.lane)
            self._sockets.tick_soon()
        link.sock.close()
        for call, error in ended:
            if isinstance(error, WorkerLost):
                self._source.tell_loss(link.lease_id, error, call.future.set_exception)
            else:
                call.future.set_exception(error)
        if judged is not None:
            self._source.judge_loss(link.lease_id, partial(self._after_loss, judged))
        self._source.give_back(link.lease_id)
        return bool(ended)

    def _after_loss(self, call: TaskCall, verdict: ActorGridError | None) -> None:
        """Send a call again whose worker went while it ran, unless somebody ended it."""
        with self._lock:
            if call not in self._judged:
                return  # cancelled, or the client closed meanwhile
            self._judged.discard(call)
            if verdict is None:
                self._again(call)
            else:
                call.done = True
                self._finished(1)
        if verdict is not None:
            call.future.set_exception(verdict)

    def _again(self, call: TaskCall) -> None:
        call.lane = self._lanes.setdefault(call.lane.shape, call.lane)
        call.lane.push(call, time.monotonic(), front=True)
        self._sender.supply(call.lane)
        self._sockets.tick_soon()
