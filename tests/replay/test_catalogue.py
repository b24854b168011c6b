"""The traces that come with the package: what the literature says of them, and their licence."""

from __future__ import annotations

import csv
import gzip
import math

import pytest

from actorgrid.errors import BadRequest
from actorgrid.replay import catalogue
from actorgrid.replay.throughput import STEPS_PER_S
from actorgrid.replay.workload import as_gangs, capacity_gpu_milli, typical_tasks


def test_openb_is_the_published_cluster() -> None:
    nodes = catalogue.nodes_of(catalogue.find("openb").cluster)
    assert (len(nodes), capacity_gpu_milli(nodes)) == (1213, 6_212_000)
    assert sum(node.cpu_milli for node in nodes) == 107_018_000


@pytest.mark.parametrize(
    ("name", "count", "gpu_milli"),
    [
        ("openb", 8152, 6_086_800),
        ("openb-gpushare20", 8152, 6_531_500),
        ("openb-gpushare40", 8152, 5_641_250),
        ("openb-gpushare80", 8152, 4_408_190),
        ("openb-gpuspec10", 8152, 6_086_800),
        ("openb-gpuspec20", 8152, 6_086_800),
        ("openb-gpuspec25", 8152, 6_086_800),
        ("openb-cpu100", 7853, 6_086_800),
        ("openb-cpu200", 8832, 6_086_800),
        ("openb-multigpu20", 8324, 7_086_800),
    ],
)
def test_openb_tasks_ask_for_what_was_published(name: str, count: int, gpu_milli: int) -> None:
    tasks = catalogue.tasks_of(catalogue.find(name))
    assert (len(tasks), sum(task.total_gpu_milli for task in tasks)) == (count, gpu_milli)


def test_the_mix_of_openb_is_that_of_fgd() -> None:
    tasks = catalogue.tasks_of(catalogue.find("openb"))
    shapes = {task.shape for task in tasks}
    mix = typical_tasks(tasks)
    assert (len(shapes), len(mix)) == (91, 35)


@pytest.mark.parametrize("name", ["philly", "philly-11cb48", "philly-ee9e8c"])
def test_philly_comes_by_arrival_with_gangs_up_to_64(name: str) -> None:
    trace = catalogue.find(name)
    tasks = as_gangs(catalogue.tasks_of(trace), catalogue.nodes_of(trace.cluster))
    assert len(tasks) == 2000 * len(trace.files)
    arrivals = [task.submit_s for task in tasks]
    assert arrivals == sorted(arrivals, key=lambda at: at or 0.0)
    assert {task.tenant for task in tasks} == set(trace.files.values())
    assert len({task.id for task in tasks}) == len(tasks)
    assert max(task.total_gpu_milli for task in tasks) == (64_000 if "ee9e8c" not in name else 32_000)


def test_phillys_steps_are_whole_seconds_at_the_rates_we_have() -> None:
    """What shows that the rates are right: for each of 4,000 jobs some whole number of seconds gives its steps."""
    jobs = 0
    for name in catalogue.find("philly").files:
        with gzip.open(catalogue.HERE / name, "rt") as stream:
            for row in csv.DictReader(stream):
                rate, steps = STEPS_PER_S[row["job_type"]], int(row["total_steps"])
                seconds = math.ceil(steps / rate)
                assert math.floor(seconds * rate) == steps and seconds >= 1200
                jobs += 1
    assert jobs == 4000


def test_chronus_has_strict_deadlines_and_comes_by_arrival() -> None:
    tasks = catalogue.tasks_of(catalogue.find("chronus"))
    assert len(tasks) == 30_940
    strict = [task for task in tasks if task.deadline_kind == "strict"]
    assert len(strict) == 21_724 and len({task.tenant for task in tasks}) == 11
    assert all(task.deadline_s is not None and task.deadline_s > (task.submit_s or 0) for task in strict)
    assert all(task.deadline_s is None for task in tasks if not task.deadline_kind)
    mean_min = sum(task.duration_s or 0 for task in tasks) / len(tasks) / 60
    assert 250 < mean_min < 270, "minutes, as in Philly"


def test_each_file_is_named_in_the_notice_with_a_licence() -> None:
    notice = (catalogue.HERE / "NOTICE").read_text()
    for path in catalogue.HERE.glob("*.gz"):
        assert path.stem in notice
    assert "Apache-2.0" in notice and "MIT" in notice
    assert {trace.licence for trace in catalogue.TRACES.values()} == {"Apache-2.0", "MIT"}


def test_an_unknown_trace_is_told_which_there_are() -> None:
    with pytest.raises(BadRequest, match="no trace 'opnb'") as caught:
        catalogue.find("opnb")
    assert "openb-gpushare40" in caught.value.found


@pytest.mark.parametrize("text", ["", "8", "8x", "0x8", "8x0", "8x8x8", "-1x8"])
def test_a_cluster_is_nodes_times_gpus(text: str) -> None:
    with pytest.raises(BadRequest, match="not a cluster"):
        catalogue.nodes_of(text)
    assert len(catalogue.nodes_of("3x4")) == 3
