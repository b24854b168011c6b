"""Quotas through the cluster's servers: jobs and leases of users at their limit, and what ``why`` says to them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from actorgrid.actors.cluster.explain.why import JobContext, explain_job
from actorgrid.actors.cluster.load_balancer import LoadBalancer, python_version
from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.cluster.messages import (
    AcceptJobs,
    AcquireWorker,
    ChangeQuota,
    CloseSession,
    OpenSession,
    RequestCancel,
    ReturnWorker,
    Why,
)
from actorgrid.actors.gpu.coordinator import GPUCoordinator
from actorgrid.errors import NotFound, Overloaded, QueueFull, QuotaExceeded
from tests.cluster.rig import Rig, job, resources


@pytest.fixture(autouse=True)
def manager(rig: Rig) -> Any:
    return rig.add(ClusterManager)


def limit(rig: Rig, user: str, **limits: int) -> dict[str, Any]:
    answer: dict[str, Any] = rig.manager(ChangeQuota(user, limits, "test"))
    rig.node.settle()
    return answer


def submit(rig: Rig, *jobs: dict[str, Any]) -> Any:
    return rig.manager(AcceptJobs(jobs))


def of(user: str, job_id: str, gpus: float = 1.0, **more: Any) -> dict[str, Any]:
    return job(job_id, gpus, user_id=user, priority=50, submitted_at=time.time(), **more)


def test_one_at_the_limit_does_not_hold_up_the_other_and_gets_on_when_its_first_job_ends(rig: Rig) -> None:
    limit(rig, "ann", gpu_milli=1000)
    submit(rig, of("ann", "a1"), of("ann", "a2"), of("bob", "b1"))
    rig.until_state("a1", "placed")
    rig.until_state("b1", "placed")
    assert rig.job("a2")["state"] == "queued"
    rig.end("b1")
    assert rig.job("a2")["state"] == "queued", "the room is there, the quota is not"
    answer = rig.manager(Why("a2"))
    assert answer["headline"] == "the quota of user ann has no room for it: it needs 1 GPU, with 1 of 1 GPU in use"
    assert answer["position"] is None
    assert [(held["job_id"], held["host"], held["gpus"]) for held in answer["held_by"]] == [("a1", "alpha", 1.0)]
    assert answer["quota"]["short"] == ["gpu_milli"] and answer["quota"]["limits"]["gpu_milli"] == 1000
    assert answer["next_step"].startswith("actorgrid cancel a1 would make room in the quota")
    rig.end("a1")
    rig.until_state("a2", "placed")


def test_a_raised_quota_is_noticed_at_once(rig: Rig) -> None:
    limit(rig, "ann", gpu_milli=1000)
    submit(rig, of("ann", "a1"), of("ann", "a2"))
    rig.until_state("a1", "placed")
    assert rig.job("a2")["state"] == "queued"
    limit(rig, "ann", gpu_milli=2000)
    rig.until_state("a2", "placed")


def test_what_could_never_run_or_would_wait_too_long_is_refused_with_the_whole_batch(rig: Rig) -> None:
    limit(rig, "ann", gpu_milli=1000, jobs_waiting=1)
    with pytest.raises(QuotaExceeded) as refused:
        submit(rig, of("ann", "a1"), of("ann", "a2", 2))
    assert refused.value.asked == "2 GPUs" and "1 GPU" in refused.value.found
    submit(rig, of("ann", "a1"))
    rig.until_state("a1", "placed")
    submit(rig, of("ann", "a2"))
    with pytest.raises(QueueFull):
        submit(rig, of("ann", "a3"))
    rig.manager(RequestCancel("a2", "me"))
    submit(rig, of("ann", "a3"))


def test_a_job_larger_than_a_lowered_quota_hears_that_it_waits_in_vain(rig: Rig) -> None:
    submit(rig, of("bob", "b", 2))
    rig.until_state("b", "placed")
    submit(rig, of("ann", "a", 2))
    limit(rig, "*", gpu_milli=1000)
    rig.node.settle()
    answer = rig.manager(Why("a"))
    assert answer["next_step"] == "cancel it and ask for less: ann may not hold as much at once"
    assert answer["held_by"] == [] and answer["openings"] == []


def test_a_quota_that_is_not_there_cannot_be_removed(rig: Rig) -> None:
    limit(rig, "ann", gpu_milli=1000)
    with pytest.raises(NotFound, match="did you mean ann"):
        rig.manager(ChangeQuota("anm", None, "test"))
    assert rig.manager(ChangeQuota("ann", None, "test"))["previous"]["gpu_milli"] == 1000


def test_leases_count_for_the_user_of_the_session(rig: Rig) -> None:
    rig.add(LoadBalancer)
    limit(rig, "ann", gpu_milli=500)
    session_id = rig.balancer(OpenSession("ann", python_version()))["session_id"]
    other = rig.balancer(OpenSession("bob", python_version()))["session_id"]
    lease_id = rig.balancer(AcquireWorker(session_id, resources(0.5), wait_s=1.0))["lease_id"]
    with pytest.raises(Overloaded) as late:
        rig.balancer(AcquireWorker(session_id, resources(0.25), wait_s=0.5))
    assert "quota of user ann" in late.value.message and late.value.found == "0.5 of 0.5 GPUs in use"
    with pytest.raises(QuotaExceeded):
        rig.balancer(AcquireWorker(session_id, resources(1), wait_s=0.5))
    assert rig.balancer(AcquireWorker(other, resources(1), wait_s=1.0))
    submit(rig, of("ann", "a", 0.25))
    rig.node.settle()
    answer = rig.manager(Why("a"))
    assert answer["held_by"][0]["session_id"] == session_id
    rig.balancer(ReturnWorker(session_id, lease_id))
    rig.until_state("a", "placed")


def test_a_session_keeps_its_user_over_a_restart_of_its_server(rig: Rig) -> None:
    rig.add(LoadBalancer)
    limit(rig, "ann", gpu_milli=1000)
    session_id = rig.balancer(OpenSession("ann", python_version()))["session_id"]
    rig.balancer(AcquireWorker(session_id, resources(1), wait_s=1.0))
    rig.node.remove("load_balancer")
    rig.add(LoadBalancer)
    with pytest.raises(Overloaded):
        rig.balancer(AcquireWorker(session_id, resources(0.5), wait_s=0.5))
    rig.balancer(CloseSession(session_id))


def test_a_scheduler_that_starts_anew_knows_the_quotas(rig: Rig) -> None:
    limit(rig, "ann", gpu_milli=1000)
    submit(rig, of("ann", "a1"))
    rig.until_state("a1", "placed")
    rig.node.remove("gpu_coordinator")
    rig.add(GPUCoordinator)
    rig.node.run_until(lambda: rig.node.servers["gpu_coordinator"].status()["registered"], 30.0)
    submit(rig, of("ann", "a2"), of("bob", "b"))
    rig.until_state("b", "placed")
    coordinator = rig.node.servers["gpu_coordinator"]
    assert rig.job("a2")["state"] == "queued" and coordinator.metrics()["grants_refused_total"] == 0
    rig.end("a1")
    rig.until_state("a2", "placed")


# -- why, in detail

NOW = 1000.0


def waiting(**more: Any) -> dict[str, Any]:
    record = {
        "job_id": "j1",
        "user_id": "ann",
        "state": "queued",
        "priority": 50,
        "submitted_at": NOW - 5,
        "not_before": 0.0,
        "depends_on": [],
        "attempts": [],
        "resources": {**resources(1), "gpu_memory_mib": 2048},
    }
    return {**record, **more}


def held(owner: str, gpus: int, milli: int = 1000, user: str = "ann") -> dict[str, Any]:
    return {
        "host": "h1",
        "owner": {"job_id": owner},
        "user_id": user,
        "gpu_indexes": list(range(gpus)),
        "gpu_milli": milli,
        "gpu_memory_mib": 0,
        "cpu_milli": 100,
        "memory_mib": 0,
        "granted_at": NOW - 9,
    }


def why(limits: dict[str, int], *allocations: dict[str, Any], jobs: Any = None, fit: Any = None) -> dict[str, Any]:
    quota = dict.fromkeys(("gpu_milli", "gpu_memory_mib", "cpu_milli", "memory_mib", "jobs_waiting"))
    return explain_job(
        waiting(),
        JobContext(
            now=NOW,
            fit=fit or {"fits": True, "stands_aside": True},
            allocations=allocations,
            jobs=jobs or {},
            quotas={"ann": {**quota, **limits}},
        ),
    )


def test_why_names_only_a_job_whose_end_is_enough_and_that_matters_no_more() -> None:
    jobs = {"low": {"job_id": "low", "priority": 10}, "high": {"job_id": "high", "priority": 90}}
    answer = why({"gpu_milli": 2500}, held("low", 1, 250), held("high", 2), held("x", 3, user="bob"), jobs=jobs)
    assert "it needs 1 GPU, with 2.25 of 2.5 GPUs in use" in answer["headline"]
    assert [one["job_id"] for one in answer["held_by"]] == ["low", "high"]
    assert not any("cancel" in step for step in answer["next_steps"])
    assert answer["next_step"] == "ask for less: 0.25 GPUs would be within the quota now"
    jobs["high"]["priority"] = 50
    answer = why({"gpu_milli": 2500}, held("low", 1, 250), held("high", 2), jobs=jobs)
    assert any(step.startswith("actorgrid cancel high ") for step in answer["next_steps"])


def test_why_says_which_of_several_limits_is_short() -> None:
    answer = why({"gpu_milli": 9000, "gpu_memory_mib": 1024})
    assert "it needs 2 GiB of GPU memory, with 0 MiB of 1 GiB of GPU memory in use" in answer["headline"]
    assert answer["quota"]["short"] == ["gpu_memory_mib"]


def test_why_says_when_the_rest_of_a_quota_is_kept_for_another() -> None:
    answer = why({"gpu_milli": 5000}, held("a", 1))
    assert "is kept for another of one's jobs" in answer["headline"] and answer["quota"] is None
    answer = why({"gpu_milli": 5000}, held("a", 1), fit={"fits": True, "stands_aside": False})
    assert answer["headline"] == "it fits now and is about to be placed"
