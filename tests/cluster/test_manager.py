"""ClusterManager on a real ledger and a real scheduler: what it accepts, refuses, answers and passes on."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.cluster.messages import (
    AcceptJobs,
    AnnounceRestart,
    ChangeSetting,
    ClusterSummary,
    GetJob,
    ListHosts,
    ListJobs,
    RequestCancel,
    Why,
)
from actorgrid.actors.ledger.messages import Applied, Query
from actorgrid.errors import (
    CallTimeout,
    DependencyFailed,
    InvalidSetting,
    QueueFull,
    SettingNotLive,
    TooManyGpus,
    UnknownJob,
    UnknownSetting,
)
from actorgrid.supervisors.envelope import CALL, Envelope
from tests.cluster.rig import Rig, job


@pytest.fixture(autouse=True)
def manager(rig: Rig) -> Any:
    return rig.add(ClusterManager)


def submit(rig: Rig, *jobs: dict[str, Any]) -> Any:
    return rig.manager(AcceptJobs(jobs))


def test_an_accepted_job_is_in_the_ledger_and_a_second_time_it_is_the_same(rig: Rig) -> None:
    assert submit(rig, job("a")) == [{"job_id": "a", "duplicate": False}]
    assert rig.job("a")["job_id"] == "a"
    assert submit(rig, job("a")) == [{"job_id": "a", "duplicate": True}]


def test_a_full_queue_refuses_a_whole_batch_and_takes_again_when_there_is_room(rig: Rig) -> None:
    rig.settings.scheduling.queue_max = 3
    submit(rig, job("holds", gpus=2))
    rig.until_state("holds", "placed")
    submit(rig, job("w1", gpus=1), job("w2", gpus=1))
    with pytest.raises(QueueFull) as refused:
        submit(rig, job("w3", gpus=1), job("w4", gpus=1))
    assert "2 waiting of 3" in str(refused.value)
    with pytest.raises(UnknownJob):
        rig.manager(GetJob("w3"))
    rig.manager(RequestCancel("w1", "me"))
    assert submit(rig, job("w3", gpus=1), job("w4", gpus=1))


def test_one_job_that_no_host_could_run_refuses_its_batch(rig: Rig) -> None:
    with pytest.raises(TooManyGpus):
        submit(rig, job("fits", gpus=1), job("never", gpus=3))
    assert rig.manager(ListJobs())["total"] == 0


def test_work_that_touches_a_gpu_goes_to_its_pool_whatever_was_asked(rig: Rig) -> None:
    submit(rig, job("gpu", gpus=0.5, pool="general"), job("cpu", pool=None))
    assert (rig.job("gpu")["pool"], rig.job("cpu")["pool"]) == ("gpu_compute", "general")


def test_a_job_may_depend_on_one_that_succeeded_but_not_on_one_that_did_not(rig: Rig) -> None:
    submit(rig, job("good"), job("bad"))
    rig.end("good")
    rig.end("bad", "failed", charge=True, exit_code=1)
    rig.until_state("bad", "failed")
    submit(rig, job("next", depends_on=("good",)))
    rig.until_state("next", "placed")
    with pytest.raises(DependencyFailed) as refused:
        submit(rig, job("never", depends_on=("bad",)))
    assert "bad" in str(refused.value)
    with pytest.raises(UnknownJob):
        submit(rig, job("orphan", depends_on=("nobody",)))


def test_a_dependency_that_succeeded_before_the_manager_came_back_is_settled(rig: Rig) -> None:
    submit(rig, job("old"))
    rig.end("old")
    rig.node.remove("cluster_manager")
    rig.add(ClusterManager)
    submit(rig, job("young", depends_on=("old",)))
    rig.until_state("young", "placed")


def test_dependencies_within_a_batch_are_kept(rig: Rig) -> None:
    submit(rig, job("second", depends_on=("first",)), job("first"))
    rig.until_state("first", "placed")
    assert rig.job("second")["state"] == "queued"
    assert rig.manager(Why("second"))["headline"] == "it depends on first (placed)"


def test_waiting_for_a_job_is_answered_at_its_end_or_at_the_time_asked(rig: Rig, manager: ClusterManager) -> None:
    submit(rig, job("a"))
    before = rig.node.now_s
    assert rig.manager(GetJob("a", wait_s=3.0))["state"] in {"queued", "placed"}
    assert rig.node.now_s - before >= 3.0
    rig.node.send("cluster_manager", Envelope(CALL, "test", (0, 999_999), GetJob("a", wait_s=1000.0)))
    rig.node.settle()
    assert manager.status()["waiting_calls"] == 1
    rig.end("a")
    assert rig.node._replies[(0, 999_999)].body["state"] == "succeeded"
    assert manager.status()["waiting_calls"] == 0
    assert rig.manager(GetJob("a", wait_s=1000.0))["state"] == "succeeded"


def test_all_who_wait_for_one_job_are_answered_at_its_end(rig: Rig, manager: ClusterManager) -> None:
    submit(rig, job("a"))
    asked = [(0, 999_990 + number) for number in range(5)]
    for ref in asked:
        rig.node.send("cluster_manager", Envelope(CALL, "test", ref, GetJob("a", wait_s=1000.0)))
    rig.node.settle()
    rig.end("a")
    states = [rig.node._replies[ref].body["state"] for ref in asked if ref in rig.node._replies]
    assert states == ["succeeded"] * 5
    assert manager.status()["waiting_calls"] == 0


def test_no_answer_is_of_an_earlier_state_than_the_one_its_asker_has_seen(rig: Rig, manager: ClusterManager) -> None:
    submit(rig, job("a"))
    rig.until_state("a", "placed")
    on_their_way: list[Applied] = []
    take, manager._ledger.applied = manager._ledger.applied, on_their_way.append  # type: ignore[method-assign]
    rig.end("a")
    seen = rig.node.servers["gpu_coordinator"]._ledger.index
    assert rig.manager(GetJob("a"))["state"] == "placed"
    rig.node.send("cluster_manager", Envelope(CALL, "test", (0, 999_999), GetJob("a", seen=seen)))
    rig.node.settle()
    assert (0, 999_999) not in rig.node._replies
    manager._ledger.applied = take  # type: ignore[method-assign]
    for message in on_their_way:
        take(message)
    rig.node.settle()
    assert rig.node._replies[(0, 999_999)].body["state"] == "succeeded"
    with pytest.raises(CallTimeout, match=f"index {seen + 1}"):
        rig.manager(ListHosts(seen + 1))


def test_who_waits_while_the_ledger_restarts_hears_of_an_end_meanwhile(rig: Rig, manager: ClusterManager) -> None:
    submit(rig, job("a"))
    rig.until_state("a", "placed")
    rig.node.send("cluster_manager", Envelope(CALL, "test", (0, 999_999), GetJob("a", wait_s=1000.0)))
    rig.node.settle()
    hears, manager._ledger._on_applied = manager._ledger._on_applied, None  # the end happens while it is cut off
    rig.end("a")
    manager._ledger._on_applied = hears
    manager.peer_restarted("consensus")
    rig.node.settle()
    assert rig.node._replies[(0, 999_999)].body["state"] == "succeeded"


def test_cancelling_twice_is_harmless_and_a_stranger_is_unknown(rig: Rig) -> None:
    submit(rig, job("a", gpus=2), job("b", gpus=2))
    rig.until_state("a", "placed")
    assert rig.manager(RequestCancel("b", "me"))["state"] == "cancelled"
    assert rig.manager(RequestCancel("b", "me"))["state"] == "cancelled"
    assert rig.manager(RequestCancel("a", "me"))["cancel_requested"] is True
    with pytest.raises(UnknownJob):
        rig.manager(RequestCancel("c", "me"))


def test_lists_are_bounded_and_by_state(rig: Rig) -> None:
    submit(rig, *(job(f"j{number}") for number in range(5)))
    assert len(rig.manager(ListJobs(limit=0))["jobs"]) == 1
    assert rig.manager(ListJobs(limit=3))["total"] == 5
    assert rig.manager(ListJobs(states=("failed",)))["jobs"] == []


def test_a_live_setting_reaches_every_server_and_survives_their_restarts(rig: Rig) -> None:
    answer = rig.manager(ChangeSetting("sessions.expire_s", 77.0, "me"))
    assert answer["value"] == 77.0 and answer["previous"] != 77.0
    rig.node.settle()
    rig.settings.sessions.expire_s = 20.0  # as a server that starts anew, with the settings of the files
    rig.node.servers["cluster_manager"].peer_restarted("distributed_state")
    rig.node.settle()
    assert rig.settings.sessions.expire_s == 77.0


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("no.such", 1, UnknownSetting),
        ("cluster.name", "x", SettingNotLive),
        ("sessions.expire_s", "soon", InvalidSetting),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_nothing_changes(
    rig: Rig, key: str, value: Any, error: type[Exception]
) -> None:
    before = rig.settings.sessions.expire_s
    with pytest.raises(error):
        rig.manager(ChangeSetting(key, value, "me"))
    assert rig.settings.sessions.expire_s == before


def test_the_views_answer_though_other_servers_are_gone(rig: Rig) -> None:
    submit(rig, job("a", gpus=1), job("b", gpus=2))
    rig.until_state("a", "placed")
    whole = rig.manager(ClusterSummary())
    assert (whole["gpus"], whole["gpu_allocated_milli"], whole["performance"]["queued_tasks"]) == (2, 1000, 1)
    assert whole["ready"] is False and any("fault_detector" in problem for problem in whole["problems"])
    assert "fits" in rig.manager(Why("b"))["explain"]
    coordinator = rig.node.servers.pop("gpu_coordinator")
    alone = rig.manager(ClusterSummary())
    assert (alone["gpus"], alone["performance"]["scheduling_latency_us"]) == (0, None)
    assert rig.manager(Why("b"))["explain"] is None
    host = rig.manager(ListHosts())[0]
    assert host["gpus"] == [] and host["node_id"] == "host-a"
    rig.node.servers["gpu_coordinator"] = coordinator


def test_metrics_count_jobs_by_state(rig: Rig, manager: ClusterManager) -> None:
    submit(rig, job("a"), job("b", gpus=2), job("c", gpus=2))
    rig.end("a")
    rig.until_state("b", "placed")
    counts = manager.metrics()
    assert (counts["jobs_submitted_total"], counts["jobs_succeeded_total"], counts["jobs_queued"]) == (3, 1, 1)


def test_an_absence_of_the_life_before_ends_when_nothing_it_left_can_live(rig: Rig) -> None:
    def own() -> dict[str, Any]:
        found: dict[str, Any] = rig.node.request("consensus", Query("hosts"))["hosts"][0]
        return found

    began = rig.manager(AnnounceRestart())
    assert (own()["absence_s"], own()["absence_index"]) == (60.0, began)
    rig.node.advance(120.0)
    assert own()["absence_index"] == began, "it is the next life that ends it"
    rig.node.remove("cluster_manager")
    rig.add(ClusterManager)
    rig.node.advance(60.0)
    assert own()["absence_index"] == began
    rig.node.advance(2.0)
    assert "absence_index" not in own()
