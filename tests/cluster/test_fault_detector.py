"""FaultDetector among real servers: who is silent, what is scarce, and what every host may read of it."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.fault_detector import EXPECTED, FaultDetector
from actorgrid.actors.cluster.messages import ClusterHealthReport, HealthReport, HostsAway
from actorgrid.actors.consensus.stalls import Stalls
from actorgrid.actors.replication.messages import Read
from actorgrid.supervisors.envelope import CAST, Beat, Envelope
from tests.cluster.rig import Rig, job


@pytest.fixture(autouse=True)
def detector(rig: Rig) -> Any:
    return rig.add(FaultDetector)


def beat(rig: Rig, *names: str, pid: int = 1) -> None:
    for name in names:
        rig.node.send("fault_detector", Envelope(CAST, name, None, Beat(name, pid, 0)))
    rig.node.settle()


def report(rig: Rig) -> dict[str, Any]:
    answer: dict[str, Any] = rig.node.request("fault_detector", HealthReport())
    return answer


def later(rig: Rig, *beating: str) -> None:
    """Two patiences, in steps as small as the detector's own, with beats of some."""
    step_s = rig.settings.monitoring.beat_interval_s
    for _ in range(10):
        beat(rig, *beating)
        rig.node.advance(step_s)


def test_servers_that_beat_are_well_and_the_silent_one_is_named_everywhere(rig: Rig) -> None:
    others = [name for name in EXPECTED if name != "gateway"]
    later(rig, *EXPECTED)
    assert (report(rig)["ready"], report(rig)["health"]) == (True, "healthy")
    later(rig, *others)
    assert report(rig)["problems"] == ["gateway is silent"]
    shared = rig.node.request("distributed_state", Read(f"_cluster/health/{rig.host.host_id}"))["value"]
    assert (shared["health"], shared["problems"]) == ("degraded", ["gateway is silent"])


def test_a_server_in_a_new_process_counts_as_restarted(rig: Rig, detector: FaultDetector) -> None:
    beat(rig, "gateway", pid=1)
    beat(rig, "gateway", pid=2)
    assert detector.metrics()["server_restarts_total"] == 1
    assert detector.status()["servers"]["gateway"]["pid"] == 2


def test_a_pause_of_the_whole_host_is_held_against_nobody(rig: Rig, detector: FaultDetector) -> None:
    later(rig, *EXPECTED)
    rig.node.now_s += 1000.0  # nothing ran meanwhile, the detector included
    rig.node.advance(rig.settings.monitoring.beat_interval_s)
    assert report(rig)["ready"] is True
    assert detector.metrics()["host_pauses_total"] == 1


def test_a_disk_without_room_is_a_problem_of_a_ready_host(rig: Rig) -> None:
    rig.settings.performance.min_free_bytes = 1 << 60
    later(rig, *EXPECTED)
    assert (report(rig)["ready"], report(rig)["health"]) == (True, "degraded")
    assert "disk" in report(rig)["problems"][0]


def test_it_goes_on_when_the_shared_state_comes_back(rig: Rig, detector: FaultDetector) -> None:
    state = rig.node.servers.pop("distributed_state")
    later(rig)
    rig.node.servers["distributed_state"] = state
    detector.peer_restarted("distributed_state")
    detector.peer_restarted("consensus")
    later(rig)
    shared = rig.node.request("distributed_state", Read(f"_cluster/health/{rig.host.host_id}"))["value"]
    assert shared["health"] == "degraded"


def test_a_member_that_takes_nothing_is_a_finding_of_the_cluster(
    rig: Rig, detector: FaultDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = rig.host.host_id
    # What the leader measures is planted; what is made of it is not.
    measured = {"commits_stalled_s": None, "behind_s": {id: 50.0}}
    monkeypatch.setattr(Stalls, "report", lambda *_: measured)
    later(rig, *EXPECTED)
    found = rig.node.request("fault_detector", ClusterHealthReport())
    (problem,) = [each for each in found["problems"] if each["name"] == "hosts_behind"]
    assert problem["hosts"] == [id] and problem["level"] == "degraded" and problem["try"]
    assert 49 <= problem["read_at"] - problem["since"] <= 60
    told = rig.node.request("fault_detector", HostsAway())
    assert 49 <= told["behind_s"][id] <= 60, "to hosts that do not lead"
    measured["behind_s"] = {}
    later(rig, *EXPECTED)
    found = rig.node.request("fault_detector", ClusterHealthReport())
    assert "hosts_behind" not in [each["name"] for each in found["problems"]]


def test_waiting_jobs_that_take_half_of_their_bound_are_a_note(rig: Rig) -> None:
    def notes() -> list[dict[str, Any]]:
        later(rig, *EXPECTED)
        found = rig.node.request("fault_detector", ClusterHealthReport())
        return [each for each in found["problems"] if each["name"] == "waiting_bytes"]

    rig.settings.scheduling.user_waiting_bytes_max = 2**20
    rig.propose("submit_jobs", jobs=[job(f"j{n}", 64, env={"A": "x" * 100_000}) for n in range(5)], at=1.0)
    assert notes() == []
    rig.propose("submit_jobs", jobs=[job("more", 64, env={"A": "x" * 100_000})], at=1.0)
    (note,) = notes()
    assert note["level"] == "note" and "user local" in note["what"] and "57 %" in note["what"]
    assert "of 1048576 bytes (scheduling.user_waiting_bytes_max)" in note["found"] and "all users" not in note["what"]
