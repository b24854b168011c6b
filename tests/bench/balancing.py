"""What requests wait under each balancing policy, in simulated time, and what a choice costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from actorgrid.balancing.core import Balancer
from actorgrid.balancing.targets import RouteTarget, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy
from tests.balancing.queue_simulation import RANDOM, TOWNS, simulate

from .figures import Figure, registry

CHOICES = 2000


@registry.add("balancing")
def balancing(runs: int) -> Iterator[Figure]:
    """The 99th percentile of what requests wait, for each workload and policy; a run is a seed."""
    for name, town in TOWNS.items():
        for policy in (RANDOM, *BalancingPolicy):
            waits = [simulate(town, policy, seed).p99_s for seed in range(1, runs + 1)]
            yield Figure(f"{name}: {policy}, p99 wait", "s", waits, False)
    for count in (10, 100):
        for policy in BalancingPolicy:
            costs = [_choice_us(count, policy) for _ in range(runs)]
            yield Figure(f"a choice of {count}: {policy}", "us", costs, False)


def _choice_us(count: int, policy: BalancingPolicy) -> float:
    made = Balancer(policy)
    made.set_targets(RouteTarget(f"t{number}", f"h{number}", weight=1 + number % 3) for number in range(count))
    for number in range(count):
        made.heard(f"h{number}", number % 7, 1.0)
    draw = Random(1).randrange
    started = time.perf_counter()
    for number in range(CHOICES):
        target = made.choose(RoutingRequest(key=f"key-{number}"), 2.0, draw).target
        made.began(target.id, 2.0)
        made.ended(target.id, 2.0)
    return (time.perf_counter() - started) / CHOICES * 1e6
