"""Hosts of the real membership core on virtual time, with a network that loses and cuts, and hosts that stand still.

Nothing is done for a host that rests: each has one place in the queue of what happens next, at its core's deadline.
Packets go as objects, since every host has the same codec; with ``wire`` they go as sealed datagrams, which costs some
ten times as much, and may be played again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.instructions import AskByLink, MemberChanged, MemberUnreachable, SendPacket, SendState
from actorgrid.actors.membership.packets import (
    FullState,
    Packet,
    decode_state,
    encode_state,
    packet_bytes,
    record_bytes,
)
from actorgrid.actors.membership.profiles import MembershipProfile
from actorgrid.actors.membership.records import ALIVE, DEAD, SUSPECT, MemberStatus, first_incarnation
from actorgrid.actors.membership.seal import DatagramSeal, Keyring
from actorgrid.actors.membership.sited_core import SitedCore
from actorgrid.chaos.simulator.rng import stream

SOCKET_PACKETS_MAX = 256
"""What a socket with Linux's usual 208 KiB holds of small datagrams while nobody reads it."""
SECRET = bytes(range(32))

Seen = Callable[["GossipHost", MemberChanged | MemberUnreachable, float], None]


@dataclass(slots=True)
class GossipNetwork:
    """``delay_s``: least and most of a packet's way; between two sites ``far_delay_s`` more. ``cut``: pairs of
    sides between which nothing passes, in that direction. ``played_again``: with ``wire``, the share of
    datagrams that come once more, much later."""

    loss: float = 0.0
    delay_s: tuple[float, float] = (0.0002, 0.002)
    far_delay_s: float = 0.0
    cut: set[tuple[int, int]] = field(default_factory=set)
    played_again: float = 0.0


class GossipHost:
    """One host: its core, and what its machine does to it.

    ``side`` is where it stands in a partition. ``clock_s`` is added to the time that a host shows to those who ask
    for the wall clock; the core is shown one that only goes forward.
    """

    __slots__ = (
        "address",
        "clock_s",
        "core",
        "datagram_bytes",
        "datagrams",
        "far_bytes",
        "far_datagrams",
        "inbox",
        "life",
        "name",
        "scheduled_at",
        "seal",
        "side",
        "site",
        "standing_until",
        "state_bytes",
        "up",
    )

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.core: MembershipCore
        self.seal: DatagramSeal | None = None
        self.life = 0
        self.side = 0
        self.site = ""
        self.clock_s = 0.0
        self.up = False
        self.standing_until = -inf
        self.inbox: list[tuple[Packet | bytes, str]] = []
        self.scheduled_at = inf
        self.datagrams = 0
        self.datagram_bytes = 0
        self.state_bytes = 0
        self.far_datagrams = 0
        self.far_bytes = 0

    def time(self, now: float) -> float:
        """What the core is told of the time."""
        return now


class GossipSimulation:
    """*hosts* of them know each other from the start, as from the ledger. See the module.

    ``seen`` is called with every change that a core tells of.
    """

    def __init__(
        self,
        hosts: int,
        profile: MembershipProfile,
        seed: int,
        *,
        loss: float = 0.0,
        wire: bool = False,
        core_class: type[MembershipCore] = SitedCore,
        host_class: type[GossipHost] = GossipHost,
        seal_class: type[DatagramSeal] = DatagramSeal,
        sites: int = 1,
    ) -> None:
        self.now = 0.0
        self.profile = profile
        self.network = GossipNetwork(loss)
        self.hosts: dict[str, GossipHost] = {}
        self.seen: Seen | None = None
        self.taken_twice = 0
        self._by_address: dict[str, GossipHost] = {}
        self._seed = seed
        self._random = stream(seed, "network").random
        self._wire = wire
        self._core_class, self._host_class, self._seal_class = core_class, host_class, seal_class
        self._queue: list[tuple[float, int, GossipHost | None, object, str]] = []
        self._asked = 0
        self._sites = sites
        self._site_of: dict[str, str] = {}
        self._opened: set[tuple[str, bytes]] = set()
        names = [f"host-{number:04d}" for number in range(hosts)]
        known = [MemberStatus(name, _address(name), first_incarnation(1), ALIVE, name) for name in names]
        if sites > 1:
            self._site_of = {name: f"site{number % sites}" for number, name in enumerate(names)}
        for name in names:
            self.start(name, known)

    # -- what happens to hosts

    def start(self, name: str, known: Iterable[MemberStatus] = (), join: Sequence[str] = ()) -> GossipHost:
        """Start a host, or start it again: then it is in its next life, and remembers nothing but that."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = self._host_class(name, _address(name))
            self._by_address[host.address] = host
        host.life += 1
        host.up, host.standing_until, host.scheduled_at = True, -inf, inf
        host.inbox.clear()
        dice = stream(self._seed, f"{name}/{host.life}")
        at = host.time(self.now)
        host.core = self._core_class(name, host.address, host.life, self.profile, dice, at, known)
        if self._sites > 1:
            assert isinstance(host.core, SitedCore), "only such a core knows sites"
            host.site = self._site_of.setdefault(name, f"site{len(self._site_of) % self._sites}")
            host.core.set_sites(self._site_of, at)
        if self._wire:
            host.seal = self._seal_class(name, host.life, Keyring(1, SECRET))
        if join:
            host.core.join([_address(each) for each in join], at)
        self._carry_out(host)
        return host

    def kill(self, name: str) -> None:
        """It is gone, without a word."""
        self.hosts[name].up = False

    def stand_still(self, name: str, seconds: float) -> None:
        """It does nothing for so long: what comes waits in its socket, and what is due is late."""
        host = self.hosts[name]
        host.standing_until = max(host.standing_until, self.now + seconds)
        self.at(host.standing_until, lambda: self._wake_up(host))

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call *action* at that time."""
        self._push(when, None, action, "")

    def inject(self, to: str, packet: Packet, source: str) -> None:
        """A packet that nobody sent comes to a host, as of a member that lies."""
        host = self.hosts[to]
        host.core.receive(packet, source, host.time(self.now))
        self._carry_out(host)

    # -- time

    def run_until(self, end: float) -> None:
        """Let happen what happens up to then."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, host, what, source = heapq.heappop(queue)
            if host is None:
                assert callable(what)
                what()
            elif what is None:
                self._wake(host)
            else:
                self._arrive(host, what, source)
        self.now = end

    def _push(self, when: float, host: GossipHost | None, what: object, source: str) -> None:
        self._asked += 1
        heapq.heappush(self._queue, (when, self._asked, host, what, source))

    def _wake(self, host: GossipHost) -> None:
        if self.now < host.scheduled_at or not host.up:
            return  # of a deadline that was moved forward since, or of a former life
        host.scheduled_at = inf
        if host.standing_until > self.now:
            return  # it is woken when it stands still no more
        now = host.time(self.now)
        if host.core.deadline <= now:
            host.core.wake(now)
        self._carry_out(host)

    def _wake_up(self, host: GossipHost) -> None:
        """The worst order: what is due first, and only then what waited in the socket."""
        if not host.up or host.standing_until > self.now:
            return
        now = host.time(self.now)
        if host.core.deadline <= now:
            host.core.wake(now)
        self._carry_out(host)
        inbox, host.inbox = host.inbox, []
        for what, source in inbox:
            self._arrive(host, what, source)

    # -- the network

    def _carry_out(self, host: GossipHost) -> None:
        """Do what the core says, and see when it is to be woken."""
        instructions = host.core.instructions
        if instructions:
            for instruction in instructions:
                kind = type(instruction)
                if kind is SendPacket:
                    self._send(host, instruction.to, instruction.packet)  # type: ignore[union-attr]
                elif kind is SendState:
                    self._send_state(host, instruction.to, instruction.state)  # type: ignore[union-attr]
                elif kind is AskByLink:
                    self._ask_by_link(host, instruction)  # type: ignore[arg-type]
                elif self.seen is not None and kind in (MemberChanged, MemberUnreachable):
                    self.seen(host, instruction, self.now)  # type: ignore[arg-type]
            instructions.clear()
        deadline = host.core.deadline - (host.time(self.now) - self.now)
        if deadline < host.scheduled_at and deadline != inf:
            host.scheduled_at = deadline = max(deadline, self.now)
            self._push(deadline, host, None, "")

    def _send(self, host: GossipHost, to: str, packet: Packet) -> None:
        network = self.network
        host.datagrams += 1
        what: Packet | bytes = packet
        if host.seal is not None:
            what = host.seal.seal(packet)
            host.datagram_bytes += len(what)
        else:
            host.datagram_bytes += packet_bytes(packet)
        receiver = self._by_address.get(to)
        far = receiver is not None and receiver.site != host.site
        if far:
            host.far_datagrams += 1
            host.far_bytes += packet_bytes(packet)
        if receiver is None or (network.loss and self._random() < network.loss):
            return
        if network.cut and (host.side, receiver.side) in network.cut:
            return
        least, most = network.delay_s
        least, most = (least + network.far_delay_s, most + network.far_delay_s) if far else (least, most)
        self._push(self.now + least + (most - least) * self._random(), receiver, what, host.address)
        if network.played_again and self._random() < network.played_again:
            self._push(self.now + 5.0 * self._random(), receiver, what, host.address)

    def _send_state(self, host: GossipHost, to: str, state: FullState) -> None:
        """Over a link: what is lost is sent again by it, so it comes later; through a cut it does not come."""
        size = 80 + sum(map(record_bytes, state.records))
        host.state_bytes += size
        receiver = self._by_address.get(to)
        host.far_bytes += size if receiver is not None and receiver.site != host.site else 0
        if receiver is None or (host.side, receiver.side) in self.network.cut:
            return
        if (receiver.side, host.side) in self.network.cut:
            return
        self._push(self.now + 0.01 + 0.05 * self._random(), receiver, state, host.address)

    def _ask_by_link(self, host: GossipHost, asked: AskByLink) -> None:
        """There and back, as far as neither way is cut and both run."""
        member, core = self._by_address.get(asked.to), host.core

        def answer() -> None:
            if host.core is core and host.up and host.standing_until <= self.now:
                core.answered_by_link(asked.sequence, host.time(self.now))
                self._carry_out(host)

        if member is None or not member.up or member.standing_until > self.now:
            return
        if {(host.side, member.side), (member.side, host.side)}.isdisjoint(self.network.cut):
            self.at(self.now + 0.01 + 0.05 * self._random(), answer)

    def _arrive(self, host: GossipHost, what: object, source: str) -> None:
        if not host.up:
            return
        now = host.time(self.now)
        if isinstance(what, FullState):
            if host.standing_until > self.now:
                return  # the link gives up
            if self._wire:
                read = decode_state(encode_state(what))
                if isinstance(read, str):
                    return  # refused as it would be there
                what = read
            host.core.receive_state(what, source, now)
        elif host.standing_until > self.now:
            if len(host.inbox) < SOCKET_PACKETS_MAX:
                assert isinstance(what, Packet | bytes)
                host.inbox.append((what, source))
            return
        else:
            packet = self._open(host, what) if isinstance(what, bytes) else what
            if packet is None:
                return
            assert isinstance(packet, Packet)
            host.core.receive(packet, source, now)
        self._carry_out(host)

    def _open(self, host: GossipHost, datagram: bytes) -> Packet | None:
        assert host.seal is not None
        packet = host.seal.open(datagram, self.now)
        if packet is not None:
            key = (f"{host.name}/{host.life}", datagram)
            self.taken_twice += key in self._opened
            self._opened.add(key)
        return packet

    # -- what is to be seen

    def opinions(self, name: str) -> dict[str, int]:
        """Of each host that is up, the state that it holds *name* in; -1: it does not know it."""
        found = {}
        for host in self.hosts.values():
            if host.up and host.name != name:
                record = host.core.table.records.get(name)
                found[host.name] = -1 if record is None else record.state
        return found

    def agreed(self) -> bool:
        """Whether all who are up hold each other for alive, and all others for neither alive nor suspect."""
        up = {host.name for host in self.hosts.values() if host.up}
        for host in self.hosts.values():
            if host.up:
                records = host.core.table.records
                if {name for name, record in records.items() if record.state == ALIVE} != up - {host.name}:
                    return False
                if any(record.state == SUSPECT for record in records.values()):
                    return False
        return True

    def dead_at(self, name: str) -> list[str]:
        """Hosts that are up and hold *name* for dead."""
        return [host for host, state in self.opinions(name).items() if state == DEAD]


def _address(name: str) -> str:
    return f"{name}:7403"
