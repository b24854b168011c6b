"""Allocation on production traces against the published record; completion times against first come, first served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from actorgrid.hotpath import PlacementEngine
from actorgrid.replay import catalogue
from actorgrid.replay.runs import Run, Setup, prepare
from actorgrid.replay.runs import replay as run_all

from .figures import Figure, registry

SEEDS = tuple(range(42, 52))
BARS = {
    "openb": (96.0, None),
    "openb-gpushare20": (97.0, None),
    "openb-gpushare40": (94.4, None),
    "openb-gpushare80": (90.2, None),
    "openb-gpuspec10": (95.8, None),
    "openb-gpuspec20": (95.8, None),
    "openb-gpuspec25": (95.5, None),
    "openb-cpu100": (95.8, None),
    "openb-cpu200": (96.0, None),
    "openb-multigpu20": (96.2, None),
}
"""Per cent of the GPUs given out when 100 % have been asked for: must, stretch."""
PUBLISHED = {
    "openb": {"fgd": 95.23, "best_fit": 92.86},
    "openb-gpushare40": {"fgd": 93.96, "best_fit": 91.44},
    "openb-multigpu20": {"fgd": 95.53, "best_fit": 93.73},
}
"""FGD and BestFit by the artefact of Weng et al. (USENIX ATC 2023), means of ten seeds."""
PHILLY = ("philly-11cb48", "philly-ee9e8c")
SHORTER_BY = 25.0
"""Per cent under first come, first served in the mean completion time: must."""


def _runs(name: str, **more: Any) -> list[Run]:
    trace = catalogue.find(name)
    return list(run_all(prepare(Setup(catalogue.nodes_of(trace.cluster), catalogue.tasks_of(trace), **more))))


def _latencies(runs: Sequence[Run], name: str) -> tuple[list[float], float, float]:
    """Of each run the median; of all the worst 99th and 99.9th percentile."""
    each = [run.latency_us[name] for run in runs]
    return [one["p50"] for one in each], max(one["p99"] for one in each), max(one["p999"] for one in each)


@registry.add("replay")
def replay(_runs_asked: int) -> Iterator[Figure]:
    """FGD's inflation protocol on ten mixes, ten seeds each (the number of runs is the protocol's)."""
    default = PlacementEngine().policy
    for name, (must, stretch) in BARS.items():
        for policy in (default, "fgd", "best_fit"):
            found = _runs(name, mode="inflate", policies=(policy,), seeds=SEEDS)
            judged = policy == default
            published = PUBLISHED.get(name, {}).get(policy)
            yield Figure(
                f"{name}: allocated at 100 %, {policy}",
                "%",
                [100 * run.figures["allocated_at_100"] for run in found],
                higher_is_better=True,
                must=must if judged else None,
                stretch=stretch if judged else None,
                note=f"published {published}" if published else "the default" if judged else "",
            )
            if judged:
                medians, p99, p999 = _latencies(found, "place")
                note = f"p99.9 {p999:.1f}, worst seed"
                yield Figure(f"{name}: place while filling up", "µs", medians, False, p99=p99, note=note)


@registry.add("replay_queues")
def replay_queues(_runs_asked: int) -> Iterator[Figure]:
    """Mean completion times on the Philly traces, backfill and priority against first come, first served."""
    for name in PHILLY:
        queues = ("fifo", "easy_backfill")
        first, backfill = _runs(name, mode="queue", policies=(PlacementEngine().policy,), queues=queues)
        before, after = (run.figures["jct_s"]["mean"] / 3600 for run in (first, backfill))
        yield Figure(
            f"{name}: mean JCT under fifo's, easy_backfill",
            "%",
            [100 * (1 - after / before)],
            higher_is_better=True,
            must=SHORTER_BY,
            note=f"fifo {before:.1f} h, easy_backfill {after:.1f} h",
        )
