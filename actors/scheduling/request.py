"""Requests to the scheduler (a job, a lease, a gang that waits) and its decisions about them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, BadRequest
from actorgrid.hotpath import Placement

DEFAULT_PRIORITY = 50
LEASE_PRIORITY = 101
"""A client waits for a lease with its eyes open, so leases go before jobs of any priority."""


@dataclass(frozen=True, slots=True)
class Request:
    """One job, lease or gang that wants room. All times are seconds of one clock, the scheduler's ``now``.

    A higher *priority* is served first, under the policies that look at it. *expected_s* is how long it will run at
    most, as far as anyone knows: the owner's estimate or the bound after which it is stopped; without it it counts as
    endless wherever ends matter. *deadline* is when it must be done; a *strict* one is refused when that cannot be
    kept. *grace_s* is how long it takes to stop when preempted. *ran_s* is how long it has run before, in earlier
    attempts. *near* names a node on which it is tried first, under every policy.

    Raises BadRequest for times that are none.
    """

    id: str
    demand: Demand
    priority: int = 0
    tenant: str = ""
    submitted_at: float = 0.0
    expected_s: float | None = None
    deadline: float | None = None
    preemptible: bool = True
    grace_s: float = 0.0
    strict: bool = True
    ran_s: float = 0.0
    near: str = ""

    def __post_init__(self) -> None:
        times = {"submitted_at": self.submitted_at, "grace_s": self.grace_s, "ran_s": self.ran_s}
        if self.expected_s is not None:
            times["expected_s"] = self.expected_s
        if self.deadline is not None:
            times["deadline"] = self.deadline
        for name, value in times.items():
            if not math.isfinite(value) or (name != "submitted_at" and value < 0):
                raise BadRequest(f"{name} is no time", asked=f"{name}={value}", hint="seconds, finite, not negative")


@dataclass(frozen=True, slots=True)
class Start:
    """*request* may start: the engine holds *placement* for it. *latency_us* is how long placing took."""

    request: Request
    placement: Placement
    latency_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop the running job *id* within *grace_s*, so that *for_id* can start; then tell ``Scheduler.preempted``."""

    id: str
    grace_s: float
    for_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The waiting job *id* is given up, for the reason *why*; it waits no longer.

    *error* is what ``admit`` refused it with; ``None`` when its time has passed.
    """

    id: str
    why: str
    error: ActorGridError | None = None


Decision = Start | Preempt | Refuse
