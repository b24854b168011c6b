"""The rules of OTP's supervisor, one by one: start, restart, intensity, shutdown."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import LogCorrupted, RestartIntensityExceeded, StartFailed
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.instructions import SetTimer, Tag
from actorgrid.supervisors.intensity import Intensity
from actorgrid.supervisors.restart import LINGER_S
from tests.supervisors.stage import CRASH, KILLED, NORMAL, Stage

SHUTDOWN = ExitReason("shutdown", "asked", exit_status=0)
HUNG = ExitReason("hung", exit_status=-9)


# -- start


def test_children_start_in_order_each_when_the_one_before_is_up() -> None:
    stage = Stage("a", "b", "c")
    stage.silent |= {"b"}
    stage.start()
    assert stage.did == ["start a", "start b"] and stage.started is None
    assert stage.states() == {"a": "up", "b": "starting", "c": "waiting"}
    stage.up("b")
    stage.settle()
    assert stage.did[2:] == ["start c"] and stage.started is not None and stage.started.error is None


def test_a_supervisor_without_children_is_up_at_once() -> None:
    assert Stage().start().core.phase == "running"


def test_a_child_that_does_not_start_fails_the_start_after_those_before_it_were_stopped() -> None:
    stage = Stage("a", "b", "c", "d")
    stage.silent.add("c")
    stage.start()
    error = LogCorrupted("record 7")
    stage.start_fails("c", error)
    stage.settle()
    assert stage.did == ["start a", "start b", "start c", "stop b", "stop a"]
    assert stage.started is not None and stage.started.error is error
    assert stage.exit is not None and stage.exit.reason.error is error


def test_a_child_that_dies_while_it_starts_fails_the_start_and_is_named() -> None:
    stage = Stage("a")
    stage.silent.add("a")
    stage.start().dies("a", ExitReason("error", exit_status=3))
    assert stage.started is not None and isinstance(stage.started.error, StartFailed)
    assert "a died while it started: exit status 3" in stage.started.error.message


def test_a_start_that_takes_longer_than_its_time_is_killed_and_has_failed() -> None:
    stage = Stage("a")
    stage.silent.add("a")
    stage.start().advance(59.9)
    assert stage.did == ["start a"]
    stage.advance(0.1)
    assert stage.did == ["start a", "kill a"]
    assert stage.started is not None and "a did not start in 60 s" in str(stage.started.error)


def test_a_process_that_lingers_after_its_failed_start_is_killed() -> None:
    stage = Stage("a")
    stage.silent.add("a")
    stage.start().start_fails("a", ends=False)
    stage.advance(LINGER_S)
    assert stage.did == ["start a", "kill a"] and stage.exit is not None


def test_news_that_comes_too_late_changes_nothing() -> None:
    stage = Stage("a", "b")
    stage.silent.add("b")
    stage.start()
    stage.start_fails("b", ends=False)
    for late in (
        stage.core.child_started("b", 0.0),
        stage.core.child_start_failed("b", StartFailed("again"), 0.0),
        stage.core.child_started("nobody", 0.0),
        stage.core.child_exited("nobody", CRASH, 0.0),
        stage.core.process_refused("nobody", StartFailed("no"), 0.0),
        stage.core.timer_fired(Tag("stop", "a"), 0.0),
        stage.core.start(0.0),
    ):
        assert late == []


def test_a_child_that_ends_while_the_others_start_is_restarted_beside_them() -> None:
    stage = Stage("a", "b")
    stage.silent.add("b")
    stage.start()
    assert stage.dies("a") == ["start a"] and stage.started is None
    stage.up("b")
    assert stage.started is not None and stage.live() == ["a", "b"]


def test_too_many_ends_while_the_others_start_fail_the_start() -> None:
    stage = Stage("a", "b", intensity=0)
    stage.silent.add("b")
    stage.start()
    assert stage.dies("a") == ["stop b"]
    assert stage.started is not None and isinstance(stage.started.error, RestartIntensityExceeded)


# -- who is restarted


@pytest.mark.parametrize("reason", [NORMAL, SHUTDOWN, CRASH, KILLED, HUNG])
def test_a_permanent_child_is_restarted_whatever_its_end(reason: ExitReason) -> None:
    stage = Stage("a", "b").start()
    assert stage.dies("a", reason) == ["start a"]
    assert [child.restarts for child in stage.core.children()] == [1, 0]


@pytest.mark.parametrize(
    ("reason", "restarted"), [(NORMAL, False), (SHUTDOWN, False), (CRASH, True), (KILLED, True), (HUNG, True)]
)
def test_a_transient_child_is_restarted_after_an_abnormal_end_only(reason: ExitReason, restarted: bool) -> None:
    stage = Stage("a transient").start()
    assert stage.dies("a", reason) == (["start a"] if restarted else [])
    assert stage.states() == {"a": "up" if restarted else "down"}


@pytest.mark.parametrize("reason", [NORMAL, CRASH, KILLED])
def test_a_temporary_child_is_forgotten_when_it_ends(reason: ExitReason) -> None:
    stage = Stage("a temporary", "b").start()
    assert stage.dies("a", reason) == [] and stage.states() == {"b": "up"}


# -- restarts that fail


def test_a_restart_that_fails_is_tried_again_after_growing_pauses() -> None:
    stage = Stage("a", intensity=20, period_s=100.0).start()
    stage.failing["a"] = 8
    stage.dies("a")
    stage.advance(100.0)
    pauses = [each.delay_s for each in stage.orders if isinstance(each, SetTimer) and each.tag == Tag("retry", "a")]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert stage.live() == ["a"] and stage.core.children()[0].restarts == 9


def test_a_start_that_went_well_makes_the_next_pause_short_again() -> None:
    stage = Stage("a", intensity=20, period_s=100.0).start()
    for _ in range(2):
        stage.failing["a"] = 2
        stage.dies("a")
        assert stage.states() == {"a": "restarting"}
        stage.advance(0.1)
        assert stage.states() == {"a": "restarting"}
        stage.advance(0.2)
        assert stage.states() == {"a": "up"}


def test_failed_restarts_count() -> None:
    stage = Stage("a", "b", intensity=3).start()
    stage.failing["a"] = 99
    stage.dies("a")
    stage.advance(10.0)
    assert stage.did[2:] == ["start a"] * 3 + ["stop b"]
    assert stage.exit is not None and "a cannot (exit status 71)" in str(stage.exit.reason.error)


def test_a_restart_without_a_process_is_a_failed_one() -> None:
    stage = Stage("a").start()
    stage.refused["a"] = 1
    stage.dies("a")
    assert stage.states() == {"a": "restarting"}
    assert "no process could be made" in str(stage.core.children()[0].last_exit)
    stage.advance(0.1)
    assert stage.live() == ["a"]


# -- intensity


def test_one_restart_more_than_the_intensity_within_the_period_is_too_many() -> None:
    stage = Stage("a", "b", "c", intensity=3, period_s=10.0).start()
    for child_id in ("a", "b", "a"):
        stage.advance(1.0)
        assert stage.dies(child_id) == [f"start {child_id}"]
    assert stage.dies("b", ExitReason("error", exit_status=3)) == ["stop c", "stop a"]
    assert stage.exit is not None
    error = stage.exit.reason.error
    assert isinstance(error, RestartIntensityExceeded)
    assert error.message == "b ended again after 3 restarts in 10 s" and error.found == "its last end: exit status 3"
    assert error.hint and error.details == {"supervisor": "boss", "child": "b"}
    assert stage.stopping is not None and stage.stopping.error is error


def test_intensity_zero_takes_the_first_end_for_one_too_many() -> None:
    stage = Stage("a", intensity=0).start()
    assert stage.dies("a") == [] and stage.exit is not None


def test_restarts_older_than_the_period_do_not_count() -> None:
    stage = Stage("a", intensity=1, period_s=10.0).start()
    for _ in range(5):
        stage.dies("a")
        stage.advance(10.1)
    assert stage.live() == ["a"]


def test_a_restart_as_old_as_the_period_counts() -> None:
    window = Intensity(1, 10.0)
    assert [window.allows(at) for at in (0.0, 10.0)] == [True, False]


def test_a_child_that_stays_down_counts_nothing() -> None:
    stage = Stage("a temporary", "b transient", "c", intensity=0).start()
    stage.dies("a")
    stage.dies("b", NORMAL)
    assert stage.live() == ["c"]


# -- shutdown


def test_stopping_goes_backwards_each_when_the_one_after_it_is_gone() -> None:
    stage = Stage("a", "b", "c").start()
    stage.stubborn.add("b")
    assert stage.shutdown() == ["stop c", "stop b"]
    assert stage.stopping is not None and stage.stopping.reason == "asked by a test" and stage.exit is None
    assert stage.doing(lambda: stage.ends("b")) == ["stop a"]
    assert stage.exit is not None and stage.exit.reason.kind == "shutdown" and stage.started is not None


def test_each_child_has_its_own_time_to_stop() -> None:
    stage = Stage("patient infinity", "slow", "brutal brutal_kill").start()
    stage.stubborn |= {"patient", "slow"}
    assert stage.shutdown() == ["kill brutal", "stop slow"]
    stage.advance(4.9)
    assert stage.did[-1] == "stop slow"
    stage.advance(0.1)
    assert stage.did[-2:] == ["kill slow", "stop patient"]
    stage.advance(100_000.0)
    assert stage.did[-1] == "stop patient" and stage.exit is None
    stage.ends("patient")
    assert stage.exit is not None


def test_what_does_not_die_within_ten_seconds_of_its_kill_is_left_behind() -> None:
    stage = Stage("a", "b brutal_kill").start()
    stage.immortal.add("b")
    assert stage.shutdown() == ["kill b"]
    stage.advance(9.9)
    assert stage.did[-1] == "kill b"
    stage.advance(0.1)
    assert stage.did[-2:] == ["go on without b", "stop a"] and stage.exit is not None
    assert stage.core.child_exited("b", KILLED, stage.now_s) == []


def test_a_child_that_ends_before_its_turn_is_not_stopped_nor_restarted() -> None:
    stage = Stage("a", "b", "c").start()
    stage.stubborn.add("c")
    stage.shutdown()
    assert stage.dies("a") == []
    assert stage.dies("c") == ["stop b"] and stage.exit is not None


def test_a_stop_while_starting_stops_what_starts_and_what_is_up() -> None:
    stage = Stage("a", "b", "c")
    stage.silent.add("b")
    stage.start()
    assert stage.shutdown("SIGTERM") == ["stop b", "stop a"]
    assert stage.started is not None and "stopped while it started: SIGTERM" in str(stage.started.error)
    assert stage.exit is not None


def test_a_stop_while_a_restart_waits_for_its_turn_ends_that() -> None:
    stage = Stage("a", "b").start()
    stage.failing["a"] = 1
    stage.dies("a")
    assert stage.shutdown() == ["stop b"] and stage.exit is not None and stage.states()["a"] == "down"


def test_a_second_order_to_stop_and_one_while_giving_up_change_nothing() -> None:
    stage = Stage("a", "b", intensity=0).start()
    stage.stubborn.add("b")
    stage.dies("a")
    assert stage.shutdown() == [] and stage.shutdown() == []
    stage.ends("b")
    assert stage.exit is not None and isinstance(stage.exit.reason.error, RestartIntensityExceeded)


def test_a_stop_before_the_start_is_the_end_of_it() -> None:
    stage = Stage("a")
    assert stage.shutdown() == [] and stage.exit is not None
    assert stage.started is not None and stage.started.error is not None
    assert stage.core.start(0.0) == []


def test_a_first_start_that_cannot_be_killed_fails_the_start_all_the_same() -> None:
    stage = Stage("a", "b")
    stage.silent.add("b")
    stage.immortal.add("b")
    stage.start().advance(70.0)
    assert stage.did == ["start a", "start b", "kill b", "go on without b", "stop a"]
    assert stage.started is not None and "b did not start in 60 s" in str(stage.started.error)


# -- auto_shutdown


@pytest.mark.parametrize(
    ("child", "reason", "ends"),
    [
        ("a transient significant", NORMAL, True),
        ("a transient significant", SHUTDOWN, True),
        ("a transient significant", CRASH, False),
        ("a temporary significant", NORMAL, True),
        ("a temporary significant", CRASH, True),
        ("a transient", NORMAL, False),
        ("a temporary", CRASH, False),
    ],
)
def test_any_significant_child_that_ends_by_itself_for_good_ends_the_supervisor(
    child: str, reason: ExitReason, ends: bool
) -> None:
    stage = Stage(child, "b temporary significant", "c", auto_shutdown="any_significant").start()
    did = stage.dies("a", reason)
    assert (stage.exit is not None) is ends
    if ends:
        assert did == ["stop c", "stop b"]
        assert stage.exit is not None and stage.exit.reason.kind == "shutdown" and stage.exit.reason.error is None


def test_all_significant_children_have_to_end_before_the_supervisor_does() -> None:
    stage = Stage("a transient significant", "b temporary significant", "c", auto_shutdown="all_significant").start()
    assert stage.dies("b") == []
    stage.dies("a")
    assert stage.live() == ["a", "c"]
    assert stage.dies("a", NORMAL) == ["stop c"] and stage.exit is not None


def test_a_significant_child_terminated_on_request_does_not_end_the_supervisor() -> None:
    stage = Stage("a transient significant", "b transient significant", auto_shutdown="any_significant").start()
    assert stage.answer("terminate_child", "a") == "a" and stage.exit is None
    stage.dies("b", NORMAL)
    assert stage.exit is not None


def test_all_significant_takes_those_terminated_on_request_for_ended() -> None:
    stage = Stage("a transient significant", "b transient significant", auto_shutdown="all_significant").start()
    stage.answer("terminate_child", "a")
    stage.dies("b", NORMAL)
    assert stage.exit is not None


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
def test_a_significant_child_that_ends_during_the_start_lets_the_start_end_first(strategy: Any) -> None:
    stage = Stage("a transient significant", "b", strategy=strategy, auto_shutdown="any_significant")
    stage.silent.add("b")
    stage.start()
    assert stage.dies("a", NORMAL) == [] and stage.exit is None
    assert stage.doing(lambda: stage.up("b")) == ["stop b"]
    assert stage.started is not None and stage.started.error is None and stage.exit is not None
