"""Attempts that are stopped for others, and jobs that are given up, between the coordinator and the real ledger."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.gpu.proposals import AttemptPreemption, JobFailure
from actorgrid.actors.gpu.scheduler_requests import STOPPED_S
from actorgrid.actors.ledger.attempt_ids import job_of
from actorgrid.actors.ledger.tables.preemption import PREEMPTIONS_MAX
from actorgrid.actors.scheduling.policies.las import LeastAttainedService
from actorgrid.errors import AdmissionRefused
from tests.gpu.rig import resources
from tests.gpu.test_core import World, needs


def las(**more: Any) -> World:
    world = World("best_fit", LeastAttainedService(thresholds=(30.0,), **more))
    world.register()
    return world


def edf() -> World:
    world = World("best_fit", "edf")
    world.register()
    return world


def run(world: World, gpus: float, **more: Any) -> str:
    """Submit a job and have it placed; gives its id."""
    world.submit(resources(gpus), **more)
    world.schedule()
    while world.sent:
        world.answer(0)
    job_id = f"j{world.jobs}"
    assert world.ledger.jobs[job_id]["state"] == "placed"
    return job_id


def asked(world: World) -> list[str]:
    return [order.attempt_id for order in world.terminations if isinstance(order, AttemptPreemption)]


def test_one_that_has_had_much_is_stopped_for_one_that_has_had_nothing_and_runs_again_after_it() -> None:
    world = las()
    run(world, 3, grace_s=2.0)
    world.now = 5.0
    world.submit(resources(3), grace_s=2.0)
    world.schedule()
    assert (world.sent, world.terminations) == ([], [])
    assert world.core.next_wakeup == 10.0
    world.now = 10.0
    world.schedule()
    assert world.terminations == [
        AttemptPreemption("j1.1", 2.0, "j2", 10.0, tuple(world.ledger.allocations["j1.1"]["token"]))
    ]
    world.answer_termination(0)
    world.schedule()
    assert (world.sent, world.terminations) == ([], []), "asked once, and nobody takes the room meanwhile"
    assert world.core.explain(resources(3), "j2")["reservation"] == {
        "start": 10.0 + 2.0 + STOPPED_S,
        "nodes": ["h"],
        "stopping": ["j1"],
    }
    world.now = 11.0
    world.obey(0)
    world.schedule()
    (grant,) = world.sent
    assert grant.id == "j2.1"
    world.answer(0)
    world.now = 12.0
    world.end(0, "succeeded")
    world.schedule()
    assert [grant.id for grant in world.sent] == ["j1.2"]
    world.check()


def test_a_host_that_led_until_now_still_knows_who_is_being_stopped() -> None:
    world = las()
    run(world, 3, grace_s=2.0)
    world.submit(resources(3), grace_s=2.0)
    world.now = 10.0
    world.schedule()
    world.answer_termination(0)
    world.core.forget()
    world.core.drop_queue()
    world.core.hold_queue(world.now)  # somebody asks it why the second one waits
    assert world.core.explain(resources(3), "j2")["reservation"] == {
        "start": 10.0 + 2.0 + STOPPED_S,
        "nodes": ["h"],
        "stopping": ["j1"],
    }


def test_what_a_job_has_had_counts_in_its_next_attempt_and_in_the_next_life_of_the_coordinator() -> None:
    world = las()
    run(world, 3)
    world.now = 10.0
    world.submit(resources(3))
    world.schedule()
    world.answer_termination(0)
    world.obey(0)
    world.schedule()
    world.answer(0)
    for _ in range(2):
        assert world.core.mirror.scheduler.waiting["j1.2"].level == 1
        assert world.core.mirror.scheduler.waiting["j1.2"].ran_s == 10.0
        world.core = world.make_core()
        world.register()
    world.now = 19.0
    world.schedule()
    assert not world.terminations, "both have had much soon, and nobody is stopped for one of the same queue"


def test_a_lease_is_served_by_preemption_and_never_stopped() -> None:
    world = las()
    run(world, 3)
    world.now = 20.0
    world.lease(resources(3))
    world.schedule()
    assert asked(world) == ["j1.1"]
    assert world.terminations[0].command(1).for_job == "l2"
    world.answer_termination(0)
    world.obey(0)
    world.schedule()
    world.answer(0)
    assert list(world.ledger.allocations) == ["l2"]
    world.now = 1000.0
    world.submit(resources(3))
    world.schedule()
    assert not world.terminations


def test_what_may_not_be_stopped_or_was_too_often_is_not_chosen() -> None:
    for more in ({"preemptible": False}, {}):
        world = las()
        job_id = run(world, 3, **more)
        if not more:
            world.ledger.jobs[job_id]["preemptions"] = PREEMPTIONS_MAX
            world.core = world.make_core()
            world.register()
        world.now = 100.0
        world.submit(resources(3))
        world.schedule()
        assert (world.sent, world.terminations) == ([], [])


@pytest.mark.parametrize(("committed", "life"), [(True, "next"), (False, "next"), (True, "same")])
def test_a_preemption_under_way_goes_on_after_a_start_and_nobody_takes_the_place(committed: bool, life: str) -> None:
    """j4 needs two devices, held by two jobs that are both stopped; j5 would take the first that is free."""
    world = las()
    for preemptible in (True, True, False):
        run(world, 1, preemptible=preemptible)
    world.now = 40.0
    world.submit(resources(2))
    world.schedule()
    assert len(asked(world)) == 2
    late = list(world.terminations)
    while committed and world.terminations:
        world.answer_termination(0)
    if life == "next":
        world.core = world.make_core()
        world.register()
    else:
        world.resubscribe()
    world.terminations.clear()
    world.schedule()
    if committed:
        assert not world.terminations, "asked before, in another life"
    else:
        assert sorted(asked(world)) == sorted(
            order.attempt_id for order in late if isinstance(order, AttemptPreemption)
        )
        while world.terminations:
            world.answer_termination(0)
        for order in late:
            assert world.apply(order.command(1)).result == {"already": True}
    world.now = 41.0
    world.submit(resources(1))
    world.obey(0)
    world.schedule()
    assert not world.sent, "the first device is kept until the second is free"
    world.obey(0)
    world.schedule()
    assert world.sent[0].id == "j4.1"
    world.check()


def test_a_grant_on_its_way_is_stopped_once_it_is_committed() -> None:
    world = edf()
    world.submit(resources(3))
    world.schedule()
    assert [grant.id for grant in world.sent] == ["j1.1"]
    world.submit(resources(3), deadline=100.0, max_execution_time_s=50.0)
    world.schedule()
    assert not world.terminations, "there is nothing yet that could be stopped"
    world.answer(0)
    world.schedule()
    assert asked(world) == ["j1.1"]
    world.answer_termination(0)
    assert world.ledger.jobs["j1"]["attempts"][-1]["preemption"]["for_job"] == "j2"


def test_a_grant_that_was_to_be_stopped_and_never_came_needs_no_stopping() -> None:
    world = edf()
    world.submit(resources(3))
    world.schedule()
    world.submit(resources(3), deadline=100.0, max_execution_time_s=50.0)
    world.schedule()
    world.cancel(0)
    world.answer(0)
    world.schedule()
    assert not world.terminations and not world.core.proposals.preemptions
    assert [grant.id for grant in world.sent] == ["j2.1"]


def test_an_order_that_is_refused_is_decided_again() -> None:
    world = las()
    run(world, 3)
    world.now = 20.0
    world.submit(resources(3))
    world.schedule()
    (order,) = world.terminations
    world.terminations.clear()
    world.core.termination_refused(order)
    world.now = 21.0
    world.schedule()
    assert asked(world) == ["j1.1"]


def test_a_deadline_that_cannot_be_kept_fails_its_job_with_what_is_possible() -> None:
    world = edf()
    run(world, 3, max_execution_time_s=60.0, preemptible=False)
    with pytest.raises(AdmissionRefused) as refused:
        world.core.jobs.check_deadline(resources(3), 30.0, 10.0, world.now)
    assert refused.value.asked == "done in 30 s, running for up to 10 s"
    assert refused.value.found == "as things are it would be done in 1 min 10 s"
    assert refused.value.details == {"possible_at": 70.0}
    assert not world.core.mirror.scheduler.waiting and not world.core.mirror.scheduler.planner.reservations
    world.core.jobs.check_deadline(resources(3), 80.0, 10.0, world.now)
    world.core.jobs.check_deadline(resources(3), 30.0, None, world.now)
    world.submit(resources(3), deadline=30.0, max_execution_time_s=10.0)
    world.schedule()
    (order,) = world.terminations
    assert isinstance(order, JobFailure)
    world.resubscribe()
    world.schedule()
    assert len(world.terminations) == 1, "given up once"
    world.check()
    world.answer_termination(0)
    job = world.ledger.jobs["j2"]
    assert (job["state"], job["error"]["code"]) == ("failed", "AdmissionRefused")
    assert not world.core.proposals.failures


def test_a_promise_is_kept_by_the_next_life_and_waits_until_all_hosts_are_known() -> None:
    world = edf()
    run(world, 3, max_execution_time_s=60.0, preemptible=False)
    world.submit(resources(3), deadline=200.0, max_execution_time_s=100.0)
    world.submit(resources(3), deadline=75.0, max_execution_time_s=10.0)
    world.schedule()
    starts = {id: each.start for id, each in world.core.mirror.scheduler.planner.reservations.items()}
    assert starts == {"j3.1": 60.0, "j2.1": 70.0}
    world.core = world.make_core()
    assert not world.core.records.registered
    assert not world.core.mirror.scheduler.planner.reservations
    world.register()
    world.schedule()
    assert not world.terminations
    assert {id: each.start for id, each in world.core.mirror.scheduler.planner.reservations.items()} == starts
    world.core.mirror.set_unhealthy({"u9": "not here"})
    world.schedule()
    assert {id: each.start for id, each in world.core.mirror.scheduler.planner.reservations.items()} == starts


def test_a_deadline_behind_a_dependency_is_looked_at_when_that_is_done() -> None:
    world = edf()
    run(world, 3, max_execution_time_s=60.0, preemptible=False)
    world.submit(resources(1), True, deadline=20.0, max_execution_time_s=10.0)
    world.schedule()
    assert not world.terminations
    world.kill()
    world.now = 15.0
    world.end(0, "succeeded")
    assert world.core.jobs._ended == ["j1"]
    world.register()
    world.schedule()
    (order,) = world.terminations
    assert isinstance(order, JobFailure) and order.job_id == "j2"


def test_a_deadline_means_nothing_to_a_policy_that_knows_none() -> None:
    world = World("best_fit")
    world.register()
    world.core.jobs.check_deadline(resources(3), 1.0, 50.0, 100.0)
    world.submit(resources(3), deadline=1.0, max_execution_time_s=50.0)
    world.now = 100.0
    world.schedule()
    assert [grant.id for grant in world.sent] == ["j1.1"] and not world.terminations


urgent = st.fixed_dictionaries(
    {},
    optional={
        "deadline": st.integers(1, 120).map(float),
        "max_execution_time_s": st.sampled_from([1.0, 5.0, 30.0]),
        "preemptible": st.booleans(),
        "grace_s": st.sampled_from([0.0, 1.0]),
    },
)
steps = st.one_of(
    st.tuples(st.just("submit"), needs, st.booleans(), urgent),
    st.tuples(st.just("submit"), needs, st.just(False), urgent),
    st.tuples(st.just("lease"), needs),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer_termination"), st.integers(0, 7)),
    st.tuples(st.just("obey"), st.integers(0, 7)),
    st.tuples(st.just("end"), st.integers(0, 7), st.sampled_from(("succeeded", "failed", "lost"))),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("missed"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("kill")),
    st.tuples(st.just("register")),
    st.tuples(st.just("resubscribe")),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 40.0])),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queue=st.sampled_from(("las", "edf")), history=st.lists(steps, max_size=60))
def test_no_history_of_preemptions_loses_a_job_or_asks_twice(queue: str, history: list[tuple[Any, ...]]) -> None:
    world = las() if queue == "las" else edf()
    for step, *arguments in history:
        world.now += 0.3
        if step == "submit":
            world.submit(arguments[0], arguments[1], **arguments[2])
        elif step == "wait":
            world.now += arguments[0]
        else:
            getattr(world, step)(*arguments)
        world.check()
        for attempt_id in world.core.proposals.preemptions:
            last = world.ledger.jobs.get(job_of(attempt_id), {}).get("attempts", [])
            shown = [each for each in last if each["attempt_id"] == attempt_id and each["preemption"]]
            assert not shown, "an order stands although the ledger shows it"
    if not world.core.records.registered:
        world.register()
    for _ in range(1000):
        if not (world.sent or world.terminations or world.ledger.allocations or world.mirror_jobs):
            break
        world.now += 20.0
        world.schedule()
        while world.sent:
            world.answer(0)
        while world.terminations:
            world.answer_termination(0)
        for _ in range(4):
            world.obey(0)
        world.end(0, "succeeded")
        world.check()
    assert all(job["state"] != "queued" for job in world.ledger.jobs.values()), "jobs are left although nothing is used"
    assert world.core.mirror.engine.allocated_gpu_milli == 0
    assert not world.core.proposals.grants and not world.core.proposals.under_way
