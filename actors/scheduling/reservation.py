"""A reservation: when and where a job that does not fit now is to start, and what that leaves to others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actorgrid.hotpath.capacity import Devices, GangNeeds
from actorgrid.hotpath.records import Shares

if TYPE_CHECKING:
    from .job import ScheduledJob


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A planned start, at *start*, on *shares*. Infinite: when the *awaited* jobs have ended; nobody knows when.

    *victims* are the running jobs to stop for it.
    """

    start: float
    shares: Shares
    awaited: frozenset[str] = frozenset()
    victims: tuple[str, ...] = ()

    def within(self) -> Shares:
        """The plan's place, as the engine's ``within`` has it: each node once."""
        nodes: dict[str, set[int]] = {}
        for name, indexes in self.shares:
            nodes.setdefault(name, set()).update(indexes)
        return tuple((name, tuple(sorted(indexes))) for name, indexes in nodes.items())


@dataclass(eq=False, slots=True)
class Reservation:
    """A plan that is being kept for *job*: what starts elsewhere leaves it possible.

    A *firm* one was promised, or others are stopped for it: it yields to nobody. Any other yields to jobs that rank
    before *job* and have no reservation of their own.
    """

    job: ScheduledJob
    needs: GangNeeds
    plan: PlannedStart
    firm: bool = False
    nodes: dict[str, list[Devices]] = field(default_factory=dict)
    expected_s: float = 0.0

    def __post_init__(self) -> None:
        for name, indexes in self.plan.shares:
            self.nodes.setdefault(name, []).append(indexes)
        self.expected_s = math.inf if self.job.request.expected_s is None else self.job.request.expected_s

    @property
    def start(self) -> float:
        """The planned start; infinite when nobody knows."""
        return self.plan.start

    @property
    def unknown(self) -> bool:
        """Whether the start is unknown: then the place is closed to all others at once."""
        return math.isinf(self.plan.start)

    @property
    def preempting(self) -> bool:
        """Whether others are stopped for this reservation."""
        return bool(self.plan.victims)

    def binds(self, job: ScheduledJob) -> bool:
        """Whether *job* has to leave the reserved place alone."""
        return job is not self.job and (self.firm or job.reservation is not None or self.job.key < job.key)
