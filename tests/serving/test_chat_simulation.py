"""Eight gateways before eight replicas keep what one would have: the bars that routing is held to (docs/serving.md)."""

from __future__ import annotations

from functools import cache

from actorgrid.actors.serving.table import RoutingStrategy
from actorgrid.chaos.serving.simulation import RoutingFigures, simulate

RATE = 10.0


@cache
def run(strategy: RoutingStrategy, gateways: int = 1, news_s: float | None = None, seed: int = 1) -> RoutingFigures:
    figures = simulate(strategy, RATE, gateways, news_s, seconds=150.0, seed=seed)
    assert figures.left_over == 0
    assert figures.requests > 3000
    return figures


def test_eight_gateways_that_share_nothing_keep_nine_tenths_of_one_routers_hits() -> None:
    alone = run(RoutingStrategy.PREFIX_COST, seed=2)  # of six seeds the one that a hash does worst on
    hashed = run(RoutingStrategy.PREFIX_HASH, 8, seed=2)
    assert hashed.hit_ratio >= 0.9 * alone.hit_ratio
    assert run(RoutingStrategy.LEAST_LOADED, seed=2).hit_ratio < 0.75 * alone.hit_ratio


def test_eight_that_hear_of_each_other_lose_nothing() -> None:
    alone, shared = run(RoutingStrategy.PREFIX_COST), run(RoutingStrategy.PREFIX_COST, 8, 0.2)
    assert shared.hit_ratio >= 0.95 * alone.hit_ratio
    assert shared.first_token_p99_s <= 1.5 * alone.first_token_p99_s
    assert run(RoutingStrategy.PREFIX_COST, 8).hit_ratio < 0.85 * alone.hit_ratio, "an index that each learns alone"


def test_a_seed_is_a_run() -> None:
    first = simulate(RoutingStrategy.PREFIX_COST, RATE, 8, 0.2, seconds=20.0, seed=7)
    assert simulate(RoutingStrategy.PREFIX_COST, RATE, 8, 0.2, seconds=20.0, seed=7) == first
