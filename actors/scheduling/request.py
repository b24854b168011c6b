"""What waits for room and what the scheduler says about it: requests and decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, BadRequest
from actorgrid.hotpath import Placement
from actorgrid.hotpath.records import MAX_GANG, WHOLE_GPU_MILLI, Shares

NEAR, APART = "near", "apart"
"""How the members of a gang are to lie: on few hosts of one rack, or on one host each. Else: as the engine likes."""


class Need(NamedTuple):
    """What a request takes of the cluster; requests of one need fit or do not fit together."""

    cpu_milli: int
    memory_mib: int
    gpu_count: int
    gpu_milli: int
    gpu_memory_mib: int
    gpu_models: tuple[str, ...]
    gang: int
    within: Shares
    affinity: tuple[str, ...]
    layout: str = ""

    @property
    def apart(self) -> bool:
        """Whether no two members may share a node."""
        return self.layout == APART

    def needs_at_least(self, other: Need) -> bool:
        """Whether room for this one would be room for *other*: then it cannot fit where *other* did not."""
        return (
            self.gang >= other.gang
            and (self.apart or not other.apart or other.gang == 1)
            and self.gpu_count >= other.gpu_count
            and self.gpu_milli >= other.gpu_milli
            and self.gpu_memory_mib >= other.gpu_memory_mib
            and self.cpu_milli >= other.cpu_milli
            and self.memory_mib >= other.memory_mib
            and self.within == other.within
            and (not other.affinity or self.affinity == other.affinity)
            and (not other.gpu_count or self.gpu_models == other.gpu_models)
        )

    def arguments(self) -> dict[str, Any]:
        """As the engine's ``place`` takes it."""
        found: dict[str, Any] = {"cpu_milli": self.cpu_milli, "memory_mib": self.memory_mib, "gang": self.gang}
        if self.gpu_count:
            found.update(gpu_count=self.gpu_count, gpu_milli=self.gpu_milli, gpu_memory_mib=self.gpu_memory_mib)
            if self.gpu_models:
                found["gpu_models"] = self.gpu_models
        if self.affinity:
            found["prefer_racks"] = self.affinity
        if self.within:
            found["within"] = self.within
        return found


@dataclass(frozen=True, slots=True)
class Request:
    """One job, lease or gang that wants room. All times are seconds of one clock, the scheduler's ``now``.

    Amounts are per gang member, and of GPUs per device. A higher *priority* is served first, under the policies
    that look at it. *expected_s* is how long it will run at most, as far as anyone knows: the owner's estimate or the
    bound after which it is stopped; without it it counts as endless wherever ends matter. *deadline* is when it must
    be done; a *strict* one is refused when that cannot be kept. *grace_s* is how long it takes to stop when preempted.
    *ran_s* is how long it has run before, in earlier attempts.
    *affinity* names racks and nodes it would like, *within* the only nodes and devices it may have (in the form
    of ``Placement.shares``; empty: any). *layout* says how the members of a gang are to lie: ``NEAR`` each other or
    ``APART``; empty: as the engine's policy likes. *near* names a node on which it is tried first, under every policy.

    Raises BadRequest for amounts, times or a gang (1 to 4096) out of range.
    """

    id: str
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = WHOLE_GPU_MILLI
    gpu_memory_mib: int = 0
    gpu_models: tuple[str, ...] = ()
    gang: int = 1
    priority: int = 0
    tenant: str = ""
    submitted_at: float = 0.0
    expected_s: float | None = None
    deadline: float | None = None
    preemptible: bool = True
    grace_s: float = 0.0
    affinity: tuple[str, ...] = ()
    strict: bool = True
    within: Shares = ()
    ran_s: float = 0.0
    layout: str = ""
    near: str = ""

    def __post_init__(self) -> None:
        if min(self.cpu_milli, self.memory_mib, self.gpu_count, self.gpu_memory_mib) < 0:
            raise BadRequest("a request asks for less than nothing", asked=self.id, hint="amounts are zero or more")
        if not 1 <= self.gang <= MAX_GANG:
            raise BadRequest(
                "a gang out of range", asked=f"{self.gang} members", hint=f"a gang has 1 to {MAX_GANG} members"
            )
        if not 1 <= self.gpu_milli <= WHOLE_GPU_MILLI:
            raise BadRequest(
                "a share of a GPU out of range", asked=f"{self.gpu_milli} thousandths", hint="1 to 1000 thousandths"
            )
        times = {"submitted_at": self.submitted_at, "grace_s": self.grace_s, "ran_s": self.ran_s}
        if self.expected_s is not None:
            times["expected_s"] = self.expected_s
        if self.deadline is not None:
            times["deadline"] = self.deadline
        for name, value in times.items():
            if not math.isfinite(value) or (name != "submitted_at" and value < 0):
                raise BadRequest(f"{name} is no time", asked=f"{name}={value}", hint="seconds, finite, not negative")

    @property
    def need(self) -> Need:
        """What it takes of the cluster; without GPUs, what else is said of them is dropped."""
        gpus = bool(self.gpu_count)
        return Need(
            self.cpu_milli,
            self.memory_mib,
            self.gpu_count,
            self.gpu_milli if gpus else WHOLE_GPU_MILLI,
            self.gpu_memory_mib if gpus else 0,
            tuple(sorted(self.gpu_models)) if gpus else (),
            self.gang,
            self.within,
            self.affinity,
            self.layout if self.gang > 1 else "",
        )

    @property
    def total_gpu_milli(self) -> int:
        """Thousandths of GPUs that all its members take together."""
        return self.gang * self.gpu_count * self.gpu_milli


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
