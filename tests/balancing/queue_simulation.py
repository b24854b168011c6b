"""Servers with queues, and several balancers that hear of each other's load late: in simulated time.

    .venv/bin/python -m tests.bench --only balancing

A server works on one request after another at its speed. Each balancer sees its own requests at once, and the queues of
the servers as they were at the last publication, ``gossip_s`` apart and ``delay_s`` late. Arrivals are Poisson.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from actorgrid.balancing.core import Balancer
from actorgrid.balancing.targets import RouteTarget, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy

RANDOM = "random"
"""Any server, whatever its weight: what the policies are compared with."""


@dataclass(frozen=True, slots=True)
class Town:
    """A workload: the servers' *speeds* (requests of mean size that one does in a second), and how busy they are."""

    speeds: tuple[int, ...]
    busy: float = 0.8
    balancers: int = 8
    gossip_s: float = 2.0
    delay_s: float = 0.1
    requests: int = 20_000
    heavy: bool = False
    """Whether sizes are lognormal (a tenth of the requests is most of the work); else exponential."""
    keys: int = 0
    """Requests carry one of so many keys, the first ones far more often (Zipf)."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What requests waited before they were begun, in seconds."""

    p50_s: float
    p99_s: float
    mean_s: float


def simulate(town: Town, policy: str, seed: int) -> Waits:
    """Play *town* under *policy*; the same seed has the same arrivals, sizes and keys under every policy."""
    arrivals, dice = Random(seed), Random(seed + 1)
    names = [f"s{number:03d}" for number in range(len(town.speeds))]
    speeds = dict(zip(names, town.speeds, strict=True))
    targets = [RouteTarget(name, name, weight=speed) for name, speed in speeds.items()]
    balancers = [
        Balancer(BalancingPolicy.LEAST_LOADED if policy == RANDOM else BalancingPolicy(policy))
        for _ in range(town.balancers)
    ]
    for balancer in balancers:
        balancer.set_targets(targets)
    free_at = dict.fromkeys(names, 0.0)
    in_flight = dict.fromkeys(names, 0)
    ends: list[tuple[float, int, str, Balancer]] = []
    count = itertools.count()
    rate = town.busy * sum(town.speeds)
    draw_key = _zipf(town.keys, arrivals) if town.keys else lambda: ""
    waits: list[float] = []
    now, publish_at = 0.0, 0.0
    news: list[tuple[float, float, dict[str, int]]] = []  # arrives, taken, queues
    for _ in range(town.requests):
        now += arrivals.expovariate(rate)
        size = arrivals.lognormvariate(-1.5, 1.732) if town.heavy else arrivals.expovariate(1.0)
        key, whose = draw_key(), arrivals.randrange(town.balancers)
        while True:
            due = min(ends[0][0] if ends else now, publish_at, news[0][0] if news else now)
            if due >= now:
                break
            if news and news[0][0] == due:
                _, taken_at, queues = news.pop(0)
                for balancer in balancers:
                    for name, queue in queues.items():
                        balancer.heard(name, queue, taken_at)
            elif publish_at == due:
                news.append((due + town.delay_s, due, dict(in_flight)))
                publish_at += town.gossip_s
            else:
                _, _, name, balancer = heapq.heappop(ends)
                in_flight[name] -= 1
                balancer.ended(name, due)
        balancer = balancers[whose]
        if policy == RANDOM:
            name = dice.choice(names)
        else:
            name = balancer.choose(RoutingRequest(key=key), now, dice.randrange).target.id
        begins = max(now, free_at[name])
        free_at[name] = begins + size / speeds[name]
        in_flight[name] += 1
        balancer.began(name, now)
        heapq.heappush(ends, (free_at[name], next(count), name, balancer))
        waits.append(begins - now)
    waits = sorted(waits[len(waits) // 10 :])  # the first tenth fills the queues
    return Waits(waits[len(waits) // 2], waits[len(waits) * 99 // 100], sum(waits) / len(waits))


def _zipf(keys: int, dice: Random) -> Callable[[], str]:
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(keys)))
    names = [f"key-{rank}" for rank in range(keys)]
    return lambda: dice.choices(names, cum_weights=weights)[0]


EVEN = Town(speeds=(10,) * 10)
SKEWED = Town(speeds=(40, 40, 10, 10, 10, 10, 10, 10, 10, 10))
HEAVY = Town(speeds=(10,) * 10, heavy=True)
STALE = Town(speeds=(10,) * 10, gossip_s=10.0)
KEYS = Town(speeds=(10,) * 10, keys=200)
TOWNS = {"even": EVEN, "skewed": SKEWED, "heavy": HEAVY, "stale": STALE, "keys": KEYS}
