"""Short calls granted behind others: for whom there are such places, and for whom not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.gpu.call_chains import DEPTH_MAX
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.ledger.commands import DrainHost, EndAttempt, PreemptAttempt
from tests.gpu.rig import resources
from tests.gpu.test_core import World, needs

CALL = resources(0, cpu_milli=3000)
"""Of the host's four CPUs: one at a time."""


class Calls(World):
    """A world in which calls have to be short before others stand behind them."""

    def let_stand(self, core: CoordinatorCore) -> None:
        core.chains.allowed = True

    def one_runs(self, took_s: float = 0.01, waiting: int = 4, **more: Any) -> None:
        """Have one call run for *took_s*; the next runs then, and *waiting* wait."""
        for _ in range(waiting + 2):
            self.submit(CALL, **more)
        self.grant_all()
        self.end_first(took_s)
        self.grant_all(behind=False)

    def grant_all(self, behind: bool = True) -> list[str]:
        """Commit what the coordinator decides now, or drop those *behind*; gives who stands behind whom."""
        found = []
        self.schedule()
        for grant in list(self.sent):
            if grant.behind:
                found.append(f"{grant.id} behind {grant.behind}")
            if grant.behind and not behind:
                self.sent.remove(grant)
                self.core.refused(grant, self.now)
                self.core.chains._takes_s = {kind: 0.01 for kind in self.core.chains._takes_s}
            else:
                self.answer(self.sent.index(grant))
        return found

    def end_first(self, took_s: float, outcome: str = "succeeded") -> None:
        id, record = next((id, each) for id, each in self.ledger.allocations.items() if "behind" not in each)
        placed_at = self.ledger.jobs[record["owner"]["job_id"]]["attempts"][-1]["placed_at"]
        end = EndAttempt(id, list(record["token"]), outcome, at=placed_at + took_s, started_at=placed_at)
        self.now = max(self.now, end.at)
        self.apply(end)


@pytest.fixture
def world() -> Calls:
    world = Calls("best_fit")
    world.now = 10.0
    world.register()
    return world


def test_the_first_that_wait_stand_behind_one_that_will_be_short(world: Calls) -> None:
    world.one_runs(took_s=0.03)
    assert world.grant_all() == ["j3.1 behind j2.1", "j4.1 behind j3.1", "j5.1 behind j4.1"], "as many as 0.1 s hold"
    world.check()
    world.end_first(0.03)
    assert world.core.mirror.engine.placement("j3.1").shares == (("h", ()),)
    assert world.grant_all() == ["j6.1 behind j5.1"]
    world.check()


def test_the_shortest_have_many_behind_them_and_no_more_than_the_most(world: Calls) -> None:
    world.one_runs(took_s=0.0, waiting=DEPTH_MAX + 4)
    for _ in range(3):
        world.grant_all()
    assert len(world.ledger.allocations) == DEPTH_MAX + 1


@pytest.mark.parametrize("took_s", [0.2, 60.0])
def test_nobody_stands_behind_long_calls_nor_those_of_which_nothing_is_known(world: Calls, took_s: float) -> None:
    for _ in range(3):
        world.submit(CALL)
    assert world.grant_all() == [], "nothing is known yet"
    world.end_first(took_s)
    assert world.grant_all() == []


@pytest.mark.parametrize(
    "first",
    [
        {"priority": 90},
        {"priority": 90, "user": "bob"},
        {"priority": 90, "kind": "command"},
    ],
)
def test_nobody_passes_one_that_comes_before_in_the_order_of_the_policy(first: dict[str, Any]) -> None:
    world = Calls("best_fit", "priority")
    world.now = 10.0
    world.register()
    world.one_runs()
    world.submit(resources(0, cpu_milli=4000), **first)
    assert world.grant_all() == []
    world.end_first(0.01)
    world.schedule()
    assert [(grant.job_id, grant.behind) for grant in world.sent] == [("j7", "")], "it gets the place itself"


def test_those_before_the_first_of_another_kind_do_and_those_after_it_do_not(world: Calls) -> None:
    world.one_runs(waiting=1)
    world.submit(CALL, user="bob")
    world.submit(CALL)
    assert world.grant_all() == ["j3.1 behind j2.1"]


def test_nobody_stands_behind_one_that_is_to_stop_or_on_a_host_that_takes_nothing_new(world: Calls) -> None:
    world.one_runs()
    token = list(world.ledger.allocations["j2.1"]["token"])
    world.apply(PreemptAttempt("j2.1", token, 5.0, "other", 1))
    world.core.mirror.invalidate()
    assert world.grant_all() == []
    other = Calls("best_fit")
    other.now = 10.0
    other.register()
    other.one_runs()
    other.apply(DrainHost("h", True))
    assert other.grant_all() == []


def test_one_that_was_refused_or_given_back_waits_in_its_old_place_and_its_kind_is_trusted_no_more(
    world: Calls,
) -> None:
    world.one_runs(waiting=2)
    world.schedule()
    refused, given_back = world.sent
    world.sent.clear()
    world.core.refused(refused, world.now)
    world.check()
    assert world.core.mirror.scheduler.position(refused.id) == 1
    assert world.core.refused(given_back, world.now) is None
    world.schedule()
    assert world.sent == []


def test_a_given_back_call_is_taken_for_a_long_one(world: Calls) -> None:
    world.one_runs(waiting=3)
    assert len(world.grant_all()) == 3
    token = list(world.ledger.allocations["j5.1"]["token"])
    world.apply(EndAttempt("j5.1", token, "lost", at=world.now, charge=False))
    assert world.grant_all() == []
    world.check()
    assert world.core.mirror.scheduler.position("j5.2") == 1


def test_nobody_stands_behind_others_before_all_members_know_that(world: Calls) -> None:
    world.core.chains.allowed = False
    world.one_runs()
    assert world.grant_all() == []


def test_a_coordinator_that_starts_goes_on_from_who_stands_in_the_ledger(world: Calls) -> None:
    world.one_runs()
    assert len(world.grant_all()) == 4
    world.resubscribe()
    world.check()
    world.end_first(0.01)
    world.check()
    world.submit(CALL)
    assert world.grant_all() == ["j7.1 behind j6.1"]


calls = st.sampled_from((resources(0, cpu_milli=1500), CALL, CALL, CALL))
users = st.sampled_from(("ann", "ann", "ann", "bob"))
steps = st.one_of(
    st.tuples(st.just("submit"), calls, st.just(False), users),
    st.tuples(st.just("submit"), calls, st.just(False), users),
    st.tuples(st.just("submit"), needs, st.booleans(), users),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("end"), st.integers(0, 7), st.sampled_from(("succeeded", "failed", "lost"))),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("limit"), users, st.none(), st.sampled_from((None, 1500, 3500))),
    st.tuples(st.just("missed"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("kill")),
    st.tuples(st.just("register")),
    st.tuples(st.just("resubscribe")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(steps, min_size=10, max_size=60))
def test_no_history_of_calls_gives_a_place_twice_or_loses_one(history: list[tuple[Any, ...]]) -> None:
    world = World("best_fit")
    world.register()
    for step, *arguments in history:
        world.now += 0.3
        getattr(world, step)(*arguments)
        world.check()
        held = sum(each["cpu_milli"] for each in world.ledger.allocations.values() if "behind" not in each)
        assert held == world.ledger.capacity.used_cpu_milli("h") <= 4000
    if not world.core.records.registered:
        world.register()
    for user in ("ann", "bob"):
        world.limit(user, 3000, 4000)
    for _ in range(1000):
        if not world.sent and not world.ledger.allocations and not world.mirror_jobs:
            break
        world.now += 20.0
        world.schedule()
        while world.sent:
            world.answer(0)
        world.end(0, "succeeded")
        world.check()
    assert not world.mirror_jobs and world.ledger.capacity.used_cpu_milli("h") == 0
