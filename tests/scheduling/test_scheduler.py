"""The scheduler's own promises, whatever the policy."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.scheduling.policies import BUILT_IN, find_policy
from actorgrid.actors.scheduling.request import Decision, Preempt, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, QueueFull, UnknownPlacement, UnknownPolicy
from actorgrid.hotpath import Placement
from tests.scheduling.cluster import cluster, request


def job(id: str, gpus: int = 1, **more: Any) -> Request:
    return request(id, gpu_count=gpus, **more)


def ids(decisions: list[Decision]) -> list[str]:
    return [each.request.id if isinstance(each, Start) else each.id for each in decisions]


def test_what_fits_is_started_in_the_order_of_submission() -> None:
    scheduler = Scheduler(cluster(1), "fifo")
    for id in "abc":
        scheduler.submit(job(id, 4), 0.0)
    assert [scheduler.position(id) for id in "abc"] == [1, 2, 3]
    assert ids(scheduler.schedule(0.0, 10)) == ["a", "b"]
    assert set(scheduler.running) == {"a", "b"}
    assert scheduler.position("c") == 1
    assert scheduler.position("a") is None
    scheduler.finished("a", 1.0)
    assert ids(scheduler.schedule(1.0, 10)) == ["c"]


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    scheduler = Scheduler(cluster(1), queue_max=1)
    scheduler.submit(job("a"), 0.0)
    with pytest.raises(QueueFull):
        scheduler.submit(job("b"), 0.0)
    scheduler.submit(job("a", 2), 0.0)  # the same one, described anew
    assert ids(scheduler.schedule(0.0, 10)) == ["a"]
    scheduler.submit(job("b"), 0.0)


def test_the_limit_of_a_pass_is_kept_and_what_is_left_wants_another_pass() -> None:
    scheduler = Scheduler(cluster(2))
    for number in range(5):
        scheduler.submit(job(str(number)), 0.0)
    assert ids(scheduler.schedule(3.0, 2)) == ["0", "1"]
    assert scheduler.next_wakeup == 3.0
    assert ids(scheduler.schedule(3.0, 10)) == ["2", "3", "4"]


class Counting:
    """The engine's arguments for a need; counts how often the engine was asked by the clock it reads."""

    def __init__(self) -> None:
        self.ticks = 0

    def __call__(self) -> int:
        self.ticks += 1
        return self.ticks

    @property
    def tries(self) -> int:
        return self.ticks // 2


@pytest.mark.parametrize("policy", ["priority", "easy_backfill", "affinity"])
def test_a_need_that_did_not_fit_is_not_tried_again_until_room_is_freed(policy: str) -> None:
    clock = Counting()
    scheduler = Scheduler(cluster(1), policy, clock_ns=clock)
    scheduler.submit(job("here", 4), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["here"]
    for number in range(100):
        scheduler.submit(job(f"big{number}", 8), 0.0)
    before = clock.tries
    for now in range(1, 20):
        assert scheduler.schedule(float(now), 10) == []
    assert clock.tries == before + 1
    scheduler.submit(job("larger", 8, cpu_milli=1), 20.0)
    scheduler.schedule(20.0, 10)
    assert clock.tries == before + 1, "what needs more than what did not fit is not tried"
    scheduler.finished("here", 21.0)
    assert ids(scheduler.schedule(21.0, 10)) == ["big0"]


def test_the_number_of_tries_in_a_pass_is_bounded() -> None:
    policy = find_policy("priority")
    policy.candidates_max = 10
    clock = Counting()
    scheduler = Scheduler(cluster(1), policy, clock_ns=clock)
    scheduler.submit(job("all", 8), 0.0)
    scheduler.schedule(0.0, 10)
    for number in range(30):  # none needs as much of everything as another
        scheduler.submit(job(f"j{number}", 1, cpu_milli=number, memory_mib=30 - number), 0.0)
    passes = 0
    while not passes or scheduler.next_wakeup == 0.0:
        before = clock.tries
        assert scheduler.schedule(0.0, 100) == []
        assert clock.tries - before <= 10
        passes += 1
    assert passes == 3


def test_a_withdrawn_job_leaves_nothing_behind() -> None:
    scheduler = Scheduler(cluster(1), "easy_backfill")
    scheduler.submit(job("here", 8, expected_s=10.0), 0.0)
    scheduler.submit(job("next", 8, expected_s=10.0), 0.0)
    scheduler.submit(job("waits", 8), 0.0, unmet=["next"])
    scheduler.submit(job("paused", 8), 0.0, not_before=50.0)
    scheduler.schedule(0.0, 10)
    assert scheduler.planner.reservations
    assert scheduler.withdraw("next")
    assert scheduler.withdraw("waits")
    assert scheduler.withdraw("paused")
    assert not scheduler.withdraw("next")
    assert not scheduler.withdraw("here")
    scheduler.finished("here", 5.0)
    assert scheduler.schedule(5.0, 10) == []
    assert not scheduler.waiting and not scheduler.running and not scheduler.planner.reservations
    assert scheduler.next_wakeup is None
    assert scheduler.engine.allocated_gpu_milli == 0


def test_what_ended_already_cannot_end_again() -> None:
    scheduler = Scheduler(cluster(1))
    scheduler.submit(job("a"), 0.0)
    scheduler.schedule(0.0, 1)
    with pytest.raises(BadRequest, match="running already"):
        scheduler.submit(job("a"), 0.0)
    scheduler.finished("a", 1.0)
    for call in (scheduler.finished, scheduler.preempted):
        with pytest.raises(UnknownPlacement):
            call("a", 1.0)


def test_a_pause_keeps_a_job_aside_until_it_is_over() -> None:
    scheduler = Scheduler(cluster(1))
    scheduler.submit(job("retry"), 1.0, not_before=5.0)
    assert scheduler.schedule(1.0, 10) == []
    assert scheduler.next_wakeup == 5.0
    assert scheduler.explain("retry", 1.0)["not_before"] == 5.0
    assert scheduler.position("retry") is None
    assert scheduler.schedule(4.9, 10) == []
    assert ids(scheduler.schedule(5.0, 10)) == ["retry"]
    assert scheduler.next_wakeup is None


def test_a_job_waits_for_all_it_depends_on() -> None:
    scheduler = Scheduler(cluster(1))
    scheduler.submit(job("c"), 0.0, unmet=["a", "b"])
    scheduler.resolve("a", 1.0)
    assert scheduler.schedule(1.0, 10) == []
    assert scheduler.explain("c", 1.0)["depends_on"] == ["b"]
    scheduler.resolve("b", 2.0)
    assert ids(scheduler.schedule(2.0, 10)) == ["c"]


def test_a_preempted_job_waits_again_in_its_old_place() -> None:
    scheduler = Scheduler(cluster(1), "fifo")
    for id in "abc":
        scheduler.submit(job(id, 8), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["a"]
    scheduler.preempted("a", 1.0)
    assert [scheduler.position(id) for id in "abc"] == [1, 2, 3]
    assert ids(scheduler.schedule(1.0, 10)) == ["a"]


def test_the_clock_that_measures_placing_is_told_with_the_start() -> None:
    ticks = iter(range(0, 10_000_000, 5000))
    scheduler = Scheduler(cluster(1), clock_ns=lambda: next(ticks))
    scheduler.submit(job("a"), 0.0)
    (decision,) = scheduler.schedule(0.0, 1)
    assert isinstance(decision, Start) and decision.latency_us == 5.0


def test_explain_says_what_is_missing_where_it_stands_and_what_is_kept_for_it() -> None:
    scheduler = Scheduler(cluster(2), "easy_backfill")
    scheduler.submit(job("long", 8, expected_s=100.0), 0.0)
    scheduler.submit(job("gang", 8, gang=2, expected_s=100.0), 0.0)
    scheduler.submit(job("late", 4, expected_s=200.0), 0.0)
    scheduler.schedule(0.0, 10)
    report = scheduler.explain("gang", 7.0)
    assert (report["fits"], report["members_that_fit"], report["position"], report["waited_s"]) == (False, 1, 1, 7.0)
    assert report["reservation"] == {"start": 100.0, "nodes": ["n0", "n1"], "stopping": []}
    report = scheduler.explain("late", 7.0)
    assert (report["fits"], report["position"], report["held_up_by"]) == (True, 2, ["gang"])
    with pytest.raises(BadRequest, match="does not wait"):
        scheduler.explain("long", 7.0)


def test_under_fifo_explain_names_the_one_that_holds_up_the_line() -> None:
    scheduler = Scheduler(cluster(1), "fifo")
    for id, gpus in [("a", 4), ("b", 8), ("c", 1)]:
        scheduler.submit(job(id, gpus), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["a"]
    assert scheduler.explain("c", 0.0)["held_up_by"] == ["b"]
    scheduler.withdraw("b")
    assert ids(scheduler.schedule(1.0, 10)) == ["c"]


def test_nobody_overtakes_under_fifo_even_when_the_one_in_front_is_withdrawn() -> None:
    scheduler = Scheduler(cluster(1), "fifo")
    for id, gpus in [("a", 4), ("b", 8), ("c", 8), ("d", 1)]:
        scheduler.submit(job(id, gpus), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["a"]
    scheduler.withdraw("b")
    assert scheduler.schedule(1.0, 10) == []
    assert scheduler.explain("d", 1.0)["held_up_by"] == ["c"]


def test_a_changed_engine_is_looked_at_anew() -> None:
    engine = cluster(1)
    scheduler = Scheduler(engine, "easy_backfill")
    scheduler.submit(job("a", 8, expected_s=100.0), 0.0)
    scheduler.submit(job("b", 8, expected_s=100.0), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["a"]
    engine.add_node("new", cpu_milli=1000, memory_mib=1000, gpu_count=8, gpu_model="A", gpu_memory_mib=1000)
    scheduler.refresh(1.0)
    assert ids(scheduler.schedule(1.0, 10)) == ["b"]
    engine.remove_node("new")
    scheduler.submit(job("c", 8, expected_s=100.0), 2.0)
    scheduler.refresh(2.0)
    assert scheduler.schedule(2.0, 10) == []
    assert scheduler.planner.reservations["c"].start == 100.0


def test_another_engine_takes_over_with_what_it_is_told_runs() -> None:
    scheduler = Scheduler(cluster(1), "easy_backfill")
    scheduler.submit(job("a", 8, expected_s=100.0), 0.0)
    scheduler.submit(job("b", 8, expected_s=100.0), 0.0)
    (start,) = scheduler.schedule(0.0, 10)
    assert isinstance(start, Start)
    engine = cluster(1)
    engine.adopt("a", start.placement.shares)
    scheduler.rebind(engine, 5.0)
    scheduler.adopt(start.request, Placement("a", start.placement.shares), 0.0)
    assert scheduler.schedule(5.0, 10) == []
    assert scheduler.planner.reservations["b"].start == 100.0
    scheduler.finished("a", 50.0)
    assert ids(scheduler.schedule(50.0, 10)) == ["b"]


def test_a_need_that_nothing_could_serve_waits_without_being_tried() -> None:
    def translate(need: Demand) -> dict[str, Any] | None:
        return None if need.gpu_models else need.arguments()

    clock = Counting()
    scheduler = Scheduler(cluster(1), translate=translate, clock_ns=clock)
    scheduler.submit(job("odd", gpu_models=("X",)), 0.0)
    assert scheduler.schedule(0.0, 10) == []
    assert clock.tries == 0
    assert scheduler.explain("odd", 0.0)["fits"] is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_count": -1},
        {"cpu_milli": -1},
        {"gang": 0},
        {"gang": 5000},
        {"gpu_milli": 0},
        {"gpu_milli": 1001},
        {"expected_s": float("nan")},
        {"expected_s": -1.0},
        {"deadline": float("inf")},
        {"grace_s": -0.1},
        {"submitted_at": float("nan")},
    ],
)
def test_a_request_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        request("a", **wrong)


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownPolicy) as refused:
        Scheduler(cluster(1), "easy-backfil")
    assert refused.value.hint == "did you mean easy_backfill?"
    with pytest.raises(UnknownPolicy) as refused:
        find_policy("zzz")
    assert all(name in refused.value.hint for name in BUILT_IN)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_starts_what_fits(name: str) -> None:
    scheduler = Scheduler(cluster(1), name)
    scheduler.submit(job("a", 8, expected_s=1.0), 0.0)
    scheduler.submit(job("b", 0, cpu_milli=500), 0.0)
    assert sorted(ids(scheduler.schedule(0.0, 10))) == ["a", "b"]


def test_needs_compare_by_what_they_take() -> None:
    small = job("a", 1, cpu_milli=100).demand
    assert job("a", 2, cpu_milli=100).demand.needs_at_least(small)
    assert job("a", 1, cpu_milli=100, gang=2).demand.needs_at_least(small)
    assert not job("a", 2, cpu_milli=50).demand.needs_at_least(small)
    assert not job("a", 2, cpu_milli=100, gpu_models=("A",)).demand.needs_at_least(small)
    assert not small.needs_at_least(job("a", 1, gang=2).demand)


def test_a_victim_that_ends_by_itself_is_as_good_as_one_that_was_stopped() -> None:
    scheduler = Scheduler(cluster(1), "las")
    scheduler.submit(job("old", 8, grace_s=30.0), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["old"]
    scheduler.submit(job("new", 8), 1000.0)
    (decision,) = scheduler.schedule(1000.0, 10)
    assert decision == Preempt("old", 30.0, "new")
    scheduler.finished("old", 1010.0)
    assert ids(scheduler.schedule(1010.0, 10)) == ["new"]


@pytest.mark.parametrize("policy", ["fifo", "easy_backfill", "priority"])
@pytest.mark.parametrize("gpus", [0, 4])
def test_what_would_rather_be_near_gets_that_node_while_it_has_room(policy: str, gpus: int) -> None:
    scheduler = Scheduler(cluster(3), policy)
    for number in range(3):
        scheduler.submit(job(f"j{number}", gpus, cpu_milli=64_000, near="n1"), 0.0)
    starts = [start for start in scheduler.schedule(0.0, 10) if isinstance(start, Start)]
    places = [start.placement.shares[0][0] for start in starts]
    assert places[:2] == ["n1", "n1"] and places[2] != "n1"
    scheduler.submit(job("lost", gpus, near="a node that is gone"), 1.0)
    assert ids(scheduler.schedule(1.0, 10)) == ["lost"]
