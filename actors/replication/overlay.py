"""Which few of many hosts a host speaks to, the same for all who know the same names. Decides only.

With up to a handful of others everybody speaks to everybody. Beyond that, hosts stand in several *orders*, each the
ranks of their names for another purpose, and from an order follow

* a **ring**: who stands before and behind a host. Several rings of chance hold together as a random graph does, by
  paths that grow with the logarithm of the hosts, also when many of them are gone;
* of the first orders, a **tree**: the host at place 0, the ``fan_out`` behind it, ``fan_out`` behind each of those.
  What is new goes over all edges of one tree, in whichever direction, so it comes to each host once. Of two trees, who
  has much to pass on in one is mostly a leaf of the other.

So a host has some dozen neighbours among thousands, and so many links. Who is known to be gone is passed over: its
neighbours in a tree are then each other's. (Leitao, Pereira, Rodrigues, "Epidemic Broadcast Trees", 2007, has the same
two parts, a tree that carries and a random graph that finds what the tree lost; there messages grow the tree, here
names do, so that nobody has to tell anybody.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from actorgrid.rendezvous import rank_of, ranked

PASSED_OVER_MAX = 64
"""Hosts that are gone and in each other's place in a tree, whose neighbours are looked for; those of further ones hear
of news by digests."""


class Overlay:
    """The neighbours of host *me* among *names*, itself included."""

    def __init__(self, purpose: str, me: str, names: Iterable[str], rings: int, trees: int, fan_out: int) -> None:
        members = set(names)
        self._me = me
        self._fan_out = fan_out
        self._purpose = purpose
        self._orders = [ranked(f"{purpose}\0{number}", members) for number in range(max(rings, trees))]
        self._places = [{name: place for place, name in enumerate(order)} for order in self._orders[:trees]]
        self._rings = rings
        found: set[str] = set()
        for order in self._orders[:rings]:
            place = order.index(me)
            found |= {order[place - 1], order[(place + 1) % len(order)]}
        for tree in range(trees):
            found.update(self._next_to(me, tree))
        self.neighbours = sorted(found - {me})
        """In any of the rings or trees."""

    def tree_of(self, name: str) -> int:
        """Over which tree goes what that host wrote."""
        return rank_of(self._purpose, name)[0] % len(self._places)

    def around(self, tree: int, gone: Collection[str], doubtful: Collection[str]) -> list[str]:
        """This host's neighbours in a tree. In the place of who is *gone*, and beside who is *doubtful*, its own."""
        found: dict[str, None] = {}
        passed = {self._me}
        todo = self._next_to(self._me, tree)
        while todo:
            name = todo.pop()
            if name in passed or name in found:
                continue
            if name not in gone:
                found[name] = None
            if (name in gone or name in doubtful) and len(passed) <= PASSED_OVER_MAX:
                passed.add(name)
                todo += self._next_to(name, tree)
        return list(found)

    def _next_to(self, name: str, tree: int) -> list[str]:
        order, place = self._orders[tree], self._places[tree][name]
        first = place * self._fan_out + 1
        above = [order[(place - 1) // self._fan_out]] if place else []
        return above + order[first : first + self._fan_out]
