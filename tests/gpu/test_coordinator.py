"""GPUCoordinator with the real Consensus: what waits is placed, once, and nothing is lost by a restart."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.gpu import coordinator, inventory
from actorgrid.actors.gpu.messages import (
    AcquireLease,
    CheckFeasible,
    Explain,
    Inventory,
    LatencyReport,
    RecentDecisions,
)
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import CancelJob, GrantAttempt, RegisterHost, ReleaseLease, SubmitJobs
from actorgrid.errors import BadRequest, DiskFull, HostError, Overloaded, RequestTooLarge, TooManyGpus, UnknownGpuModel
from actorgrid.models import GPUDevice
from actorgrid.supervisors.envelope import CALL, Envelope
from tests.gpu.rig import Rig, resources


def held_milli(rig: Rig) -> dict[int, int]:
    used: dict[int, int] = {}
    for record in rig.allocations().values():
        for index in record["gpu_indexes"]:
            used[index] = used.get(index, 0) + record["gpu_milli"]
    return used


def lease(lease_id: str, gpus: float, wait_s: float = 30.0) -> AcquireLease:
    return AcquireLease(lease_id, "session-1", resources(gpus), "gpu_compute", {}, wait_s)


# -- this host


def test_a_host_without_gpus_simulates_them_and_says_so(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig("auto")
    monkeypatch.setattr(inventory, "traces_of_nvidia", lambda: (False, ""))
    rig.up()
    status = rig.coordinator.status()
    assert status["devices"] == 8
    assert any("simulated" in note for note in status["notes"])
    assert status["probe"]["vendors"] == {}
    host = rig.coordinator._ledger.hosts["host-a"]
    assert (host["incarnation"], host["hostname"], host["state"]) == (1, "alpha", "up")
    assert {device["model"] for device in host["devices"]} == {"H100"}
    assert host["cpu_milli"] > 0
    assert host["memory_mib"] > 0


def test_no_gpus_when_none_are_wanted(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("none").up()
    assert rig.ask(Inventory()) == []
    with pytest.raises(TooManyGpus, match="no GPUs"):
        rig.ask(CheckFeasible(resources(1)))
    rig.submit("cpu", cpu_milli=100)
    rig.wait_placed("cpu")


def test_declared_devices_are_added_to_those_found(make_rig: Callable[..., Rig]) -> None:
    declared = [{"vendor": "apple", "model": "M3Ultra", "memory": "96GiB", "count": 2}]
    rig = make_rig("simulated:2xMI300X-192GB", declared=declared).up()
    rows = [GPUDevice.model_validate(row) for row in rig.ask(Inventory())]
    assert [(row.index, row.vendor, row.source) for row in rows] == [
        (0, "amd", "simulated"),
        (1, "amd", "simulated"),
        (2, "apple", "declared"),
        (3, "apple", "declared"),
    ]
    assert rows[2].temperature_celsius is None
    rig.submit("apple", gpus=2, gpu_models=["M3Ultra"])
    rig.wait_placed("apple")
    assert rig.job("apple")["attempts"][0]["gpu_indexes"] == [2, 3]


def test_nothing_is_answered_for_devices_before_they_are_known(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.start_coordinator()  # no Consensus: the host cannot be registered
    monkeypatch.setattr(coordinator, "REGISTER_WAIT_S", 0.2)
    with pytest.raises(HostError, match="not known yet"):
        rig.ask(CheckFeasible(resources(1)))


def test_all_who_ask_before_devices_are_known_are_answered_once_they_are(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start_coordinator()
    asked = [(0, 999_990 + number) for number in range(5)]
    for ref in asked:
        rig.node.send("gpu_coordinator", Envelope(CALL, "test", ref, CheckFeasible(resources(1))))
    rig.until(lambda: len(rig.coordinator._registration._waiting) == 5, "all wait")
    rig.node.add(Consensus, rig.host)
    rig.until(lambda: rig.coordinator.status()["registered"], "registration")
    rig.settle()
    assert [ref for ref in asked if ref in rig.node._replies] == asked


def test_a_new_incarnation_keeps_counting_what_still_runs(rig: Rig) -> None:
    rig.submit("a", gpus=8)
    rig.wait_placed("a")
    rig.coordinator.stop("agent killed")
    rig.node.remove("gpu_coordinator")
    rig.host.incarnation = 2
    rig.start_coordinator()
    rig.until(lambda: rig.coordinator.status()["registered"])
    rig.submit("b", gpus=1)
    rig.settle()
    assert rig.state("b") == "queued"
    rig.end("a")
    rig.wait_placed("b")
    assert rig.job("b")["attempts"][0]["incarnation"] == 2


def test_a_device_that_is_held_keeps_its_index_when_the_list_changes(rig: Rig) -> None:
    rig.submit("a", gpus=1, gpu_affinity=["GPU-none", rig.ask(Inventory())[7]["device_id"]])
    rig.wait_placed("a")
    rig.coordinator.stop("restart")
    rig.node.remove("gpu_coordinator")
    rig.host.incarnation = 2
    rig.host.settings.gpus.source = "simulated:2xH100-80GB"
    rig.start_coordinator()
    rig.until(lambda: rig.coordinator.status()["registered"])
    rig.submit("two", gpus=2)
    rig.wait_placed("two")
    assert rig.job("two")["attempts"][0]["gpu_indexes"] == [0, 1]
    rig.submit("third", gpus=1)
    rig.settle()
    assert rig.state("third") == "queued", "device 7 is gone, its gap is no device"
    rig.end("a")
    rig.settle()
    assert rig.state("third") == "queued"
    rig.end("two")
    rig.wait_placed("third")


def test_devices_that_change_while_the_host_is_registered_are_registered_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = rig.coordinator._registration
    propose, sent = registration._ledger.propose, []

    async def propose_slowly(command: RegisterHost, *arguments: Any, **options: Any) -> Any:
        sent.append(command)
        if len(sent) == 1:  # what the probe does when it finds other devices
            registration.inventory.devices = registration.inventory.devices[:3]
            registration._changed()
        return await propose(command, *arguments, **options)

    monkeypatch.setattr(registration._ledger, "propose", propose_slowly)
    registration._changed()
    rig.until(lambda: len(rig.ask(Inventory())) == 3)
    rig.until(lambda: len(rig.coordinator._ledger.hosts[rig.host.host_id]["devices"]) == 3)
    assert [len(command.host["devices"]) for command in sent] == [8, 3]


# -- jobs


def test_shares_fill_devices_and_whole_gpus_go_beside_them(rig: Rig) -> None:
    rig.submit("q1", "q2", "q3", "q4", "q5", gpus=0.25)
    rig.submit("whole", gpus=6)
    rig.wait_placed("q1", "q2", "q3", "q4", "q5", "whole")
    assert held_milli(rig) == {0: 1000, 1: 250, **dict.fromkeys(range(2, 8), 1000)}
    attempt = rig.job("whole")["attempts"][0]
    assert attempt["attempt_id"] == "whole.1"
    assert len(attempt["gpu_uuids"]) == 6
    assert attempt["placement_latency_us"] > 0


def test_jobs_that_wait_are_placed_as_room_comes_free_by_priority(rig: Rig) -> None:
    rig.submit("all", gpus=8)
    rig.wait_placed("all")
    rig.submit("low", gpus=5, priority=10)
    rig.submit("high", gpus=5, priority=90)
    rig.submit("small", gpus=3, priority=1)
    rig.settle()
    assert held_milli(rig) == dict.fromkeys(range(8), 1000)
    rig.end("all")
    rig.wait_placed("high", "small")
    assert rig.state("low") == "queued"
    rig.end("high")
    rig.wait_placed("low")


def test_a_job_waits_for_those_it_depends_on(rig: Rig) -> None:
    rig.submit("first")
    rig.submit("then", depends_on=["first"])
    rig.wait_placed("first")
    rig.settle()
    assert rig.state("then") == "queued"
    assert rig.ask(Explain(resources(), "then"))["depends_on"] == ["first"]
    rig.end("first")
    rig.wait_placed("then")


def test_a_failed_attempt_is_tried_again_after_its_pause(rig: Rig) -> None:
    rig.submit("flaky", gpus=1, retries_left=1)
    rig.wait_placed("flaky")
    rig.end("flaky", "failed", retry_at=time.time() + 0.3)
    assert rig.state("flaky") == "queued"
    rig.wait_placed("flaky")
    job = rig.job("flaky")
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["attempts"][1]["placed_at"] >= job["not_before"]


def test_a_cancelled_job_leaves_the_queue(rig: Rig) -> None:
    rig.submit("all", gpus=8)
    rig.wait_placed("all")
    rig.submit("waits", gpus=1)
    rig.settle()
    assert rig.coordinator.metrics()["queue_length"] == 1
    rig.propose(CancelJob(job_id="waits", by="test"))
    rig.settle()
    assert rig.coordinator.metrics()["queue_length"] == 0
    rig.end("all")
    rig.settle()
    assert rig.state("waits") == "cancelled"


def test_models_and_affinity_limit_where_a_job_goes(make_rig: Callable[..., Rig]) -> None:
    declared = [{"vendor": "nvidia", "model": "NVIDIA A100-SXM4-40GB", "memory": "40GiB", "count": 2}]
    rig = make_rig("simulated:2xH100-80GB", declared=declared).up()
    uuids = [row["device_id"] for row in rig.ask(Inventory())]
    rig.submit("a100", gpus=1, gpu_models=["a100"])
    rig.submit("second", gpus=0.5, gpu_affinity=[uuids[1]])
    rig.submit("third", gpus=0.5, gpu_models=["H100-80GB"], gpu_affinity=[uuids[1], uuids[3]])
    rig.submit("large", gpus=1, gpu_memory_mib=50_000)
    rig.wait_placed("a100", "second", "third", "large")
    placed = {id: rig.job(id)["attempts"][0]["gpu_indexes"] for id in ("a100", "second", "third", "large")}
    assert placed == {"a100": [2], "second": [1], "third": [1], "large": [0]}


def test_whatever_happens_no_device_is_given_out_twice(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:3xH100-80GB").up()
    dice = random.Random(5)
    open_jobs: list[str] = []
    for number in range(60):
        id = f"j{number}"
        rig.submit(
            id, gpus=dice.choice((0.1, 0.25, 0.5, 0.7, 1, 2, 3)), gpu_memory_mib=dice.choice((0, 20_000, 60_000))
        )
        open_jobs.append(id)
        if dice.random() < 0.5:
            rig.settle()
            placed = [id for id in open_jobs if rig.state(id) == "placed"]
            for id in dice.sample(placed, len(placed) // 2):
                rig.end(id)
                open_jobs.remove(id)
        assert all(milli <= 1000 for milli in held_milli(rig).values())
    while open_jobs:
        rig.settle()
        placed = [id for id in open_jobs if rig.state(id) == "placed"]
        assert placed, "jobs wait although everything else has ended"
        for id in placed:
            rig.end(id)
            open_jobs.remove(id)
    rig.settle()
    assert rig.coordinator._core.mirror.engine.allocated_gpu_milli == 0
    assert rig.coordinator.metrics()["grants_refused_total"] == 0


# -- restarts


def test_a_killed_coordinator_loses_nothing_and_grants_nothing_twice(rig: Rig) -> None:
    names = [f"j{number}" for number in range(20)]
    rig.submit(*names, gpus=1)
    # Killed with proposals on their way: some are committed, some not even read.
    rig.until(lambda: bool(rig.coordinator._core.proposals.grants), "the first grants in flight")
    rig.node.remove("gpu_coordinator")
    rig.start_coordinator()
    placed: set[str] = set()
    while len(placed) < len(names):
        rig.settle()
        now = {id for id in names if rig.state(id) == "placed"}
        assert held_milli(rig) == dict.fromkeys(range(8), 1000) or len(names) - len(placed) < 8
        assert now
        for id in now:
            assert [attempt["number"] for attempt in rig.job(id)["attempts"]] == [1]
            rig.end(id)
        placed |= now
    rig.settle()
    assert rig.allocations() == {}
    assert rig.coordinator._core.mirror.engine.allocated_gpu_milli == 0


def test_a_restarted_ledger_is_followed_again_and_proposals_are_kept(rig: Rig) -> None:
    names = [f"j{number}" for number in range(12)]
    rig.submit(*names, gpus=1)
    rig.until(lambda: bool(rig.coordinator._core.proposals.grants), "the first grants in flight")
    consensus = rig.node.servers.pop("consensus")
    consensus.stop("restart")
    rig.node.add(Consensus, rig.host)
    rig.coordinator.peer_restarted("consensus")
    left = set(names)
    while left:
        rig.until(lambda: any(rig.state(id) == "placed" for id in left), "grants in the new term")
        for id in sorted(left):
            if rig.state(id) == "placed":
                rig.end(id)
                left.discard(id)
    assert all(len(rig.job(id)["attempts"]) == 1 for id in names)


def test_a_storage_that_refused_once_is_told_for_as_long_as_nothing_is_placed_and_no_longer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "HOLD_S", 0.5)
    propose, refusals = rig.coordinator._ledger.propose, [DiskFull("no room for the log")]

    async def refuse_first(command: Command) -> Any:
        if refusals:
            raise refusals.pop()
        return await propose(command)

    def told() -> list[str]:
        return [note for note in rig.coordinator.status()["notes"] if "no room for the log" in note]

    monkeypatch.setattr(rig.coordinator._ledger, "propose", refuse_first)
    rig.submit("waits", gpus=1)
    rig.until(lambda: bool(told()), "the refusal to be told")
    assert "no room for the log" in rig.ask(Explain(resources(1), "waits"))["host"]
    rig.wait_placed("waits")
    assert not told() and "host" not in rig.ask(Explain(resources(1)))


def test_a_grant_made_by_another_is_taken_over(rig: Rig) -> None:
    term = rig.coordinator._ledger.term
    rig.propose(SubmitJobs(jobs=[{"job_id": "x", "resources": resources(8), "depends_on": []}]))
    rig.propose(GrantAttempt(job_id="x", number=1, host="host-a", incarnation=1, gpu_indexes=list(range(8)), term=term))
    rig.settle()
    assert rig.coordinator._core.mirror.engine.allocated_gpu_milli == 8000
    rig.submit("y", gpus=0.5)
    rig.settle()
    assert rig.state("y") == "queued"
    rig.end("x")
    rig.wait_placed("y")


# -- leases


def test_a_lease_is_granted_and_answered_with_its_allocation(rig: Rig) -> None:
    record = rig.ask(lease("lease-1", 0.25))
    assert (record["allocation_id"], record["gpu_milli"], record["gpu_indexes"]) == ("lease-1", 250, [0])
    assert record["owner"] == {"kind": "session", "session_id": "session-1", "lease_id": "lease-1"}
    assert rig.ask(lease("lease-1", 0.25)) == record
    assert len(rig.allocations()) == 1


def test_a_lease_waits_for_room_and_goes_before_jobs(rig: Rig) -> None:
    rig.submit("all", gpus=8)
    rig.wait_placed("all")
    rig.submit("waits", gpus=8, priority=100)
    rig.settle()
    rig.node.send("gpu_coordinator", Envelope(CALL, "test", (9, 9), lease("lease-1", 1)))
    rig.settle()
    rig.end("all")
    rig.until(lambda: "lease-1" in rig.allocations(), "the lease")
    rig.settle()
    assert rig.state("waits") == "queued"
    rig.propose(ReleaseLease(lease_id="lease-1"))
    rig.wait_placed("waits")


def test_a_lease_that_finds_no_room_in_time_is_told_so_and_forgotten(rig: Rig) -> None:
    rig.submit("all", gpus=8)
    rig.wait_placed("all")
    with pytest.raises(Overloaded, match="no room came free"):
        rig.ask(lease("lease-1", 1, wait_s=0.2))
    rig.end("all")
    rig.settle()
    assert rig.allocations() == {}
    assert rig.coordinator.metrics()["queue_length"] == 0


def test_a_lease_nobody_could_serve_is_refused_at_once(rig: Rig) -> None:
    with pytest.raises(TooManyGpus):
        rig.ask(lease("lease-1", 9))


# -- refusals


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"gpus": 1, "gpu_models": ["H1000"]}, UnknownGpuModel, "did you mean H100"),
        ({"gpus": 1, "gpu_models": ["Voodoo2"]}, UnknownGpuModel, "use one of: H100"),
        ({"gpus": 9}, TooManyGpus, r"8 x H100 \(80 GiB\) on alpha"),
        ({"gpus": 1, "gpu_memory_mib": 90_000}, TooManyGpus, "at most 81920 MiB"),
        ({"gpus": 1, "gpu_affinity": ["GPU-nowhere"]}, BadRequest, "no device has such a UUID"),
        ({"cpu_milli": 10_000_000}, RequestTooLarge, "no host has that much CPU"),
        ({"memory_mib": 10**9}, RequestTooLarge, "no host has that much memory"),
    ],
)
def test_what_can_never_fit_is_refused_with_what_there_is(
    rig: Rig, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        rig.ask(CheckFeasible(resources(**asked)))
    rig.ask(CheckFeasible(resources(8, gpu_models=["h100"])))


# -- what people see


def test_the_inventory_shows_who_holds_what(rig: Rig) -> None:
    rig.submit("half", gpus=0.5, gpu_memory_mib=1024)
    rig.wait_placed("half")
    first, second, *_ = (GPUDevice.model_validate(row) for row in rig.ask(Inventory()))
    assert (first.status, first.allocated_milli, first.jobs) == ("allocated", 500, ["half"])
    assert first.memory_allocated_bytes == 2**30
    assert first.utilization_percent == 50.0
    assert (second.status, second.allocated_milli, second.utilization_percent) == ("available", 0, 0.0)


def test_explain_says_what_is_missing_and_where_in_the_line(rig: Rig) -> None:
    rig.submit("all", gpus=7)
    rig.wait_placed("all")
    rig.submit("first", gpus=2)
    rig.submit("second", gpus=2)
    rig.settle()
    report = rig.ask(Explain(resources(2), "second"))
    assert (report["fits"], report["position"]) == (False, 2)
    assert report["failed"] == {"gpu_busy": 1}
    assert report["nearest"] == {"node": "host-a", "missing": {"gpus": 1, "gpu_milli": 1000}}


def test_latencies_and_figures_are_kept(rig: Rig) -> None:
    assert rig.ask(LatencyReport())["p50_us"] is None
    rig.submit("a", "b", gpus=0.5)
    rig.wait_placed("a", "b")
    report = rig.ask(LatencyReport())
    assert report["count"] == 2
    assert 0 < report["p50_us"] <= report["p99_us"]
    assert report["policy"] == "completion"
    figures = rig.coordinator.metrics()
    assert (figures["gpu_devices"], figures["gpu_capacity_milli"], figures["gpu_allocated_milli"]) == (8, 8000, 1000)
    assert figures["grants_total"] == 2


def test_decisions_are_told_newest_first(rig: Rig) -> None:
    rig.submit("a", gpus=0.5)
    rig.wait_placed("a")
    rig.submit("b", gpus=0.5)
    rig.wait_placed("b")
    second, first = rig.ask(RecentDecisions())
    assert (first["task_id"], second["task_id"]) == ("a", "b")
    assert len(first["gpu_ids"]) == len(second["gpu_ids"]) == 1
    assert first["decision_latency_us"] > 0
    assert rig.ask(RecentDecisions(limit=1)) == [second]
