"""Work is placed where the ledger is led, and nowhere else; a new leader goes on from what the ledger says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actorgrid.actors.gpu.messages import AcquireLease
from actorgrid.actors.ledger.commands import DrainHost
from actorgrid.actors.ledger.messages import Applied
from actorgrid.errors import NotLeader
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
    assert world.core.in_flight == {}
    world.load(world.core)
    again = world.core.schedule(world.now, 10)
    assert [grant.id for grant in again] == [grant.id for grant in first]
    # The late answer to the first is about nothing any more.
    world.core.committed(first[0], world.now)
    assert list(world.core.in_flight.values()) == again


def test_nothing_new_goes_to_a_host_that_is_not_heard_of() -> None:
    world = World("first_fit")
    world.register()
    world.core.set_absent(frozenset({"h"}))
    world.submit(resources(1.0))
    assert world.core.schedule(world.now, 10) == []
    world.core.set_absent(frozenset())
    assert len(world.core.schedule(world.now, 10)) == 1


def test_nothing_is_placed_on_a_host_that_drains() -> None:
    world = World("first_fit")
    world.register()
    world.apply(DrainHost(host="h", draining=True))
    world.submit(resources(1.0))
    assert world.core.schedule(world.now, 10) == []
    world.apply(DrainHost(host="h", draining=False))
    assert len(world.core.schedule(world.now, 10)) == 1
