"""The other hosts as one host sees them: calls, casts and streams over whatever links there are, dialled on demand.

What all nets have in common; a subclass makes the links: over sockets (``PeerNet``) or in memory (``FaultyNet``). At
most two are in use to each host: one for calls and casts, and one for streams, so that a call does not wait in the
kernel's buffers behind a stream. A link is dialled on demand, and always for the hosts it is told to ``keep``. When a
dial fails, what waited for it fails with HostUnreachable, and the next comes after a growing, jittered delay only.

Links refused or closed for a reason are counted by it and, at most once a reason in ``LOG_EVERY_S``, logged.

Everything runs in the loop's thread. ``PeerLimits`` says the bounds.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from actorgrid.errors import ActorGridError, CallTimeout, HostUnreachable, MailboxFull, NotSupported, PeerGone

from .calls import Cancellable, NetLoop, OnCall, OnCast, OnStream, PendingAnswer, Stream
from .end import PeerEnd
from .frames import BULK_LANE, CONTROL_LANE, LANES
from .limits import PeerLimits, Refusal
from .route import LinkRoute, Work
from .session import LinkDown

LOG_EVERY_S = 10.0
_QUIET = {Refusal.GONE, Refusal.RETIRED, Refusal.CLOSING}
_COUNTS = ("links", "bytes_in", "bytes_out", "calls", "streams", "unsent_bytes", "held_bytes", "casts_dropped")

OnPeer = Callable[[str, bool], None]
"""(host id, reachable): its link for calls is up now, or is not any more."""
PeerRoute = LinkRoute[PeerEnd]

log = logging.getLogger("actorgrid.links")


class PeerHosts(ABC):
    """The other hosts, reached over links that a subclass makes; see the module."""

    def __init__(
        self,
        loop: NetLoop,
        host_id: str,
        on_call: OnCall,
        on_cast: OnCast,
        on_stream: OnStream,
        on_peer: OnPeer | None,
        limits: PeerLimits | None,
        rng: random.Random,
    ) -> None:
        self.host_id = host_id
        self.refusals: Counter[str] = Counter()
        """Links refused or closed for a reason, by ``Refusal``. A connection that just ended is none."""
        self.on_refused: Callable[[str, str], None] | None = None
        """Told (host id, why) when another host says that it does not take us."""
        self._loop = loop
        self._limits = limits or PeerLimits()
        self._handlers = (on_call, on_cast, on_stream)
        self._on_peer = on_peer
        self._told_up: set[str] = set()
        self._rng = rng
        self._routes: dict[tuple[str, str], PeerRoute] = {}
        self._timers: dict[tuple[str, str], Cancellable] = {}
        self._kept: dict[str, None] = {}  # in one order: a set's differs between processes
        self._ends: dict[PeerEnd, None] = {}
        self._logged_s: dict[str, float] = {}
        self._closed = False
        self._ticker = loop.after(self._limits.tick_s, self._tick)

    def keep(self, host_ids: Iterable[str]) -> None:
        """Keep a link for calls to these hosts, and only these, at all times; others are dialled on demand."""
        self._kept = dict.fromkeys(sorted(set(host_ids) - {self.host_id}))
        for host_id in self._kept:
            self._plan(self._route(host_id, CONTROL_LANE), CONTROL_LANE)

    def drop_refused(self) -> int:
        """Ask ``admit`` again for every link, as the ledger has changed; close the refused and give their number."""
        refused = 0
        for end in list(self._ends):
            why = self._admit(end.host_id, end.fingerprint) if end.session.usable else None
            if why is not None:
                refused += 1
                end.close(Refusal.UNKNOWN_HOST, why)
        return refused

    @abstractmethod
    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        """Why a host with this certificate is refused; ``None`` when it is not."""

    def call(self, host_id: str, target: str, body: bytes, timeout_s: float) -> PendingAnswer:
        """Ask *target* at a host; the answer fails with what it raised there, CallTimeout, HostUnreachable, PeerGone,
        MailboxFull or FrameTooLarge. The time for dialling counts."""
        answer = PendingAnswer()
        if self._closed or host_id == self.host_id:
            answer.fail(NotSupported("a net calls other hosts, until it is closed", asked=host_id))
            return answer

        def begin(link: PeerEnd) -> None:
            if not answer.done:
                link.call(target, body, answer)

        def expire() -> None:
            if not answer.done:
                error = CallTimeout(
                    f"{target} at {host_id} did not answer in {timeout_s:g} s", hint="whether it acted is unknown"
                )
                answer.expire(error)

        timer = self._loop.after(timeout_s, expire)
        answer.when_settled(timer.cancel)
        work = Work(begin, answer.fail, len(body), self._loop.monotonic() + timeout_s)
        try:
            route = self._route(host_id, CONTROL_LANE)
            answer.when_cancelled(lambda: route.forget(work))
            self._submit(route, CONTROL_LANE, work)
        except ActorGridError as error:
            answer.fail(error)
        return answer

    def cast(self, host_id: str, target: str, body: bytes) -> None:
        """Tell *target* at a host; nothing says whether it came. Raises MailboxFull or FrameTooLarge.

        Without a link it waits for the next dial, if that is due within ``handshake_s``, or is dropped, and counted.
        """
        if self._closed or host_id == self.host_id:
            raise NotSupported("a net casts to other hosts, until it is closed", asked=host_id)
        route = self._route(host_id, CONTROL_LANE)

        def dropped(_error: ActorGridError) -> None:
            route.casts_dropped += 1

        deadline_s = self._loop.monotonic() + self._limits.handshake_s
        work = Work[PeerEnd](lambda link: link.cast(target, body), dropped, len(body), deadline_s)
        try:
            self._submit(route, CONTROL_LANE, work)
        except (HostUnreachable, PeerGone) as error:
            dropped(error)

    def open_stream(self, host_id: str, target: str, head: bytes, compress: bool = False) -> Stream:
        """Open a stream to *target* at a host; its ``on_end`` says what failed: as for ``call``, or MailboxFull."""
        if self._closed or host_id == self.host_id:
            raise NotSupported("a net opens streams to other hosts, until it is closed", asked=host_id)
        stream = Stream(host_id, target, head)

        def begin(link: PeerEnd) -> None:
            if not stream.over:
                link.open(stream, compress)

        def give_up(error: ActorGridError) -> None:
            self._loop.after(0.0, lambda: stream.ended(error))  # the caller attaches to it first

        deadline_s = self._loop.monotonic() + self._limits.handshake_s
        try:
            self._submit(self._route(host_id, BULK_LANE), BULK_LANE, Work(begin, give_up, len(head), deadline_s))
        except ActorGridError as error:
            give_up(error)
        return stream

    def reachable(self, host_id: str) -> bool:
        """Whether a link for calls to *host_id* is up."""
        route = self._routes.get((host_id, CONTROL_LANE))
        return route is not None and route.link is not None

    def stats(self) -> dict[str, Any]:
        """Plain values for metrics: refusals by reason; for each host with a record its links, bytes, round trip,
        what is under way, refusals, and what last kept it from being reached.

        A host's record, and with it what it counts, ends when nothing is said to it any more.
        """
        hosts: dict[str, dict[str, Any]] = {}
        for (host_id, lane), route in self._routes.items():
            entry = hosts.setdefault(host_id, dict.fromkeys(_COUNTS, 0))
            entry[lane] = {"up": route.link is not None, "failures": route.failures, "waiting": route.waiting}
            entry["last_error"] = entry.get("last_error") or route.last_error
            entry["refusals"] = dict(Counter(entry.get("refusals", {})) + route.refusals)
            entry["casts_dropped"] += route.casts_dropped
            entry["bytes_in"] += route.bytes_in
            entry["bytes_out"] += route.bytes_out
        for end in self._ends:
            found = hosts.get(end.host_id)
            if found is not None and end.session.usable:
                found["links"] += 1
                found["bytes_in"] += end.bytes_in
                found["bytes_out"] += end.bytes_out
                found["calls"] += end.calls
                found["streams"] += end.streams
                found["unsent_bytes"] += end.session.unsent_bytes
                found["held_bytes"] += end.held_bytes
                if end.lane == CONTROL_LANE:
                    found["rtt_s"] = end.session.rtt_s
        return {
            "refusals": dict(self.refusals),
            "connections": len(self._ends),
            "hosts": hosts,
        }

    def close(self) -> None:
        """Close everything; what is under way fails with PeerGone."""
        if self._closed:
            return
        self._stop()
        for end in list(self._ends):
            end.close(Refusal.CLOSING, f"{self.host_id} stops")
        for route in self._routes.values():
            for work in route.take_waiting():
                work.give_up(PeerGone(f"{self.host_id} stops"))

    def _stop(self) -> None:
        self._closed = True
        self._ticker.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- routes

    def _route(self, host_id: str, lane: str) -> PeerRoute:
        route = self._routes.get((host_id, lane))
        if route is None:
            if not self._has_room_for(host_id):
                raise MailboxFull(f"links to {self._limits.hosts_max} hosts are recorded", asked=host_id)
            route = self._routes[host_id, lane] = LinkRoute(self.host_id, host_id, self._limits)
        return route

    def _has_room_for(self, host_id: str) -> bool:
        known = any((host_id, lane) in self._routes for lane in LANES)
        return known or len(self._routes) < len(LANES) * self._limits.hosts_max

    def _submit(self, route: PeerRoute, lane: str, work: Work[PeerEnd]) -> None:
        if route.link is not None:
            work.begin(route.link)
            return
        route.wait(work, self._loop.monotonic())
        self._plan(route, lane)

    def _plan(self, route: PeerRoute, lane: str) -> None:
        """Dial, now or when the route says, if there is something to dial for."""
        key = route.host_id, lane
        if self._closed or key in self._timers:
            return
        delay_s = route.dial_in_s(self._loop.monotonic(), wanted=self._is_kept(route, lane))
        if delay_s is None:
            return
        if delay_s > 0:
            self._timers[key] = self._loop.after(delay_s, lambda: self._due(route, lane))
            return
        route.dialling = True
        self._dial(route, lane)

    def _due(self, route: PeerRoute, lane: str) -> None:
        self._timers.pop((route.host_id, lane), None)
        self._plan(route, lane)

    def _is_kept(self, route: PeerRoute, lane: str) -> bool:
        return lane == CONTROL_LANE and route.host_id in self._kept

    @abstractmethod
    def _dial(self, route: PeerRoute, lane: str) -> None:
        """Make a link: ``_went_up`` or ``_dial_failed`` follows, now or later."""

    def _dial_failed(self, route: PeerRoute, lane: str, why: str) -> None:
        route.dial_failed(why, self._loop.monotonic(), self._rng.random())
        error = HostUnreachable(
            f"{route.host_id} cannot be reached",
            found=why,
            hint="see whether its agent runs and the addresses are right",
        )
        for work in route.take_waiting():
            work.give_up(error)
        self._plan(route, lane)

    # -- links come and go

    def _went_up(self, end: PeerEnd) -> None:
        now_s = self._loop.monotonic()
        route = self._route(end.host_id, end.lane)
        if end.dialled:
            route.dialling = False
        loser = route.settle(end, end.dialled, now_s)
        if loser is not None:
            loser.retire()
        if end.lane == CONTROL_LANE:
            self._tell(end.host_id, True)
        for work in route.take_waiting():
            try:
                self._submit(route, end.lane, work)
            except ActorGridError as error:
                work.give_up(error)

    def _went_down(self, end: PeerEnd, event: LinkDown) -> None:
        self._ends.pop(end, None)
        key = end.host_id, end.lane
        route = self._routes.get(key)
        if route is not None:
            route.bytes_in += end.bytes_in
            route.bytes_out += end.bytes_out
        if route is not None and route.lost(end, str(event.error), self._loop.monotonic(), self._rng.random()):
            if key[1] == CONTROL_LANE:
                self._tell(key[0], False)
            self._plan(route, key[1])

    def _refused_us(self, host_id: str, why: str) -> None:
        if self.on_refused is not None and not self._closed:
            self.on_refused(host_id, why)

    def _tell(self, host_id: str, up: bool) -> None:
        if up is (host_id in self._told_up):
            return
        (self._told_up.add if up else self._told_up.discard)(host_id)
        if self._on_peer is not None:
            self._on_peer(host_id, up)

    def _count(self, refusal: Refusal, about: str, host_id: str = "", lane: str = CONTROL_LANE) -> None:
        if refusal in _QUIET:
            return
        self.refusals[refusal] += 1
        if (host_id, lane) in self._routes:
            self._routes[host_id, lane].refusals[refusal] += 1
        now_s = self._loop.monotonic()
        if now_s - self._logged_s.get(refusal, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[refusal] = now_s
            log.warning("%s (%s, %d so far)", about, refusal, self.refusals[refusal])

    # -- time

    def _tick(self) -> None:
        self._ticker = self._loop.after(self._limits.tick_s, self._tick)
        for end in list(self._ends):
            end.tick()
        for host_id in self._kept:
            self._plan(self._route(host_id, CONTROL_LANE), CONTROL_LANE)
        now_s = self._loop.monotonic()
        idle = [key for key, route in self._routes.items() if route.idle(now_s) and key[0] not in self._kept]
        for key in idle:
            del self._routes[key]
