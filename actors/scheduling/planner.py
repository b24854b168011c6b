"""When and where could this start? Reservations, made per node and device on a shadow of the cluster.

A reservation names the earliest time at which the whole gang fits, given when running jobs are expected to end and
what is reserved for others, and the devices it will take. A job that is started past it (backfilled) either ends
before that time or leaves those devices, CPUs and memory alone, so it delays nobody: Lifka, "The ANL/IBM SP
Scheduling System" (JSSPP 1995); Mu'alem and Feitelson, TPDS 2001, compare one reservation (EASY) with one for
every job (conservative).

Where nobody knows when running jobs end, a reservation can still name a place: jobs without an estimate are taken to
end in the order in which they started, the place is closed to all others, and so the one that waits is not starved.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from actorgrid.hotpath import PlacementEngine

from .job import Job
from .reservation import Plan, Reservation
from .shadow import Devices, Free, Node, Shadow

EVENTS_MAX = 20_000
"""Ends of running jobs looked at for one plan; one that needs more to end gets none."""


class Planner:
    """Keeps the reservations. Planning costs the nodes once, and each end looked at the nodes it frees."""

    def __init__(self, engine: PlacementEngine) -> None:
        self.engine = engine
        self.running: dict[str, Job] = {}
        self.reservations: dict[str, Reservation] = {}
        self.to_stop: dict[str, str] = {}
        """Victims to be told, each with the job it is stopped for."""
        self._shadow: Shadow | None = None

    def refresh(self) -> None:
        """Others changed the engine: look at it anew."""
        self._shadow = None

    def started(self, job: Job) -> None:
        """*job* has its placement."""
        self.running[job.id] = job
        if self._shadow is not None:
            self._shadow.started(job)

    def ended(self, job: Job) -> None:
        """*job* gives its placement back."""
        del self.running[job.id]
        self.to_stop.pop(job.id, None)
        if self._shadow is not None:
            self._shadow.ended(job)

    # -- planning

    def earliest(self, job: Job, now: float) -> Plan | None:
        """The first time at which *job* fits beside all reservations but its own, and where.

        ``None``: not even when all have ended, as far as this looks (EVENTS_MAX).
        """
        ask = job.ask
        assert ask is not None
        duration = math.inf if job.request.expected_s is None else job.request.expected_s
        nodes = self.shadow().nodes
        thought: dict[str, Free] = {}
        contested = [node.name for node in nodes.values() if any(id != job.id for id in node.reserved)]
        counts: dict[str, int] = {}
        total = 0
        for node in nodes.values():
            left = self._left(node, thought, job, now, now + duration) if node.reserved else node.free
            counts[node.name] = found = node.members(left, ask, ask.gang)
            total += found
            if total >= ask.gang:
                return self._plan(job, now, now + duration, counts, thought, ())
        over: list[str] = []
        for at, ended in self._events(job, now):
            touched = dict.fromkeys(contested)
            for each in ended:
                over.append(each.id)
                assert each.placement is not None and each.ask is not None
                for name, indexes in each.placement.shares:
                    if name in nodes:
                        free = thought.get(name)
                        if free is None:
                            free = thought[name] = nodes[name].free.copy()
                        free.change(each.ask, indexes, 1)
                        touched[name] = None
            for name in touched:
                found = nodes[name].members(self._left(nodes[name], thought, job, at, at + duration), ask, ask.gang)
                total += found - counts[name]
                counts[name] = found
            if total >= ask.gang:
                return self._plan(job, at, at + duration, counts, thought, over)
        return None

    def _events(self, job: Job, now: float) -> Iterator[tuple[float, list[Job]]]:
        """Times at which something may have changed, with the jobs that end then, earliest first."""
        known: list[tuple[float, int, Job | None]] = []
        unknown: list[tuple[float, int, Job | None]] = []
        for each in self.running.values():
            end = each.expected_end(now)
            if end == math.inf:
                unknown.append((each.started_at, each.sequence, each))
            else:
                known.append((end, each.sequence, each))
        for number, reservation in enumerate(self.reservations.values()):
            end = reservation.start + reservation.expected_s
            if reservation.job is not job and end != math.inf:
                known.append((end, -1 - number, None))
        # Most plans need the first few ends only: a heap costs less than sorting all.
        heapq.heapify(known)
        looked_at = 0
        while known and looked_at < EVENTS_MAX:
            at = known[0][0]
            ended = []
            while known and known[0][0] == at:
                _, _, over = heapq.heappop(known)
                if over is not None:
                    ended.append(over)
            looked_at += max(1, len(ended))
            yield max(at, now), ended
        heapq.heapify(unknown)
        while unknown and looked_at < EVENTS_MAX:
            _, _, over = heapq.heappop(unknown)
            looked_at += 1
            if over is not None:
                yield math.inf, [over]

    def _left(self, node: Node, thought: dict[str, Free], job: Job, start: float, end: float) -> Free:
        """What others' reservations leave of *node* at every moment from *start* to *end*."""
        free = thought.get(node.name, node.free)
        met = [each for id, each in node.reserved.items() if id != job.id and each.overlaps(start, end)]
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
    def _without(free: Free, node: Node, reservations: list[Reservation]) -> Free:
        left = free.copy()
        for each in reservations:
            for indexes in each.nodes[node.name]:
                left.change(each.ask, indexes, -1)
        return left

    def _plan(
        self,
        job: Job,
        start: float,
        end: float,
        counts: dict[str, int],
        thought: dict[str, Free],
        over: list[str] | tuple[str, ...],
    ) -> Plan:
        """Choose nodes for the gang: those that hold most of it, then those with least left."""
        ask = job.ask
        assert ask is not None
        nodes = self.shadow().nodes
        able = [nodes[name] for name, count in counts.items() if count]
        able.sort(key=lambda node: (-counts[node.name], thought.get(node.name, node.free).total, node.number))
        shares: list[tuple[str, Devices]] = []
        for node in able:
            wanted = min(counts[node.name], ask.gang - len(shares))
            if wanted <= 0:
                break
            left = self._left(node, thought, job, start, end)
            shares += [(node.name, indexes) for indexes in node.choose(left, ask, wanted)]
        awaited: frozenset[str] = frozenset()
        if math.isinf(start):
            here = {name for name, _ in shares}
            awaited = frozenset(id for id in over if any(name in here for name, _ in self._shares(id)))
        return Plan(start, tuple(shares), awaited)

    def _shares(self, id: str) -> tuple[tuple[str, Devices], ...]:
        placement = self.running[id].placement
        assert placement is not None
        return placement.shares

    # -- reservations

    def reserve(self, job: Job, plan: Plan, now: float, *, firm: bool = False) -> None:
        """Keep *plan* for *job*, in place of what was kept for it; *firm* as in ``Reservation``.

        Its victims are to be stopped (``to_stop``), which makes it firm.
        """
        self.drop(job)
        assert job.ask is not None
        reservation = Reservation(job, job.ask, plan, firm or bool(plan.victims))
        job.reservation = self.reservations[job.id] = reservation
        nodes = self.shadow().nodes
        for name in reservation.nodes:
            nodes[name].reserved[job.id] = reservation
        for id in plan.victims:
            victim = self.running[id]
            victim.stopping_at = now + victim.request.grace_s
            self.to_stop[id] = job.id

    def drop(self, job: Job) -> bool:
        """Keep nothing for *job* any more; ``False`` when nothing was. Victims that were not told yet are let off."""
        reservation = self.reservations.pop(job.id, None)
        job.reservation = None
        if reservation is None:
            return False
        if self._shadow is not None:
            for name in reservation.nodes:
                if name in self._shadow.nodes:
                    self._shadow.nodes[name].reserved.pop(job.id, None)
        for id in reservation.plan.victims:
            if self.to_stop.get(id) == job.id:
                del self.to_stop[id]
                if id in self.running:
                    self.running[id].stopping_at = None
        return True

    # -- what may start beside them

    def closed_to(self, job: Job, end: float) -> tuple[str, ...]:
        """The nodes where *job*, were it to run from now to *end*, would meet someone else's reservation."""
        found: dict[str, None] = {}
        for reservation in self.reservations.values():
            if reservation.binds(job) and (reservation.unknown or reservation.start < end):
                found.update(dict.fromkeys(reservation.nodes))
        return tuple(found)

    def beside(self, job: Job, closed: tuple[str, ...], now: float, end: float) -> tuple[tuple[str, Devices], ...]:
        """What the reservations on the *closed* nodes leave to a single *job* until *end*, as ``within`` has it."""
        ask = job.ask
        assert ask is not None
        nodes = self.shadow().nodes
        found = []
        for name in closed:
            node = nodes.get(name)
            if node is None:
                continue
            left = node.free.copy()
            for reservation in node.reserved.values():
                if reservation.binds(job) and (reservation.unknown or reservation.start < end):
                    left.lower_to(self._spare(node, reservation, job, now))
            if node.members(left, ask, 1):
                found.append((name, tuple(index for index, _ in node.slots(left, ask)) if ask.count else ()))
        return tuple(found)

    def _spare(self, node: Node, reservation: Reservation, job: Job, now: float) -> Free:
        """What will be left on *node* at the moment when *reservation* starts."""
        left = node.free.copy()
        for id, (each, shares) in node.runs.items():
            awaited = id in reservation.plan.awaited
            over = awaited if reservation.unknown else each.expected_end(now) <= reservation.start
            if over and each.ask is not None:
                for indexes in shares:
                    left.change(each.ask, indexes, 1)
        others = [
            other
            for other in node.reserved.values()
            if other is reservation or (other.binds(job) and other.holds_at(reservation.start))
        ]
        return self._without(left, node, others)

    def shadow(self) -> Shadow:
        """The cluster as it is now, reservations included."""
        if self._shadow is None or not self._shadow.agrees(self.engine):
            self._shadow = Shadow(self.engine, self.running.values())
            for reservation in self.reservations.values():
                for name in reservation.nodes:
                    if name in self._shadow.nodes:
                        self._shadow.nodes[name].reserved[reservation.job.id] = reservation
        return self._shadow
