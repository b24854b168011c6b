"""What each policy is for, shown on small clusters."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from actorgrid.actors.scheduling import policies
from actorgrid.actors.scheduling.policies import SchedulingPolicy, find_policy
from actorgrid.actors.scheduling.policies.affinity import Affinity
from actorgrid.actors.scheduling.policies.edf import EarliestDeadline
from actorgrid.actors.scheduling.policies.las import LeastAttainedService
from actorgrid.actors.scheduling.policies.priority import Priority
from actorgrid.actors.scheduling.request import Decision, Preempt, Refuse, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, QueueFull, UnknownPolicy
from tests.scheduling.cluster import cluster, request, simulate


def job(id: str, gpus: int = 1, **more: Any) -> Request:
    return request(id, gpu_count=gpus, **more)


def ids(decisions: list[Decision]) -> list[str]:
    return [each.request.id if isinstance(each, Start) else each.id for each in decisions]


def running(policy: str | SchedulingPolicy, *jobs: Request, nodes: int = 1, racks: int = 0) -> Scheduler:
    """A scheduler on whose cluster *jobs* run since 0."""
    scheduler = Scheduler(cluster(nodes, racks=racks), policy)
    for each in jobs:
        scheduler.submit(each, 0.0)
        assert ids(scheduler.schedule(0.0, 10)) == [each.id]
    return scheduler


# -- priority


def test_higher_priority_goes_first_then_who_came_first() -> None:
    scheduler = Scheduler(cluster(4), "priority")
    for id, priority in [("late", 50), ("early", 50), ("urgent", 90), ("beyond", 500)]:
        scheduler.submit(job(id, 8, priority=priority), 0.0, order={"early": 1}.get(id, 2))
    assert ids(scheduler.schedule(0.0, 10)) == ["beyond", "urgent", "early", "late"]


def test_a_job_rises_by_a_point_for_each_period_it_waits() -> None:
    scheduler = running(Priority(aging_s=10.0, aged_max=60), job("here", 8))
    scheduler.submit(job("old", 8, priority=50), 0.0)
    scheduler.submit(job("new", 8, priority=55), 45.0)
    assert [scheduler.position(id) for id in ("old", "new")] == [2, 1]
    scheduler.schedule(59.0, 10)
    assert [scheduler.position(id) for id in ("old", "new")] == [2, 1]
    assert scheduler.next_wakeup == 60.0
    scheduler.schedule(65.0, 10)
    assert [scheduler.position(id) for id in ("old", "new")] == [2, 1], "both have risen"
    scheduler.schedule(1000.0, 10)
    assert [scheduler.position(id) for id in ("old", "new")] == [1, 2], "at the top they stand as they came"


def test_what_stands_above_the_highest_age_is_never_passed_by_the_old() -> None:
    scheduler = running(Priority(aging_s=10.0, aged_max=100), job("here", 8))
    scheduler.submit(job("old", 8, priority=50), 0.0)
    scheduler.schedule(5000.0, 10)
    scheduler.submit(job("lease", 8, priority=101), 5000.0)
    assert scheduler.position("lease") == 1


# -- backfill


def test_a_short_job_passes_the_first_in_the_line_and_a_long_one_does_not() -> None:
    scheduler = running("easy_backfill", job("a", 8, expected_s=100.0), job("b", 4, expected_s=100.0), nodes=2)
    scheduler.submit(job("gang", 8, gang=2, expected_s=10.0), 0.0)
    scheduler.submit(job("long", 4, expected_s=200.0), 0.0)
    scheduler.submit(job("endless", 1), 0.0)
    scheduler.submit(job("short", 4, expected_s=100.0), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["short"]


def test_a_long_job_may_use_what_the_reservation_on_a_node_leaves() -> None:
    scheduler = running("easy_backfill", job("a", 6, expected_s=100.0))
    scheduler.submit(job("first", 5, expected_s=10.0), 0.0)
    scheduler.submit(job("beside", 2), 0.0)
    scheduler.submit(job("no more", 2, cpu_milli=1), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["beside"]
    assert scheduler.planner.reservations["first"].start == 100.0
    scheduler.finished("a", 100.0)
    assert ids(scheduler.schedule(100.0, 10))[0] == "first"


def test_a_reservation_keeps_cpu_and_memory_of_its_node_too() -> None:
    scheduler = running("easy_backfill", job("a", 8, expected_s=100.0))
    scheduler.submit(job("first", 1, cpu_milli=128_000, expected_s=10.0), 0.0)
    scheduler.submit(job("one cpu", 0, cpu_milli=1000), 0.0)
    scheduler.submit(job("memory only", 0, memory_mib=1024), 0.0)
    assert ids(scheduler.schedule(0.0, 10)) == ["memory only"]


def test_a_job_without_an_estimate_keeps_its_place_once_it_has_waited() -> None:
    scheduler = running("easy_backfill", job("endless", 4), job("b", 4))
    scheduler.finished("b", 1.0)
    scheduler.submit(job("large", 8), 1.0)
    scheduler.submit(job("small", 4, expected_s=10.0), 1.0)
    assert ids(scheduler.schedule(1.0, 10)) == ["small"], "nobody knows when the large one could start"
    assert scheduler.explain("large", 1.0)["reservation"] is None
    assert scheduler.next_wakeup is not None and scheduler.next_wakeup <= 601.0
    scheduler.finished("small", 11.0)
    assert scheduler.schedule(601.0, 10) == []
    assert scheduler.explain("large", 601.0)["reservation"] == {"start": None, "nodes": ["n0"], "stopping": []}
    scheduler.submit(job("another", 4, expected_s=1.0), 602.0)
    assert scheduler.schedule(602.0, 10) == []
    scheduler.finished("endless", 700.0)
    assert ids(scheduler.schedule(700.0, 10)) == ["large"]


def test_a_reservation_that_is_overdue_is_made_anew() -> None:
    scheduler = running("easy_backfill", job("a", 8, expected_s=100.0))
    scheduler.submit(job("next", 8, expected_s=10.0), 0.0)
    scheduler.schedule(0.0, 10)
    assert scheduler.schedule(100.0, 10) == []
    assert scheduler.planner.reservations["next"].start == 100.0, "it may end any moment"
    assert scheduler.schedule(101.0, 10) == []
    assert scheduler.planner.reservations["next"].start == 200.0, "its estimate was wrong: twice as long"


def test_when_jobs_end_early_reservations_move_forward() -> None:
    scheduler = running("easy_backfill", job("a", 4, expected_s=100.0), job("b", 4, expected_s=50.0))
    scheduler.submit(job("next", 8, expected_s=10.0), 0.0)
    scheduler.schedule(0.0, 10)
    assert scheduler.planner.reservations["next"].start == 100.0
    scheduler.finished("a", 20.0)
    scheduler.schedule(20.0, 10)
    assert scheduler.planner.reservations["next"].start == 50.0


def test_a_reservation_yields_to_who_ranks_higher_and_is_made_anew_behind_it() -> None:
    scheduler = running("easy_backfill", job("a", 4, expected_s=100.0))
    scheduler.submit(job("large", 8, expected_s=10.0), 0.0)
    scheduler.schedule(0.0, 10)
    scheduler.submit(job("urgent", 4, priority=90, expected_s=500.0), 1.0)
    assert ids(scheduler.schedule(1.0, 10)) == ["urgent"]
    assert scheduler.planner.reservations["large"].start == 501.0


def test_under_conservative_backfill_nobody_delays_the_second_in_the_line_either() -> None:
    jobs = [job("second", 6, expected_s=10.0), job("passes", 3, expected_s=100.0)]
    started = {}
    for policy in ("easy_backfill", "conservative_backfill"):
        scheduler = running(policy, job("a", 4, expected_s=50.0), job("b", 1, expected_s=50.0))
        scheduler.submit(job("first", 5, expected_s=10.0), 0.0)
        for each in jobs:
            scheduler.submit(each, 0.0)
        started[policy] = ids(scheduler.schedule(0.0, 10))
    assert started == {"easy_backfill": ["passes"], "conservative_backfill": []}


# -- gang


def test_single_jobs_pass_a_gang_but_leave_its_place_alone() -> None:
    scheduler = running("gang", job("a", 8), job("b", 8), nodes=3)
    scheduler.submit(job("gang", 8, gang=2), 0.0)
    scheduler.schedule(0.0, 10)
    kept = scheduler.explain("gang", 0.0)["reservation"]["nodes"]
    assert len(kept) == 2
    for number in range(4):
        scheduler.submit(job(f"s{number}", 8), 1.0)
    assert scheduler.schedule(1.0, 10) == [], "the free node is one of the two"
    scheduler.finished("a", 2.0)
    assert ids(scheduler.schedule(2.0, 10)) == ["gang"]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    scheduler = running("gang", job("a", 1), nodes=2)
    scheduler.submit(job("gang", 8, gang=2), 0.0)
    assert scheduler.schedule(0.0, 10) == []
    assert scheduler.engine.allocated_gpu_milli == 1000


# -- affinity


def test_a_job_waits_a_little_for_the_rack_it_likes() -> None:
    scheduler = running(Affinity(patience_s=30.0), job("a", 8, affinity_soft=("r0",)), nodes=2, racks=2)
    scheduler.submit(job("b", 8, affinity_soft=("r0",)), 0.0)
    assert scheduler.schedule(0.0, 10) == []
    assert scheduler.next_wakeup == 30.0
    (start,) = scheduler.schedule(30.0, 10)
    assert isinstance(start, Start) and start.placement.shares[0][0] == "n1"


def test_a_job_gets_the_node_it_likes_when_that_is_free() -> None:
    scheduler = Scheduler(cluster(3), "affinity")
    scheduler.submit(job("a", 8, affinity_soft=("n2",)), 0.0)
    (start,) = scheduler.schedule(0.0, 10)
    assert isinstance(start, Start) and start.placement.shares[0][0] == "n2"


def test_what_a_job_likes_never_stands_in_the_place_of_what_it_demands() -> None:
    def translate(demand: Demand) -> dict[str, Any]:
        only = tuple((name, (3, 5)) for name in demand.affinity_hard)
        return {**demand.arguments(), **({"within": only} if only else {})}

    scheduler = Scheduler(cluster(3), "affinity", translate=translate)
    scheduler.submit(job("a", 1, affinity_soft=("n2",), affinity_hard=("n1", "n2")), 0.0)
    scheduler.submit(job("b", 1, affinity_soft=("n0",), affinity_hard=("n1",)), 0.0)
    (start,) = scheduler.schedule(0.0, 10)
    assert start.placement.shares == (("n2", (3,)),)
    (start,) = scheduler.schedule(40.0, 10)
    assert start.placement.shares == (("n1", (3,)),)


# -- least attained service


def test_a_new_job_stops_one_that_has_had_much() -> None:
    scheduler = running(LeastAttainedService(thresholds=(800.0,)), job("a", 8, grace_s=5.0))
    scheduler.submit(job("b", 8), 50.0)
    assert scheduler.schedule(50.0, 10) == [], "both have had little"
    assert scheduler.next_wakeup == 100.0
    assert scheduler.schedule(100.0, 10) == [Preempt("a", 5.0, "b")]
    assert scheduler.schedule(101.0, 10) == [], "the plan stands"
    assert scheduler.explain("b", 101.0)["reservation"]["stopping"] == ["a"]
    scheduler.submit(job("thief", 1), 102.0)
    scheduler.preempted("a", 105.0)
    assert ids(scheduler.schedule(105.0, 10)) == ["b"]
    assert scheduler.running["b"].level == 0


def test_what_may_not_be_stopped_is_not() -> None:
    scheduler = running(LeastAttainedService(thresholds=(800.0,)), job("a", 8, preemptible=False))
    scheduler.submit(job("b", 8), 50.0)
    assert scheduler.schedule(200.0, 10) == []


def test_who_was_stopped_and_waited_long_begins_anew() -> None:
    scheduler = running(LeastAttainedService(thresholds=(800.0,), patience=2.0), job("a", 8))
    scheduler.submit(job("b", 8, preemptible=False), 100.0)
    scheduler.schedule(100.0, 10)
    scheduler.preempted("a", 100.0)
    assert ids(scheduler.schedule(100.0, 10)) == ["b"]
    assert scheduler.waiting["a"].level == 1
    scheduler.schedule(300.0, 10)
    assert scheduler.waiting["a"].level == 0


# -- preemption


def test_victims_are_together_where_the_one_that_waits_fits() -> None:
    """Six GPUs could be freed on two nodes with less work lost, but only one node has four of them together."""
    scheduler = Scheduler(cluster(2), LeastAttainedService(thresholds=(1.0,)))
    scheduler.submit(job("fixed 0", 4, preemptible=False), 0.0, order=0)
    scheduler.schedule(0.0, 10)
    for id, gpus in [("small 0", 2), ("fixed 1", 2), ("wide", 8)]:
        scheduler.submit(job(id, gpus, preemptible=not id.startswith("fixed")), 0.0)
        scheduler.schedule(0.0, 10)
    assert set(scheduler.running) == {"fixed 0", "small 0", "fixed 1", "wide"}
    scheduler.submit(job("new", 4), 10.0)
    assert [each.id for each in scheduler.schedule(10.0, 10) if isinstance(each, Preempt)] == ["wide"]


def test_few_victims_of_low_priority_that_lose_little_are_chosen() -> None:
    policy = LeastAttainedService(thresholds=(1.0,))
    scheduler = running(policy, job("a", 4, priority=9), job("b", 2, priority=1), job("c", 2, priority=1))
    scheduler.submit(job("new", 2), 10.0)
    (preempt,) = scheduler.schedule(10.0, 10)
    assert preempt.id == "b"  # type: ignore[union-attr]
    scheduler.submit(job("larger", 4), 11.0)
    (preempt,) = scheduler.schedule(11.0, 10)
    assert preempt.id == "a", "one victim is better than two"  # type: ignore[union-attr]


# -- deadlines


def test_a_strict_deadline_that_cannot_be_met_is_refused_with_when_it_could() -> None:
    scheduler = running("edf", job("a", 8, expected_s=100.0, preemptible=False))
    with pytest.raises(BadRequest, match="cannot be kept") as refused:
        scheduler.submit(job("b", 8, expected_s=10.0, deadline=60.0), 0.0)
    assert refused.value.found == "it could be done by 110"
    assert "b" not in scheduler.waiting and not scheduler.planner.reservations
    scheduler.submit(job("b", 8, expected_s=10.0, deadline=110.0), 0.0)
    assert scheduler.planner.reservations["b"].start == 100.0
    with pytest.raises(BadRequest, match="needs an estimate"):
        scheduler.submit(job("c", 8, deadline=1000.0), 0.0)


def test_whether_a_deadline_could_be_kept_is_told_without_keeping_anything() -> None:
    scheduler = running("edf", job("a", 8, grace_s=20.0))
    with pytest.raises(BadRequest) as refused:
        scheduler.check(job("b", 8, expected_s=50.0, deadline=60.0), 0.0)
    assert refused.value.details == {"possible_at": None}, "nobody knows when the running one ends"
    scheduler.check(job("b", 8, expected_s=50.0, deadline=70.0), 0.0)
    assert not scheduler.waiting and not scheduler.planner.reservations
    assert scheduler.schedule(0.0, 10) == [], "and nobody is stopped"


def test_promises_are_made_anew_on_another_engine_or_broken_with_a_word() -> None:
    scheduler = running("edf", job("a", 8, expected_s=10.0, preemptible=False))
    scheduler.submit(job("late", 8, expected_s=50.0, deadline=500.0), 0.0)
    scheduler.submit(job("soon", 8, expected_s=50.0, deadline=70.0), 0.0)
    (placement,) = [each.placement for each in scheduler.running.values()]
    assert placement is not None
    engine = cluster(1)
    scheduler.rebind(engine, 1.0)
    adopted = engine.adopt("a", placement.shares)
    scheduler.adopt(job("a", 8, expected_s=10.0, preemptible=False), adopted, 0.0)
    scheduler.refresh(1.0)
    assert {id: each.start for id, each in scheduler.planner.reservations.items()} == {"soon": 10.0, "late": 60.0}
    scheduler.rebind(cluster(0), 2.0)
    scheduler.refresh(2.0)
    refusals = scheduler.schedule(2.0, 10)
    assert sorted(ids(refusals)) == ["late", "soon"]
    assert all(isinstance(each, Refuse) and each.error is not None for each in refusals)


def test_who_was_told_to_stop_is_not_told_again_by_another_engine_and_the_place_is_kept() -> None:
    scheduler = running(LeastAttainedService(thresholds=(80.0,)), job("a", 8, grace_s=5.0))
    scheduler.submit(job("b", 8), 50.0)
    assert scheduler.schedule(50.0, 10) == [Preempt("a", 5.0, "b")]
    engine = cluster(1)
    scheduler.rebind(engine, 51.0)
    placement = engine.adopt("a", (("n0", tuple(range(8))),))
    scheduler.adopt(job("a", 8, grace_s=5.0), placement, 0.0, stopping_at=55.0, stopped_for="b")
    scheduler.refresh(51.0)
    assert scheduler.schedule(51.0, 10) == []
    assert scheduler.explain("b", 51.0)["reservation"] == {"start": 55.0, "nodes": ["n0"], "stopping": ["a"]}
    scheduler.submit(job("thief", 1), 52.0)
    scheduler.finished("a", 54.0)
    assert ids(scheduler.schedule(54.0, 10)) == ["b"]


def test_a_soft_deadline_waits() -> None:
    scheduler = running("edf", job("a", 8, expected_s=100.0))
    for id, deadline in [("late", 90.0), ("early", 50.0), ("none", None)]:
        scheduler.submit(job(id, 8, deadline=deadline, strict=False), 0.0)
    assert [scheduler.position(id) for id in ("early", "late", "none")] == [1, 2, 3]
    assert scheduler.schedule(0.0, 10) == []


def test_reservations_are_rearranged_when_that_keeps_all_deadlines() -> None:
    scheduler = running("edf", job("a", 8, expected_s=10.0, preemptible=False))
    scheduler.submit(job("relaxed", 8, expected_s=50.0, deadline=500.0), 0.0)
    assert scheduler.planner.reservations["relaxed"].start == 10.0
    scheduler.submit(job("tight", 8, expected_s=50.0, deadline=70.0), 0.0)
    assert {id: each.start for id, each in scheduler.planner.reservations.items()} == {"tight": 10.0, "relaxed": 60.0}
    with pytest.raises(BadRequest):
        scheduler.submit(job("too tight", 8, expected_s=20.0, deadline=75.0), 0.0)
    assert {id: each.start for id, each in scheduler.planner.reservations.items()} == {"tight": 10.0, "relaxed": 60.0}


def test_a_strict_deadline_stops_others_within_their_grace() -> None:
    scheduler = running("edf", job("a", 8, grace_s=20.0))
    with pytest.raises(BadRequest):
        scheduler.submit(job("b", 8, expected_s=50.0, deadline=69.0), 0.0)
    assert scheduler.schedule(0.0, 10) == []
    scheduler.submit(job("b", 8, expected_s=50.0, deadline=70.0), 0.0)
    assert scheduler.schedule(0.0, 10) == [Preempt("a", 20.0, "b")]
    scheduler.preempted("a", 20.0)
    assert ids(scheduler.schedule(20.0, 10)) == ["b"]


def test_a_plan_that_is_withdrawn_before_anybody_was_told_stops_nobody() -> None:
    scheduler = running("edf", job("a", 8))
    scheduler.submit(job("b", 8, expected_s=50.0, deadline=70.0), 0.0)
    scheduler.withdraw("b")
    assert scheduler.schedule(0.0, 10) == []
    scheduler.submit(job("c", 8, expected_s=50.0, deadline=70.0), 0.0)
    assert scheduler.schedule(0.0, 10) == [Preempt("a", 0.0, "c")]


def test_what_can_no_longer_make_its_deadline_is_given_up() -> None:
    scheduler = running("edf", job("a", 8, expected_s=100.0, preemptible=False))
    scheduler.submit(job("b", 8, expected_s=10.0, deadline=150.0), 0.0)
    assert scheduler.schedule(140.0, 10) == []
    (refusal,) = scheduler.schedule(140.01, 10)
    assert isinstance(refusal, Refuse) and refusal.id == "b"
    assert not scheduler.waiting


def test_strict_deadlines_that_wait_are_bounded() -> None:
    scheduler = running(EarliestDeadline(strict_max=1), job("a", 8, expected_s=10.0))
    scheduler.submit(job("b", 8, expected_s=1.0, deadline=100.0), 0.0)
    with pytest.raises(QueueFull):
        scheduler.submit(job("c", 8, expected_s=1.0, deadline=100.0), 0.0)
    assert list(scheduler.waiting) == ["b"], "who was refused does not wait"


# -- policies of others


class Broken:
    pass


def test_a_policy_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [
        EntryPoint("oldest", "actorgrid.actors.scheduling.policies.fifo:Fifo", policies.GROUP),
        EntryPoint("broken", f"{__name__}:Broken", policies.GROUP),
        EntryPoint("fifo", f"{__name__}:Broken", policies.GROUP),
    ]
    monkeypatch.setattr(policies, "entry_points", lambda group: offered if group == policies.GROUP else [])
    assert find_policy("oldest").name == "fifo"
    assert find_policy("fifo").name == "fifo", "names that ship cannot be taken over"
    with pytest.raises(UnknownPolicy, match="gives no scheduling policy"):
        find_policy("broken")
    with pytest.raises(UnknownPolicy) as refused:
        find_policy("oldst")
    assert refused.value.hint == "did you mean oldest?"


def test_backfill_and_priority_serve_a_mixed_load_sooner_than_fifo() -> None:
    jobs = [
        (job(f"j{n}", (1, 1, 2, 8, 1, 4)[n % 6], submitted_at=n * 10.0, expected_s=(30.0, 200.0)[n % 5 == 0] * 2), d)
        for n, d in enumerate([30.0, 200.0, 60.0, 90.0] * 50)
    ]
    mean = {policy: simulate(cluster(1), policy, jobs).mean_jct() for policy in ("fifo", "easy_backfill")}
    assert mean["easy_backfill"] < 0.75 * mean["fifo"]


def test_a_deadline_that_no_order_could_keep_is_refused_without_trying_all_orders() -> None:
    """100 promises stand; a job that could not be done in time on the cluster alone leaves them as they are, unseen."""
    scheduler = Scheduler(cluster(4, 4), "edf")
    scheduler.submit(request("runs", gpu_count=4, gang=4, expected_s=100.0, preemptible=False), 0.0)
    scheduler.schedule(0.0, 10)
    for number in range(100):
        scheduler.submit(request(f"j{number}", gpu_count=4, gang=4, expected_s=1.0, deadline=1000.0), 0.0)
    before = dict(scheduler.planner.reservations)
    counted = scheduler.planner.forecast().counted
    with pytest.raises(BadRequest):
        scheduler.submit(request("late", gpu_count=1, expected_s=50.0, deadline=120.0), 0.0)
    assert scheduler.planner.forecast().counted - counted < 5 * 100 * 4
    assert scheduler.planner.reservations == before


def test_a_reservation_is_planned_anew_no_further_than_it_reaches() -> None:
    """With a start in sight, the 200 jobs that end after it are nothing to look at."""
    scheduler = Scheduler(cluster(201, 4), "conservative_backfill")
    for number in range(201):
        scheduler.submit(request(f"j{number}", gpu_count=4, expected_s=100.0 + number), 0.0)
    scheduler.schedule(0.0, 1000)
    scheduler.submit(request("next", gpu_count=4, gang=2, expected_s=10.0), 1.0)
    scheduler.schedule(1.0, 10)
    job = scheduler.waiting["next"]
    assert job.reservation is not None and job.reservation.start == 101.0
    counted = scheduler.planner.forecast().counted
    assert scheduler.planner.earliest(job, 2.0) is None, "not before what it has"
    assert scheduler.planner.forecast().counted - counted < 201 + 5
