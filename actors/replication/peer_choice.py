"""Whom a replica speaks to: inside its site, and thinly, by a few relays, with other sites. Decides only.

With a few hosts at the site it is all of them. With more it is its neighbours in an overlay (overlay.py): what is new
goes over the edges of a tree, digests to some of the neighbours and now and then to any host. Who is known to be away
is passed over. Who did not acknowledge what was sent gets the next digest, and until it is heard of again its own
neighbours are sent what is new, too.

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
from .overlay import Overlay

PURPOSE = "shared state"


class PeerChoice:
    """The other members by site. *me* is this host's name."""

    def __init__(self, me: str, dice: Dice, limits: GossipLimits) -> None:
        self.others: list[str] = []
        """All other members, in order."""
        self.near: list[str] = []
        """Those of this host's site."""
        self.neighbours: list[str] = []
        """Those that it turns to: all of its site, where they are few."""
        self.site = ""
        self._me = me
        self._dice = dice
        self._limits = limits
        self._site_of: dict[str, str] = {}
        self._away: frozenset[str] = frozenset()
        self._overlay: Overlay | None = None
        # Who did not acknowledge something, until it is heard of; and whether it got a digest since.
        self._unanswered: dict[str, bool] = {}
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
        self._choose_neighbours(here)
        self._heard = {name: at for name, at in self._heard.items() if name in self._site_of}
        self._unanswered = {name: told for name, told in self._unanswered.items() if name in self._site_of}
        for name in self.neighbours:
            self._heard.setdefault(name, self._round)

    def _choose_neighbours(self, here: list[str]) -> None:
        if self.few:
            self._overlay, self.neighbours = None, self.near
            return
        limits = self._limits
        purpose = f"{PURPOSE}\0{self.site}"
        self._overlay = Overlay(purpose, self._me, here, limits.rings, limits.trees, limits.tree_fan_out)
        relays: set[str] = set()
        for order in self._ours.values():
            known = order[: limits.relays_known]
            relays.update(known if self._me in known else ())
        self.neighbours = sorted({*self._overlay.neighbours, *relays} - {self._me})

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

    @property
    def all_turn_to_us(self) -> bool:
        """Whether every other host begins rounds with this one: there is one site, and its hosts are few."""
        return self.few and not self._far

    @property
    def watched(self) -> list[str]:
        """Hosts of which this one hears so often that it is known how far they are behind."""
        if self.all_turn_to_us:
            return self.others
        partners = [name for other in self._far if self.relays_to(other) for name in self.partners(other)]
        return sorted({*self.neighbours, *partners})

    def heard(self, name: str) -> None:
        """Something came of that host."""
        self._heard[name] = self._round
        self._unanswered.pop(name, None)

    def unanswered(self, name: str) -> None:
        """That host did not acknowledge what was sent to it."""
        if not self.is_far(name):
            self._unanswered.setdefault(name, False)

    def bytes_a_round(self, name: str) -> int:
        """What may go to that host in a round."""
        return self._limits.far_peer_bytes_a_round if self.is_far(name) else self._limits.peer_bytes_a_round

    def patience_rounds(self, name: str) -> int:
        """How many rounds an acknowledgement of that host is waited for."""
        return self._limits.far_patience_rounds if self.is_far(name) else self._limits.patience_rounds

    def begin_round(self) -> list[str]:
        """A round has passed: whose turn it is to get this host's digest."""
        self._round += 1
        chosen = self._begin_near()
        for other, hosts in self._far.items():
            partner = self._partner(other)
            if partner is not None:
                chosen.append(partner)
            elif self._dice.getrandbits(16) % (self._limits.odd_rounds * len(self._ours[other])) == 0:
                chosen.append(hosts[self._dice.getrandbits(16) % len(hosts)])
        return chosen

    def _begin_near(self) -> list[str]:
        """Some neighbours, first one of whom it is not known whether it got what was sent; now and then any host."""
        count = self._limits.digests
        chosen = [name for name, told in self._unanswered.items() if not told][: max(1, count // 2)]
        self._unanswered.update(dict.fromkeys(chosen, True))
        if self._overlay is not None and self._dice.getrandbits(16) % self._limits.chance_rounds == 0:
            chosen.append(self.near[self._dice.getrandbits(16) % len(self.near)])
        others = [name for name in self.neighbours if name not in self._away and name not in chosen]
        others = others or [name for name in self.neighbours if name not in chosen]
        return chosen + self._dice.sample(others, min(max(0, count - len(chosen)), len(others)))

    def pass_on(self, host: str) -> list[str]:
        """To whom of this site goes what is new of a host, unless they are known to have it."""
        if self._overlay is None:
            return self.near
        return self._overlay.around(self._overlay.tree_of(host), self._away, self._unanswered)

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
        """Whether it should have been heard of by now: of many neighbours each turns to us but rarely, and of who is
        none of them nothing is expected.
        """
        if name == self._me or name not in self._heard:
            return False
        rounds = self._limits.silent_rounds
        if not self.is_far(name):
            if name not in self.neighbours:
                return False
            rounds = max(rounds, rounds * len(self.neighbours) // self._limits.digests)
        return self._round - self._heard[name] >= rounds
