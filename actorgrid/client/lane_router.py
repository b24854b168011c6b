"""Which of a lane's workers gets a call under a policy other than the least loaded. Decisions only.

By the same policies as hosts and replicas are chosen by (actorgrid/balancing). What comes while no worker has room
waits in the lane, and goes to whichever has room first, under every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actorgrid.balancing.policies import Chooser, SmoothWeightedRoundRobin, TargetLoads, chooser_of
from actorgrid.balancing.targets import RouteTarget, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy

if TYPE_CHECKING:
    from .lanes import LeasedWorker

LEAST_LOADED = frozenset({BalancingPolicy.LEAST_LOADED.value, BalancingPolicy.CAPABILITY_BASED.value})
"""All workers of a lane have what its calls require, so these two are one here."""
FASTEST_WEIGHT = 100


class LaneRouter:
    """Chooses by each policy that was asked for; remembers turns and credit, of the workers there are."""

    def __init__(self) -> None:
        self._choosers: dict[str, Chooser] = {}

    def choose(self, links: Sequence[LeasedWorker], estimate_s: float, policy: str, key: str) -> LeasedWorker | None:
        """The worker for a call; ``None`` where none has room."""
        there = {link.lease_id: link for link in links if link.has_capacity(estimate_s)}
        if not there:
            return None
        chooser = self._choosers.get(policy)
        if chooser is None:
            chooser = self._choosers[policy] = chooser_of(BalancingPolicy(policy))
        fastest = min((link.pace_s for link in there.values() if link.pace_s), default=0.0)
        targets = [RouteTarget(id, id, weight=_weight(link, fastest, policy)) for id, link in there.items()]
        if isinstance(chooser, SmoothWeightedRoundRobin):
            chooser.forget({link.lease_id for link in links})
        loads = TargetLoads({id: float(len(link.calls)) for id, link in there.items()}, exact=True)
        return there[chooser.choose(targets, RoutingRequest(key=key), loads, _first).id]


def _weight(link: LeasedWorker, fastest: float, policy: str) -> int:
    """The speed of a worker beside the fastest one's, as its calls went lately; keys stay where they are, whatever."""
    if policy == BalancingPolicy.WEIGHTED_ROUND_ROBIN and link.pace_s:
        return max(1, round(FASTEST_WEIGHT * fastest / link.pace_s))
    return FASTEST_WEIGHT


def _first(_below: int) -> int:
    return 0  # loads are known, not heard of: no chance is needed
