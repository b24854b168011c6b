"""What may be chosen, what a request requires, and the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import BadRequest

from .affinity import AffinityRule

MAX_TARGETS = 4096
"""Targets of one balancer."""
MAX_WEIGHT = 1_000_000
MAX_KEY_CHARS = 1024
MAX_RULES = 32


def balancing_policy(name: str) -> BalancingPolicy:
    """The policy of that name. Raises BadRequest."""
    try:
        return BalancingPolicy(name)
    except ValueError:
        raise BadRequest(
            "there is no such balancing policy", asked=repr(name)[:80], hint="one of " + ", ".join(BalancingPolicy)
        ) from None


@dataclass(frozen=True, slots=True)
class TargetNeeds:
    """What a request requires of its target; zero and empty: nothing. Amounts are those of one request."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_memory_mib: int = 0
    """On each of its GPUs."""
    gpu_models: tuple[str, ...] = ()
    """Acceptable models."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the target must have, with these values."""


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A host, lease or replica that exists and takes requests. *weight*: its capacity beside the others', 1 or more."""

    id: str
    host: str
    weight: int = 1
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_memory_mib: int = 0
    """Of its largest GPU."""
    gpu_models: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    data: frozenset[str] = frozenset()
    """Names of the data that it holds."""

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise BadRequest("a weight out of range", asked=f"{self.id}: {self.weight}", hint=f"1 to {MAX_WEIGHT}")

    def lacks(self, needs: TargetNeeds) -> str:
        """What it lacks of *needs*, in words; empty when nothing."""
        for name in ("cpu_milli", "memory_mib", "gpu_count", "gpu_memory_mib"):
            asked, found = getattr(needs, name), getattr(self, name)
            if asked > found:
                return f"{name}: {found} of {asked}"
        if needs.gpu_models and not set(needs.gpu_models) & set(self.gpu_models):
            return f"gpu_models: {', '.join(self.gpu_models) or 'none'}"
        for label, value in needs.labels.items():
            if self.labels.get(label) != value:
                return f"label {label}: {self.labels.get(label, 'none')}"
        return ""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """One request that wants a target.

    *key*: requests of one key go to one target while it has room (a session, a user, a cache). *data*: names of what it
    reads. *rules*: what it wants or avoids (affinity.py). Raises BadRequest for what is too long or too much.
    """

    needs: TargetNeeds = TargetNeeds()
    key: str = ""
    data: tuple[str, ...] = ()
    rules: tuple[AffinityRule, ...] = ()
    exclude: frozenset[str] = frozenset()
    """Targets, or hosts, that are not to get it: those that failed it before."""

    def __post_init__(self) -> None:
        if len(self.key) > MAX_KEY_CHARS:
            raise BadRequest("a key is too long", asked=f"{len(self.key)} characters", hint=f"{MAX_KEY_CHARS} at most")
        if len(self.rules) > MAX_RULES:
            raise BadRequest("too many affinity rules", asked=str(len(self.rules)), hint=f"{MAX_RULES} at most")


@dataclass(frozen=True, slots=True)
class RoutingChoice:
    """The target chosen, and why."""

    target: RouteTarget
    policy: BalancingPolicy
    why: str
    considered: int
    """Targets that were suitable."""
