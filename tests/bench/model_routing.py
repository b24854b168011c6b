"""What 8 gateways keep of one router's hits and waits in simulated chats (``chaos/serving``); a run is a seed."""

from __future__ import annotations

from collections.abc import Iterator

from actorgrid.actors.serving.table import RoutingStrategy
from actorgrid.chaos.serving.simulation import RoutingFigures, simulate

from .figures import Figure, registry

RATES = (10.0, 14.0)
"""Sessions a second: well within what eight replicas can do, and near to it."""
NEWS_S = 0.2
MUST_HASH, MUST_SHARED, MUST_WAIT = 0.9, 0.95, 1.5


@registry.add("model_routing")
def model_routing(runs: int) -> Iterator[Figure]:
    """Of what one router has: the share of hits, and how many times its 99th percentile to the first token."""
    seeds = range(1, max(runs, 5) + 1)
    for rate in RATES:
        alone = [_played(RoutingStrategy.PREFIX_COST, rate, seed) for seed in seeds]
        yield Figure(f"one router, {rate:g}/s: hits", "", [each.hit_ratio for each in alone], True)
        yield Figure(f"one router, {rate:g}/s: p99 to first token", "s", [e.first_token_p99_s for e in alone], False)
        bars = (MUST_HASH, MUST_SHARED, MUST_WAIT) if rate == RATES[0] else (None, None, None)
        for name, strategy, news_s, hits, wait in (
            ("by hash, nothing shared", RoutingStrategy.PREFIX_HASH, None, bars[0], None),
            ("by hash, loads told", RoutingStrategy.PREFIX_HASH, NEWS_S, bars[0], None),
            ("by cost, all told", RoutingStrategy.PREFIX_COST, NEWS_S, bars[1], bars[2]),
        ):
            found = [_played(strategy, rate, seed, 8, news_s) for seed in seeds]
            pairs = list(zip(found, alone, strict=True))
            kept = [one.hit_ratio / other.hit_ratio for one, other in pairs]
            waits = [one.first_token_p99_s / other.first_token_p99_s for one, other in pairs]
            yield Figure(f"8 gateways {name}, {rate:g}/s: hits kept", "", kept, True, must=hits)
            yield Figure(f"8 gateways {name}, {rate:g}/s: p99, times", "", waits, False, must=wait)


def _played(
    strategy: RoutingStrategy, rate: float, seed: int, gateways: int = 1, news_s: float | None = None
) -> RoutingFigures:
    return simulate(strategy, rate, gateways, news_s, seed=seed)
