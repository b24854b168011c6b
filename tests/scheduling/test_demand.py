"""What work needs, in each of its spellings."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gateway.job_requests import resources_record
from actorgrid.actors.ledger.records import resources_of
from actorgrid.demand import APART, NEAR, Demand
from actorgrid.errors import BadRequest
from actorgrid.models import LeaseRequest, TaskRequest

amounts = st.integers(0, 2**40)
names = st.lists(st.sampled_from(("a", "b", "c")), max_size=3, unique=True).map(tuple)
demands = st.builds(
    Demand,
    cpu_milli=amounts,
    memory_mib=amounts,
    gpu_count=st.integers(0, 1024),
    gpu_milli=st.integers(1, 1000),
    gpu_memory_mib=amounts,
    gpu_models=names.map(sorted).map(tuple),
    affinity_hard=names.map(sorted).map(tuple),
    gang=st.integers(1, 256),
    layout=st.sampled_from((NEAR, APART)),
)


@given(demands)
def test_a_record_says_all_of_what_is_asked_for(demand: Demand) -> None:
    assert Demand.of(demand.to_record()) == demand
    assert Demand.of(resources_of(demand.to_record())) is Demand.of(demand.to_record())


def test_it_is_the_same_in_a_process_where_texts_have_other_hashes() -> None:
    program = """if True:
        import pickle, sys
        from actorgrid.demand import Demand
        sys.stdout.buffer.write(pickle.dumps(Demand(1, gpu_count=1, gpu_models=("a",))))"""
    here = Demand(1, gpu_count=1, gpu_models=("a",))
    for seed in ("1", "2"):
        variables = {**os.environ, "PYTHONHASHSEED": seed}
        told = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True).stdout
        assert {pickle.loads(told)} == {here}


@given(demands, demands)
def test_what_needs_as_much_takes_as_much_of_everything(one: Demand, other: Demand) -> None:
    assert one.needs_at_least(one)
    if one.needs_at_least(other):
        assert one.total_gpu_milli >= other.total_gpu_milli
        assert one.gang * one.memory_mib >= other.gang * other.memory_mib


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({}, {"cpu_milli": 1000}),
        ({"gpus": 0.3333, "cpus": 0.0005}, {"gpus": 0.3333, "gpu_count": 1, "gpu_milli": 334, "cpu_milli": 0}),
        ({"gpus": 1}, {"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000, "cpu_milli": 1000}),
        (
            {"gpus": 3, "gpu_memory": "1.5MiB", "memory": 2**20 + 1, "gpu_models": ["H100", "A100"]},
            {
                "gpus": 3.0,
                "gpu_count": 3,
                "gpu_milli": 1000,
                "gpu_memory_mib": 2,
                "gpu_models": ["H100", "A100"],
                "cpu_milli": 1000,
                "memory_mib": 2,
            },
        ),
        ({"gang": 2, "gpus": 0.5}, {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500, "cpu_milli": 1000, "gang": 2}),
        ({"gang": 2, "spread": True, "cpus": 0}, {"gang": 2, "spread": True}),
    ],
)
def test_the_ledger_keeps_a_request_as_it_always_did(asked: dict[str, Any], kept: dict[str, Any]) -> None:
    assert resources_record(TaskRequest(command=["x"], **asked)) == resources_of(kept)


def test_a_lease_is_no_gang() -> None:
    found = Demand.of_request(LeaseRequest(gpus=0.25))
    assert (found.gang, found.layout, found.gpu_milli) == (1, "", 250)


def test_a_record_of_before_gangs_and_affinity_is_read() -> None:
    old = {"gpus": 0.25, "gpu_count": 1, "gpu_milli": 250, "gpu_memory_mib": 0, "cpu_milli": 500, "memory_mib": 0}
    assert Demand.of(old) == Demand(500, gpu_count=1, gpu_milli=250)
    assert Demand.of({}) == Demand()
    assert Demand.of({"gpu_milli": 500, "gpu_models": ["A"], "gpu_affinity": ["x"]}) == Demand(), "of no GPU"


@pytest.mark.parametrize("wrong", [{"cpu_milli": -1}, {"gang": 0}, {"gang": 5000}, {"gpu_count": 1, "gpu_milli": 0}])
def test_amounts_that_are_none_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        Demand(**wrong)
