"""The membership core of a host in a cluster of several sites: dense inside its site, and by a few relays between.

Each site judges its own hosts, with probes, suspicion and gossip as in core.py. Two hosts of each site speak to each
other site for all: *relays*, the first by rendezvous hash of those that are alive. A relay tells its partner there what
changed here, exchanges full states with it now and then, and asks at the pace of ``wan`` whether it is there. A partner
that does not answer is passed over for the next.

So a line between sites that is cut or slow makes nobody suspect: who is on the other side keeps the state that was last
heard. That a site is not reached is said as such (``SiteReached``), by its relays here. A site of fewer than three
hosts can not judge itself: all judge its hosts, and they all others, as if there were no sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from actorgrid.rendezvous import opposite, relays_between

from .broadcasts import BroadcastQueue
from .core import MembershipCore
from .instructions import MemberChanged, MemberUnreachable, SendPacket, SendState, SiteReached
from .packets import ACK, GOSSIP, PING, FullState, Packet, room_bytes
from .profiles import PROFILES, MembershipProfile
from .records import ALIVE, DEAD, SUSPECT, MemberStatus
from .table import RandomSource

PURPOSE = "membership"
RELAYS = 2
"""Of each site to each other: so that news cross when either is gone."""
TELLINGS = 2
"""How often each relay tells its partner a word; what is lost all the same comes with the next full state."""
HOSTS_MIN = 3
"""Of a site that judges its hosts itself: the suspect, who accuses it, and one who confirms that or helps."""
PASSED_OVER_PROBES = 6
"""For so many probes a partner that did not answer is passed over."""
SITE_PATIENCE_PROBES = 3
"""So many probes without an answer, of partners that take turns, and a site is not reached."""


class SitedCore(MembershipCore):
    """See the module. *sites*: the site of each member that said one. Without any it is a ``MembershipCore``."""

    def __init__(
        self,
        name: str,
        address: str,
        life: int,
        profile: MembershipProfile,
        dice: RandomSource,
        now: float,
        known: Iterable[MemberStatus] = (),
        sites: Mapping[str, str] | None = None,
    ) -> None:
        self.afar = PROFILES["wan"]
        """The pace between sites."""
        self._site_of: Mapping[str, str] = {}
        self._site = ""
        self._small: frozenset[str] = frozenset()
        self._far: dict[str, list[str]] = {}
        self._ours: dict[str, list[str]] = {}
        self._queues: dict[str, BroadcastQueue] = {}
        self._passed_over: dict[str, int] = {}
        # The probe of each site under way: its number and whom it asked. And how many went by without an answer.
        self._asked_afar: dict[str, tuple[int, str]] = {}
        self._unanswered: dict[str, int] = {}
        self._unreached: set[str] = set()
        self._probes_afar = 0
        self._probe_afar_at = self._tell_afar_at = self._states_afar_at = inf
        super().__init__(name, address, life, profile, dice, now, known)
        if sites:
            self.set_sites(sites, now)

    # -- what others may ask

    @property
    def unreached_sites(self) -> list[str]:
        """The sites that this host, as a relay to them, does not reach."""
        return sorted(self._unreached)

    def relays_to(self, site: str) -> bool:
        """Whether this host speaks to that site."""
        return self.name in self._first(self._ours.get(site, []))

    def partner(self, site: str) -> str | None:
        """To whom this host turns at another site: the first relay to the first there, the second to the second."""
        return opposite(self._first(self._ours.get(site, [])), self.name, self._first(self._far.get(site, [])))

    # -- events

    def set_sites(self, sites: Mapping[str, str], now: float) -> None:
        """The site of each member that said one, from the ledger; call it whenever members or their sites change."""
        self._enter(now)
        self._site_of, self._site = dict(sites), sites.get(self.name, "")
        by_site: dict[str, list[str]] = {}
        for name in {self.name, *sites, *self.table.records}:
            by_site.setdefault(sites.get(name, ""), []).append(name)
        self._small = frozenset(site for site, names in by_site.items() if len(names) < HOSTS_MIN)
        here = by_site[self._site]
        large = {} if self._site in self._small else by_site
        by_site = {site: names for site, names in large.items() if site not in {self._site, *self._small}}
        self.table.set_near(self._is_near)
        for name in [name for name in self._suspicions if not self._is_near(name)]:
            self._forget_suspicion(name)
        self._far = {site: relays_between(PURPOSE, site, self._site, names) for site, names in by_site.items()}
        self._ours = {site: relays_between(PURPOSE, self._site, site, here) for site in by_site}
        for gone in self._queues.keys() - by_site.keys():
            del self._queues[gone]
            self._asked_afar.pop(gone, None)
            self._unanswered.pop(gone, None)
            self._unreached.discard(gone)
        if not by_site:
            self._probe_afar_at = self._tell_afar_at = self._states_afar_at = inf
        elif self._probe_afar_at == inf:
            self._probe_afar_at = self._now + self._dice.random() * self.afar.probe_interval_s
            self._states_afar_at = self._now + self._dice.random() * self.afar.push_pull_s
        self._settle()

    def wake(self, now: float) -> None:
        """See ``MembershipCore``."""
        super().wake(now)
        if self._probe_afar_at <= self._now:
            self._probe_afar()
        if self._tell_afar_at <= self._now:
            self._tell_afar()
        if self._states_afar_at <= self._now:
            self._exchange_afar()
        self._settle()

    def receive(self, packet: Packet, source: str, now: float) -> None:
        """See ``MembershipCore``."""
        if packet.kind == ACK:
            site = self._site_of.get(packet.sender, "")
            if self._asked_afar.get(site) == (packet.sequence, packet.sender):
                del self._asked_afar[site]
                self._passed_over.pop(packet.sender, None)
                self._unanswered[site] = 0
                if site in self._unreached:
                    self._unreached.discard(site)
                    self.instructions.append(SiteReached(site, True))
                packet = packet._replace(kind=GOSSIP)  # nothing more of it is an answer
        super().receive(packet, source, now)

    # -- words about members

    def hear(self, record: MemberStatus) -> None:
        """See ``MembershipCore``. Hosts of other sites are judged there: until it is sure, that is none of ours."""
        if record.state == SUSPECT and not self._is_near(record.name):
            self._ignore("suspect_afar")
        else:
            super().hear(record)

    def _take(self, record: MemberStatus) -> None:
        if self._is_near(record.name):
            super()._take(record)
            return
        before = self.table.set(record)
        if before is None and record.state >= DEAD:
            return
        self._tell(record)
        if before is None or before.state != record.state:
            self.instructions.append(MemberChanged(record, before))
            if record.state == DEAD:
                self.instructions.append(MemberUnreachable(record, (record.by,)))

    def _merge(self, record: MemberStatus) -> None:
        if self._is_near(record.name):
            super()._merge(record)
        else:
            self.hear(record)

    def _tell(self, record: MemberStatus) -> None:
        super()._tell(record)
        if self._silent or record.state == SUSPECT or not self._far or not self._is_near(record.name):
            return
        for site in self._far:
            if self.relays_to(site):
                self._queues.setdefault(site, BroadcastQueue()).put(record)
                if self._tell_afar_at == inf:
                    self._tell_afar_at = self._now + self.afar.gossip_interval_s

    def remove(self, name: str) -> None:
        """See ``MembershipCore``."""
        for queue in self._queues.values():
            queue.drop(name)
        self._passed_over.pop(name, None)
        super().remove(name)

    # -- between sites

    def _probe_afar(self) -> None:
        self._probe_afar_at = self._now + self.afar.probe_interval_s
        self._probes_afar += 1
        for site in self._far:
            missed = self._asked_afar.pop(site, None)
            if missed is not None:
                self._passed_over[missed[1]] = self._probes_afar
                self._unanswered[site] = self._unanswered.get(site, 0) + 1
                if self._unanswered[site] >= SITE_PATIENCE_PROBES and site not in self._unreached:
                    self._unreached.add(site)
                    self.instructions.append(SiteReached(site, False))
            partner = self.partner(site)
            if partner is None:  # it is no relay any more
                self._unanswered.pop(site, None)
                self._unreached.discard(site)
                continue
            sequence = self._next_sequence()
            self._asked_afar[site] = (sequence, partner)
            self._send_afar(site, partner, PING, sequence, partner)

    def _tell_afar(self) -> None:
        for site, queue in self._queues.items():
            partner = self.partner(site)
            if partner is None:
                self._queues[site] = BroadcastQueue()
            elif queue:
                self._send_afar(site, partner, GOSSIP, 0, "")
        waiting = any(self._queues.values())
        self._tell_afar_at = self._now + self.afar.gossip_interval_s if waiting else inf

    def _exchange_afar(self) -> None:
        """Full states with the partners: what gossip lost, and what a relay did not see before it was one."""
        self._states_afar_at = self._now + self.afar.push_pull_interval_s(self.size)
        for site in self._far:
            partner = self.partner(site)
            if partner is not None:
                here = tuple(record for record in self.table.records.values() if self._is_near(record.name))
                state = FullState(self.name, True, (self.record, *here))
                self.instructions.append(SendState(self.table.records[partner].address, state))

    def _send_afar(self, site: str, partner: str, kind: int, sequence: int, target: str) -> None:
        queue = self._queues.get(site)
        records = tuple(queue.take(room_bytes(target), TELLINGS)) if queue else ()
        packet = Packet(kind, self.name, sequence, target, records)
        self.instructions.append(SendPacket(self.table.records[partner].address, packet))

    def _settle(self) -> None:
        super()._settle()
        self.deadline = min(self.deadline, self._probe_afar_at, self._tell_afar_at, self._states_afar_at)

    def _is_near(self, name: str) -> bool:
        site = self._site_of.get(name, "")
        return site == self._site or site in self._small or self._site in self._small

    def _first(self, order: list[str]) -> list[str]:
        """The first of *order* that are alive and answer; of those that are alive, when none of them does."""
        records, found, silent = self.table.records, list[str](), list[str]()
        for name in order:
            if name != self.name:
                record = records.get(name)
                if record is None or record.state != ALIVE:
                    continue
                if self._probes_afar - self._passed_over.get(name, -PASSED_OVER_PROBES) < PASSED_OVER_PROBES:
                    silent.append(name)
                    continue
            found.append(name)
            if len(found) == RELAYS:
                break
        return found or silent[:RELAYS]
