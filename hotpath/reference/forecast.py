"""What will be free where and when: running work with its ends, reservations, and the first fit, in plain Python.

An availability profile for each node and device. A question costs a look at every node once, and after that one at
each node where something changes: who runs there ends, or a reservation there begins to be met, or is over. Ends are
kept in order, so that none has to be sorted when a question comes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ..capacity import ENDS_MAX, Devices, Free, GangNeeds, NodeCapacity
from ..records import NodeView, Shares


class _Span:
    """One that runs, or a reservation: what it takes where, and until when."""

    __slots__ = ("awaited", "end", "expected_s", "id", "needs", "sequence", "shares", "start", "stopping")

    def __init__(
        self, id: str, needs: GangNeeds, shares: dict[int, list[Devices]], start: float, expected_s: float
    ) -> None:
        self.id = id
        self.needs = needs
        self.shares = shares
        self.start = start
        self.expected_s = expected_s
        self.end = start + expected_s
        self.sequence = 0
        self.stopping = False
        self.awaited: frozenset[str] = frozenset()

    def overlaps(self, start: float, end: float) -> bool:
        """Of a reservation: whether someone who runs from *start* to *end* would meet it."""
        if math.isinf(self.start):
            return True
        return self.start < end and (self.end > start or math.isinf(self.end))

    def holds_at(self, moment: float) -> bool:
        """Of a reservation: whether its room is taken, or to be kept, at that very moment."""
        if math.isinf(self.start):
            return True
        return self.start <= moment and (moment < self.end or math.isinf(self.end))

    def end_seen_at(self, now: float) -> float:
        """Of one that runs: when it ends as far as is known *now*; past its estimate it is given twice as long."""
        end = self.start + self.expected_s
        step = max(self.expected_s, 1.0)
        while end <= now:
            end += step
            step *= 2
        return end


class _Node(NodeCapacity):
    __slots__ = ("kept", "runs")

    def __init__(self, view: NodeView, number: int) -> None:
        super().__init__(view, number)
        self.runs: dict[str, _Span] = {}
        self.kept: dict[str, _Span] = {}


class Forecast:
    """All nodes as they are and as they will be, as far as ends are known. Times are of one clock that never goes back.

    It is as large as what it was told: one record for each node, run and reservation. Ids are unique among those that
    run, and among reservations. ``counted`` is how often a node was looked at, in all.
    """

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self._nodes = [_Node(view, number) for number, view in enumerate(nodes)]
        self._numbers = {node.name: node.number for node in self._nodes}
        self._runs: dict[str, _Span] = {}
        self._ends: list[tuple[float, int, str]] = []
        self._endless: list[tuple[float, int, str]] = []
        self._kept: dict[str, _Span] = {}
        self._enters: list[tuple[float, str]] = []
        self._exits: list[tuple[float, str]] = []
        self.counted = 0

    # -- what is known

    def begin(
        self,
        id: str,
        needs: GangNeeds,
        shares: Shares,
        started_at: float,
        expected_s: float,
        sequence: int,
        *,
        counted_in: bool = False,
    ) -> None:
        """*id* runs on *shares* for *expected_s* (infinite: nobody knows); unless *counted_in*, they were free so far.

        Who ends at one time, or without a known end starts at one time, counts as ending in the order of *sequence*.
        """
        assert id not in self._runs, f"{id} runs already"
        span = _Span(id, needs, self._by_node(shares), started_at, expected_s)
        span.sequence = sequence
        self._runs[id] = span
        insort(*self._place(span))
        for number in span.shares:
            self._nodes[number].runs[id] = span
        if not counted_in:
            self._change(span, -1)

    def end(self, id: str) -> None:
        """*id* runs no longer: what it had is free."""
        span = self._runs.pop(id)
        self._take_out(*self._place(span))
        for number in span.shares:
            del self._nodes[number].runs[id]
        self._change(span, 1)

    def stop_at(self, id: str, at: float | None) -> None:
        """The running *id* is to stop by *at*, whatever its estimate; ``None``: it is let off."""
        span = self._runs[id]
        self._take_out(*self._place(span))
        span.stopping = at is not None
        span.end = span.start + span.expected_s if at is None else at
        insort(*self._place(span))

    def reserve(
        self,
        id: str,
        needs: GangNeeds,
        shares: Shares,
        start: float,
        expected_s: float,
        awaited: frozenset[str] = frozenset(),
    ) -> None:
        """Keep *shares* for *id* for *expected_s* from *start*; infinite: from when those *awaited* have ended."""
        assert id not in self._kept, f"{id} has a reservation already"
        span = _Span(id, needs, self._by_node(shares), start, expected_s)
        span.awaited = awaited
        self._kept[id] = span
        insort(self._enters, (span.start, id))
        insort(self._exits, (span.end, id))
        for number in span.shares:
            self._nodes[number].kept[id] = span

    def drop(self, id: str) -> None:
        """Keep nothing for *id* any more."""
        span = self._kept.pop(id)
        self._enters.remove((span.start, id))
        self._exits.remove((span.end, id))
        for number in span.shares:
            del self._nodes[number].kept[id]

    # -- questions

    def earliest(
        self, id: str, needs: GangNeeds, now: float, duration_s: float, latest: float = math.inf, *, alone: bool = False
    ) -> tuple[float, Shares, frozenset[str]] | None:
        """When *id* could first start, where, and which of those without a known end have to end before that there.

        The whole gang fits at that moment and, beside all reservations but its own, for *duration_s* from then on;
        *alone*: as if there were no reservations. The start is infinite where nobody knows it. ``None`` when it would
        be later than *latest*, or not even when ENDS_MAX have ended.
        """
        if now > latest:
            return None
        search = _Search(self._nodes, None if alone else id, needs, duration_s)
        try:
            return self._search(search, id, now, latest, alone)
        finally:
            self.counted += search.counted

    def _search(
        self, search: _Search, id: str, now: float, latest: float, alone: bool
    ) -> tuple[float, Shares, frozenset[str]] | None:
        for node in self._nodes:
            search.count(node, now)
            if search.total >= search.needs.gang:
                return now, search.choose(now), frozenset()
        self._renew(now)
        ends = self._ends
        enters, exits = ([], []) if alone else (self._enters, self._exits)
        known = bisect_left(exits, (math.inf, ""))
        ended = 0
        over = bisect_left(exits, (math.nextafter(now, math.inf), ""))
        met = bisect_left(enters, (now + search.duration_s, ""))
        looked_at = 0
        while looked_at < ENDS_MAX:
            while over < known and exits[over][1] == id:
                over += 1
            at = max(ends[ended][0], now) if ended < len(ends) else math.inf
            if over < known:
                at = min(at, exits[over][0])
            if at == math.inf:
                break
            if at > latest:
                return None
            touched: dict[int, None] = {}
            before = looked_at
            while ended < len(ends) and max(ends[ended][0], now) == at:
                span = self._runs[ends[ended][2]]
                search.give_back(span)
                touched.update(dict.fromkeys(span.shares))
                ended += 1
                looked_at += 1
            looked_at = max(looked_at, before + 1)
            while over < known and exits[over][0] <= at:
                if exits[over][1] != id:
                    touched.update(dict.fromkeys(self._kept[exits[over][1]].shares))
                over += 1
            while met < len(enters) and enters[met][0] < at + search.duration_s:
                touched.update(dict.fromkeys(self._kept[enters[met][1]].shares))
                met += 1
            if search.recount(touched, at):
                return at, search.choose(at), frozenset()
        return self._search_unknown(search, enters[met:], looked_at) if latest == math.inf else None

    def _search_unknown(
        self, search: _Search, enters: list[tuple[float, str]], looked_at: int
    ) -> tuple[float, Shares, frozenset[str]] | None:
        """Go on among those without a known end, which are taken to end in the order in which they started."""
        touched: dict[int, None] = {}
        for _, entering in enters:
            touched.update(dict.fromkeys(self._kept[entering].shares))
        gone: list[_Span] = []
        for _, _, ending in self._endless[: max(0, ENDS_MAX - looked_at)]:
            span = self._runs[ending]
            search.give_back(span)
            gone.append(span)
            touched.update(dict.fromkeys(span.shares))
            if search.recount(touched, math.inf):
                shares = search.choose(math.inf)
                here = {self._numbers[name] for name, _ in shares}
                # Those with known ends are over by then as well: only where they were is their end awaited.
                gone += (self._runs[each] for _, _, each in self._ends)
                return math.inf, shares, frozenset(each.id for each in gone if not here.isdisjoint(each.shares))
            touched = {}
        return None

    def closed(self, id: str, binding: Iterable[str] | None, end: float) -> tuple[str, ...]:
        """The nodes where *id*, were it to run until *end*, would meet a *binding* reservation.

        ``None``: all bind but its own, here and in ``beside``.
        """
        found: dict[int, None] = {}
        for span in self._binding(id, binding).values():
            if span.start < end or math.isinf(span.start):
                found.update(dict.fromkeys(span.shares))
        return tuple(self._nodes[number].name for number in found)

    def beside(
        self, id: str, needs: GangNeeds, names: Sequence[str], binding: Iterable[str] | None, now: float, end: float
    ) -> Shares:
        """What the *binding* reservations leave on these nodes to a single one from *now* to *end*.

        Given as ``within`` has it: the devices of each node where it fits.
        """
        kept = self._binding(id, binding)
        found = []
        for name in names:
            number = self._numbers.get(name)
            if number is None:
                continue
            node = self._nodes[number]
            self.counted += 1
            if not node.members(node.free, needs, 1):
                continue
            left = node.free.copy()
            here = [kept[each] for each in node.kept if each in kept]
            for span in here:
                if span.start < end or math.isinf(span.start):
                    self.counted += 1
                    left.lower_to(self._spare(node, span, here, now))
                    if not node.members(left, needs, 1):
                        break
            else:
                found.append((name, tuple(index for index, _ in node.slots(left, needs)) if needs.count else ()))
        return tuple(found)

    def _binding(self, id: str, binding: Iterable[str] | None) -> dict[str, _Span]:
        if binding is None:
            return {each: span for each, span in self._kept.items() if each != id}
        return {each: self._kept[each] for each in binding}

    def _spare(self, node: _Node, kept: _Span, others: list[_Span], now: float) -> Free:
        """What will be left on *node* at the moment when *kept* starts."""
        left = node.free.copy()
        for id, run in node.runs.items():
            if math.isinf(kept.start):
                over = id in kept.awaited
            else:
                over = (max(run.end, now) if run.stopping else run.end_seen_at(now)) <= kept.start
            if over:
                for indexes in run.shares[node.number]:
                    left.change(run.needs, indexes, 1)
        for other in others:
            if other is kept or other.holds_at(kept.start):
                for indexes in other.shares[node.number]:
                    left.change(other.needs, indexes, -1)
        return left

    # -- keeping order

    def _by_node(self, shares: Shares) -> dict[int, list[Devices]]:
        found: dict[int, list[Devices]] = {}
        for name, indexes in shares:
            number = self._numbers.get(name)
            if number is not None:
                found.setdefault(number, []).append(indexes)
        return found

    def _change(self, span: _Span, sign: int) -> None:
        for number, members in span.shares.items():
            for indexes in members:
                self._nodes[number].free.change(span.needs, indexes, sign)

    def _place(self, span: _Span) -> tuple[list[tuple[float, int, str]], tuple[float, int, str]]:
        """The list in which one that runs is kept, and as what."""
        if math.isinf(span.end):
            return self._endless, (span.start, span.sequence, span.id)
        return self._ends, (span.end, span.sequence, span.id)

    @staticmethod
    def _take_out(order: list[tuple[float, int, str]], entry: tuple[float, int, str]) -> None:
        del order[bisect_left(order, entry)]

    def _renew(self, now: float) -> None:
        """Move those that have run past their estimates on to when they are expected now."""
        ends = self._ends
        front = 0
        while front < len(ends) and ends[front][0] <= now:
            span = self._runs[ends[front][2]]
            if span.stopping:
                front += 1
                continue
            del ends[front]
            span.end = span.end_seen_at(now)
            insort(*self._place(span))


class _Search:
    """One question under way: what would be free by the moment looked at, and how many members would fit where."""

    def __init__(self, nodes: list[_Node], id: str | None, needs: GangNeeds, duration_s: float) -> None:
        self.nodes = nodes
        self.id = id  # whose own reservation does not count; None: no reservation does
        self.needs = needs
        self.duration_s = duration_s
        self.thought: dict[int, Free] = {}
        self.counts: dict[int, int] = {}
        self.total = 0
        self.counted = 0

    def count(self, node: _Node, at: float) -> None:
        """See how many members fit on *node* from *at* on."""
        self.counted += 1
        found = node.members(self._left(node, at), self.needs, self.needs.gang)
        self.total += found - self.counts.get(node.number, 0)
        self.counts[node.number] = found

    def recount(self, touched: Iterable[int], at: float) -> bool:
        """Count these nodes anew; whether the gang fits."""
        for number in touched:
            self.count(self.nodes[number], at)
        return self.total >= self.needs.gang

    def give_back(self, span: _Span) -> None:
        """*span* has ended by the moment looked at."""
        for number, members in span.shares.items():
            free = self.thought.get(number)
            if free is None:
                free = self.thought[number] = self.nodes[number].free.copy()
            for indexes in members:
                free.change(span.needs, indexes, 1)

    def choose(self, at: float) -> Shares:
        """Nodes and devices for the gang: nodes that hold most of it, then those with least left."""
        gang = self.needs.gang
        able = [self.nodes[number] for number, count in self.counts.items() if count]
        able.sort(key=lambda node: (-self.counts[node.number], self._free(node).total, node.number))
        shares: list[tuple[str, Devices]] = []
        for node in able:
            wanted = min(self.counts[node.number], gang - len(shares))
            if wanted <= 0:
                break
            left = self._left(node, at)
            shares += [(node.name, indexes) for indexes in node.choose(left, self.needs, wanted)]
        return tuple(shares)

    def _free(self, node: _Node) -> Free:
        return self.thought.get(node.number, node.free)

    def _left(self, node: _Node, start: float) -> Free:
        """What others' reservations leave of *node* at every moment from *start* on, for as long as is asked."""
        free = self._free(node)
        if not node.kept or self.id is None:
            return free
        end = start + self.duration_s
        met = [each for id, each in node.kept.items() if id != self.id and each.overlaps(start, end)]
        if not met:
            return free
        if len(met) == 1:
            return self._without(free, node, met)
        left: Free | None = None
        for moment in {start: None, **{each.start: None for each in met if start < each.start < end}}:
            here = self._without(free, node, [each for each in met if each.holds_at(moment)])
            if left is None:
                left = here
            else:
                left.lower_to(here)
        assert left is not None
        return left

    @staticmethod
    def _without(free: Free, node: _Node, reservations: list[_Span]) -> Free:
        left = free.copy()
        for each in reservations:
            for indexes in each.shares[node.number]:
                left.change(each.needs, indexes, -1)
        return left
