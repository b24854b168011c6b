"""The replay in time: arrivals, departures, queue and preemption by hand, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.scheduling.request import Decision, Preempt, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.hotpath import PlacementEngine
from actorgrid.replay.fragments import Fragments
from actorgrid.replay.simulation import (
    MOMENTS_OF_ARRIVALS,
    SERIES_MAX,
    Immediate,
    Replayed,
    Scheduling,
    Simulation,
)
from actorgrid.replay.workload import TraceNode, TraceTask, build_engine, typical_tasks
from tests.scheduling.cluster import request

TWO_GPUS = [TraceNode("n", cpu_milli=8000, memory_mib=8192, gpu_count=2)]
Make = Callable[[PlacementEngine], Scheduling]


def still() -> float:
    return 0.0


def job(id: str, submit: float, duration: float, gpus: int = 1, **more: object) -> TraceTask:
    return TraceTask(id, gpu_count=gpus, submit_s=submit, duration_s=duration, **more)  # type: ignore[arg-type]


def replay(tasks: list[TraceTask], make: Make, nodes: list[TraceNode] = TWO_GPUS, **more: float | None) -> Replayed:
    engine = PlacementEngine("first_fit")
    typical = typical_tasks(tasks)
    build_engine(nodes, engine, typical)
    simulation = Simulation(nodes, tasks, engine, make(engine), Fragments(nodes, typical), still, **more)  # type: ignore[arg-type]
    run = simulation.run()
    assert engine.allocated_gpu_milli == 0, "everything was given back"
    return run


def immediate(engine: PlacementEngine) -> Scheduling:
    return Immediate(engine, still)


def fifo(engine: PlacementEngine) -> Scheduling:
    return Scheduler(engine, "fifo")


def times(run: Replayed) -> dict[str, tuple[float | None, float | None]]:
    return {each.task.id: (each.started_s, each.ended_s) for each in run.outcomes}


def test_without_a_queue_what_does_not_fit_is_refused() -> None:
    run = replay([job("a", 0, 10, 2), job("b", 5, 10), job("c", 10, 10)], immediate)
    # c arrives in the very moment in which a ends: ends come first.
    assert times(run) == {"a": (0, 10), "b": (None, None), "c": (10, 20)}
    assert [each.refused for each in run.outcomes] == ["", "it does not fit now", ""]


def test_with_a_queue_it_waits() -> None:
    run = replay([job("a", 0, 10, 2), job("b", 5, 10), job("c", 6, 3)], fifo)
    assert times(run) == {"a": (0, 10), "b": (10, 20), "c": (10, 13)}
    assert max(moment.waiting for moment in run.series) == 2


def test_the_mean_allocation_is_over_time_from_the_first_arrival_to_the_last() -> None:
    run = replay([job("a", 100, 10, 2), job("b", 120, 10, 1), job("c", 140, 10, 1)], immediate)
    # In 40 seconds: two GPUs for 10, one for 10, of two.
    assert run.allocated_mean == (2 * 10 + 1 * 10) / (2 * 40)


def test_a_gang_takes_all_its_members_at_once() -> None:
    nodes = [TraceNode("n", gpu_count=2), TraceNode("m", gpu_count=2)]
    run = replay([job("one", 0, 10), job("gang", 1, 10, 2, gang=2)], fifo, nodes)
    assert times(run) == {"one": (0, 10), "gang": (10, 20)}


class Told:
    """Starts what it can in order; stops *victim* once *rival* has arrived."""

    def __init__(self, engine: PlacementEngine, grace_s: float) -> None:
        self.inner = Immediate(engine, still)
        self.grace_s = grace_s
        self.kept: list[Request] = []
        self.rests: list[float | None] = []
        self.asked = False

    next_wakeup = None

    def submit(self, request: Request, now: float) -> None:
        self.kept.append(request)

    def schedule(self, now: float, limit: int) -> list[Decision]:
        decisions: list[Decision] = []
        if any(each.id == "rival" for each in self.kept) and not self.asked:
            self.asked = True
            decisions.append(Preempt("victim", self.grace_s, "rival"))
        for waiting in sorted(self.kept, key=lambda each: each.id):
            self.inner.submit(waiting, now)
            (found,) = self.inner.schedule(now, 1)
            if isinstance(found, Start):
                self.kept.remove(waiting)
                decisions.append(found)
        return decisions

    def finished(self, id: str, now: float) -> None:
        self.inner.finished(id, now)

    def preempted(self, id: str, now: float, expected_s: float | None) -> None:
        self.rests.append(expected_s)
        self.inner.finished(id, now)
        self.kept.append(request(id, gpu_count=2))


def preempting(grace_s: float, **more: float | None) -> tuple[Replayed, Told]:
    found: list[Told] = []

    def make(engine: PlacementEngine) -> Told:
        found.append(Told(engine, grace_s))
        return found[0]

    return replay([job("victim", 0, 100, 2), job("rival", 40, 10, 2)], make, **more), found[0]


def test_a_preempted_job_goes_on_where_it_stopped_after_a_restart() -> None:
    run, told = preempting(grace_s=5, restart_s=30)
    # Stopped at 45 with 55 to go; the rival runs to 55; then 30 to come back and 55 to the end.
    assert times(run) == {"victim": (0, 140), "rival": (45, 55)}
    assert (run.outcomes[0].preemptions, run.outcomes[0].lost_s) == (1, 30)
    assert [each.waited_s for each in run.outcomes] == [10, 5], "the victim waits from 45 to 55"
    assert told.rests == [85]


def test_with_a_checkpoint_interval_what_came_after_the_last_one_is_lost() -> None:
    run, _ = preempting(grace_s=5, checkpoint_s=20, restart_s=0)
    # 40 of 45 seconds are saved, 60 are to go.
    assert times(run) == {"victim": (0, 115), "rival": (45, 55)}
    assert run.outcomes[0].lost_s == 5


def test_one_that_ends_within_its_grace_is_not_stopped() -> None:
    run, told = preempting(grace_s=90)
    assert times(run) == {"victim": (0, 100), "rival": (100, 110)}
    assert run.outcomes[0].preemptions == 0 and told.rests == []


def test_estimates_are_told_as_asked_and_withheld_as_asked() -> None:
    class Heard(Immediate):
        def submit(self, request: Request, now: float) -> None:
            heard.append(request.expected_s)
            super().submit(request, now)

    heard: list[float | None] = []
    for estimates in (1.0, 2.0, None):
        replay([job("a", 0, 10)], lambda engine: Heard(engine, still), estimates=estimates)
    assert heard == [10, 20, None]


def test_what_the_queue_does_not_take_is_refused_by_the_errors_name() -> None:
    tasks = [job("a", 0, 10, 2), job("b", 1, 10, 2), job("c", 2, 10, 2)]
    run = replay(tasks, lambda engine: Scheduler(engine, "fifo", queue_max=1))
    assert [each.refused for each in run.outcomes] == ["", "", "QueueFull"]


def test_what_no_node_could_ever_hold_is_refused_and_holds_up_nobody() -> None:
    run = replay([job("never", 0, 10, 1, gpu_models=("H100",)), job("a", 1, 10)], fifo)
    assert times(run) == {"never": (None, None), "a": (1, 11)}
    assert [each.refused for each in run.outcomes] == ["RequestTooLarge", ""]


def test_a_strict_deadline_that_cannot_be_kept_is_refused_by_edf() -> None:
    strict = {"deadline_kind": "strict"}
    tasks = [job("a", 0, 10, 2, deadline_s=10.0, **strict), job("late", 1, 10, 2, deadline_s=15.0, **strict)]
    run = replay(tasks, lambda engine: Scheduler(engine, "edf"))
    assert times(run)["late"] == (None, None) and run.outcomes[1].refused
    assert replay(tasks, fifo).outcomes[1].ended_s == 20


def test_the_series_is_bounded_and_spread_over_time() -> None:
    tasks = [job(str(n), n, 0.5) for n in range(10_000)]
    run = replay(tasks, immediate)
    assert MOMENTS_OF_ARRIVALS / 2 < len(run.series) < SERIES_MAX
    gaps = [after.at_s - before.at_s for before, after in zip(run.series, run.series[1:], strict=False)]
    assert max(gaps) <= 12


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 2)), max_size=25),
    st.sampled_from(["fifo", "priority", "easy_backfill", "las"]),
)
def test_every_job_ends_once_after_exactly_its_own_time(rows: list[tuple[int, int, int]], policy: str) -> None:
    tasks = sorted((job(str(n), s, d, g) for n, (s, d, g) in enumerate(rows)), key=lambda task: task.submit_s or 0)
    run = replay(tasks, lambda engine: Scheduler(engine, policy), restart_s=0.0)
    assert len(run.outcomes) == len(tasks)
    for each in run.outcomes:
        assert each.started_s is not None and each.ended_s is not None
        assert each.started_s >= each.submitted_s
        if not each.preemptions:
            assert each.ended_s - each.started_s == each.duration_s
    busy = [(each.started_s, each.ended_s, each.task.gpu_count) for each in run.outcomes if not each.preemptions]
    for moment in {start for start, _, _ in busy}:
        assert sum(gpus for start, end, gpus in busy if start <= moment < end) <= 2  # type: ignore[operator]
