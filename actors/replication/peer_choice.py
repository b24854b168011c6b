"""Whom a replica speaks to: densely inside its site, and thinly, by a few relays, with other sites. Decides only.

Relays of one site to another are the first of its hosts by rendezvous hashing, so that all hosts know them without a
word. Each round every relay turns to its partner among the other site's relays to here, and the first of them brings
there what is new. One that is known to be away, or stays silent, is passed over for the next. And now and then some
host by chance turns to any host of another site: so no two sites stay apart because of whom they take for relays.

Without sites all hosts are at one, and nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from actorgrid.rendezvous import opposite, relays_between

from .exchange import Dice, GossipLimits

PURPOSE = "shared state"


class PeerChoice:
    """The other members by site. *me* is this host's name."""

    def __init__(self, me: str, dice: Dice, limits: GossipLimits) -> None:
        self.others: list[str] = []
        """All other members, in order."""
        self.near: list[str] = []
        """Those of this host's site."""
        self.site = ""
        self._me = me
        self._dice = dice
        self._limits = limits
        self._site_of: dict[str, str] = {}
        self._away: frozenset[str] = frozenset()
        # By other site: its hosts, in the order in which they relay to here; and this site's, in theirs to there.
        self._far: dict[str, list[str]] = {}
        self._ours: dict[str, list[str]] = {}
        self._round = 0
        # The round in which a host was last heard of; or, of one of another site, in which we first turned to it.
        self._heard: dict[str, int] = {}

    def set_members(self, members: Iterable[str], sites: Mapping[str, str]) -> None:
        """All members, this host among them, and the sites of those that said one."""
        names = sorted({*members, self._me})
        self._site_of = {name: sites.get(name, "") for name in names}
        self.site = site = self._site_of[self._me]
        self.others = [name for name in names if name != self._me]
        self.near = [name for name in self.others if self._site_of[name] == site]
        by_site: dict[str, list[str]] = {}
        for name in self.others:
            by_site.setdefault(self._site_of[name], []).append(name)
        by_site.pop(site, None)
        here = [self._me, *self.near]
        self._far = {other: relays_between(PURPOSE, other, site, hosts) for other, hosts in by_site.items()}
        self._ours = {other: relays_between(PURPOSE, site, other, here) for other in by_site}
        self._heard = {name: at for name, at in self._heard.items() if name in self._site_of}
        for name in self.near:
            self._heard.setdefault(name, self._round)

    def set_away(self, away: Collection[str]) -> None:
        """Hosts that others found to be away: they are no relays, where there are others."""
        self._away = frozenset(away)

    def site_of(self, name: str) -> str:
        """The site of a member; of one that said none, and of one that is none any more, it is empty."""
        return self._site_of.get(name, "")

    def is_far(self, name: str) -> bool:
        """Whether that host is at another site."""
        return self.site_of(name) != self.site

    @property
    def few(self) -> bool:
        """Whether a push goes to all hosts of the site at once, and nobody there passes it on."""
        return len(self.near) <= self._limits.all_at

    def heard(self, name: str) -> None:
        """Something came of that host."""
        self._heard[name] = self._round

    def bytes_a_round(self, name: str) -> int:
        """What may go to that host in a round."""
        return self._limits.far_peer_bytes_a_round if self.is_far(name) else self._limits.peer_bytes_a_round

    def patience_rounds(self, name: str) -> int:
        """How many rounds an acknowledgement of that host is waited for."""
        return self._limits.far_patience_rounds if self.is_far(name) else self._limits.patience_rounds

    def begin_round(self) -> list[str]:
        """A round has passed: whose turn it is to get this host's digest."""
        self._round += 1
        chosen = self.some(self.near)
        for other, hosts in self._far.items():
            partner = self._partner(other)
            if partner is not None:
                chosen.append(partner)
            elif self._dice.getrandbits(16) % (self._limits.odd_rounds * len(self._ours[other])) == 0:
                chosen.append(hosts[self._dice.getrandbits(16) % len(hosts)])
        return chosen

    def some(self, names: list[str]) -> list[str]:
        """Up to *fan_out* of them, by chance."""
        return self._dice.sample(names, min(self._limits.fan_out, len(names)))

    def relays_to(self, other: str) -> bool:
        """Whether this host relays to that site."""
        return self._me in self._first(self._ours[other])

    def partners(self, other: str) -> list[str]:
        """Those hosts of another site that a relay turns to."""
        found = self._first(self._far[other])
        for name in found:
            self._heard.setdefault(name, self._round)
        return found

    def bring_to(self) -> list[str]:
        """Whom this host brings what is new at its own site: one at each site that it is the first to relay to.

        The others leave it to their digests: each that brought all of it at once would be one more copy on the way.
        """
        found = [self._partner(other) for other in self._far if self._first(self._ours[other])[0] == self._me]
        return [name for name in found if name is not None]

    @property
    def far_sites(self) -> list[str]:
        """The other sites."""
        return list(self._far)

    def _partner(self, other: str) -> str | None:
        """To whom of another site this host turns, as one of its relays to there: the first to the first, and so on."""
        ours = self._first(self._ours[other])
        return opposite(ours, self._me, self.partners(other)) if self._me in ours else None

    def _first(self, order: list[str]) -> list[str]:
        """The first of *order* that may relay. When all are away or silent, each in turn.

        Who is there and holds the same as we do says nothing: to stay with the first might be to stay with dead hosts.
        """
        found: list[str] = []
        for name in order:
            if name not in self._away and not self._silent(name):
                found.append(name)
                if len(found) == self._limits.relays:
                    return found
        if found:
            return found
        at = self._round % len(order)
        return [*order[at:], *order[:at]][: self._limits.relays]

    def _silent(self, name: str) -> bool:
        """Whether it should have been heard of by now: at a large site each host turns to each other but rarely."""
        if name == self._me or name not in self._heard:
            return False
        rounds = self._limits.silent_rounds
        if not self.is_far(name):
            rounds = max(rounds, rounds * len(self.near) // self._limits.fan_out)
        return self._round - self._heard[name] >= rounds
