"""What must hold for any jobs: nobody starves or is delayed by who passed, deadlines that were promised are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.scheduling.policies import BUILT_IN, find_policy
from actorgrid.actors.scheduling.request import Preempt, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.errors import BadRequest
from tests.scheduling.cluster import cluster, request, simulate, verify

NODES, GPUS = 3, 4


@st.composite
def workloads(draw: st.DrawFn, *, exact: bool = True, deadlines: bool = False) -> list[tuple[Request, float]]:
    """Jobs that each fit an empty cluster of three nodes with four GPUs. *exact*: they run as long as estimated."""
    jobs = []
    now = 0.0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0.0, 0.0, 1.0, 7.5]))
        gang = draw(st.sampled_from([1, 1, 1, 2, 3]))
        shared = draw(st.booleans()) and gang == 1
        duration = draw(st.sampled_from([1.0, 5.0, 5.5, 20.0, 60.0]))
        known = draw(st.sampled_from(["exact", "exact", "too long", "none"])) if not exact else "exact"
        more: dict[str, Any] = {}
        if deadlines:
            kind = draw(st.sampled_from(["strict", "strict", "soft", "none"]))
            if kind != "none":
                more = {"deadline": now + duration + draw(st.sampled_from([0.0, 3.0, 30.0, 200.0]))}
                more["strict"] = kind == "strict"
        jobs.append(
            (
                request(
                    f"j{number}",
                    cpu_milli=draw(st.sampled_from([0, 1000, 30_000])),
                    memory_mib=draw(st.sampled_from([0, 1024, 100_000])),
                    gpu_count=1 if shared else draw(st.integers(0, GPUS)),
                    gpu_milli=draw(st.sampled_from([300, 500])) if shared else 1000,
                    gang=gang,
                    priority=draw(st.sampled_from([0, 0, 50, 90])),
                    submitted_at=now,
                    expected_s={"exact": duration, "too long": duration * 3, "none": None}[known],
                    preemptible=draw(st.booleans()),
                    grace_s=draw(st.sampled_from([0.0, 2.0])),
                    affinity_soft=draw(st.sampled_from([(), ("n0",), ("r1",)])),
                    **more,
                ),
                duration,
            )
        )
    return jobs


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@settings(max_examples=40, deadline=None)
@given(jobs=workloads(exact=False), limit=st.sampled_from([1, 3, 1000]))
def test_every_job_is_served_and_never_more_than_fits(
    policy: str, jobs: list[tuple[Request, float]], limit: int
) -> None:
    engine = cluster(NODES, GPUS, racks=2)
    outcome = simulate(engine, policy, jobs, limit=limit, check=True)
    assert set(outcome.ended) == {request.id for request, _ in jobs}
    assert engine.allocated_gpu_milli == 0
    assert not engine.placements()


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@settings(max_examples=20, deadline=None)
@given(jobs=workloads(exact=False))
def test_the_same_events_give_the_same_decisions(policy: str, jobs: list[tuple[Request, float]]) -> None:
    first, second = (simulate(cluster(NODES, GPUS, racks=2), policy, jobs).log for _ in range(2))
    assert first == second


@pytest.mark.parametrize("policy", ["easy_backfill", "conservative_backfill", "gang"])
@settings(max_examples=60, deadline=None)
@given(
    others=workloads(),
    spread=st.lists(st.sampled_from([0.0, 1.0, 4.0, 11.0]), min_size=14, max_size=14),
)
def test_a_gang_at_the_head_starts_no_later_than_its_first_reservation(
    policy: str, others: list[tuple[Request, float]], spread: list[float]
) -> None:
    """Whatever comes behind it, also when estimates are too long: those who pass do not delay it."""
    scheduler = Scheduler(engine := cluster(NODES, GPUS), policy)
    running: dict[str, float] = {}

    def run(now: float) -> None:
        for decision in scheduler.schedule(now, 1000):
            assert isinstance(decision, Start)
            running[decision.request.id] = now + durations[decision.request.id]

    durations = {request.id: duration for request, duration in others}
    durations |= {"first": 50.0, "gang": 30.0, "cut short": 20.0}
    scheduler.submit(request("first", gpu_count=2, expected_s=50.0), 0.0)
    scheduler.submit(request("cut short", gpu_count=3, expected_s=45.0), 0.0)
    run(0.0)
    scheduler.submit(request("gang", gpu_count=GPUS, gang=NODES, priority=100, expected_s=30.0), 0.0)
    run(0.0)
    promised = scheduler.planner.reservations["gang"].start
    assert promised == 50.0
    arrivals = []
    now = 0.0
    for (each, _), pause in zip(others, spread, strict=False):
        now += pause
        arrivals.append((now, each))
    while "gang" not in scheduler.running:
        times = [*running.values(), *(at for at, _ in arrivals[:1])]
        wake = scheduler.next_wakeup
        now = min(times if wake is None else [*times, wake])
        assert now <= promised, "its time has come, and it does not run"
        for id in [id for id, end in running.items() if end == now]:
            del running[id]
            scheduler.finished(id, now)
        while arrivals and arrivals[0][0] == now:
            scheduler.submit(arrivals.pop(0)[1], now)
        run(now)
        verify(scheduler, engine, dict.fromkeys(running, 0))
        reservation = scheduler.planner.reservations.get("gang")
        assert reservation is None or reservation.start <= promised, "a reservation never moves back"
        promised = reservation.start if reservation is not None else promised
    assert now <= promised


@settings(max_examples=60, deadline=None)
@given(jobs=workloads())
def test_under_conservative_backfill_nobody_starts_after_the_first_promise(jobs: list[tuple[Request, float]]) -> None:
    policy = find_policy("conservative_backfill")
    promised: dict[str, float] = {}

    class Watching(type(policy)):  # type: ignore[misc]
        levels = 1

        def level(self, job: Any, now: float) -> int:
            return 0  # the order of submission only: then nobody comes in between

        def next_change(self, job: Any, now: float) -> None:
            return None

    watching = Watching()
    scheduler = Scheduler(cluster(NODES, GPUS), watching)
    now, running = 0.0, {}
    arrivals = [(request.submitted_at, request) for request, _ in jobs]
    durations = {request.id: duration for request, duration in jobs}
    while arrivals or running or scheduler.waiting:
        times = [*running.values(), *(at for at, _ in arrivals[:1])]
        wake = scheduler.next_wakeup
        now = min(times if wake is None else [*times, wake])
        for id in [id for id, end in running.items() if end == now]:
            del running[id]
            scheduler.finished(id, now)
        while arrivals and arrivals[0][0] == now:
            scheduler.submit(arrivals.pop(0)[1], now)
        for decision in scheduler.schedule(now, 1000):
            assert isinstance(decision, Start)
            id = decision.request.id
            assert now <= promised.get(id, now)
            running[id] = now + durations[id]
        for id, reservation in scheduler.planner.reservations.items():
            assert reservation.start <= promised.get(id, reservation.start)
            promised[id] = reservation.start


def test_a_gang_without_gpus_that_passes_a_reservation_leaves_its_memory_alone() -> None:
    """Its plan has one member on each of two nodes; both on one node would need the memory that is kept there."""
    scheduler = Scheduler(cluster(NODES, GPUS), "conservative_backfill")
    scheduler.submit(request("one", gpu_count=1, expected_s=1.0), 0.0)
    scheduler.submit(request("first", gpu_count=GPUS, memory_mib=100_000, gang=NODES, expected_s=1.0), 0.0)
    scheduler.submit(request("passes", memory_mib=100_000, gang=2, expected_s=5.0), 0.0)
    started = {decision.request.id for decision in scheduler.schedule(0.0, 10) if isinstance(decision, Start)}
    assert started == {"one", "passes"}
    scheduler.finished("one", 1.0)
    started = {decision.request.id for decision in scheduler.schedule(1.0, 10) if isinstance(decision, Start)}
    assert started == {"first"}


@settings(max_examples=120, deadline=None)
@given(jobs=workloads(deadlines=True))
def test_a_strict_deadline_that_was_admitted_is_met(jobs: list[tuple[Request, float]]) -> None:
    outcome = simulate(cluster(NODES, GPUS), "edf", jobs, check=True)
    strict = {request.id: request.deadline for request, _ in jobs if request.deadline is not None and request.strict}
    assert not outcome.given_up
    assert set(outcome.ended) | set(outcome.turned_away) == {request.id for request, _ in jobs}
    for id, deadline in strict.items():
        if id not in outcome.turned_away:
            assert deadline is not None and outcome.ended[id] <= deadline + 1e-6
    assert all(id in strict for id in outcome.turned_away), "only strict deadlines are turned away"
    assert not any(id in strict for id, _ in outcome.preemptions), "and they are never stopped for another"


@pytest.mark.parametrize("policy", ["priority", "gang", "easy_backfill", "las"])
def test_a_gang_is_served_although_small_jobs_never_stop_coming(policy: str) -> None:
    """One small job after another, always overlapping, would keep a gang out for ever without a place kept for it."""
    small = [
        (request(f"s{number}", gpu_count=2, submitted_at=number * 50.0, priority=20), 190.0) for number in range(200)
    ]
    gang = (request("gang", gpu_count=4, gang=2, submitted_at=200.0), 10.0)
    outcome = simulate(cluster(2, 4), policy, sorted([*small, gang], key=lambda job: job[0].submitted_at))
    assert outcome.started["gang"] < outcome.started["s199"]


def test_who_waits_long_rises_and_is_served_before_new_ones_of_higher_priority() -> None:
    stream = [(request(f"s{n}", gpu_count=4, submitted_at=n * 90.0, priority=50), 100.0) for n in range(400)]
    old = (request("old", gpu_count=4, submitted_at=100.0, priority=40), 100.0)
    outcome = simulate(cluster(1, 4), "priority", [*stream, old])
    served = sorted(outcome.started, key=lambda id: outcome.started[id])
    assert 30 < served.index("old") < 200


steps = st.lists(
    st.tuples(st.sampled_from(["submit", "submit", "withdraw", "finish", "preempt", "pass"]), st.integers(0, 7)),
    max_size=60,
)


def test_a_refusal_that_was_not_told_yet_goes_with_what_it_was_of() -> None:
    """One that waits anew under its id is not refused for what it was before; one that was withdrawn not at all."""
    hurried = replace(request("j", gpu_count=1, submitted_at=0.0), expected_s=1.0, deadline=1.5, strict=True)
    for again in (True, False):
        scheduler = Scheduler(cluster(1, 1), "edf", queue_max=6)
        scheduler.submit(hurried, 0.0)
        assert [type(each) for each in scheduler.schedule(0.0, 3)] == [Start]
        scheduler.preempted("j", 0.9)
        assert not scheduler.waiting
        if again:
            scheduler.submit(replace(hurried, deadline=9.0), 1.0)
            assert [type(each) for each in scheduler.schedule(1.0, 3)] == [Start]
            scheduler.finished("j", 1.0)
        else:
            scheduler.withdraw("j")
            assert scheduler.schedule(1.0, 3) == []


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@settings(max_examples=40, deadline=None)
@given(steps=steps, jobs=workloads(exact=False, deadlines=True))
def test_submitting_withdrawing_and_ending_in_any_order_leaves_nothing_behind(
    policy: str, steps: list[tuple[str, int]], jobs: list[tuple[Request, float]]
) -> None:
    engine = cluster(NODES, GPUS)
    scheduler = Scheduler(engine, policy, queue_max=6)
    now = 0.0
    stopping: dict[str, None] = {}
    for what, pick in steps:
        now += 0.5
        request = jobs[pick % len(jobs)][0]
        running, waiting = sorted(scheduler.running), sorted(scheduler.waiting)
        if what == "submit" and request.id not in scheduler.running and len(waiting) < 6:
            try:
                scheduler.submit(request, now, not_before=now + pick % 3)
            except BadRequest:
                assert request.deadline is not None and request.strict
        elif what == "withdraw" and waiting:
            assert scheduler.withdraw(waiting[pick % len(waiting)])
        elif what == "finish" and running:
            scheduler.finished(running[pick % len(running)], now)
        elif what == "preempt" and running:
            scheduler.preempted(running[pick % len(running)], now)
        elif what == "pass":
            for decision in scheduler.schedule(now, 3):
                if isinstance(decision, Preempt):
                    assert decision.id in scheduler.running
                    stopping[decision.id] = None
        verify(scheduler, engine, dict.fromkeys(scheduler.running, 0))
        assert all(id in scheduler.waiting for id in scheduler.planner.reservations)
    for id in {request.id for request, _ in jobs}:
        scheduler.withdraw(id)  # also what is refused, and was not told of yet
    for id in list(scheduler.running):
        scheduler.finished(id, now)
    assert scheduler.schedule(now + 1.0, 10) == []
    assert engine.allocated_gpu_milli == 0 and not engine.placements()
    assert not scheduler.planner.reservations and not scheduler.planner.to_stop
    assert scheduler.next_wakeup is None
    assert not list(scheduler._queues) and not scheduler._dependents
