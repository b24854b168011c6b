"""What a replay is judged by: allocation, waiting, completion times, fairness, deadlines, lost work, latency.

Percentiles are nearest-rank: the smallest sample that at least that share of the samples does not exceed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .inflation import Inflated
from .simulation import Replayed, TaskOutcome

GANG_SIZES = (1, 2, 4, 8, 16, 32, 64)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of samples in ascending order, at least one."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Iterable[float]) -> dict[str, float | int]:
    """``count``, and where there are samples ``mean``, ``p50``, ``p99``, ``p999``, ``max``."""
    ordered = sorted(samples)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        "p50": percentile(ordered, 0.5),
        "p99": percentile(ordered, 0.99),
        "p999": percentile(ordered, 0.999),
        "max": ordered[-1],
    }


def jain(values: Sequence[float]) -> float | None:
    """Jain's index of fairness: 1 when all get the same, 1/n when one gets everything; ``None`` without values.

    Jain, Chiu, Hawe, "A Quantitative Measure of Fairness" (DEC TR-301, 1984).
    """
    squares = math.fsum(value * value for value in values)
    if not values:
        return None
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


class Contention:
    """How many jobs were in the system, waiting or running, on average over any stretch of time."""

    def __init__(self, stays: Iterable[tuple[float, float]]) -> None:
        changes: dict[float, int] = {}
        for begin, end in stays:
            changes[begin] = changes.get(begin, 0) + 1
            changes[end] = changes.get(end, 0) - 1
        self._times = sorted(changes)
        self._counts: list[int] = []
        self._areas: list[float] = []
        count, area, last = 0, 0.0, 0.0
        for at in self._times:
            area += count * (at - last) if self._areas else 0.0
            count += changes[at]
            last = at
            self._counts.append(count)
            self._areas.append(area)

    def mean(self, begin: float, end: float) -> float:
        """Jobs in the system from *begin* to *end*, which is later; at least 1, the one that asks."""
        return max(1.0, (self._area(end) - self._area(begin)) / (end - begin))

    def _area(self, at: float) -> float:
        index = bisect_right(self._times, at) - 1
        return 0.0 if index < 0 else self._areas[index] + self._counts[index] * (at - self._times[index])


def finish_time_fairness(outcomes: Iterable[TaskOutcome], capacity_gpu_milli: int) -> dict[str, float]:
    """rho of each finished job, by id: its completion time over the one it had with an equal share of the cluster.

    Themis (Mahajan et al., NSDI 2020, section 3): rho = T_shared / T_independent. With N jobs in the system on average
    over its stay, an equal share is 1/N of the GPUs; a job that asks for more than its share takes as much longer than
    its own duration. Above 1 it was treated worse than equal shares would have. Jobs without GPUs or time have none.
    """
    done = [
        each
        for each in outcomes
        if each.ended_s is not None
        and each.ended_s > each.submitted_s
        and each.task.total_gpu_milli
        and each.duration_s
    ]
    contention = Contention((each.submitted_s, each.ended_s) for each in done if each.ended_s is not None)
    found = {}
    for each in done:
        assert each.ended_s is not None
        jobs = contention.mean(each.submitted_s, each.ended_s)
        slowed = max(1.0, each.task.total_gpu_milli * jobs / capacity_gpu_milli)
        found[each.task.id] = (each.ended_s - each.submitted_s) / (each.duration_s * slowed)
    return found


def gang_bucket(gpus: float) -> str:
    """The row a job of so many GPUs stands in: powers of two, ``<1`` for shares, ``cpu`` for none."""
    if not gpus:
        return "cpu"
    if gpus < 1:
        return "<1"
    for low, high in pairwise(GANG_SIZES):
        if low <= gpus < high:
            return str(low) if high == low + 1 else f"{low}-{high - 1}"
    return f"{GANG_SIZES[-1]}+"


def replayed(run: Replayed) -> dict[str, Any]:
    """All figures of a replay in time, as plain values. Times are seconds; shares are 0 to 1."""
    done = [each for each in run.outcomes if each.ended_s is not None]
    started = [each for each in run.outcomes if each.started_s is not None]
    waits: dict[str, list[float]] = {}
    for each in started:
        waits.setdefault(gang_bucket(each.task.total_gpu_milli / 1000), []).append(each.waited_s)
    order = ["cpu", "<1", *(gang_bucket(size) for size in GANG_SIZES)]
    rho = finish_time_fairness(run.outcomes, run.capacity_gpu_milli)
    ended = [each.ended_s for each in done if each.ended_s is not None]
    return {
        "tasks": len(run.outcomes),
        "finished": len(done),
        "refused": sum(1 for each in run.outcomes if each.refused),
        "never_started": sum(1 for each in run.outcomes if each.started_s is None and not each.refused),
        "allocated_mean": run.allocated_mean,
        "fragmented_mean": run.fragmented_mean,
        "waiting_s": spread(wait for each in waits.values() for wait in each),
        "waiting_s_by_gpus": {bucket: spread(waits[bucket]) for bucket in order if bucket in waits},
        "jct_s": spread(each.ended_s - each.submitted_s for each in done if each.ended_s is not None),
        "makespan_s": max(ended) - min(each.submitted_s for each in run.outcomes) if ended else 0.0,
        "fairness": _fairness(run.outcomes, rho),
        "deadlines": _deadlines(run.outcomes),
        "preemptions": sum(each.preemptions for each in run.outcomes),
        "lost_gpu_hours": math.fsum(each.lost_s * each.task.total_gpu_milli for each in run.outcomes) / 3.6e6,
    }


def _fairness(outcomes: Iterable[TaskOutcome], rho: Mapping[str, float]) -> dict[str, Any]:
    by_tenant: dict[str, list[float]] = {}
    for each in outcomes:
        if each.task.id in rho and each.task.tenant:
            by_tenant.setdefault(each.task.tenant, []).append(1 / rho[each.task.id])
    speeds = [math.fsum(values) / len(values) for _, values in sorted(by_tenant.items())]
    values = list(rho.values())
    return {
        "rho_mean": math.fsum(values) / len(values) if values else None,
        "rho_max": max(values, default=None),
        "rho_over_1": sum(1 for value in values if value > 1) / len(values) if values else None,
        "tenants": len(speeds),
        "jain": jain(speeds) if len(speeds) > 1 else None,
    }


def _deadlines(outcomes: Iterable[TaskOutcome]) -> dict[str, Any]:
    counts = {kind: {"jobs": 0, "missed": 0, "refused": 0} for kind in ("strict", "soft")}
    for each in outcomes:
        deadline = each.task.deadline_s
        if deadline is None:
            continue
        row = counts[each.task.deadline_kind]
        row["jobs"] += 1
        row["refused"] += bool(each.refused)
        row["missed"] += each.ended_s is None or each.ended_s > deadline
    jobs = sum(row["jobs"] for row in counts.values())
    missed = sum(row["missed"] for row in counts.values())
    return {**counts, "missed_share": missed / jobs if jobs else None}


def inflation(run: Inflated) -> dict[str, Any]:
    """All figures of an inflation, as plain values; shares of capacity are 0 to 1."""
    full, last = run.at(1.0), run.curve[-1]
    return {
        "tasks": run.tasks,
        "dropped": run.dropped,
        "allocated_at_100": full.allocated,
        "fragmented_at_100": full.fragmented,
        "allocated_at_end": last.allocated,
        "fragmented_at_end": last.fragmented,
        "arrived_at_end": last.arrived,
    }


def latencies(samples: Mapping[str, Iterable[float]]) -> dict[str, dict[str, float | int]]:
    """Spreads of named samples in seconds, as microseconds."""
    return {name: spread(value * 1e6 for value in values) for name, values in samples.items()}


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Over runs, at least one; the deviation is the sample's (n - 1), 0 for a single run."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
