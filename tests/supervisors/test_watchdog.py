"""Who is hung: promises kept and broken, on clocks that run, stop, and come late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.supervisors.heartbeat import HeartbeatReading
from actorgrid.supervisors.watchdog import BEATS_MISSED_MAX, PAUSE_INTERVALS, Hung, Watchdog

INTERVAL_S, MARGIN_S = 1.0, 1.0
IDLE = HeartbeatReading("running")


def watchdog(*children: str, max_handler_s: float | None = 5.0) -> Watchdog:
    made = Watchdog(INTERVAL_S, MARGIN_S)
    for child_id in children:
        made.watch(child_id, max_handler_s)
    return made


def first_hung(
    judge: Watchdog, reading: HeartbeatReading, start_s: float = 0.0, steps: int = 60
) -> tuple[float, str] | None:
    """When a child that shows *reading* for ever is named, judged every interval, and how."""
    for number in range(steps):
        now_s = start_s + number * INTERVAL_S
        for hung in judge.judge({"child": reading}, now_s):
            return now_s, hung.message
    return None


def test_an_idle_child_that_stops_beating_is_hung() -> None:
    assert first_hung(watchdog("child"), IDLE) == (
        5.0,
        "its loop has not turned for 5.0 s, a beat is due every 1 s; the hung are found within 6 s",
    )


def test_a_handler_over_its_declared_time_is_hung() -> None:
    reading = HeartbeatReading("running", 3, 7, 0.0, 5.0, "GetStatus")
    assert first_hung(watchdog("child"), reading) == (
        7.0,
        "a handler has run 7.0 s, declared at most 5 s (GetStatus); the hung are found within 7 s",
    )


def test_a_handler_that_declares_nothing_has_the_time_its_child_was_watched_with() -> None:
    reading = HeartbeatReading("running", started_s=0.0, handler="Work")
    assert first_hung(watchdog("child", max_handler_s=2.0), reading) is not None
    assert first_hung(watchdog("child", max_handler_s=None), reading, steps=10_000) is None


def test_a_handler_with_a_long_declared_time_is_left_alone() -> None:
    assert first_hung(watchdog("child"), HeartbeatReading("running", started_s=0.0, limit_s=3600.0), steps=3600) is None
    assert first_hung(watchdog("child"), HeartbeatReading("running", started_s=0.0, limit_s=inf), steps=10_000) is None


def test_beats_do_not_excuse_a_handler_and_it_is_named_once() -> None:
    judge = watchdog("child")
    named = [
        judge.judge({"child": HeartbeatReading("running", now, 0, 0.0, 2.0, "Loop")}, float(now)) for now in range(6)
    ]
    assert [len(hung) for hung in named] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("state", ["new", "starting"])
def test_who_is_starting_is_not_judged_here(state: str) -> None:
    reading = replace(IDLE, state=state, started_s=0.0, limit_s=0.1)
    assert first_hung(watchdog("child"), reading, steps=1000) is None


def test_who_started_late_has_its_full_time_from_there() -> None:
    judge = watchdog("child")
    starting = HeartbeatReading("starting", started_s=0.0, limit_s=5.0, handler="HostServer")
    assert not [hung for now in range(100) for hung in judge.judge({"child": starting}, float(now))]
    found = first_hung(judge, replace(starting, state="running"), 100.0)
    assert found is not None and found[0] == 106.0, "one interval of it may have been after the start"


def test_a_stop_has_the_time_it_declared_whatever_its_loop_and_handlers_do() -> None:
    judge = watchdog("child")
    found: list[tuple[int, Hung]] = []
    for now in range(20):
        reading = HeartbeatReading("stopping", beats=now, handled=now, started_s=0.0, limit_s=10.0, handler="stop")
        found += [(now, hung) for hung in judge.judge({"child": reading}, float(now))]
    assert found == [
        (12, Hung("child", "its stop has run 12.0 s, declared at most 10 s; the hung are found within 12 s"))
    ]


def test_a_child_without_a_reading_or_forgotten_is_not_judged() -> None:
    judge = watchdog("child")
    for now in range(100):
        assert judge.judge({"stranger": IDLE}, float(now)) == []
    judge.forget("child")
    judge.forget("child")
    assert first_hung(judge, IDLE, 100.0) is None


def test_a_new_process_of_the_same_id_begins_anew() -> None:
    judge = watchdog("child")
    for now in range(5):
        assert judge.judge({"child": IDLE}, float(now)) == []
    judge.watch("child", 5.0)
    assert judge.judge({"child": IDLE}, 5.0) == []


def test_after_a_pause_every_deadline_is_whole_again() -> None:
    judge = watchdog("child")
    for now in range(5):
        assert judge.judge({"child": IDLE}, float(now)) == []
    found = first_hung(judge, IDLE, 1000.0)
    assert found is not None and found[0] == 1005.0


def test_a_handler_begun_before_a_pause_has_its_full_time_after_it() -> None:
    judge = watchdog("child")
    reading = HeartbeatReading("running", started_s=4.0, limit_s=5.0)
    judge.judge({"child": IDLE}, 4.0)
    found = first_hung(judge, reading, 1000.0)
    assert found is not None and found[0] == 1007.0


def test_several_pauses_in_a_row_each_give_the_full_time() -> None:
    judge = watchdog("child")
    for pause in range(50):
        for now in range(5):
            assert judge.judge({"child": IDLE}, pause * 1000.0 + now) == []
    assert first_hung(judge, IDLE, 50_000.0) is not None


def test_a_judge_that_is_late_each_time_gives_more_time_than_it_is_late() -> None:
    def ends_s(step_s: float) -> float:
        judge = watchdog("child")
        for number in range(1000):
            if judge.judge({"child": IDLE}, number * step_s):
                return number * step_s
        raise AssertionError("a hung child is ended on a slow host too")

    deadline_s = BEATS_MISSED_MAX * INTERVAL_S + MARGIN_S
    for late in (0.25, 1.0):
        assert deadline_s < ends_s(INTERVAL_S * late) <= deadline_s + INTERVAL_S
    for late in (1.5, 2.5):
        assert ends_s(INTERVAL_S * late) >= deadline_s * late**2


def test_a_clock_that_stands_still_counts_nothing() -> None:
    judge = watchdog("child")
    for _ in range(100):
        assert judge.judge({"child": IDLE}, 10.0) == []


def test_time_in_which_a_child_waited_for_a_cpu_does_not_count() -> None:
    judge = watchdog("child")
    for now in range(100):
        waiting = HeartbeatReading("running", started_s=0.0, limit_s=5.0, waited_s=40.0 + 0.99 * now)
        assert judge.judge({"child": waiting}, float(now)) == []
    stuck = replace(waiting, handler="Work")
    assert first_hung(judge, stuck, 100.0) is not None


@pytest.mark.parametrize(("interval_s", "margin_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (float("nan"), 1.0)])
def test_a_watchdog_without_time_is_a_broken_invariant(interval_s: float, margin_s: float) -> None:
    with pytest.raises(AssertionError, match="cannot work"):
        Watchdog(interval_s, margin_s)


# -- properties: a child with a life, a host that pauses, a judge that comes when it can


@dataclass
class Host:
    """Turns time awake into time of the clock: pauses lie at moments of awake time."""

    pauses: list[tuple[float, float]] = field(default_factory=list)  # (awake moment, length), in order

    def clock_s(self, awake_s: float) -> float:
        return awake_s + sum(length for at, length in self.pauses if at < awake_s)


@dataclass
class Life:
    """What a child does, in its awake time: handlers one after the other, beats in between; it may stop for good."""

    handlers: list[tuple[float, float, float]]  # (idle before, runs, declared)
    hangs_s: float = inf

    def reading(self, awake_s: float, host: Host, interval_s: float) -> HeartbeatReading:
        awake_s = min(awake_s, self.hangs_s)
        at_s, beats, handled = 0.0, 0, 0
        for idle_s, runs_s, declared_s in self.handlers:
            if awake_s < at_s + idle_s:
                break
            beats += int(idle_s / interval_s) + 1
            at_s += idle_s
            if awake_s < at_s + runs_s:
                return HeartbeatReading("running", beats, handled, host.clock_s(at_s), declared_s, "Work")
            at_s, handled = at_s + runs_s, handled + 1
        return HeartbeatReading("running", beats + int((awake_s - at_s) / interval_s), handled)


def steps(low: float, high: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(low, high), min_size=1, max_size=60)


seconds = st.floats(0.0, 12.0)
limits = st.floats(0.01, 8.0)


@st.composite
def kept_promises(draw: st.DrawFn) -> Life:
    made = []
    for _ in range(draw(st.integers(0, 6))):
        declared_s = draw(limits)
        made.append((draw(seconds), draw(st.floats(0.0, declared_s)), declared_s))
    return Life(made)


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Pauses that can be seen: longer than PAUSE_INTERVALS."""
    at_s, made = 0.0, []
    for _ in range(draw(st.integers(0, 4))):
        at_s += draw(st.floats(0.01, 15.0))
        made.append((at_s, draw(st.floats(PAUSE_INTERVALS * INTERVAL_S + 0.01, 1e5))))
    return Host(made)


def verdicts(life: Life, host: Host, steps_s: list[float]) -> list[tuple[float, Hung]]:
    """Each verdict with the awake time of it."""
    judge = watchdog("child")
    judge.judge({}, 0.0)
    awake_s, found = 0.0, []
    for step_s in steps_s:
        awake_s += step_s
        reading = life.reading(awake_s, host, INTERVAL_S)
        found += [(awake_s, hung) for hung in judge.judge({"child": reading}, host.clock_s(awake_s))]
    return found


@given(kept_promises(), steps(0.0, 20.0))
def test_who_keeps_its_promises_is_never_killed_on_a_clock_without_pauses(life: Life, steps_s: list[float]) -> None:
    assert verdicts(life, Host(), steps_s) == []


@given(kept_promises(), steps(0.0, 3.0), hosts())
def test_who_keeps_its_promises_is_never_killed_for_pauses(life: Life, steps_s: list[float], host: Host) -> None:
    assert verdicts(life, host, steps_s) == []


@given(kept_promises(), steps(0.0, 1.0), st.floats(0.0, 40.0), st.floats(0.0, PAUSE_INTERVALS * INTERVAL_S))
def test_one_pause_too_short_to_be_seen_is_within_a_margin_of_an_interval(
    life: Life, steps_s: list[float], at_s: float, length_s: float
) -> None:
    assert verdicts(life, Host([(at_s, length_s)]), steps_s) == []


@given(kept_promises(), st.floats(0.0, 20.0), st.floats(0.3, 1.0))
def test_who_hangs_is_killed_within_the_bound(life: Life, hangs_s: float, step_s: float) -> None:
    life.hangs_s = hangs_s
    at_hang = life.reading(hangs_s, Host(), INTERVAL_S)
    if at_hang.started_s is None:
        bound_s = (BEATS_MISSED_MAX + 2) * INTERVAL_S + MARGIN_S
    else:
        assert at_hang.limit_s is not None
        bound_s = at_hang.limit_s + MARGIN_S + INTERVAL_S
    since_s = hangs_s if at_hang.started_s is None else at_hang.started_s
    found = verdicts(life, Host(), [step_s] * int((hangs_s + 30) / step_s))
    assert len(found) == 1
    assert since_s < found[0][0] <= since_s + bound_s + 1e-6


@given(st.floats(0.0, 10.0), limits, st.floats(0.1, 1.0), hosts())
def test_who_hangs_is_killed_within_the_bound_of_awake_time_after_the_last_pause(
    hangs_s: float, declared_s: float, step_s: float, host: Host
) -> None:
    life = Life([(hangs_s, inf, declared_s)])
    last_s = max([hangs_s] + [at for at, _ in host.pauses])
    found = verdicts(life, host, [step_s] * int((last_s + declared_s + 10) / step_s))
    assert len(found) == 1
    # The step that the pause fell into is not counted: one more interval at most.
    assert found[0][0] <= last_s + declared_s + MARGIN_S + 2 * INTERVAL_S + 1e-6


@given(
    st.lists(st.floats(PAUSE_INTERVALS * INTERVAL_S + 0.01, 1e4), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 1.0), max_size=8),
    st.one_of(st.none(), limits),
)
def test_after_any_pause_nobody_is_killed_before_its_full_deadline_has_passed_again(
    pauses_s: list[float], before_s: list[float], declared_s: float | None
) -> None:
    judge = watchdog("child")
    now_s = 0.0
    reading = IDLE if declared_s is None else HeartbeatReading("running", started_s=0.0, limit_s=declared_s)
    full_s = MARGIN_S + (BEATS_MISSED_MAX * INTERVAL_S if declared_s is None else declared_s)
    for step_s in before_s:
        now_s += step_s
        if judge.judge({"child": reading}, now_s):
            return
    for pause_s in pauses_s:
        now_s += pause_s
        assert judge.judge({"child": reading}, now_s) == []
    awake_s = 0.0
    while not judge.judge({"child": reading}, now_s + awake_s):
        awake_s += 0.25
    assert full_s - 1e-6 < awake_s <= full_s + 0.25


@given(st.lists(st.floats(1.0, PAUSE_INTERVALS), min_size=60, max_size=60))
def test_a_late_judge_never_ends_a_hung_child_sooner_than_a_punctual_one(late_s: list[float]) -> None:
    found = verdicts(Life([], hangs_s=0.0), Host(), late_s)
    punctual = verdicts(Life([], hangs_s=0.0), Host(), [1.0] * 60)
    assert not found or found[0][0] >= punctual[0][0]
