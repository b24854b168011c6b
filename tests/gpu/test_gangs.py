"""The coordinator and gangs: one grant for all members, one placement for what the ledger holds of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.gpu.feasibility import check_feasible
from actorgrid.actors.gpu.proposals import Grant
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import EndAttempt, GrantGang, NewTerm, PreemptAttempt, RegisterHost, SubmitJobs
from actorgrid.actors.ledger.state import Ledger
from actorgrid.demand import Demand
from actorgrid.errors import RequestTooLarge
from tests.consensus.rig import AT, host_record, job_record
from tests.gpu.test_core import waits

WHOLE = {"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000, "gpu_memory_mib": 0, "cpu_milli": 100}


class World:
    """A ledger of four hosts with two GPUs each, in two racks, and who schedules over it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.apply(NewTerm(1, at=AT))
        for number in range(4):
            self.apply(RegisterHost(host_record(f"h{number}", rack=f"r{number % 2}"), at=AT))
        self.core = self.make_core()

    def make_core(self) -> CoordinatorCore:
        core = CoordinatorCore("h0", 1, "completion", 50, lambda: 0)
        live = self.ledger.live()
        core.load(self.ledger.jobs, self.ledger.allocations, live.hosts, AT, live.quotas)
        return core

    def apply(self, command: Command) -> dict[str, Any]:
        outcome = self.ledger.apply(self.ledger.index + 1, replace(command, at=command.at or AT))
        assert outcome.error is None, outcome.error
        assert outcome.result is not None
        if hasattr(self, "core"):
            self.core.changed(outcome.changes, AT)
        return outcome.result

    def submit(self, job_id: str, size: int, **more: Any) -> None:
        self.apply(SubmitJobs([job_record(job_id, resources={**WHOLE, "gang": size, **more})], at=AT))

    def grants(self) -> list[Grant]:
        return self.core.schedule(AT, 10)

    def granted(self, job_id: str, size: int) -> list[int]:
        self.submit(job_id, size)
        [grant] = self.grants()
        token: list[int] = self.apply(grant.command(1))["token"]
        return token


def test_all_members_are_in_one_grant_and_in_one_rack() -> None:
    world = World()
    world.submit("a", 4)
    [grant] = world.grants()
    command = grant.command(1, (30_000, 30_009))
    assert isinstance(command, GrantGang) and (command.job_id, command.ports) == ("a", [30_000, 30_009])
    hosts = [member["host"] for member in command.members]
    assert {int(host[1]) % 2 for host in hosts} in ({0}, {1})
    assert hosts == sorted(hosts), "neighbours in rank are neighbours in place"
    assert not waits(world.core, "a.1")
    world.apply(command)
    assert not world.core.proposals.grants
    assert world.core.mirror.engine.placement("a.1").shares == grant.shares
    assert world.core.mirror.engine.allocated_gpu_milli == 4_000
    assert world.core.records.allocated()[hosts[0], 0][2] == ["a"]


def test_a_gang_that_spreads_gets_a_host_for_each_and_waits_for_the_last_one() -> None:
    world = World()
    token = world.granted("a", 2)
    world.submit("b", 4, spread=True)
    assert world.grants() == []
    report = world.core.explain(world.ledger.jobs["b"]["resources"], "b")
    assert (report["gang"], report["members_that_fit"], report["fits"]) == (4, 3, False)
    for rank in range(2):
        assert world.grants() == [], "not before the room is free whole"
        world.apply(EndAttempt(f"a.1-{rank}", token, "succeeded", at=AT))
    [grant] = world.grants()
    assert len({host for host, _ in grant.shares}) == 4


def test_whoever_leads_next_holds_what_was_granted_member_by_member() -> None:
    world = World()
    world.granted("a", 3)
    after = world.make_core()
    after.schedule(AT, 10)
    assert after.mirror.engine.placement("a.1").shares == world.core.mirror.engine.placement("a.1").shares
    assert after.mirror.scheduler.running["a.1"].request.demand.gang == 3
    assert after.mirror.scheduler.tenant_limits.used("local").gpu_milli == 3_000


def test_a_lost_member_leaves_the_rest_of_the_placement_held() -> None:
    world = World()
    token = world.granted("a", 3)
    world.apply(EndAttempt("a.1-2", token, "lost", at=AT, charge=False))
    world.grants()
    assert len(world.core.mirror.engine.placement("a.1").shares) == 2
    for rank in range(2):
        world.apply(EndAttempt(f"a.1-{rank}", token, "cancelled", at=AT, charge=False))
    [grant] = world.grants()
    assert (grant.id, grant.demand.gang) == ("a.2", 3)


def test_a_grant_that_is_under_way_keeps_the_room_of_all_members() -> None:
    world = World()
    world.submit("a", 4)
    [grant] = world.grants()
    world.core.mirror.set_absent(frozenset({"h9"}))  # the engine is made anew
    assert world.grants() == []
    assert world.core.mirror.engine.placement("a.1").shares == grant.shares
    world.core.refused(grant, AT)
    assert "a.1" not in world.core.mirror.engine
    assert waits(world.core, "a")


def test_a_gang_is_stopped_for_others_by_one_order() -> None:
    world = World()
    token = world.granted("a", 2)
    world.apply(PreemptAttempt("a.1", token, 1.0, "b", 1, at=AT))
    assert world.core.proposals.stopping("a.1")[1] == "b"
    [job] = [world.core.mirror.scheduler.running["a.1"]]
    assert job.request.id == "a.1"


@pytest.mark.parametrize(
    ("size", "more", "hint"),
    [
        (9, {}, "--gang 8"),
        (5, {"spread": True}, "--gang 4"),
        (5, {"gpus": 2.0, "gpu_count": 2}, "--gang 4"),
        (9, {"cpu_milli": 4_000}, "--gang 8"),
        (5, {"cpu_milli": 5_000}, "--gang 4"),
    ],
)
def test_a_gang_that_the_whole_cluster_cannot_hold_is_refused(size: int, more: dict[str, Any], hint: str) -> None:
    hosts = [host_record(f"h{number}") for number in range(4)]
    with pytest.raises(RequestTooLarge) as caught:
        check_feasible(Demand.of({**WHOLE, "gang": size, **more}), hosts)
    assert hint in caught.value.hint
    check_feasible(Demand.of({**WHOLE, "gang": 4, **more}), hosts)


def test_a_gang_that_only_a_count_of_shares_would_hold_is_refused() -> None:
    """Two shares for each member, on two devices: the large one has room for many, the small one for one."""
    host = host_record("h0")
    host["devices"][1]["memory_mib"] = 20_000
    asked = {"gpu_count": 2, "gpu_milli": 250, "gpu_memory_mib": 20_000, "cpu_milli": 100}
    check_feasible(Demand.of(asked), [host])
    with pytest.raises(RequestTooLarge, match="run it without --gang"):
        check_feasible(Demand.of({**asked, "gang": 2}), [host])
