"""start_child, terminate_child, restart_child, delete_child, count_children; and the dynamic supervisor."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import LogCorrupted
from actorgrid.supervisors.child import CHILDREN_MAX
from actorgrid.supervisors.restart import REQUESTS_MAX
from tests.supervisors.stage import CRASH, KILLED, NORMAL, Stage, spec


def dynamic(template: str = "w", **flags: Any) -> Stage:
    return Stage(template, strategy="simple_one_for_one", **flags).start()


# -- start_child


def test_a_child_started_on_request_is_answered_when_it_is_up_and_is_the_last_one_from_then_on() -> None:
    stage = Stage("a").start()
    stage.silent.add("b")
    number = stage.ask("start_child", spec("b"))
    assert stage.outcome(number) == "open"
    stage.up("b")
    assert stage.outcome(number) == "b" and stage.shutdown() == ["stop b", "stop a"]


def test_a_child_that_does_not_start_on_request_is_dropped_again() -> None:
    stage = Stage("a").start()
    stage.failing["b"] = 1
    assert stage.answer("start_child", spec("b")) == "StartFailed" and stage.states() == {"a": "up"}
    assert stage.answer("start_child", spec("b")) == "b"


def test_a_start_on_request_gets_the_error_that_the_start_raised() -> None:
    stage = Stage().start()
    stage.silent.add("b")
    number = stage.ask("start_child", spec("b"))
    stage.start_fails("b", LogCorrupted("record 7"))
    assert stage.outcome(number) == "LogCorrupted"


@pytest.mark.parametrize("state", ["up", "down", "restarting"])
def test_an_id_that_is_known_is_refused_whatever_the_child_does(state: str) -> None:
    stage = Stage("a transient").start()
    if state == "down":
        stage.dies("a", NORMAL)
    elif state == "restarting":
        stage.failing["a"] = 1
        stage.dies("a")
    assert stage.answer("start_child", spec("a")) == "ChildExists"
    error = stage.replies[1].error
    assert error is not None and error.found == state and error.hint


def test_what_is_no_spec_or_does_not_fit_the_flags_is_refused() -> None:
    stage = Stage("a").start()
    assert stage.answer("start_child", "b") == "InvalidChildSpec"
    assert stage.answer("start_child", spec("b temporary significant")) == "InvalidChildSpec"
    assert stage.answer("start_dynamic", ()) == "NotSupported"


def test_a_supervisor_takes_a_thousand_children() -> None:
    stage = dynamic()
    for _ in range(CHILDREN_MAX):
        stage.ask("start_dynamic", ())
    assert stage.answer("start_dynamic", ()) == "TooManyActors"
    stage.dies("w:7", NORMAL)
    stage.ask("terminate_child", "w:7")
    assert stage.answer("start_dynamic", ()) == "w:1002"


# -- terminate_child


def test_a_terminated_child_stays_down_and_keeps_its_spec() -> None:
    stage = Stage("a", "b").start()
    stage.stubborn.add("a")
    first, second = stage.ask("terminate_child", "a"), stage.ask("terminate_child", "a")
    assert stage.states()["a"] == "stopping" and stage.outcome(first) == "open"
    stage.advance(5.0)
    assert stage.did[2:] == ["stop a", "kill a"] and [stage.outcome(n) for n in (first, second)] == ["a", "a"]
    assert stage.states() == {"a": "down", "b": "up"} and stage.answer("terminate_child", "a") == "a"


def test_a_terminated_temporary_child_is_forgotten() -> None:
    stage = Stage("a temporary").start()
    assert stage.answer("terminate_child", "a") == "a" and stage.states() == {}
    assert stage.answer("terminate_child", "a") == "NoSuchChild"


def test_a_temporary_child_that_ended_makes_room_for_another_of_its_id() -> None:
    stage = Stage().start()
    for _ in range(2):
        assert stage.answer("start_child", spec("a temporary")) == "a"
        stage.dies("a", NORMAL)
        assert stage.states() == {}


def test_a_start_that_waited_for_its_namesake_s_start_is_carried_out_when_that_one_has_failed() -> None:
    stage = Stage(strategy="one_for_all", intensity=0).start()
    stage.silent.add("a")
    first, second = stage.ask("start_child", spec("a temporary")), stage.ask("start_child", spec("a temporary"))
    stage.silent.clear()
    assert stage.dies("a", NORMAL) == ["start a"]
    assert (stage.outcome(first), stage.outcome(second)) == ("StartFailed", "a")
    assert stage.states() == {"a": "up"} and stage.exit is None


def test_terminating_a_child_that_waits_to_be_restarted_ends_that() -> None:
    stage = Stage("a").start()
    stage.failing["a"] = 1
    stage.dies("a")
    assert stage.answer("terminate_child", "a") == "a"
    stage.advance(100.0)
    assert stage.states() == {"a": "down"} and stage.did == ["start a", "start a"]


def test_terminating_a_child_that_starts_on_request_answers_both() -> None:
    stage = Stage().start()
    stage.silent.add("b")
    start, stop = stage.ask("start_child", spec("b")), stage.ask("terminate_child", "b")
    assert (stage.outcome(start), stage.outcome(stop)) == ("StartFailed", "b") and stage.states() == {}


def test_terminating_a_child_whose_process_lingers_ends_the_wait() -> None:
    stage = Stage("a").start()
    stage.silent.add("a")
    stage.dies("a")
    stage.start_fails("a", ends=False)
    assert stage.answer("terminate_child", "a") == "a" and stage.states() == {"a": "down"}


def test_terminating_a_child_that_was_killed_for_its_slow_start_just_waits() -> None:
    stage = Stage("a").start()
    stage.silent.add("a")
    stage.immortal.add("a")
    stage.dies("a")
    stage.advance(60.0)
    number = stage.ask("terminate_child", "a")
    assert stage.did == ["start a", "start a", "kill a"]
    stage.ends("a", KILLED)
    assert stage.outcome(number) == "a" and stage.states() == {"a": "down"}


def test_a_child_that_does_not_die_is_answered_with_that() -> None:
    stage = Stage("a brutal_kill").start()
    stage.immortal.add("a")
    number = stage.ask("terminate_child", "a")
    stage.advance(10.0)
    assert stage.outcome(number) == "CallTimeout" and stage.answer("terminate_child", "a") == "CallTimeout"
    assert stage.states() == {"a": "stopping"} and stage.answer("restart_child", "a") == "ChildExists"
    stage.ends("a", KILLED)
    assert stage.answer("restart_child", "a") == "a"


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_a_start_on_request_that_cannot_even_be_killed_is_answered_and_dropped(strategy: Any) -> None:
    stage = Stage("a", strategy=strategy).start()
    stage.silent.add("b")
    stage.immortal.add("b")
    number = stage.ask("start_child", spec("b"))
    stage.advance(70.0)
    assert stage.outcome(number) == "CallTimeout"
    assert stage.answer("terminate_child", "a") == "a", "nothing waits for it"
    stage.ends("b", KILLED)
    assert stage.states() == {"a": "down"}


# -- restart_child, delete_child


def test_a_stopped_child_is_started_again_on_request() -> None:
    stage = Stage("a", "b transient").start()
    stage.ask("terminate_child", "a")
    stage.dies("b", NORMAL)
    assert stage.answer("restart_child", "a") == "a" and stage.answer("restart_child", "b") == "b"
    assert stage.live() == ["a", "b"] and [child.restarts for child in stage.core.children()] == [0, 0]


def test_a_start_again_on_request_that_fails_keeps_the_spec_and_is_not_tried_again() -> None:
    stage = Stage("a").start()
    stage.ask("terminate_child", "a")
    stage.failing["a"] = 1
    assert stage.answer("restart_child", "a") == "StartFailed"
    stage.advance(100.0)
    assert stage.states() == {"a": "down"} and stage.answer("restart_child", "a") == "a"


@pytest.mark.parametrize("what", ["restart_child", "delete_child"])
def test_a_child_that_runs_or_will_can_neither_be_restarted_nor_deleted(what: str) -> None:
    stage = Stage("a", "b").start()
    assert stage.answer(what, "a") == "ChildExists"
    stage.failing["a"] = 1
    stage.dies("a")
    assert stage.answer(what, "a") == "ChildExists"
    stage.stubborn.add("b")
    stage.ask("terminate_child", "b")
    assert stage.answer(what, "b") == "ChildExists" and stage.answer(what, "c") == "NoSuchChild"
    stage.stubborn.clear()
    stage.ends("b")


def test_a_deleted_child_makes_room_for_another_of_its_id() -> None:
    stage = Stage("a", "b").start()
    stage.ask("terminate_child", "a")
    assert stage.answer("delete_child", "a") == "a" and stage.states() == {"b": "up"}
    assert stage.answer("start_child", spec("a temporary")) == "a" and stage.live() == ["b", "a"]


# -- when


def test_requests_wait_for_the_end_of_the_start() -> None:
    stage = Stage("a", "b")
    stage.silent.add("b")
    stage.start()
    numbers = [stage.ask("terminate_child", "a"), stage.ask("start_child", spec("c"))]
    assert [stage.outcome(n) for n in numbers] == ["open", "open"]
    stage.doing(lambda: stage.up("b"))
    assert [stage.outcome(n) for n in numbers] == ["a", "c"]


def test_requests_that_wait_for_a_start_that_fails_are_refused() -> None:
    stage = Stage("a")
    stage.silent.add("a")
    stage.start()
    number = stage.ask("terminate_child", "a")
    stage.start_fails("a")
    assert stage.outcome(number) == "NotSupported"


def test_requests_to_a_supervisor_that_stops_are_refused_and_those_under_way_are_answered() -> None:
    stage = Stage("a", "b").start()
    stage.silent.add("c")
    stage.stubborn |= {"a", "c"}
    stop, start = stage.ask("terminate_child", "a"), stage.ask("start_child", spec("c"))
    assert stage.shutdown() == ["stop c"], "a was asked before"
    assert stage.answer("restart_child", "a") == "NotSupported"
    stage.dies("c")
    assert stage.outcome(start) == "StartFailed" and stage.exit is None
    stage.advance(5.0)
    assert stage.outcome(stop) == "a" and stage.exit is not None


def test_a_thousand_requests_are_open_at_most() -> None:
    stage = Stage("a infinity").start()
    stage.stubborn.add("a")
    for _ in range(REQUESTS_MAX):
        stage.ask("terminate_child", "a")
    assert stage.answer("terminate_child", "a") == "MailboxFull"
    stage.ends("a")
    assert stage.outcome(REQUESTS_MAX) == "a" and stage.answer("restart_child", "a") == "a"


def test_count_children_is_otp_s() -> None:
    stage = Stage("a", "b supervisor", "c transient").start()
    stage.dies("c", NORMAL)
    assert stage.core.count() == {"specs": 3, "active": 2, "supervisors": 1, "workers": 2}
    crew = dynamic("w supervisor")
    crew.ask("start_dynamic", ())
    crew.ask("start_dynamic", ())
    assert crew.core.count() == {"specs": 1, "active": 2, "supervisors": 2, "workers": 0}


# -- simple_one_for_one


def test_a_dynamic_supervisor_starts_with_nothing_and_names_its_children_by_number() -> None:
    stage = dynamic()
    assert stage.did == [] and stage.started is not None
    assert [stage.answer("start_dynamic", (n,)) for n in (7, 8)] == ["w:1", "w:2"]
    assert stage.did == ["start w:1 7", "start w:2 8"]


def test_a_dynamic_child_is_restarted_alone_with_its_own_arguments_and_is_not_registered() -> None:
    stage = Stage(spec("w", arguments=("common",)), strategy="simple_one_for_one").start()
    stage.ask("start_dynamic", (7,))
    stage.ask("start_dynamic", (8,))
    assert stage.dies("w:1") == ["start w:1 common 7"]
    assert [child.spec.register for child in stage.core.children()] == [False, False]


@pytest.mark.parametrize("template", ["w transient", "w temporary"])
def test_a_dynamic_child_that_stays_down_is_forgotten(template: str) -> None:
    stage = dynamic(template)
    stage.ask("start_dynamic", ())
    assert stage.dies("w:1", NORMAL) == [] and stage.states() == {}
    assert stage.answer("start_dynamic", ()) == "w:2", "no number is given twice"


def test_a_dynamic_child_that_does_not_start_is_dropped_and_one_whose_restart_fails_is_tried_again() -> None:
    stage = dynamic()
    stage.failing["w:1"] = 1
    assert stage.answer("start_dynamic", ()) == "StartFailed" and stage.states() == {}
    stage.ask("start_dynamic", ())
    stage.failing["w:2"] = 1
    stage.dies("w:2", CRASH)
    assert stage.states() == {"w:2": "restarting"}
    assert stage.answer("terminate_child", "w:2") == "w:2" and stage.states() == {}


def test_a_terminated_dynamic_child_is_forgotten() -> None:
    stage = dynamic()
    stage.ask("start_dynamic", ())
    assert stage.answer("terminate_child", "w:1") == "w:1" and stage.states() == {}


@pytest.mark.parametrize(
    ("what", "argument"), [("restart_child", "w:1"), ("delete_child", "w:1"), ("start_child", spec("a"))]
)
def test_what_makes_no_sense_for_dynamic_children_is_not_supported(what: str, argument: Any) -> None:
    stage = dynamic()
    stage.ask("start_dynamic", ())
    assert stage.answer(what, argument) == "NotSupported" and stage.live() == ["w:1"]


def test_dynamic_arguments_are_a_tuple() -> None:
    assert dynamic().answer("start_dynamic", 7) == "InvalidChildSpec"


def test_dynamic_children_are_stopped_all_at_once_each_within_its_time() -> None:
    stage = dynamic()
    for _ in range(3):
        stage.ask("start_dynamic", ())
    stage.stubborn |= {"w:1", "w:3"}
    assert stage.shutdown() == ["stop w:3", "stop w:2", "stop w:1"]
    stage.advance(5.0)
    assert stage.did[-2:] == ["kill w:1", "kill w:3"] and stage.exit is not None


def test_dynamic_significant_children_end_the_supervisor_too() -> None:
    stage = dynamic("w temporary significant", auto_shutdown="all_significant")
    stage.ask("start_dynamic", ())
    stage.ask("start_dynamic", ())
    stage.dies("w:2")
    assert stage.exit is None
    stage.dies("w:1", NORMAL)
    assert stage.exit is not None
