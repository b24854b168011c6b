"""Queues of the jobs that wait and could start, kept by what they need, each queue in the policy's order.

Requests of one need fit or do not fit together, so each need has a queue of its own: once the first of it does not
fit, the whole queue is closed, and looked at again only when room is freed. The queues of needs that are at least as
large are closed with it. Users with limits of their own have queues of their own: one of a user at the limit is
held, whole, until that user has room again, and costs nothing until then.

Where tenants share by rank (``fair_share.py``), each has queues of its own too. Those of one need stand in a *line*, of
which only the first, that of the tenant that ranks first, is looked at: if it does not fit, nor do those behind it. So
what a pass costs follows from how many needs there are, and not from how many tenants.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from actorgrid.demand import Demand
from actorgrid.hotpath import PriorityBitmap, RankHeap
from actorgrid.hotpath.capacity import GangNeeds

from .job import ScheduledJob, SortKey

COMPARED_MAX = 64
"""Needs known not to fit that others are compared with; further ones close only their equals."""


class Key(NamedTuple):
    """What the jobs of a queue have in common."""

    demand: Demand
    length: int
    """Class of length."""
    user: str = ""
    """The user, where one has limits of one's own."""
    group: str = ""
    """The tenant, where tenants share by rank."""
    apart: bool = False
    """Whether that tenant may not have each model: what does not fit for it may fit for others."""


TENANT = "\0tenant "
"""Before the name of a tenant whose limits hold queues, so that it is no user's."""
_ENDLESS = 10_000
_PER_OCTAVE = 4


def length_class(expected_s: float | None) -> int:
    """Estimates that differ by less than a fifth (a quarter octave) share a queue; none is a class of its own."""
    if expected_s is None:
        return _ENDLESS
    return round(_PER_OCTAVE * math.log2(max(expected_s, 1e-3)))


class JobQueue:
    """The waiting jobs of one need, of one length where the policy makes reservations, of one tenant with limits."""

    __slots__ = ("arguments", "handle", "held_for", "jobs", "key", "line", "needs", "rank")

    def __init__(self, key: Key, levels: int, arguments: dict[str, Any] | None) -> None:
        self.key = key
        self.arguments = arguments
        self.needs = GangNeeds(arguments or {}, apart=key[0].apart)
        self.jobs = PriorityBitmap(levels)
        self.held_for = ""
        """The user or tenant that has no room for its first; ``""``: it is not held."""
        self.rank = 0.0
        """Where its tenant stands among others with this need."""
        self.line: NeedLine | None = None
        self.handle = -1
        """Its place in that line; -1: it has none."""

    @property
    def held(self) -> bool:
        """Whether its user or tenant has no room for its first."""
        return bool(self.held_for)

    @property
    def demand(self) -> Demand:
        """The demand that each job of the queue has."""
        return self.key.demand

    @property
    def tenant(self) -> str:
        """The user whose jobs these are, where one has limits of one's own; else ``""``."""
        return self.key.user

    @property
    def group(self) -> str:
        """The tenant whose jobs these are, where tenants share by rank; else ``""``."""
        return self.key.group


class NeedLine:
    """The queues of one need, of several tenants, by the rank of their first jobs."""

    __slots__ = ("_heap", "key", "leader", "queues")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.queues: dict[JobQueue, None] = {}
        self.leader: JobQueue | None = None
        """The one that is looked at."""
        self._heap = RankHeap()

    def put(self, queue: JobQueue) -> None:
        """Have *queue* stand where its first job does now; one that is held, or empty, does not stand in the line."""
        first = None if queue.held_for else queue.jobs.first()
        if first is None:
            self.take_out(queue)
        elif queue.handle < 0:
            queue.handle = self._heap.insert(queue.rank, first.level, first.order, first.sequence, queue)
        else:
            self._heap.move(queue.handle, queue.rank, first.level, first.order, first.sequence)

    def take_out(self, queue: JobQueue) -> None:
        """Have *queue* not stand in the line, if it does."""
        if queue.handle >= 0:
            self._heap.remove(queue.handle)
            queue.handle = -1

    def first(self) -> JobQueue | None:
        """The queue that comes first of those that are not held; ``None``: none is left."""
        found: JobQueue | None = self._heap.first()
        return found


class JobQueues:
    """The queues by need. One takes about 12 bytes for each of the policy's levels, and goes with its last job."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._queues: dict[Key, JobQueue] = {}
        self._leading: dict[JobQueue, None] = {}
        self._lines: dict[Key, NeedLine] = {}
        self._groups: dict[str, dict[JobQueue, None]] = {}
        self._held: dict[str, dict[JobQueue, None]] = {}
        self._held_count = 0
        self.open: dict[JobQueue, None] = {}
        """Lines whose first is worth trying."""
        self._full: dict[Demand, None] = {}

    def __iter__(self) -> Iterator[JobQueue]:
        """The queues that are not held; of several tenants' with one need, the first of these."""
        return iter(list(self._leading))

    def __len__(self) -> int:
        return len(self._queues) - self._held_count

    def get(self, key: Key) -> JobQueue | None:
        """The queue of that key, if anyone stands there."""
        return self._queues.get(key)

    def add(self, job: ScheduledJob, key: Key, arguments: dict[str, Any] | None) -> None:
        """Add *job* to the queue of *key*; *arguments* are the engine's (``None``: nothing can serve it)."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = JobQueue(key, self._levels, arguments)
            if key.group:
                self._join_line(queue)
            else:
                self._leading[queue] = None
        job.queue = queue
        job.demand = queue.demand  # equal, and one object for all of them
        job.needs = queue.needs
        # Orders of equals are told apart by the sequence, which grows as they come.
        job.handle = queue.jobs.insert(job.level, job.order, job)
        self._settle(queue)
        self.offer(queue)

    def remove(self, job: ScheduledJob) -> None:
        """Take *job* out of its queue, if it stands in one."""
        queue = job.queue
        if queue is None:
            return
        queue.jobs.remove(job.handle)
        job.queue = None
        if not len(queue.jobs):
            del self._queues[queue.key]
            if queue.held:
                self._release_queue(queue)
            self.open.pop(queue, None)
            self._leading.pop(queue, None)
            self._leave_line(queue)
        else:
            self._settle(queue)

    def holds(self, tenant: str) -> bool:
        """Whether a queue of *tenant* is held."""
        return tenant in self._held

    def hold(self, queue: JobQueue, whom: str) -> None:
        """The user or tenant *whom* has no room for the first of *queue*: it is not looked at until ``release``."""
        if not queue.held:
            queue.held_for = whom
            self._held.setdefault(whom, {})[queue] = None
            self._held_count += 1
            self.open.pop(queue, None)
            self._leading.pop(queue, None)
            self._settle(queue)

    def release(self, tenant: str | None = None) -> list[JobQueue]:
        """Release what is held for *tenant* (``None``: for all), which is worth a look again; gives the queues."""
        tenants = list(self._held) if tenant is None else [tenant]
        found = [queue for each in tenants for queue in self._held.get(each, ())]
        for queue in found:
            self._release_queue(queue)
            self.offer(queue)
        return found

    def _release_queue(self, queue: JobQueue) -> None:
        whom, queue.held_for = queue.held_for, ""
        held = self._held[whom]
        del held[queue]
        if not held:
            del self._held[whom]
        self._held_count -= 1
        if queue.line is None:
            self._leading[queue] = None
        self._settle(queue)

    def move(self, job: ScheduledJob, level: int) -> None:
        """Move *job* to another level of its queue."""
        assert job.queue is not None
        job.level = level
        job.queue.jobs.move(job.handle, level)
        self._settle(job.queue)

    # -- tenants that share by rank

    def rank(self, group: str, rank_of: Callable[[Demand], float], leaving: JobQueue | None = None) -> None:
        """Rank the queues of the tenant *group* anew; *leaving*: the first of that one is taken out next, and it finds
        its place then."""
        for queue in self._groups.get(group, ()):
            rank = rank_of(queue.key.demand)
            if rank != queue.rank:
                queue.rank = rank
                if queue is not leaving:
                    self._settle(queue)

    def groups(self) -> list[str]:
        """The tenants of which jobs wait."""
        return list(self._groups)

    def _join_line(self, queue: JobQueue) -> None:
        key = queue.key
        name = Key(key.demand, key.length, group=key.group if key.apart else "", apart=key.apart)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = NeedLine(name)
        line.queues[queue] = None
        queue.line = line
        self._groups.setdefault(key.group, {})[queue] = None

    def _leave_line(self, queue: JobQueue) -> None:
        line = queue.line
        if line is None:
            return
        del line.queues[queue]
        line.take_out(queue)
        of_group = self._groups[queue.group]
        del of_group[queue]
        if not of_group:
            del self._groups[queue.group]
        if line.queues:
            self._elect(line)
        else:
            del self._lines[line.key]
            line.leader = None

    def _settle(self, queue: JobQueue) -> None:
        """Look who comes first in the line of *queue*, of which something has changed."""
        line = queue.line
        if line is not None:
            line.put(queue)
            self._elect(line)

    def _elect(self, line: NeedLine) -> None:
        best = line.first()
        if best is line.leader:
            return
        if line.leader is not None:
            self._leading.pop(line.leader, None)
            self.open.pop(line.leader, None)
        line.leader = best
        if best is not None:
            self._leading[best] = None
            self.offer(best)

    # -- what is worth trying

    def known_full(self, demand: Demand) -> bool:
        """Whether *demand* cannot fit, because it or something no larger did not, and nothing was freed since."""
        if demand in self._full:
            return True
        return any(demand.needs_at_least(full) for full, _ in zip(self._full, range(COMPARED_MAX), strict=False))

    def full(self, demand: Demand) -> None:
        """Note that *demand* did not fit."""
        self._full[demand] = None

    def offer(self, queue: JobQueue) -> None:
        """Open a queue that has a new first, or one with a better chance."""
        if queue in self._leading and (queue.key.apart or queue.demand not in self._full):
            self.open[queue] = None

    def freed(self) -> None:
        """Open every queue, as room came free."""
        self._full.clear()
        self.open = dict.fromkeys(self._leading)

    def reopen(self) -> None:
        """Open the queues that were only kept out by a reservation, as reservations changed."""
        self.open.update((queue, None) for queue in self._leading if queue.key.apart or queue.demand not in self._full)

    def renew(self, translate: Callable[[Demand], dict[str, Any] | None]) -> None:
        """Translate every need for a changed engine again, and open all queues."""
        for queue in self._queues.values():
            queue.arguments = translate(queue.demand)
            queue.needs = GangNeeds(queue.arguments or {}, apart=queue.demand.apart)
            for job in queue.jobs:
                job.needs = queue.needs
        self.freed()


def heads(queues: Iterable[JobQueue]) -> list[tuple[SortKey, ScheduledJob]]:
    """A heap of the queues' first jobs."""
    found = []
    for queue in queues:
        job = queue.jobs.first()
        if job is not None:
            found.append((job.key, job))
    heapq.heapify(found)
    return found
