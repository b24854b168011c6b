"""Preemption: the search for jobs to stop, so that one that waits fits into what they free.

Freed GPUs that lie scattered over nodes help nobody, so victims are chosen node by node: for each node the
cheapest set of running jobs whose end makes room for one more member, then the cheapest nodes until the whole gang
has room. Cheapest: fewest victims, then the lowest priority, then least work lost. A victim that turns out not
to be needed is let off.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from actorgrid.hotpath.capacity import Devices, Free

from .job import ScheduledJob
from .planner import Planner
from .preemption_view import NodeOccupancy
from .reservation import PlannedStart

VICTIMS_MAX = 256
"""Jobs stopped for one other at most; a plan that needs more is none."""
Eligible = Callable[[ScheduledJob], bool]
Cost = tuple[int, int, int]


def choose_victims(planner: Planner, job: ScheduledJob, now: float, eligible: Eligible) -> PlannedStart | None:
    """The plan that starts *job* soonest by stopping *eligible* running jobs, or ``None`` when that does not help.

    Jobs that were asked to stop already are not asked again. The start is when the last victim's grace is over.
    """
    search = _Search(planner, job, now, eligible)
    return search.run() if search.may_stop else None


def plan_after_stopped(planner: Planner, job: ScheduledJob, now: float) -> PlannedStart | None:
    """The plan that starts *job* once those have ended that are being stopped already; ``None``: not by that alone."""
    return _Search(planner, job, now, lambda _: False).run()


class _Search:
    def __init__(self, planner: Planner, job: ScheduledJob, now: float, eligible: Eligible) -> None:
        assert job.needs is not None
        self.job, self.needs, self.now = job, job.needs, now
        self.planner = planner
        self.nodes = planner.preemption_view().nodes
        self.may_stop = {
            id: each for id, each in planner.running.items() if each.stopping_at is None and eligible(each)
        }
        self.free: dict[str, Free] = {}
        self.stopping = [each for each in planner.running.values() if each.stopping_at is not None]
        for each in self.stopping:
            for name in self._nodes_of(each):
                free = self.free.setdefault(name, self.nodes[name].free.copy())
                self._shift(free, self.nodes[name], each, 1)
        self.victims: dict[str, ScheduledJob] = {}
        self.counts: dict[str, int] = {}

    def run(self) -> PlannedStart | None:
        total = 0
        offers: list[tuple[Cost, int, NodeOccupancy, tuple[ScheduledJob, ...]]] = []
        for node in self.nodes.values():
            self.counts[node.name] = found = node.members(self._left(node), self.needs, self.needs.gang)
            total += found
            self._offer(node, offers)
        while total < self.needs.gang:
            if not offers or len(self.victims) > VICTIMS_MAX:
                return None
            _, _, node, victims = heapq.heappop(offers)
            if any(each.id in self.victims for each in victims):
                self._offer(node, offers)  # a gang chosen for another node was among them
                continue
            for each in victims:
                total += self._stop(each)
            self._offer(node, offers)
        self._let_off(total)
        if len(self.victims) > VICTIMS_MAX:
            return None
        return self._plan()

    def _left(self, node: NodeOccupancy) -> Free:
        """The room on *node* with the victims gone, less what others have reserved there."""
        free = self.free.get(node.name, node.free)
        others = [each for id, each in node.reserved.items() if id != self.job.id]
        if not others:
            return free
        left = free.copy()
        for each in others:
            for indexes in each.nodes[node.name]:
                left.change(each.needs, indexes, -1)
        return left

    def _offer(
        self, node: NodeOccupancy, offers: list[tuple[Cost, int, NodeOccupancy, tuple[ScheduledJob, ...]]]
    ) -> None:
        """Put the cheapest way to one more member on *node* among the offers."""
        here = [each for id, (each, _) in node.runs.items() if id in self.may_stop and id not in self.victims]
        if not here or self.counts[node.name] >= self.needs.gang:
            return
        best: tuple[Cost, tuple[ScheduledJob, ...]] | None = None
        for order in (self._worth, self._size):
            found = self._enough(node, sorted(here, key=order))
            if found is not None and (best is None or self._cost(found) < best[0]):
                best = self._cost(found), found
        if best is not None:
            heapq.heappush(offers, (best[0], node.number, node, best[1]))

    def _enough(self, node: NodeOccupancy, candidates: list[ScheduledJob]) -> tuple[ScheduledJob, ...] | None:
        """The first *candidates* whose end makes room for another member, without those that turn out not to matter."""
        left = self._left(node).copy()
        wanted = self.counts[node.name] + 1
        taken: list[ScheduledJob] = []
        for each in candidates:
            self._shift(left, node, each, 1)
            taken.append(each)
            if node.members(left, self.needs, wanted) == wanted:
                break
        else:
            return None
        for each in taken[:-1][::-1]:
            self._shift(left, node, each, -1)
            if node.members(left, self.needs, wanted) == wanted:
                taken.remove(each)
            else:
                self._shift(left, node, each, 1)
        return tuple(taken)

    @staticmethod
    def _shift(free: Free, node: NodeOccupancy, job: ScheduledJob, sign: int) -> None:
        assert job.needs is not None
        for indexes in node.runs[job.id][1]:
            free.change(job.needs, indexes, sign)

    def _stop(self, victim: ScheduledJob) -> int:
        """Count *victim* among the victims; gives how many more members fit by that."""
        self.victims[victim.id] = victim
        return self._count_anew(victim, 1)

    def _count_anew(self, job: ScheduledJob, sign: int) -> int:
        gained = 0
        for name in self._nodes_of(job):
            node = self.nodes[name]
            free = self.free.setdefault(name, node.free.copy())
            self._shift(free, node, job, sign)
            found = node.members(self._left(node), self.needs, self.needs.gang)
            gained += found - self.counts[name]
            self.counts[name] = found
        return gained

    def _nodes_of(self, job: ScheduledJob) -> list[str]:
        assert job.placement is not None
        return [name for name in dict.fromkeys(name for name, _ in job.placement.shares) if name in self.nodes]

    def _let_off(self, total: int) -> None:
        for each in sorted(self.victims.values(), key=self._worth, reverse=True):
            gained = self._count_anew(each, -1)
            if total + gained >= self.needs.gang:
                total += gained
                del self.victims[each.id]
            else:
                self._count_anew(each, 1)

    def _plan(self) -> PlannedStart:
        start = self.now + max((each.request.grace_s for each in self.victims.values()), default=0.0)
        shares: list[tuple[str, Devices]] = []
        able = [node for node in self.nodes.values() if self.counts[node.name]]
        for node in sorted(able, key=lambda node: (-self.counts[node.name], node.number)):
            wanted = min(self.counts[node.name], self.needs.gang - len(shares))
            if wanted <= 0:
                break
            shares += [(node.name, indexes) for indexes in node.choose(self._left(node), self.needs, wanted)]
        here = {name for name, _ in shares}
        for each in self.stopping:
            if each.stopping_at is not None and not here.isdisjoint(self._nodes_of(each)):
                start = max(start, each.stopping_at)
        return PlannedStart(start, tuple(shares), victims=tuple(self.victims))

    def _worth(self, job: ScheduledJob) -> tuple[int, int, int]:
        return job.request.priority, self._lost(job), job.sequence

    def _size(self, job: ScheduledJob) -> tuple[int, int, int]:
        return -job.request.demand.total_gpu_milli, job.request.priority, job.sequence

    def _lost(self, job: ScheduledJob) -> int:
        """The work lost by stopping the job: the milli-GPU-seconds of its present run."""
        return int((self.now - job.started_at) * job.request.demand.total_gpu_milli)

    def _cost(self, victims: tuple[ScheduledJob, ...]) -> Cost:
        return (
            len(victims),
            max(each.request.priority for each in victims),
            sum(self._lost(each) for each in victims),
        )
