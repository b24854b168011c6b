"""A waiting job asks for something else: judged as at its submission, granted what it asks for by then."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.cluster.messages import AcceptJobs, ChangeDemand
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import AdvanceGraph, EditJob, SubmitGraph
from actorgrid.actors.ledger.messages import Propose
from actorgrid.demand import Demand, DemandEdit
from actorgrid.errors import BadRequest, RequestTooLarge, TooManyGpus, UnknownGpuModel, UnknownJob, WrongState
from tests.cluster.rig import Rig, job


@pytest.fixture(autouse=True)
def manager(rig: Rig) -> Any:
    return rig.add(ClusterManager)


def edit(rig: Rig, job_id: str, **changed: Any) -> Any:
    return rig.manager(ChangeDemand(EditJob(job_id, by="me", at=1.0), DemandEdit(**changed)))


def waiting(rig: Rig) -> None:
    """One job holds both GPUs, another waits for one."""
    rig.manager(AcceptJobs((job("holds", gpus=2),)))
    rig.until_state("holds", "placed")
    rig.manager(AcceptJobs((job("waits", gpus=1),)))


def test_it_is_placed_by_what_it_asks_for_now(rig: Rig) -> None:
    waiting(rig)
    answer = edit(rig, "waits", gpus=0.0, cpus=0.25)
    assert (answer["resources"]["gpu_count"], answer["resources"]["cpu_milli"]) == (0, 250)
    rig.until_state("waits", "placed")  # no GPU was free
    with pytest.raises(WrongState, match="does not wait"):
        edit(rig, "waits", cpus=1)


def test_a_gpu_makes_it_work_of_the_pool_of_gpus(rig: Rig) -> None:
    waiting(rig)
    rig.manager(AcceptJobs((job("cpu", depends_on=("waits",)),)))
    edit(rig, "cpu", gpus=0.5, gpu_memory_bytes=2**30)
    found = rig.job("cpu")
    assert found["pool"] == "gpu_compute"
    assert (found["resources"]["gpus"], found["resources"]["gpu_milli"]) == (0.5, 500)
    assert found["resources"]["gpu_memory_mib"] == 1024


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"gpus": 3.0}, TooManyGpus),
        ({"gpu_memory_bytes": 2**50}, TooManyGpus),
        ({"gpu_models": ("b9000",)}, UnknownGpuModel),
        ({"cpus": 4096.0}, RequestTooLarge),
        ({"memory_bytes": 2**50}, RequestTooLarge),
        ({"gpus": 0.0, "gpu_memory_bytes": 2**30}, BadRequest),
    ],
)
def test_what_no_host_could_give_is_refused_and_changes_nothing(
    rig: Rig, changed: dict[str, Any], error: type[Exception]
) -> None:
    waiting(rig)
    before = rig.job("waits")
    with pytest.raises(error):
        edit(rig, "waits", **changed)
    assert rig.job("waits") == before


def test_nobody_is_refused(rig: Rig) -> None:
    with pytest.raises(UnknownJob):
        edit(rig, "nobody", cpus=1)


def test_steps_of_graphs_are_refused_and_stay_as_they_are(rig: Rig) -> None:
    files = ["ab" * 32, "cd" * 32]
    facts = {"files": files, "steps": 1, "strategy": "first_available", "on_failure": "fail_fast"}
    commands = itertools.count(1)

    def do(command: Command) -> None:
        rig.node.request("consensus", Propose(replace(command, at=1.0), "graphs", next(commands)))

    do(SubmitGraph({"job_id": "g", "user_id": "ann", "env": {}, "graph": facts}))
    step = {
        **job("g.0-1", depends_on=("g",)),
        "kind": "function",
        "payload_digest": files[1],
        "step_of": {"graph_id": "g", "steps": [[0, 1, 0, 33]], "inputs": [], "order": 1},
    }
    do(AdvanceGraph("g", rig.node.servers["cluster_manager"]._ledger.term, [step], [], [], []))
    before = rig.job("g.0-1")
    assert before["state"] == "queued"
    with pytest.raises(WrongState, match="is a step of a graph") as refused:
        edit(rig, "g.0-1", cpus=1)
    assert refused.value.found == "g"
    assert rig.job("g.0-1") == before


def test_two_edits_at_once_both_count(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is committed after the first one has read the job, and before that is committed."""
    waiting(rig)
    manager = rig.node.servers["cluster_manager"]
    commit, tries = manager._commit, []

    async def commit_after_another(command: Any) -> Any:
        tries.append(command.edits)
        if len(tries) == 1:
            await manager.call("cluster_manager", ChangeDemand(EditJob("waits", by="you", at=1.0), DemandEdit(cpus=2)))
        return await commit(command)

    monkeypatch.setattr(manager, "_commit", commit_after_another)
    answer = edit(rig, "waits", memory_bytes=2**20)
    assert tries == [0, 0, 1], "the first, the second, and the first one decided anew"
    assert Demand.of(rig.job("waits")["resources"]) == Demand.of(answer["resources"]) == Demand(2000, 1, 1, 1000)


def test_what_is_not_named_stays() -> None:
    had = Demand(1000, 5, 2, 1000, 2048, ("A100",), ("GPU-1",), gang=3, layout="apart", hosts=("h1",))
    assert DemandEdit().of(had) == had
    assert DemandEdit(cpus=2).of(had) == Demand(
        2000, 5, 2, 1000, 2048, ("A100",), ("GPU-1",), gang=3, layout="apart", hosts=("h1",)
    )
    assert DemandEdit(gpus=0.0).of(had) == Demand(1000, 5, gang=3, layout="apart", hosts=("h1",))
