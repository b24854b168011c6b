"""``chaos routing-figures``: what several gateways keep of one router's hits, in chat traffic on virtual time."""

from __future__ import annotations

from statistics import median
from typing import Any

import click

from .call import CommandContext, json_option, pass_call
from .show import progress, table

GATEWAYS_MAX = 64


@click.command("routing-figures")
@click.option(
    "--gateways", type=click.IntRange(2, GATEWAYS_MAX), default=8, show_default=True, help="Before eight replicas."
)
@click.option("--rate", type=click.FloatRange(0.1, 30.0), default=10.0, show_default=True, help="Sessions a second.")
@click.option(
    "--seconds", type=click.FloatRange(1.0, 3_600.0), default=150.0, show_default=True, help="Of virtual time."
)
@click.option("--news-s", type=click.FloatRange(0.01, 3.0), default=0.2, show_default=True, help="How late they hear.")
@click.option("--seeds", type=click.IntRange(1, 1_000), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@json_option
@pass_call
def routing_figures(
    call: CommandContext, /, gateways: int, rate: float, seconds: float, news_s: float, seeds: int, seed: int
) -> int:
    """Measure what several gateways keep of one router's cache hits and waits, each strategy for models.

    A request meets any of the gateways at random. The replicas are simulated; the router is the one that gateways use.
    """
    from actorgrid.actors.serving.table import RoutingStrategy
    from actorgrid.chaos.serving.simulation import simulate

    ways: tuple[tuple[str, RoutingStrategy, int, float | None], ...] = (
        ("one router, prefix_cost", RoutingStrategy.PREFIX_COST, 1, None),
        (f"{gateways}, prefix_hash, nothing told", RoutingStrategy.PREFIX_HASH, gateways, None),
        (f"{gateways}, prefix_hash, loads told", RoutingStrategy.PREFIX_HASH, gateways, news_s),
        (f"{gateways}, prefix_cost, all told", RoutingStrategy.PREFIX_COST, gateways, news_s),
        (f"{gateways}, least_loaded", RoutingStrategy.LEAST_LOADED, gateways, news_s),
    )
    found: list[dict[str, Any]] = []
    with progress(call.json) as report:
        for number, (name, strategy, count, news) in enumerate(ways, 1):
            runs = [simulate(strategy, rate, count, news, seconds, each) for each in range(seed, seed + seeds)]
            hits, waits = [each.hit_ratio for each in runs], [each.first_token_p99_s for each in runs]
            first_hits, first_waits = (found[0]["hits"], found[0]["p99_s"]) if found else (hits, waits)
            found.append(
                {
                    "way": name,
                    "hits": hits,
                    "p99_s": waits,
                    "hits_kept": [_share(one, of) for one, of in zip(hits, first_hits, strict=True)],
                    "p99_times": [_share(one, of) for one, of in zip(waits, first_waits, strict=True)],
                }
            )
            report(name, number, len(ways))
    if call.json:
        call.document(found)
    else:
        rows = [
            [row["way"], f"{median(row['hits']):.2f}", _spread(row["hits_kept"]), _spread(row["p99_times"])]
            for row in found
        ]
        table(["GATEWAYS", "HITS", "KEPT", "P99 TO FIRST TOKEN, TIMES"], rows, "nothing")
    return 0


def _share(one: float, of: float) -> float:
    return round(one / of, 3) if of else 0.0


def _spread(found: list[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
