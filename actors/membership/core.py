"""The membership core of one host: SWIM with Lifeguard. It decides, and touches nothing.

Packets, full states and the time go in; what to send and what to know comes out (``instructions``). It has no clock,
socket or dice of its own: ``now`` is a number of seconds that only goes forward, and whoever owns the core calls
``wake`` when ``deadline`` has come. One that rests has one deadline, its next probe.

What it says of others is an opinion: of two words about a member the later counts, by incarnation, and in one
incarnation the worse. A member hears what is said of it, since those who say so tell it first, and refutes it with a
higher incarnation. Nothing that a packet says makes the core raise; what it does not take is counted in ``ignored``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

from .broadcasts import BroadcastQueue
from .instructions import (
    AskByLink,
    FarewellSaid,
    Instruction,
    MemberChanged,
    MemberUnreachable,
    SendPacket,
    SendState,
)
from .local_health import LocalHealth
from .packets import ACK, GOSSIP, NACK, PING, PING_REQ, SEQUENCE_MAX, FullState, Packet, record_bytes, room_bytes
from .phi import LinkTimes
from .profiles import MembershipProfile
from .records import (
    ALIVE,
    DEAD,
    INCARNATION_MAX,
    LEAP_MAX,
    LEFT,
    SUSPECT,
    MemberStatus,
    first_incarnation,
    overrides,
)
from .suspicion import Suspicion
from .table import MemberTable, RandomSource

RELAYS_MAX = 512
"""Probes made for others within the time that one may take; who asks beyond it is not answered, as if the packet was
lost."""
REMOVED_MAX = 4_096
"""Names that were removed and are refused; of more, the one removed first is forgotten."""
LAST_ASKS = 2
"""How often a suspect is told once more, a probe's length apart, before it is declared dead. News reach members often,
but by luck: of a thousand refutations among hundreds of hosts with 10 % of datagrams lost, some miss somebody."""
NACK_SHARE = 0.8
"""Of a probe's timeout: when a helper that has no answer says so (Lifeguard, section IV-A)."""
TIMEOUT_SHARE_MAX = 0.8
"""Of a probe's length: later than this, helpers could not answer before it ends."""

_RESTING, _ASKED, _ASKED_OTHERS = range(3)


class MembershipCore:
    """See the module. *life* is the number of this start of the host: greater than that of any start before.

    *known*: members known beforehand, as from the ledger; nobody is told of them. Everything that is to be done is
    appended to ``instructions``, which the owner empties.
    """

    suspicion_class = Suspicion

    def __init__(
        self,
        name: str,
        address: str,
        life: int,
        profile: MembershipProfile,
        dice: RandomSource,
        now: float,
        known: Iterable[MemberStatus] = (),
    ) -> None:
        self.name = name
        self.record = MemberStatus(name, address, first_incarnation(life), ALIVE, name)
        self.table = MemberTable(name, dice, known)
        self.health = LocalHealth(profile.local_health_max)
        self.instructions: list[Instruction] = []
        self.ignored: dict[str, int] = {}
        self._profile = profile
        self._dice = dice
        self._now = now
        self._news = BroadcastQueue()
        self._times = LinkTimes()
        self._leaving = False
        self._silent = False
        self._sequence = int(dice.random() * SEQUENCE_MAX)
        # The probe under way.
        self._phase = _RESTING
        self._target = ""
        self._probe_sequence = -1
        self._probe_began = self._probe_ends = now
        self._helpers: list[str] = []
        self._nacks: set[str] = set()
        # Probes made for others, by our sequence: whom to answer, with which of theirs. In the order of their ends.
        self._relays: dict[int, tuple[str, int, str]] = {}
        self._relay_ends: deque[tuple[float, int]] = deque()
        self._suspicions: dict[str, Suspicion] = {}
        # (deadline, name), some of them of suspicions that are over or end sooner: looked at when they come up.
        self._expiries: list[tuple[float, str]] = []
        self._dead_since: dict[str, float] = {}
        self._removed: dict[str, None] = {}
        self._refuted_at = -inf
        # Everyone begins somewhere in the interval, or all hosts of a cluster that starts would act as one.
        self._probe_at = now + dice.random() * profile.probe_interval_s
        self._gossip_at = inf
        self._gossiped_at = -inf
        self._push_pull_at = now + dice.random() * profile.push_pull_interval_s(self.size)
        self._reconnect_at = inf
        for record in self.table.records.values():
            if record.state == SUSPECT:
                self._suspect(record)
            elif record.state == DEAD:
                self._died(record)
        self.deadline = now
        self._settle()

    # -- what others may ask

    @property
    def size(self) -> int:
        """Members that are alive or suspect, this host with them."""
        return self.table.reachable + 1

    def members(self) -> list[MemberStatus]:
        """The latest word about every member, this host's own first."""
        return [self.record, *self.table.records.values()]

    def rtt_s(self, name: str | None = None) -> float | None:
        """How long answers took on the mean, in seconds: of one member's pings, or of all; ``None``: none came yet."""
        return self._times.mean_s(name)

    def probe_phi(self, now: float) -> float:
        """How surprising it is that the probe under way has no answer yet; 0 where none is."""
        return 0.0 if self._phase == _RESTING else self._times.phi(self._target, now - self._probe_began)

    # -- events

    def join(self, addresses: Iterable[str], now: float) -> None:
        """Exchange full states with the hosts at these addresses; whoever of them answers tells the others of us."""
        self._enter(now)
        for address in addresses:
            self.instructions.append(SendState(address, self._full_state(wants_reply=True)))
        self._tell(self.record)
        self._settle()

    def leave(self, now: float) -> None:
        """Say farewell: nobody is to look for this host. ``FarewellSaid`` follows when the news is out."""
        self._enter(now)
        if not self._leaving:
            self._leaving = True
            self.record = self.record._replace(state=LEFT)
            self._probe_at = self._push_pull_at = self._reconnect_at = inf
            self._phase = _RESTING
            self._tell(self.record)
        self._settle()

    def remove(self, name: str) -> None:
        """The ledger says that this member is none any more: forget it, and refuse every word about it."""
        self.table.remove(name)
        self._news.drop(name)
        self._forget_suspicion(name)
        self._times.forget(name)
        self._dead_since.pop(name, None)
        self._removed[name] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        self._settle()

    def admit(self, name: str) -> None:
        """The ledger says that a host of this name may be a member again."""
        self._removed.pop(name, None)

    def wake(self, now: float) -> None:
        """Do what is due at *now*."""
        self._enter(now)
        now = self._now
        while self._relay_ends and self._relay_ends[0][0] <= now:
            self._relay_ended(self._relay_ends.popleft()[1])
        while self._expiries and self._expiries[0][0] <= now:
            self._expire(*heappop(self._expiries))
        if self._probe_at <= now:
            self._probe()
        if self._gossip_at <= now:
            self._gossip()
        if self._push_pull_at <= now:
            self._push_pull()
        if self._reconnect_at <= now:
            self._reconnect()
        self._settle()

    def receive(self, packet: Packet, source: str, now: float) -> None:
        """A packet has come, from that address. Its sender is who the seal says."""
        self._enter(now)
        known = self.table.records
        # First: a ping that says we are suspected is answered with the refutation.
        accused = False
        for record in packet.records:
            if known.get(record.name) is not record:
                self.hear(record)
                accused = accused or (record.name == self.name and record.state in (SUSPECT, DEAD))
        kind = packet.kind
        # Whoever accuses us is answered, also where that was refuted long ago: it has missed it.
        answer = self.record if accused else None
        if kind == PING:
            if packet.target == self.name:
                self._send(source, ACK, packet.sequence, first=answer)
            else:
                self._ignore("misdirected")
        elif kind == ACK:
            self._answered(packet)
        elif kind == PING_REQ:
            self._relay(packet, source)
        elif kind == NACK and packet.sequence == self._probe_sequence and packet.sender in self._helpers:
            self._nacks.add(packet.sender)
        elif kind == GOSSIP and answer is not None:
            self._send(source, GOSSIP, 0, first=answer)
        self._settle()

    def receive_state(self, state: FullState, source: str, now: float) -> None:
        """A full state has come, from that address."""
        self._enter(now)
        known = self.table.records
        # Who has just joined learns of all: to pass that on would tell everybody what they know already.
        self._silent = not known
        for record in state.records:
            if known.get(record.name) is not record:
                self._merge(record)
        self._silent = False
        if state.wants_reply:
            self.instructions.append(SendState(source, self._full_state(wants_reply=False)))
        self._settle()

    def answered_by_link(self, sequence: int, now: float) -> None:
        """A member that ``AskByLink`` named is there. That its datagrams do not come is no sign of our own health."""
        self._enter(now)
        if sequence == self._probe_sequence and self._phase == _ASKED_OTHERS:
            self._phase = _RESTING
            self._probe_at = self._probe_ends
        else:
            self._ignore("unasked")
        self._settle()

    # -- words about members

    def hear(self, record: MemberStatus) -> None:
        """Somebody says this of a member: take it where it counts more than what is known, and pass it on then."""
        name = record.name
        if name == self.name:
            self._hear_of_self(record)
            return
        known = self.table.records.get(name)
        if known is None:
            if name in self._removed:
                self._ignore("removed")
            elif self.table.full:
                self._ignore("table_full")
            else:
                self._take(record)
            return
        if overrides(record.incarnation, record.state, known):
            if self.leaps(record, known):
                self._ignore("future")
            else:
                self._take(record)
        elif record.state == SUSPECT and known.state == SUSPECT and record.incarnation == known.incarnation:
            self._confirm(record)

    def leaps(self, record: MemberStatus, known: MemberStatus) -> bool:
        """Whether its incarnation is further ahead than its host can have come since; or so high that nothing could
        refute it."""
        return record.incarnation - known.incarnation > LEAP_MAX or record.incarnation >= INCARNATION_MAX

    def _take(self, record: MemberStatus) -> None:
        """This is the latest word about another member from now on."""
        before = self.table.set(record)
        state, name = record.state, record.name
        witnesses = self._forget_suspicion(name)
        if state == SUSPECT:
            self._suspect(record)
        elif state == DEAD:
            self._died(record)
        if state != DEAD:
            self._dead_since.pop(name, None)
        if before is None and state >= DEAD:
            # News to us alone: it is kept so that no older word counts, and told to nobody.
            return
        if before is not None and before.address != record.address:
            self._times.forget(name)
        self._tell(record)
        if before is None or before.state != state:
            self.instructions.append(MemberChanged(record, before))
            if state == DEAD:
                if record.by not in witnesses:
                    witnesses.append(record.by)
                self.instructions.append(MemberUnreachable(record, tuple(witnesses)))

    def _merge(self, record: MemberStatus) -> None:
        """A word of a full state: of one whom we hold for alive, dead is only an accusation.

        After a split each side holds all of the other for dead. Taken as it is, that would spread over the side that
        knows better before those it is about could refute.
        """
        known = self.table.records.get(record.name)
        if record.state == DEAD and known is not None and known.state <= SUSPECT:
            record = record._replace(state=SUSPECT)
        self.hear(record)

    def _hear_of_self(self, record: MemberStatus) -> None:
        own = self.record
        if not overrides(record.incarnation, record.state, own) and (
            record.incarnation < own.incarnation or record.address == own.address or record.state > ALIVE
        ):
            return
        if self._leaving and record.state >= DEAD:
            return
        if self.leaps(record, own):
            self._ignore("future")
            return
        if record.address != own.address:
            # Another host of our name, or our own former life: whoever it is, the two do not outbid each other as
            # fast as packets go.
            if self._now - self._refuted_at < self._profile.probe_interval_s:
                self._ignore("name_taken")
                return
            self._refuted_at = self._now
        self.refute(record)

    def refute(self, record: MemberStatus) -> None:
        """Say that we are alive, in an incarnation above the one of that word."""
        incarnation = max(record.incarnation, self.record.incarnation) + 1
        self.record = self.record._replace(incarnation=incarnation)
        self._silent = False
        self._tell(self.record)
        if self._profile.lifeguard and record.state in (SUSPECT, DEAD):
            self.health.worse()

    def _tell(self, record: MemberStatus) -> None:
        if self._silent:
            return
        self._news.put(record)
        if self._gossip_at == inf:
            self._gossip_at = max(self._now, self._gossiped_at + self._profile.gossip_interval_s)

    # -- suspicion

    def _accuse(self, name: str) -> None:
        """We could not reach that member."""
        known = self.table.records.get(name)
        if known is not None and known.state <= SUSPECT:
            self.hear(known._replace(state=SUSPECT, by=self.name))

    def _suspect(self, record: MemberStatus) -> None:
        profile, size = self._profile, self.size
        needed = profile.confirmations if profile.lifeguard and size - 2 >= profile.confirmations else 0
        shortest = profile.suspicion_min_s(size)
        longest = profile.suspicion_max_multiplier * shortest
        suspicion = self.suspicion_class(record.by, self._now, shortest, longest, needed)
        self._suspicions[record.name] = suspicion
        self._schedule(record.name, suspicion)

    def _confirm(self, record: MemberStatus) -> None:
        suspicion = self._suspicions.get(record.name)
        if suspicion is not None and suspicion.confirm(record.by):
            self._schedule(record.name, suspicion)
            self._tell(record)

    def _forget_suspicion(self, name: str) -> list[str]:
        """No more suspicion of that member; gives who accused it."""
        suspicion = self._suspicions.pop(name, None)
        if len(self._expiries) > 4 * len(self._suspicions) + 64:
            self._sort_expiries()
        return [] if suspicion is None else suspicion.witnesses

    def _schedule(self, name: str, suspicion: Suspicion) -> None:
        """When there is next something to do about it: ask the accused a last time, or declare it dead."""
        left = LAST_ASKS - suspicion.asked if self._profile.lifeguard else 0
        suspicion.due = max(self._now, suspicion.deadline - left * self._profile.probe_interval_s)
        heappush(self._expiries, (suspicion.due, name))

    def _sort_expiries(self) -> None:
        self._expiries = [(suspicion.due, name) for name, suspicion in self._suspicions.items()]
        heapify(self._expiries)

    def _expire(self, due: float, name: str) -> None:
        suspicion = self._suspicions.get(name)
        if suspicion is None or suspicion.due != due:
            return
        record = self.table.records[name]
        if suspicion.deadline <= self._now:
            self.hear(record._replace(state=DEAD, by=self.name))
            return
        suspicion.asked += 1
        self._send(record.address, GOSSIP, 0, first=record)
        self._schedule(name, suspicion)

    def _died(self, record: MemberStatus) -> None:
        self._dead_since[record.name] = self._now
        if self._reconnect_at == inf:
            self._reconnect_at = self._now + self._profile.reconnect_s * (0.5 + self._dice.random())

    # -- probes

    def _probe(self) -> None:
        if self._phase == _ASKED:
            self._ask_others()
            if self._probe_ends > self._now:
                return
        if self._phase == _ASKED_OTHERS:
            self._probe_failed()
        profile, now = self._profile, self._now
        slower = self.health.multiplier
        self._probe_began = now
        self._probe_at = self._probe_ends = now + profile.probe_interval_s * slower
        member = self.table.turn()
        if member is None:
            return
        self._phase = _ASKED
        self._target = member.name
        self._probe_sequence = self._next_sequence()
        self._helpers.clear()
        self._nacks.clear()
        timeout = self._times.timeout_s(member.name)
        if timeout is None:
            timeout = profile.probe_timeout_s
        timeout = min(max(timeout, profile.probe_timeout_min_s), TIMEOUT_SHARE_MAX * profile.probe_interval_s)
        self._probe_at = now + timeout * slower
        # The buddy: whoever is suspected hears of it with the ping.
        buddy = member if profile.lifeguard and member.state == SUSPECT else None
        self._send(member.address, PING, self._probe_sequence, member.name, buddy)

    def _ask_others(self) -> None:
        self._phase = _ASKED_OTHERS
        self._probe_at = self._probe_ends
        target = self._target
        for helper in self.table.some(
            self._profile.indirect_probes, lambda record: record.state == ALIVE and record.name != target
        ):
            self._helpers.append(helper.name)
            self._send(helper.address, PING_REQ, self._probe_sequence, target)
        known = self.table.records.get(target)
        if self._profile.ask_by_link and known is not None:
            self.instructions.append(AskByLink(known.address, target, self._probe_sequence))

    def _answered(self, packet: Packet) -> None:
        if packet.sequence == self._probe_sequence and self._phase != _RESTING:
            if packet.sender == self._target:
                self._times.record(self._target, self._now - self._probe_began)
            elif packet.sender not in self._helpers:
                self._ignore("unasked")
                return
            self._phase = _RESTING
            self._probe_at = self._probe_ends
            self.health.better()
            return
        relay = self._relays.get(packet.sequence)
        if relay is None or relay[2] != packet.sender:
            self._ignore("unasked")
            return
        del self._relays[packet.sequence]
        self._send(relay[0], ACK, relay[1])

    def _probe_failed(self) -> None:
        self._phase = _RESTING
        if self._profile.lifeguard:
            # Helpers that are well said so; each that did not is a sign that it is us whom nothing reaches.
            self.health.worse(len(self._helpers) - len(self._nacks) if self._helpers else 1)
        self._accuse(self._target)

    def _relay(self, packet: Packet, source: str) -> None:
        member = self.table.records.get(packet.target)
        if member is None or member.state > SUSPECT:
            # Only to who is known: nobody is to send datagrams anywhere through us.
            self._ignore("unknown_target")
            return
        if len(self._relay_ends) >= RELAYS_MAX:
            self._ignore("relays_full")
            return
        sequence = self._next_sequence()
        self._relays[sequence] = (source, packet.sequence, packet.target)
        self._relay_ends.append((self._now + NACK_SHARE * self._profile.probe_timeout_s, sequence))
        self._send(member.address, PING, sequence, packet.target)

    def _relay_ended(self, sequence: int) -> None:
        relay = self._relays.pop(sequence, None)
        if relay is not None and self._profile.lifeguard:
            self._send(relay[0], NACK, relay[1])

    # -- gossip and full states

    def _gossip(self) -> None:
        self._gossiped_at = now = self._now
        dead_since, told_for = self._dead_since, self._profile.gossip_to_dead_s

        def fits(record: MemberStatus) -> bool:
            return record.state <= SUSPECT or (
                record.state == DEAD and now - dead_since.get(record.name, -inf) < told_for
            )

        for member in self.table.some(self._profile.gossip_members, fits):
            if not self._news:
                break
            self._send(member.address, GOSSIP, 0)
        if not self.table.records and self._leaving:
            self._news.drop(self.name)
        self._gossip_at = now + self._profile.gossip_interval_s if self._news else inf
        if self._leaving and not self._news:
            self.instructions.append(FarewellSaid())

    def _push_pull(self) -> None:
        self._push_pull_at = self._now + self._profile.push_pull_interval_s(self.size)
        for member in self.table.some(1, lambda record: record.state == ALIVE):
            self.instructions.append(SendState(member.address, self._full_state(wants_reply=True)))

    def _reconnect(self) -> None:
        """Try one of the dead: after a split, nobody else would begin."""
        dead = list(self._dead_since)
        if not dead:
            self._reconnect_at = inf
            return
        member = self.table.records[dead[int(self._dice.random() * len(dead))]]
        self.instructions.append(SendState(member.address, self._full_state(wants_reply=True)))
        self._reconnect_at = self._now + self._profile.reconnect_s * (0.5 + self._dice.random())

    def _full_state(self, wants_reply: bool) -> FullState:
        return FullState(self.name, wants_reply, (self.record, *self.table.records.values()))

    # -- the small things

    def _send(self, to: str, kind: int, sequence: int, target: str = "", first: MemberStatus | None = None) -> None:
        """Send a packet, with as much news as there is room for; *first* is on it, whatever else is."""
        records: tuple[MemberStatus, ...] = ()
        if self._news:
            room = room_bytes(target) - (0 if first is None else record_bytes(first))
            records = tuple(self._news.take(room, self._profile.retransmit_limit(self.size)))
        if first is not None and first not in records:
            records = (first, *records)
        self.instructions.append(SendPacket(to, Packet(kind, self.name, sequence, target, records)))

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) % SEQUENCE_MAX
        return self._sequence

    def _ignore(self, reason: str) -> None:
        self.ignored[reason] = self.ignored.get(reason, 0) + 1

    def _enter(self, now: float) -> None:
        """Time goes on. One that comes long after its deadline finds that this host stood still."""
        late = now - self.deadline
        self._now = now = max(now, self._now)
        if late > self._profile.stall_s and self._profile.forgive_stalls:
            self.stood_still(late)

    def stood_still(self, seconds: float) -> None:
        """Give everybody the time in which we could not hear them: what waits in the socket is read before we judge.

        Without this, a host that wakes declares dead whom it suspected as it fell asleep, though the refutation has
        come since.
        """
        self._ignore("stood_still")
        if self._profile.lifeguard:
            self.health.worse()
        for suspicion in self._suspicions.values():
            suspicion.postpone(seconds)
            suspicion.due += seconds
        self._sort_expiries()
        self._phase = _RESTING
        if not self._leaving:
            self._probe_at = self._probe_ends = self._now + self._dice.random() * self._profile.probe_interval_s
        self._relays.clear()
        self._relay_ends.clear()

    def _settle(self) -> None:
        """When to be woken next."""
        at = min(self._probe_at, self._gossip_at, self._push_pull_at, self._reconnect_at)
        if self._expiries and self._expiries[0][0] < at:
            at = self._expiries[0][0]
        if self._relay_ends and self._relay_ends[0][0] < at:
            at = self._relay_ends[0][0]
        self.deadline = at
