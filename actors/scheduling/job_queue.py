"""Queues of the jobs that wait and could start, kept by what they need, each queue in the policy's order.

Requests of one need fit or do not fit together, so each need has a queue of its own: once the first of it does not
fit, the whole queue is closed, and looked at again only when room is freed. The queues of needs that are at least as
large are closed with it. Tenants with limits of their own have queues of their own: one of a tenant at the limit is
held, whole, until that tenant has room again, and costs nothing until then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from actorgrid.demand import Demand
from actorgrid.hotpath import PriorityBitmap
from actorgrid.hotpath.capacity import GangNeeds

from .job import ScheduledJob

COMPARED_MAX = 64
"""Needs known not to fit that others are compared with; further ones close only their equals."""
Key = tuple[Demand, int, str]
"""Demand, class of length, and tenant: see ``JobQueue``."""
_ENDLESS = 10_000
_PER_OCTAVE = 4


def length_class(expected_s: float | None) -> int:
    """Estimates that differ by less than a fifth (a quarter octave) share a queue; none is a class of its own."""
    if expected_s is None:
        return _ENDLESS
    return round(_PER_OCTAVE * math.log2(max(expected_s, 1e-3)))


class JobQueue:
    """The waiting jobs of one need, of one length where the policy makes reservations, of one tenant with limits."""

    __slots__ = ("arguments", "held", "jobs", "key", "needs")

    def __init__(self, key: Key, levels: int, arguments: dict[str, Any] | None) -> None:
        self.key = key
        self.arguments = arguments
        self.needs = GangNeeds(arguments or {}, apart=key[0].apart)
        self.jobs = PriorityBitmap(levels)
        self.held = False
        """Whether its tenant has no room for its first."""

    @property
    def demand(self) -> Demand:
        """The demand that each job of the queue has."""
        return self.key[0]

    @property
    def tenant(self) -> str:
        """The tenant whose jobs these are, where it has limits; else ``""``."""
        return self.key[2]


class JobQueues:
    """The queues by need. One takes about 12 bytes for each of the policy's levels, and goes with its last job."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._queues: dict[Key, JobQueue] = {}
        self._held: dict[str, dict[JobQueue, None]] = {}
        self._held_count = 0
        self.open: dict[JobQueue, None] = {}
        """Lines whose first is worth trying."""
        self._full: dict[Demand, None] = {}

    def __iter__(self) -> Iterator[JobQueue]:
        """The queues that are not held."""
        return (queue for queue in self._queues.values() if not queue.held)

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
        job.queue = queue
        job.demand = queue.demand  # equal, and one object for all of them
        job.needs = queue.needs
        # Orders of equals are told apart by the sequence, which grows as they come.
        job.handle = queue.jobs.insert(job.level, job.order, job)
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
            self.open.pop(queue, None)
            if queue.held:
                self._release_queue(queue)

    def holds(self, tenant: str) -> bool:
        """Whether a queue of *tenant* is held."""
        return tenant in self._held

    def hold(self, queue: JobQueue) -> None:
        """The tenant of *queue* has no room for its first: nobody there is looked at until ``release``."""
        if not queue.held:
            queue.held = True
            self._held.setdefault(queue.tenant, {})[queue] = None
            self._held_count += 1
            self.open.pop(queue, None)

    def release(self, tenant: str | None = None) -> list[JobQueue]:
        """Release the held queues of *tenant* (``None``: of all), which are worth a look again; gives them."""
        tenants = list(self._held) if tenant is None else [tenant]
        found = [queue for each in tenants for queue in self._held.get(each, ())]
        for queue in found:
            self._release_queue(queue)
            self.offer(queue)
        return found

    def _release_queue(self, queue: JobQueue) -> None:
        queue.held = False
        held = self._held[queue.tenant]
        del held[queue]
        if not held:
            del self._held[queue.tenant]
        self._held_count -= 1

    def move(self, job: ScheduledJob, level: int) -> None:
        """Move *job* to another level of its queue."""
        assert job.queue is not None
        job.level = level
        job.queue.jobs.move(job.handle, level)

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
        if queue.demand not in self._full and not queue.held:
            self.open[queue] = None

    def freed(self) -> None:
        """Open every queue, as room came free."""
        self._full.clear()
        self.open = dict.fromkeys(self)

    def reopen(self) -> None:
        """Open the queues that were only kept out by a reservation, as reservations changed."""
        self.open.update((queue, None) for queue in self if queue.demand not in self._full)

    def renew(self, translate: Callable[[Demand], dict[str, Any] | None]) -> None:
        """Translate every need for a changed engine again, and open all queues."""
        for queue in self._queues.values():
            queue.arguments = translate(queue.demand)
            queue.needs = GangNeeds(queue.arguments or {}, apart=queue.demand.apart)
            for job in queue.jobs:
                job.needs = queue.needs
        self.freed()


def heads(queues: Iterable[JobQueue]) -> list[tuple[tuple[int, int, int], ScheduledJob]]:
    """A heap of the queues' first jobs."""
    found = []
    for queue in queues:
        job = queue.jobs.first()
        if job is not None:
            found.append((job.key, job))
    heapq.heapify(found)
    return found
