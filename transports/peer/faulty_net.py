"""Hosts linked through memory, with faults from a seed: what ``PeerNet`` does, on wires and a clock that a test owns.

Above the wire it is the code of real links: routes, backoff, sessions, credits, frames through the codec. Only TLS and
sockets are missing, and between two ends there is a wire that delays, loses, duplicates, reorders and is cut:

* Delay: each frame its own, in order. *reorder*: a cast or an answer is late by itself, and others pass it.
* Loss: of calls, answers and casts, as when a host drops them; the rest is sent again, and late by ``RESEND_S``.
* Duplication: of casts and answers. A receiver of casts that stands this stands any net: sockets never do it.
* A cut wire (one way or both) holds what is sent until it is mended, as TCP does, or the link is given up meanwhile.

With equal seeds and equal calls, the same happens at the same times. The loop's clock is the only one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from actorgrid.errors import PeerGone

from .calls import NetLoop, OnCall, OnCast, OnStream
from .end import Handlers, PeerEnd, SessionEnd
from .frames import Bye, Call, Cancel, Cast, Failure, Frame, PeerDecoder, Reply
from .hosts import OnPeer, PeerHosts, PeerRoute
from .limits import PeerLimits, Refusal
from .link import Admit
from .session import LinkDown, PeerSession

RESEND_S = 0.2
_CAN_BE_LOST = (Call, Reply, Failure, Cast, Cancel)
_CAN_BE_ODD = (Reply, Failure, Cast)
_LATE_FACTOR = 5.0


@dataclass(frozen=True)
class Faults:
    """A wire's faults: the share of frames (0 to 1) that each befalls, and the least and greatest delay in seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    reorder: float = 0.0
    delay_s: tuple[float, float] = (0.0002, 0.001)


class _Wire:
    """One direction between two hosts. Held frames are bounded by what the sessions at its ends may have under way."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.cut = False
        self.held: deque[tuple[FaultyEnd, Frame]] = deque()
        self.in_order: deque[tuple[FaultyEnd, Frame]] = deque()  # under way, and arriving in this order
        self.last_due_s = 0.0


class FaultyNetwork:
    """All hosts and wires of a run. *loop* needs ``after`` and ``monotonic`` alone."""

    def __init__(
        self, loop: NetLoop, seed: int, faults: Faults | None = None, limits: PeerLimits | None = None
    ) -> None:
        self.loop = loop
        self.limits = limits or PeerLimits()
        self.rng = random.Random(seed)  # nosec B311 - faults, not secrets
        self.hosts: dict[str, FaultyNet] = {}
        self._faults = faults or Faults()
        self._wires: dict[tuple[str, str], _Wire] = {}

    def set_faults(self, faults: Faults, source: str | None = None, to: str | None = None) -> None:
        """Set the faults of the wire from *source* to *to* from now on; without them, of all wires."""
        if source is not None and to is not None:
            self._wire(source, to).faults = faults
            return
        self._faults = faults
        for wire in self._wires.values():
            wire.faults = faults

    def cut(self, sources: Collection[str], to: Collection[str], one_way: bool = False) -> None:
        """Let nothing through from each of *sources* to each of *to*, and back unless *one_way*."""
        for source in sources:
            for other in to:
                self._wire(source, other).cut = True
                self._wire(other, source).cut |= not one_way

    def mend(self) -> None:
        """Mend all wires; what they hold goes on."""
        for wire in self._wires.values():
            wire.cut = False
            held, wire.held = wire.held, deque()
            for end, frame in held:
                self._carry(end, frame, wire)

    def crash(self, host_id: str) -> None:
        """Cut a host's power: it says nothing, and the others are told nothing. It may ``join`` again."""
        self.hosts.pop(host_id).vanish()

    def passes(self, one: str, other: str) -> bool:
        """Whether the wires between two hosts are whole, both ways."""
        return not (self._wire(one, other).cut or self._wire(other, one).cut)

    def delay_s(self, source: str, to: str) -> float:
        """The seconds that a frame takes now, drawn anew each time."""
        return self.rng.uniform(*self._wire(source, to).faults.delay_s)

    def _wire(self, source: str, to: str) -> _Wire:
        wire = self._wires.get((source, to))
        if wire is None:
            wire = self._wires[source, to] = _Wire(self._faults)
        return wire

    # -- frames under way

    def send(self, source: str, end: FaultyEnd, frame: Frame) -> None:
        """Carry *frame* from *source* to *end*, with what the wire does to it."""
        wire = self._wire(source, end.own_host)
        if isinstance(frame, _CAN_BE_LOST) and self.rng.random() < wire.faults.loss:
            return
        self._carry(end, frame, wire)
        if isinstance(frame, _CAN_BE_ODD) and self.rng.random() < wire.faults.duplication:
            self._carry(end, frame, wire)

    def _carry(self, end: FaultyEnd, frame: Frame, wire: _Wire) -> None:
        faults, now_s = wire.faults, self.loop.monotonic()
        delay_s = self.rng.uniform(*faults.delay_s)
        if isinstance(frame, _CAN_BE_ODD) and self.rng.random() < faults.reorder:
            due_s = now_s + delay_s * (1 + self.rng.random() * _LATE_FACTOR)
        else:
            if not isinstance(frame, _CAN_BE_LOST) and self.rng.random() < faults.loss:
                delay_s += RESEND_S
            due_s = wire.last_due_s = max(wire.last_due_s, now_s + delay_s)
            # A real clock goes on between two frames that are due at once: which timer ends first is no order.
            wire.in_order.append((end, frame))
            self.loop.after(due_s - now_s, lambda: self._arrive(*wire.in_order.popleft(), wire))
            return
        self.loop.after(due_s - now_s, lambda: self._arrive(end, frame, wire))

    def _arrive(self, end: FaultyEnd, frame: Frame, wire: _Wire) -> None:
        if end.session.over is None:
            if wire.cut:
                wire.held.append((end, frame))
            else:
                end.arrived(frame)


class FaultyEnd(SessionEnd):
    """One end of a link through memory. *far* is set when both are made."""

    def __init__(
        self,
        network: FaultyNetwork,
        own_host: str,
        lane: str,
        dialled: bool,
        handlers: Handlers,
        on_up: Callable[[PeerEnd], None],
        on_down: Callable[[PeerEnd, LinkDown], None],
    ) -> None:
        super().__init__(PeerSession(dialled, network.limits), handlers, on_up, on_down)
        self.own_host = own_host
        self.lane, self.dialled = lane, dialled
        self.far: FaultyEnd | None = None
        self._network = network
        self._decoder = PeerDecoder()
        self._decoder.open_up()

    def went_up(self, host_id: str) -> None:
        """Start the session: the link is up."""
        self.session.start(host_id, self._network.loop.monotonic())
        self._on_up(self)
        self._go_on()

    def arrived(self, frame: Frame) -> None:
        """Take a frame of the other side."""
        self.session.received(self._network.loop.monotonic())
        self.session.take(frame)
        self._go_on()

    def vanish(self) -> None:
        """Drop this end without telling anybody: its host is dead."""
        self._ended = True
        self.session.end(Refusal.GONE, PeerGone(f"{self.own_host} is dead"))

    def tick(self) -> None:
        """Check timeouts; called every ``tick_s``."""
        self.session.tick(self._network.loop.monotonic())
        self._go_on()

    def close(self, refusal: Refusal, message: str) -> None:
        """Close the link at once."""
        self.session.end(refusal, PeerGone(message))
        self._go_on()

    def _send(self) -> bool:
        data = self.session.next_bytes()
        if data is None:
            return False
        self.bytes_out += len(data)
        if self.far is not None:
            self.far.bytes_in += len(data)
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            self._say(frame)
        return True

    def _leave(self, over: LinkDown) -> None:
        self._say(Bye(str(over.refusal), ""))

    def _say(self, frame: Frame) -> None:
        if self.far is not None:
            self._network.send(self.own_host, self.far, frame)


class FaultyNet(PeerHosts):
    """One host of a FaultyNetwork; it is reachable from its making until it closes or crashes."""

    def __init__(
        self,
        network: FaultyNetwork,
        host_id: str,
        *,
        on_call: OnCall,
        on_cast: OnCast,
        on_stream: OnStream,
        admit: Admit = lambda _host_id, _fingerprint: None,
        on_peer: OnPeer | None = None,
    ) -> None:
        rng = random.Random(network.rng.random())  # nosec B311 - as the network's
        super().__init__(network.loop, host_id, on_call, on_cast, on_stream, on_peer, network.limits, rng)
        self._network = network
        self._judge = admit
        network.hosts[host_id] = self

    def close(self) -> None:
        """Close everything; what is under way fails with PeerGone."""
        if self._network.hosts.get(self.host_id) is self:
            del self._network.hosts[self.host_id]
        super().close()

    def vanish(self) -> None:
        """Drop all links without a word; see ``FaultyNetwork.crash``."""
        for end in self._ends:
            if isinstance(end, FaultyEnd):
                end.vanish()
        self._ends.clear()
        self._stop()

    def _dial(self, route: PeerRoute, lane: str) -> None:
        network = self._network
        if not network.passes(self.host_id, route.host_id):
            network.loop.after(self._limits.handshake_s, lambda: self._failed(route, lane, "no answer"))
            return
        round_trip_s = network.delay_s(self.host_id, route.host_id) + network.delay_s(route.host_id, self.host_id)
        network.loop.after(round_trip_s, lambda: self._met(route, lane))

    def _failed(self, route: PeerRoute, lane: str, why: str) -> None:
        if not self._closed:
            self._count(Refusal.UNREACHABLE, f"{route.host_id} cannot be reached: {why}", route.host_id, lane)
            self._dial_failed(route, lane, why)

    def _met(self, route: PeerRoute, lane: str) -> None:
        network, other = self._network, self._network.hosts.get(route.host_id)
        if self._closed or other is None:
            self._failed(route, lane, "nobody listens there")
        elif not network.passes(self.host_id, other.host_id):
            self._failed(route, lane, "no answer")
        elif not self._admits(other) or not other._admits(self):
            why = other._admit(self.host_id, "")
            if why is not None:
                self._refused_us(other.host_id, why)
            self._failed(route, lane, "one of the two refuses the other")
        else:
            near, far = self._end(lane, dialled=True), other._end(lane, dialled=False)
            near.far, far.far = far, near
            far.went_up(self.host_id)
            near.went_up(other.host_id)

    def _end(self, lane: str, dialled: bool) -> FaultyEnd:
        end = FaultyEnd(self._network, self.host_id, lane, dialled, self._handlers, self._went_up, self._went_down)
        self._ends[end] = None
        return end

    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        return self._judge(host_id, fingerprint)

    def _admits(self, other: FaultyNet) -> bool:
        why = self._admit(other.host_id, "")
        if why is not None:
            self._count(Refusal.UNKNOWN_HOST, f"{other.host_id}: {why}", other.host_id)
        return why is None

    def _went_down(self, end: PeerEnd, event: LinkDown) -> None:
        super()._went_down(end, event)
        self._count(event.refusal, f"a link with {end.host_id}: {event.error}", end.host_id, end.lane)
