"""Work is placed where the ledger is led, and nowhere else; a new leader goes on from what the ledger says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from actorgrid.actors.gpu import coordinator
from actorgrid.actors.gpu.messages import AcquireLease, CheckFeasible, Explain
from actorgrid.actors.ledger.commands import DrainHost
from actorgrid.actors.ledger.messages import Applied
from actorgrid.errors import AdmissionRefused, NotLeader
from tests.gpu.rig import Rig, resources
from tests.gpu.test_core import World


def tell(rig: Rig, leader: str | None, leads: bool) -> None:
    index = rig.coordinator._ledger.index
    rig.coordinator._applied(Applied(index, index, 0.0, "leadership", (("leader", "", (leader, leads)),)))


def lease(lease_id: str, gpus: float) -> AcquireLease:
    return AcquireLease(lease_id, "session-1", resources(gpus), "gpu_compute")


def test_a_follower_places_nothing_until_it_leads(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig().up()
    tell(rig, "host-b", False)
    rig.submit("j1", gpus=1.0)
    rig.until(lambda: "j1" in rig.coordinator._ledger.jobs, "the job is known")
    rig.node.advance(0.5)
    assert rig.allocations() == {}
    assert rig.coordinator.status()["queue"] == 1
    tell(rig, "host-a", True)
    rig.until(lambda: "j1.1" in rig.allocations(), "the new leader places it")


def test_a_follower_knows_what_waits_only_while_somebody_asks(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "QUEUE_KEPT_S", 0.3)
    rig = make_rig("simulated:1xH100-80GB").up()
    tell(rig, "host-b", False)
    rig.submit("j1", "j2", gpus=1.0)
    rig.until(lambda: "j2" in rig.coordinator._ledger.jobs, "the jobs are known")
    core = rig.coordinator._core
    assert not core.holds_queue and not core.mirror.scheduler.waiting
    assert rig.ask(Explain(resources(1.0)))["fits"]  # of no job: nothing of the queue is needed
    assert not core.holds_queue
    asked = rig.ask(Explain(resources(1.0), "j2"))
    assert (asked["position"], asked["waiting"], asked["depends_on"]) == (2, 2, [])
    rig.submit("j3", gpus=1.0)
    rig.until(lambda: "j3" in rig.coordinator._ledger.jobs, "the third is known")
    if core.holds_queue:  # it is kept current for the next question
        assert len(core.mirror.scheduler.waiting) == 3
    assert rig.ask(Explain(resources(1.0), "j3"))["position"] == 3
    rig.until(lambda: not core.holds_queue, "the queue is let go")
    assert not core.mirror.scheduler.waiting and rig.coordinator.metrics()["queue_length"] == 3.0
    assert rig.allocations() == {}


def test_what_waits_is_let_go_with_the_leadership_and_known_again_with_the_next(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:1xH100-80GB").up()
    rig.submit("j1", "j2", gpus=1.0)
    rig.until(lambda: "j1.1" in rig.allocations(), "one runs")
    tell(rig, "host-b", False)
    assert not rig.coordinator._core.mirror.scheduler.waiting
    asked = rig.ask(Explain(resources(1.0), "j2"))
    assert not asked["fits"] and asked["position"] == 1  # what runs is held, and stays so when the queue is dropped
    rig.coordinator._let_go_of_queue()
    assert not rig.ask(Explain(resources(1.0)))["fits"]
    rig.end("j1")
    rig.until(lambda: not rig.coordinator._ledger.allocations, "its end is known")
    tell(rig, "host-a", True)
    rig.until(lambda: "j2.1" in rig.allocations(), "the new leader places the other")


def test_a_follower_judges_deadlines_by_all_that_waits(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:1xH100-80GB")
    rig.host.settings.scheduling.queue = "edf"
    rig.up()
    now = time.time()
    tell(rig, "host-b", False)
    rig.submit("j1", gpus=1.0, deadline=now + 1000.0, max_execution_time_s=900.0)
    rig.until(lambda: "j1" in rig.coordinator._ledger.jobs, "the job is known")
    with pytest.raises(AdmissionRefused):
        rig.ask(CheckFeasible(resources(1.0), now + 1001.0, 900.0))
    rig.ask(CheckFeasible(resources(1.0), now + 5000.0, 900.0))


def test_a_session_is_told_who_leads(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig().up()
    tell(rig, "host-b", False)
    with pytest.raises(NotLeader, match="host-b"):
        rig.node.request("gpu_coordinator", lease("l1", 1.0), 5.0)


def test_who_waits_for_a_worker_when_the_leadership_goes_is_told_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:1xH100-80GB").up()
    rig.node.request("gpu_coordinator", lease("l1", 1.0), 5.0)
    rig.coordinator.runtime.after(0.1, lambda: tell(rig, None, False))
    with pytest.raises(NotLeader, match="none leads"):
        rig.node.request("gpu_coordinator", lease("l2", 1.0), 9.0)


def test_what_was_proposed_is_forgotten_with_the_leadership_and_decided_anew_with_the_next() -> None:
    world = World("first_fit")
    world.register()
    world.submit(resources(1.0))
    first = world.core.schedule(world.now, 10)
    assert len(first) == 1
    world.core.forget()
    assert world.core.proposals.grants == {}
    world.load(world.core)
    again = world.core.schedule(world.now, 10)
    assert [grant.id for grant in again] == [grant.id for grant in first]
    # The late answer to the first is about nothing any more.
    world.core.committed(first[0], world.now)
    assert list(world.core.proposals.grants.values()) == again


def test_nothing_new_goes_to_a_host_that_is_not_heard_of() -> None:
    world = World("first_fit")
    world.register()
    world.core.mirror.set_absent(frozenset({"h"}))
    world.submit(resources(1.0))
    assert world.core.schedule(world.now, 10) == []
    world.core.mirror.set_absent(frozenset())
    assert len(world.core.schedule(world.now, 10)) == 1


def test_nothing_is_placed_on_a_host_that_drains() -> None:
    world = World("first_fit")
    world.register()
    world.apply(DrainHost(host="h", draining=True))
    world.submit(resources(1.0))
    assert world.core.schedule(world.now, 10) == []
    world.apply(DrainHost(host="h", draining=False))
    assert len(world.core.schedule(world.now, 10)) == 1
