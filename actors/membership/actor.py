"""Membership: the server that runs the core on a host of a cluster: its socket, its clock, the members' secret.

Who may be a member is the ledger's to say: words about anybody else, and datagrams of anybody else, are refused before
the core sees them. Where the ledger is led, this server gives the members a new secret after each removal, and enters
what several hosts found: that a host is reached by nobody (``unreachability.py``). What runs there is left to leases.

Nothing here is worth a crash of the host: without a secret (the cluster has hosts of an earlier version) or without a
socket membership is off, says why, and is tried again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from time import time
from typing import Any, ClassVar

from actorgrid.actors.ledger.command import cluster_version
from actorgrid.actors.ledger.commands import MEMBERSHIP_SINCE, MarkUnreachable, RotateGossipKey
from actorgrid.actors.ledger.reachability import GossipKey
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.runtime import Timer, Waiter
from actorgrid.supervisors.server import handles

from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, LedgerSnapshot, Query
from ..links.messages import AskHost, AskHosts, CastPackets
from .datagrams import DatagramSocket
from .instructions import AskByLink, FarewellSaid, MemberChanged, MemberUnreachable, SendPacket, SendState, SiteReached
from .messages import ReachedBy, Reaches, StateCame
from .packets import decode_state, encode_state
from .profiles import PROFILES, MembershipProfile
from .records import ALIVE, DEAD, STATES, MemberStatus, first_incarnation
from .seal import SECRET_BYTES, DatagramSeal, Keyring
from .sited_core import SitedCore
from .unreachability import ASKED_MAX, AT_ONCE_MAX, gathered, open_cases

TARGET = "membership"
"""Of casts between hosts: full states."""
PRESENT, REACHES = "membership_present", "membership_reaches"
"""Services between hosts: are you there; do you reach that one."""
AGAIN_S = 2.0
"""Between two tries of what could not be done: to get a secret, to listen, to write something down."""
ASK_S = 1.0
"""For a host to answer over a link that it is there; whoever is asked about it gets half a second more."""
QUERY_S = 5.0
PROPOSE_S = 5.0
FAREWELL_S = 0.5
"""At most, for a host that stops: whoever has not heard of it by then hears of it from others."""
JOINED_BY = 3
"""Members that a host which comes up exchanges full states with at once."""
STATUS_MEMBERS = 100
"""Members that ``status`` names."""


class Membership(LedgerFollower):
    """See the module. ``host.enrolment`` is there: a host that is alone has no such server."""

    name: ClassVar[str] = "membership"

    async def start(self) -> None:
        """Follow the ledger; the rest begins when there is a secret."""
        assert self.host.enrolment is not None, "only a host of a cluster has membership"
        self._own = str(self.host.host_id)
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="none")
        self._dice = random.SystemRandom()
        self._off = "it has not begun yet"
        self._core: SitedCore | None = None
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._looking = self._look_again = False
        self._judging: set[str] = set()
        self._gossip_witnesses: dict[str, tuple[str, ...]] = {}
        self._reached_by: dict[str, tuple[str, ...]] = {}
        self._asking_for_absent = False
        self._farewell: Waiter | None = None
        self._refused: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        await self._ledger.start()

    async def stop(self, reason: str) -> None:
        """Say farewell, and close the socket."""
        if self._core is None:
            return
        self._farewell = waiter = Waiter()
        self.runtime.after(FAREWELL_S, lambda: waiter.set(None))
        self._core.leave(self._now())
        self._carry_out()
        await waiter
        self._close("the host stops")

    # -- the ledger

    def _on_snapshot(self, _snapshot: LedgerSnapshot) -> None:
        if self._core is not None:
            for name in self._core.table.records.keys() - self._ledger.members.keys():
                self._removed(name)
            for name in self._ledger.members.keys() - self._core.table.records.keys():
                self._admitted(name)
            self._core.set_sites(self._sites(), self._now())
            self._carry_out()
        self._look_soon()

    def _on_applied(self, message: Applied) -> None:
        kinds = {kind for kind, _, _ in message.changes}
        for kind, identity, record in message.changes:
            if kind == "member" and record is None:
                self._removed(identity)
            elif kind in ("member", "host") and identity in self._ledger.members:
                self._admitted(identity)
        if kinds & {"member", "host"} and self._core is not None:
            if "member" in kinds:
                self._core.set_sites(self._sites(), self._now())
            self._carry_out()
        if kinds & {"member", "gossip_key", "leader"}:
            self._look_soon()
        if kinds & {"host", "leader"}:
            self._compare()
        if kinds & {"absent", "leader"}:
            self._ask_for_absent()

    def _removed(self, name: str) -> None:
        core = self._core
        if core is not None and name != self._own:
            core.remove(name)
            self._seal.forget(name)
            self._gossip_witnesses.pop(name, None)

    def _admitted(self, name: str) -> None:
        core, known = self._core, self._known(name)
        if core is not None and name != self._own and name not in core.table.records:
            core.admit(name)
            if known is not None:
                core.hear(known)

    def _sites(self) -> dict[str, str]:
        """The site of each member that said one."""
        return {name: site for name, member in self._ledger.members.items() if (site := member.get("site"))}

    def _known(self, name: str) -> MemberStatus | None:
        """What the ledger knows of another member; ``None`` for one that has not come up yet: nobody is to look for it
        before it says itself that it is there."""
        address = self._ledger.members[name]["addresses"].get("join", "")
        host = self._ledger.hosts.get(name)
        if name == self._own or not address or host is None:
            return None
        dead = host.get("unreachable") is not None
        return MemberStatus(name, address, first_incarnation(int(host["incarnation"])), DEAD if dead else ALIVE, name)

    # -- the secret

    def _look_soon(self) -> None:
        self._look_again = True
        if not self._looking:
            self._looking = True
            self.spawn(self._look())

    async def _look(self) -> None:
        """See to the secret and the socket until there is nothing left to do."""
        while self._look_again:
            self._look_again = False
            try:
                settled = await self._settle()
            except ActorGridError as error:
                self.log.info("membership is tried again: %s", error)
                settled = False
            if not settled:
                await self.sleep(AGAIN_S)
                self._look_again = True
        self._looking = False

    async def _settle(self) -> bool:
        """Take the secret that there is, propose the next where this host leads; whether nothing is left to do."""
        key: GossipKey = await self.call("consensus", Query("gossip_key"), QUERY_S)
        due = key.due and self._ledger.leads and cluster_version(self._ledger.members) >= MEMBERSHIP_SINCE
        if due and await self._only_members_hear():
            # Of chance alone: what a removed host knew says nothing of it.
            secret = os.urandom(SECRET_BYTES).hex()
            await self._ledger.propose(RotateGossipKey(key.number + 1, self._ledger.term, secret), PROPOSE_S)
            key = await self.call("consensus", Query("gossip_key"), QUERY_S)
            due = key.due
        if not key.number:
            self._off = self._why_no_secret()
        elif self._core is None:
            return self._open(key) and not due
        else:
            self._keys.rotate(key.number, key.secret, self._now())
        return not due  # for all others a change of the ledger comes: a version, a leader, a secret

    def _why_no_secret(self) -> str:
        if len(self._ledger.members) < 2:
            return "this host is the only member"
        old = sorted(
            name for name, member in self._ledger.members.items() if member["ledger_version"] < MEMBERSHIP_SINCE
        )
        return f"hosts of an earlier version: {', '.join(old[:3])}" if old else "the leader has given no secret yet"

    async def _only_members_hear(self) -> bool:
        """Whether nobody but members is sent the log any more: who was removed leaves Raft's configuration last."""
        nodes = (await self.call("consensus", Query("status"), QUERY_S))["nodes"]
        return set(nodes) <= {member["node"] for member in self._ledger.members.values()}

    def _open(self, key: GossipKey) -> bool:
        enrolment = self.host.enrolment
        try:
            self._socket = DatagramSocket(enrolment.address, enrolment.gossip_port)
        except ActorGridError as error:
            if self._off != error.message:
                self.log.warning("membership is off: %s", error)
            self._off = error.message
            return False
        self._off = ""
        self._keys = Keyring(key.number, key.secret)
        # A server that was restarted goes on above what it has sealed in this life: no nonce comes twice.
        life, counter = int(self.host.incarnation), int(self.runtime.boottime() * 1e9)
        self._seal = DatagramSeal(self._own, life, self._keys, counter)
        known = [status for name in self._ledger.members if (status := self._known(name)) is not None]
        address = enrolment.listens["join"]
        self._core = SitedCore(self._own, address, life, self._profile(), self._dice, self._now(), known, self._sites())
        self.runtime.watch(self._socket.fileno(), self._read)
        first = [status.address for status in known if status.state == ALIVE]
        self._core.join(self._dice.sample(first, min(JOINED_BY, len(first))), self._now())
        self._carry_out()
        return True

    def _profile(self) -> MembershipProfile:
        return replace(PROFILES[self.host.settings.cluster.membership], ask_by_link=True)

    def _close(self, why: str) -> None:
        if self._core is not None:
            self._core = None
            self.runtime.unwatch(self._socket.fileno())
            self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        self._off = why

    # -- the core

    def _now(self) -> float:
        return self.runtime.monotonic()

    def _read(self) -> None:
        core = self._core
        if core is None:
            return
        now = self._now()
        for datagram, source in self._socket.read():
            packet = self._seal.open(datagram, now)
            if packet is None:
                continue
            if packet.sender not in self._ledger.members:
                # It had a secret of ours, and is none of us: removed, or a name that somebody made up.
                self._seal.forget(packet.sender)
                self._refused["no_member"] += 1
                continue
            core.receive(packet._replace(records=self._of_members(packet.records)), source, now)
        self._carry_out()

    def _of_members(self, records: tuple[MemberStatus, ...]) -> tuple[MemberStatus, ...]:
        members = self._ledger.members
        if all(record.name in members for record in records):
            return records
        found = tuple(record for record in records if record.name in members)
        self._refused["words_of_no_member"] += len(records) - len(found)
        return found

    @handles(StateCame)
    def _state_came(self, message: StateCame) -> None:
        core, member = self._core, self._ledger.members.get(message.host_id)
        if core is None or member is None:
            return
        state = decode_state(message.body)
        if isinstance(state, str) or state.sender != message.host_id:
            self._refused["state_malformed" if isinstance(state, str) else "state_of_another"] += 1
            return
        self._counts["states_received"] += 1
        known = core.table.records.get(message.host_id)
        source = member["addresses"].get("join", "") if known is None else known.address
        core.receive_state(state._replace(records=self._of_members(state.records)), source, self._now())
        self._carry_out()

    def _wake(self) -> None:
        self._timer = None
        if self._core is not None:
            self._core.wake(self._now())
            self._carry_out()

    def _carry_out(self) -> None:
        """Do what the core says, and wait for its deadline."""
        core = self._core
        if core is None:
            return
        changed = False
        for each in core.instructions:
            if isinstance(each, SendPacket):
                self._socket.send(each.to, self._seal.seal(each.packet))
            elif isinstance(each, SendState):
                self._send_state(each)
            elif isinstance(each, AskByLink):
                self.spawn(self._ask_by_link(each))
            elif isinstance(each, MemberChanged):
                self._counts[f"became_{STATES[each.record.state]}"] += 1
                changed = True
                if each.record.state != DEAD:
                    self._gossip_witnesses.pop(each.record.name, None)
            elif isinstance(each, MemberUnreachable):
                self._gossip_witnesses[each.record.name] = each.witnesses
                self.log.warning("nobody reaches %s, say %s", each.record.name, ", ".join(each.witnesses))
            elif isinstance(each, SiteReached):
                say = self.log.info if each.reached else self.log.warning
                say("site %s is %s", each.site or "without a name", "reached again" if each.reached else "not reached")
            elif isinstance(each, FarewellSaid) and self._farewell is not None:
                self._farewell.set(None)
        core.instructions.clear()
        if self._timer is None or self._timer_at != core.deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = core.deadline
            self._timer = self.runtime.after(max(0.0, core.deadline - self._now()), self._wake)
        if changed:
            self._compare()

    def _send_state(self, order: SendState) -> None:
        host_id = self._host_at(order.to)
        if host_id is not None:
            self._counts["states_sent"] += 1
            self.cast("links", CastPackets(((host_id, encode_state(order.state)),), TARGET))

    def _host_at(self, address: str) -> str | None:
        """The member with that address; full states are rare, so they are looked through."""
        core = self._core
        assert core is not None, "the core says where to send"
        return next((name for name, status in core.table.records.items() if status.address == address), None)

    async def _ask_by_link(self, order: AskByLink) -> None:
        if await self._present(order.member) and self._core is not None:
            self._counts["reached_by_link"] += 1
            self._core.answered_by_link(order.sequence, self._now())
            self._carry_out()

    async def _present(self, host_id: str) -> bool:
        try:
            await self.call("links", AskHost(host_id, PRESENT, {}, ASK_S), ASK_S + 0.5)
        except ActorGridError:
            return False
        return True

    @handles(Reaches)
    async def _reaches(self, request: Reaches) -> bool:
        return request.host_id == self._own or await self._present(request.host_id)

    # -- what the leader writes down

    def _compare(self) -> None:
        """Look where ledger and membership differ, and see to it, a few hosts at a time."""
        core = self._core
        if core is None or not self._ledger.leads:
            return
        for host_id, case in open_cases(self._ledger.hosts, core.table.records):
            if host_id not in self._judging and len(self._judging) < AT_ONCE_MAX:
                self._judging.add(host_id)
                self.spawn(self._judge(host_id, case == "reached"))

    async def _judge(self, host_id: str, reached: bool) -> None:
        written = False
        try:
            written = await (self._mark(host_id, ()) if reached else self._accuse(host_id))
        except ActorGridError as error:
            self.log.info("what is known of %s is not written down yet: %s", host_id, error)
        if not written:
            await self.sleep(AGAIN_S)
        self._judging.discard(host_id)
        self._compare()

    async def _accuse(self, host_id: str) -> bool:
        """Ask others for themselves, and write down that nobody reaches the host, if so; whether it was."""
        answers = await self._ask_others(host_id)
        core = self._core
        status = None if core is None else core.table.records.get(host_id)
        if core is None or status is None or status.state != DEAD:
            return False
        # After a restart of this server the accusers are not known any more, but for the last.
        gossip = self._gossip_witnesses.get(host_id, (status.by,))
        evidence = gathered((name for name in gossip if name in self._ledger.members), answers, host_id)
        self._note_reached(host_id, evidence.reached_by)
        return evidence.suffices(core.size) and await self._mark(host_id, evidence.witnesses)

    async def _mark(self, host_id: str, witnesses: tuple[str, ...]) -> bool:
        host, term = self._ledger.hosts.get(host_id), self._ledger.term
        if host is None:
            return True  # it was removed meanwhile
        command = MarkUnreachable(host_id, host["incarnation"], time(), list(witnesses), term)
        await self._ledger.propose(command, PROPOSE_S)
        if witnesses:
            self.log.warning("host %s is unreachable: witnesses %s", host_id, ", ".join(witnesses))
        else:
            self.log.info("host %s is reached again", host_id)
        return True

    async def _ask_others(self, host_id: str) -> dict[str, bool]:
        """{host: whether it reaches that one}, of some that answer; this one's own answer is among them."""
        core = self._core
        if core is None:
            return {}
        alive = core.table.some(ASKED_MAX, lambda status: status.state == ALIVE and status.name != host_id)
        others = AskHosts(tuple(status.name for status in alive), REACHES, {"host_id": host_id}, ASK_S + 0.5)
        asked = self.call("links", others, ASK_S + 1.5)
        answers = {self._own: await self._present(host_id)}
        return {**answers, **{name: answer for name, answer in (await asked).items() if isinstance(answer, bool)}}

    def _note_reached(self, host_id: str, by: tuple[str, ...]) -> None:
        if by:
            self._reached_by[host_id] = by
        else:
            self._reached_by.pop(host_id, None)

    def _ask_for_absent(self) -> None:
        if self._ledger.leads and self._ledger.absent and not self._asking_for_absent:
            self._asking_for_absent = True
            self.spawn(self._watch_absent())

    async def _watch_absent(self) -> None:
        """While hosts are absent to this leader, know who reaches them."""
        while self._ledger.leads and self._ledger.absent and not self._off:
            absent = sorted(self._ledger.absent)[:AT_ONCE_MAX]
            for host_id in absent:
                try:
                    answers = await self._ask_others(host_id)
                except ActorGridError as error:
                    self.log.info("who reaches %s is not known: %s", host_id, error)
                    continue
                self._note_reached(host_id, tuple(name for name, yes in answers.items() if yes and name != self._own))
            for host_id in self._reached_by.keys() - set(absent) - self._judging:
                del self._reached_by[host_id]
            await self.sleep(AGAIN_S)
        self._reached_by = {}
        self._asking_for_absent = False

    @handles(ReachedBy)
    def _who_reaches(self, _request: ReachedBy) -> dict[str, list[str]]:
        return {host_id: list(by) for host_id, by in self._reached_by.items()} if self._ledger.leads else {}

    # -- how we are

    def metrics(self) -> dict[str, float]:
        """Members by state, datagrams, what was refused by reason, suspicions, times of answers and their phi."""
        core = self._core
        figures = {
            "membership_on": float(core is not None),
            **{f"membership_{name}_total": float(count) for name, count in self._counts.items()},
            **{f"membership_refused_{name}_total": float(count) for name, count in self._refused.items()},
        }
        if core is None:
            return figures
        states = Counter(status.state for status in core.members())
        link = self._socket
        rtt_s = core.rtt_s()
        return {
            **figures,
            **{f"membership_members_{name}": float(states[state]) for state, name in enumerate(STATES)},
            "membership_datagrams_sent_total": float(link.sent),
            "membership_datagrams_received_total": float(link.received),
            "membership_sent_bytes_total": float(link.sent_bytes),
            "membership_received_bytes_total": float(link.received_bytes),
            **{f"membership_send_failed_{name}_total": float(count) for name, count in link.failed.items()},
            **{f"membership_refused_{name}_total": float(count) for name, count in self._seal.refused.items()},
            **{f"membership_ignored_{name}_total": float(count) for name, count in core.ignored.items()},
            "membership_unreached_sites": float(len(core.unreached_sites)),
            "membership_local_health": float(core.health.multiplier),
            "membership_probe_phi": core.probe_phi(self._now()),
            **({} if rtt_s is None else {"membership_rtt_seconds": rtt_s}),
        }

    def status(self) -> dict[str, Any]:
        """What ``actorgrid inspect`` shows: the members as this host knows them, and why membership is off."""
        core = self._core
        if core is None:
            return {"state": "off", "reason": self._off}
        now = self._now()
        return {
            "state": "on",
            "profile": self.host.settings.cluster.membership,
            "address": core.record.address,
            "key": self._keys.number,
            "members": {
                status.name: {
                    "state": STATES[status.state],
                    "address": status.address,
                    "incarnation": status.incarnation,
                    "said_by": status.by,
                    "rtt_ms": None if (rtt_s := core.rtt_s(status.name)) is None else round(1e3 * rtt_s, 3),
                    "reached_by": list(self._reached_by.get(status.name, ())),
                }
                for status in core.members()[:STATUS_MEMBERS]
            },
            "unreached_sites": core.unreached_sites,
            "probe_phi": round(core.probe_phi(now), 3),
            "local_health": core.health.multiplier,
            "datagrams": {"sent": self._socket.sent, "received": self._socket.received},
            "send_failed": dict(self._socket.failed),
            "refused": {**self._seal.refused, **self._refused},
            "ignored": dict(core.ignored),
        }
