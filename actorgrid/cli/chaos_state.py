"""``chaos state-figures``: the shared state of many hosts on virtual time, at one site and at several."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import click

from .call import CommandContext, json_option, pass_call
from .show import progress, table

PICTURE = click.Path(dir_okay=False, path_type=Path)
ROUND_TRIPS_MS = (20.0, 80.0, 200.0)
LINES_MBIT = (1.0, 10.0, 100.0, 1000.0)
CUT_S, CUT_WRITES_PER_S, CUT_RUNS, TRAFFIC_S = 30.0, 10.0, 3, 20.0
CUT_HOSTS_MAX, BURST_HOSTS_MAX = 60, 30
"""Of the parts that are about lines between sites: what these carry hardly depends on how many hosts are behind."""


@click.command("state-figures")
@click.option("--hosts", type=click.IntRange(6, 8_000), default=120, show_default=True, help="How many hosts.")
@click.option(
    "--sites", type=click.IntRange(2, 16), default=3, show_default=True, help="Sites, where there are several."
)
@click.option("--loss", type=click.FloatRange(0.0, 0.9), default=0.05, show_default=True, help="Share of packets lost.")
@click.option("--writes", type=click.IntRange(1, 1_000), default=10, show_default=True, help="Writes that are timed.")
@click.option("--burst", type=click.IntRange(1, 20_000), default=1_000, show_default=True, help="Writes of the burst.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--plot", "picture", type=PICTURE, metavar="FILE", help="Draw all of it: a .png or .svg file.")
@json_option
@pass_call
def state_figures(
    call: CommandContext,
    /,
    hosts: int,
    sites: int,
    loss: float,
    writes: int,
    burst: int,
    seed: int,
    picture: Path | None,
) -> int:
    """Measure the shared state of many hosts: how soon a write is everywhere, and what hosts and lines carry.

    At one site, and at several with 20, 80 and 200 ms there and back between; after a cut; over narrow lines.
    """
    from actorgrid.chaos.gossip.state_measures import (
        Spread,
        burst_s,
        healed_s,
        site_sizes,
        spread,
        state_traffic,
    )
    from actorgrid.chaos.gossip.state_picture import StateFigures, draw_state
    from actorgrid.chaos.gossip.state_simulation import StateNetwork
    from actorgrid.replay import plots

    if picture is not None:
        plots.check(picture)
    many, one = site_sizes(hosts, sites), site_sizes(hosts, 1)
    sizes = sorted({max(sites, ceil(hosts * share)) for share in (0.03, 0.1, 0.3, 1.0)})
    steps = 1 + 2 * len(ROUND_TRIPS_MS) + 4 * len(sizes) + len(LINES_MBIT)
    found: dict[str, Any] = {}
    spreads: dict[str, Spread] = {}
    bytes_by_hosts: dict[str, list[tuple[int, float]]] = {}
    healed: list[tuple[float, float]] = []
    bursts: list[tuple[float, float]] = []
    with progress(call.json) as report:

        def note(name: str, figures: dict[str, float]) -> None:
            found[name] = figures
            report(name, len(found), steps)

        label = "one site"
        spreads[label] = spread(one, StateNetwork(loss), seed, writes)
        note(f"a write everywhere, s: {label}", _spread(spreads[label]))
        for trip_ms in ROUND_TRIPS_MS:
            label = f"{sites} sites, {trip_ms:g} ms between"
            network = StateNetwork(loss, far_round_trip_s=trip_ms / 1000)
            spreads[label] = spread(many, network, seed, writes)
            note(f"a write everywhere, s: {label}", _spread(spreads[label]))
            network = StateNetwork(loss, far_round_trip_s=trip_ms / 1000)
            few = site_sizes(min(hosts, CUT_HOSTS_MAX), sites)
            times = [healed_s(few, network, seed + more, CUT_S, CUT_WRITES_PER_S) for more in range(CUT_RUNS)]
            healed.append((trip_ms, median(times)))
            note(
                f"the same again after a cut, s: {trip_ms:g} ms between",
                {"hosts": sum(few.values()), "s": healed[-1][1]},
            )
        for size in sizes:
            for label, where in (("one site", site_sizes(size, 1)), (f"{sites} sites", site_sizes(size, sites))):
                for per_s in (0.0, 1.0):
                    each = state_traffic(where, StateNetwork(), seed, TRAFFIC_S, per_s)
                    line = f"{label}, {'one write a second' if per_s else 'at rest'}"
                    bytes_by_hosts.setdefault(line, []).append((size, each.host_bytes_per_s))
                    between = {"between sites": each.line_bytes_per_s} if len(where) > 1 else {}
                    told = {"a host": each.host_bytes_per_s, "at most": each.host_bytes_per_s_max, **between}
                    note(f"bytes/s: {size} hosts, {line}", told)
        for mbit in LINES_MBIT:
            few = site_sizes(min(hosts, BURST_HOSTS_MAX), sites)
            bursts.append((mbit, burst_s(few, StateNetwork(far_bytes_per_s=mbit * 125_000), seed, burst)))
            note(
                f"a burst of {burst} writes everywhere, s: {mbit:g} Mbit/s",
                {"hosts": sum(few.values()), "s": bursts[-1][1]},
            )
    if picture is not None:
        figures = StateFigures(
            spreads,
            bytes_by_hosts,
            {f"{min(hosts, CUT_HOSTS_MAX)} hosts, one of {sites} sites cut off": healed},
            {f"{burst} writes of 200 bytes": bursts},
        )
        draw_state(picture, f"Shared state of {hosts} simulated hosts, {loss:.0%} of packets lost", figures)
    if call.json:
        call.document(found)
    else:
        table(["WHAT", "FIGURES"], [[name, _shown(each)] for name, each in found.items()], "nothing")
    return 0


def _spread(times: Any) -> dict[str, float]:
    return {
        "half": _middle(times.half),
        "all": _middle(times.everywhere),
        "max": _most(times.everywhere),
        "missing": times.missing,
    }


def _middle(samples: Sequence[float]) -> float:
    return round(median(samples), 3) if samples else 0.0


def _most(samples: Sequence[float]) -> float:
    return round(max(samples), 3) if samples else 0.0


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
