"""Every figure on an example small enough to reckon by hand."""

from __future__ import annotations

import pytest

from actorgrid.replay import figures
from actorgrid.replay.inflation import Inflated, Point
from actorgrid.replay.simulation import Replayed, TaskOutcome
from actorgrid.replay.workload import TraceTask


def outcome(
    id: str,
    submitted: float,
    started: float | None,
    ended: float | None,
    duration: float,
    gpus: int = 1,
    **more: object,
) -> TaskOutcome:
    task = TraceTask(id, gpu_count=gpus, submit_s=submitted, duration_s=duration, **more)  # type: ignore[arg-type]
    return TaskOutcome(task, submitted, started, ended, 0.0 if started is None else started - submitted)


def test_percentiles_are_nearest_rank() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [figures.percentile(ordered, share) for share in (0.5, 0.99, 0.999, 1.0, 0.0)] == [50, 99, 100, 100, 1]
    assert figures.percentile([7.0], 0.999) == 7


def test_a_spread_of_nothing_says_so() -> None:
    assert figures.spread([]) == {"count": 0}
    assert figures.spread([3, 1, 2]) == {"count": 3, "mean": 2, "p50": 2, "p99": 3, "p999": 3, "max": 3}


@pytest.mark.parametrize(("values", "index"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([1, 3], 0.8), ([0, 0], 1.0)])
def test_jain(values: list[float], index: float) -> None:
    assert figures.jain(values) == pytest.approx(index)
    assert figures.jain([]) is None


def test_contention_is_the_mean_number_of_jobs_over_a_stretch() -> None:
    found = figures.Contention([(0, 10), (5, 15), (5, 10)])
    assert found.mean(0, 10) == 2.0  # one for 5, three for 5
    assert found.mean(10, 15) == 1.0
    assert found.mean(0, 5) == 1.0
    assert found.mean(20, 30) == 1.0, "whoever asks is there"


def test_finish_time_fairness_by_hand() -> None:
    # Two GPUs. a alone, b waits for it: from 0 to 10 and from 0 to 20, so 1.5 jobs on b's stay, 2 on a's.
    runs = [outcome("a", 0, 0, 10, 10, gpus=2), outcome("b", 0, 10, 20, 10, gpus=2)]
    rho = figures.finish_time_fairness(runs, 2000)
    assert rho["a"] == 10 / (10 * 2)  # half of the cluster would have taken it twice as long
    assert rho["b"] == 20 / (10 * 1.5)


def test_a_job_within_its_share_is_slowed_by_nobody() -> None:
    runs = [outcome("a", 0, 0, 10, 10), outcome("b", 0, 5, 15, 10)]
    rho = figures.finish_time_fairness(runs, 8000)
    assert rho == {"a": 1.0, "b": 1.5}


def test_jobs_without_gpus_time_or_end_have_no_rho() -> None:
    runs = [outcome("cpu", 0, 0, 1, 1, gpus=0), outcome("unfinished", 0, 0, None, 5), outcome("instant", 0, 0, 0, 0)]
    assert figures.finish_time_fairness(runs, 1000) == {}


@pytest.mark.parametrize(
    ("gpus", "row"),
    [(0, "cpu"), (0.5, "<1"), (1, "1"), (2, "2-3"), (3, "2-3"), (8, "8-15"), (63, "32-63"), (200, "64+")],
)
def test_rows_of_sizes(gpus: float, row: str) -> None:
    assert figures.gang_bucket(gpus) == row


def test_a_replay_in_figures() -> None:
    run = Replayed(capacity_gpu_milli=2000, allocated_mean=0.5, fragmented_mean=0.1)
    stopped = outcome("c", 10, 10, 50, 20, gpus=2, tenant="blue", deadline_s=40.0, deadline_kind="soft")
    stopped.preemptions, stopped.lost_s = 2, 1800.0
    refused = outcome("d", 20, None, None, 5, tenant="blue", deadline_s=30.0, deadline_kind="strict")
    refused.refused = "no"
    run.outcomes = [
        outcome("a", 0, 0, 10, 10, tenant="red", deadline_s=10.0, deadline_kind="strict"),
        outcome("b", 0, 4, 14, 10, tenant="red"),
        stopped,
        refused,
        outcome("e", 30, None, None, 5),
    ]
    found = figures.replayed(run)
    assert (found["tasks"], found["finished"], found["refused"], found["never_started"]) == (5, 3, 1, 1)
    assert found["waiting_s"]["mean"] == 4 / 3
    assert found["waiting_s_by_gpus"]["1"] == {"count": 2, "mean": 2, "p50": 0, "p99": 4, "p999": 4, "max": 4}
    assert list(found["waiting_s_by_gpus"]) == ["1", "2-3"]
    assert found["jct_s"]["mean"] == (10 + 14 + 40) / 3
    assert found["makespan_s"] == 50
    assert found["deadlines"]["strict"] == {"jobs": 2, "missed": 1, "refused": 1}
    assert found["deadlines"]["soft"] == {"jobs": 1, "missed": 1, "refused": 0}
    assert found["deadlines"]["missed_share"] == 2 / 3
    assert found["preemptions"] == 2
    assert found["lost_gpu_hours"] == 1.0  # half an hour of two GPUs
    assert found["fairness"]["tenants"] == 2
    rho = figures.finish_time_fairness(run.outcomes, 2000)
    red, blue = (1 / rho["a"] + 1 / rho["b"]) / 2, 1 / rho["c"]
    assert found["fairness"]["jain"] == pytest.approx((red + blue) ** 2 / (2 * (red**2 + blue**2)))
    assert found["fairness"]["rho_over_1"] == sum(value > 1 for value in rho.values()) / 3


def test_an_empty_replay_has_figures_too() -> None:
    found = figures.replayed(Replayed())
    assert found["makespan_s"] == 0.0 and found["jct_s"] == {"count": 0}
    assert found["fairness"]["rho_mean"] is None and found["deadlines"]["missed_share"] is None


def test_an_inflation_in_figures() -> None:
    run = Inflated([Point(0.0, 0.0, 0.1), Point(0.5, 0.5, 0.2), Point(1.01, 0.9, 0.8), Point(1.3, 0.95, 1.0)], 130, 35)
    found = figures.inflation(run)
    assert (found["allocated_at_100"], found["fragmented_at_100"]) == (0.9, 0.8)
    assert (found["allocated_at_end"], found["arrived_at_end"], found["dropped"]) == (0.95, 1.3, 35)


def test_mean_and_deviation_over_seeds() -> None:
    assert figures.mean_and_deviation([3.0]) == (3.0, 0.0)
    assert figures.mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


def test_latencies_are_shown_in_microseconds() -> None:
    assert figures.latencies({"place": [1e-6, 3e-6]})["place"]["mean"] == pytest.approx(2.0)
