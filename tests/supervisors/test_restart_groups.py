"""one_for_all and rest_for_one: who is stopped and started with the child that ended, and what may come between."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import RestartIntensityExceeded, StartFailed
from actorgrid.supervisors.intensity import who_shares_fate
from tests.supervisors.stage import CRASH, KILLED, NORMAL, Stage, spec


def started(*specs: str, strategy: Any = "one_for_all", **flags: Any) -> Stage:
    stage = Stage(*specs, strategy=strategy, **flags).start()
    stage.did.clear()
    return stage


@pytest.mark.parametrize(
    ("strategy", "group"),
    [("one_for_one", "b"), ("simple_one_for_one", "b"), ("rest_for_one", "bc"), ("one_for_all", "abc")],
)
def test_who_shares_the_fate_of_the_second_of_three(strategy: Any, group: str) -> None:
    assert list(who_shares_fate(strategy, ("a", "b", "c"), "b")) == list(group)


def test_one_for_all_stops_the_others_backwards_and_starts_all_in_order() -> None:
    stage = started("a", "b", "c")
    assert stage.dies("b") == ["stop c", "stop a", "start a", "start b", "start c"]
    assert [child.restarts for child in stage.core.children()] == [1, 1, 1]


def test_rest_for_one_stops_and_starts_only_those_after_it() -> None:
    stage = started("a", "b", "c", "d", strategy="rest_for_one")
    assert stage.dies("b") == ["stop d", "stop c", "start b", "start c", "start d"]
    assert stage.dies("d") == ["start d"]
    assert [child.restarts for child in stage.core.children()] == [0, 1, 1, 2]


def test_each_member_starts_when_the_one_before_it_is_up() -> None:
    stage = started("a", "b", "c")
    stage.silent.add("a")
    assert stage.dies("c") == ["stop b", "stop a", "start a"]
    assert stage.states() == {"a": "starting", "b": "restarting", "c": "restarting"}
    assert stage.doing(lambda: stage.up("a")) == ["start b", "start c"]


def test_a_member_that_does_not_stop_in_its_time_is_killed_before_anything_starts() -> None:
    stage = started("a", "b", "c")
    stage.stubborn.add("c")
    assert stage.dies("a") == ["stop c"]
    stage.advance(5.0)
    assert stage.did == ["stop c", "kill c", "stop b", "start a", "start b", "start c"]


def test_one_whole_group_restart_counts_once() -> None:
    stage = started("a", "b", "c", "d", intensity=1)
    stage.dies("b")
    assert stage.live() == ["a", "b", "c", "d"]
    stage.dies("a")
    assert stage.exit is not None and isinstance(stage.exit.reason.error, RestartIntensityExceeded)


def test_exits_of_members_while_the_group_is_stopped_are_part_of_it() -> None:
    stage = started("a", "b", "c", "d", intensity=1)
    stage.stubborn |= {"d"}
    assert stage.dies("b") == ["stop d"]
    stage.dies("a", KILLED)
    stage.dies("d", CRASH)
    assert stage.did == ["stop d", "stop c", "start a", "start b", "start c", "start d"]
    assert stage.exit is None


def test_temporary_members_go_and_are_not_started_again() -> None:
    stage = started("a temporary", "b", "c temporary", "d")
    stage.stubborn.add("d")
    stage.dies("b")
    stage.dies("c")
    assert stage.doing(lambda: stage.ends("d")) == ["stop a", "start b", "start d"]
    assert stage.states() == {"b": "up", "d": "up"}


def test_a_temporary_child_that_ends_takes_nobody_with_it() -> None:
    stage = started("a temporary", "b", "c transient")
    assert stage.dies("a") == [] and stage.dies("c", NORMAL) == []
    assert stage.states() == {"b": "up", "c": "down"}


def test_a_group_restart_starts_members_that_had_been_down_too() -> None:
    stage = started("a", "b transient", "c", "d")
    stage.dies("b", NORMAL)
    assert stage.answer("terminate_child", "d") == "d"
    stage.did.clear()
    assert stage.dies("a") == ["stop c", "start a", "start b", "start c", "start d"]


def test_one_for_all_tries_the_whole_group_again_when_a_member_does_not_start() -> None:
    stage = started("a", "b", "c", intensity=2)
    stage.failing["b"] = 1
    assert stage.dies("a") == ["stop c", "stop b", "start a", "start b", "stop a"]
    assert stage.states() == {"a": "restarting", "b": "restarting", "c": "restarting"}
    stage.advance(0.1)
    assert stage.did[-3:] == ["start a", "start b", "start c"]
    stage.dies("c")
    assert stage.exit is not None, "the end, the failed start and this one are three"


def test_rest_for_one_tries_again_from_the_member_that_did_not_start() -> None:
    stage = started("a", "b", "c", "d", strategy="rest_for_one")
    stage.failing["c"] = 1
    assert stage.dies("b") == ["stop d", "stop c", "start b", "start c"]
    stage.advance(0.1)
    assert stage.did[4:] == ["start c", "start d"] and stage.live() == ["a", "b", "c", "d"]


def test_a_group_that_never_comes_up_is_given_up() -> None:
    stage = started("a", "b", "c", intensity=3)
    stage.failing["b"] = 99
    stage.dies("b")
    stage.advance(10.0)
    assert stage.did.count("start b") == 3 and stage.did[-1] == "stop a" and stage.exit is not None


def test_a_member_that_ends_while_the_others_start_is_a_new_end() -> None:
    stage = started("a", "b", "c", intensity=2)
    stage.silent.add("b")
    stage.dies("c")
    stage.silent.clear()
    assert stage.dies("a") == ["stop b", "start a", "start b", "start c"]
    assert stage.dies("a") == ["stop c", "stop b"] and stage.exit is not None


def test_a_child_before_the_group_that_ends_widens_it() -> None:
    stage = started("a", "b", "c", "d", strategy="rest_for_one", intensity=2)
    stage.stubborn.add("d")
    assert stage.dies("c") == ["stop d"]
    assert stage.dies("a") == []
    assert stage.doing(lambda: stage.ends("d")) == ["stop b", "start a", "start b", "start c", "start d"]
    stage.dies("d")
    assert stage.exit is not None, "that was the third restart"


def test_a_child_before_a_group_that_waits_to_try_again_widens_it() -> None:
    stage = started("a", "b", "c", strategy="rest_for_one")
    stage.failing["b"] = 1
    stage.dies("b")
    assert stage.dies("a") == ["start a", "start b", "start c"]
    stage.advance(1.0)
    assert stage.did.count("start b") == 2


def test_a_member_that_does_not_die_is_waited_for_never_doubled() -> None:
    stage = started("a", "b brutal_kill", "c")
    stage.immortal.add("b")
    assert stage.dies("c") == ["kill b"]
    stage.advance(100.0)
    assert stage.did == ["kill b", "go on without b", "stop a"]
    assert stage.doing(lambda: stage.ends("b", KILLED)) == ["start a", "start b", "start c"]


def test_ends_during_the_first_start_are_answered_after_it() -> None:
    stage = Stage("a", "b", "c", strategy="rest_for_one", intensity=2)
    stage.silent.add("c")
    stage.start().did.clear()
    assert stage.dies("b") == [] and stage.states() == {"a": "up", "b": "restarting", "c": "starting"}
    assert stage.dies("a") == []
    stage.silent.clear()
    stage.doing(lambda: stage.up("c"))
    assert stage.did[-3:] == ["start a", "start b", "start c"]
    assert stage.started is not None and stage.live() == ["a", "b", "c"]


def test_several_ends_during_the_first_start_are_one_restart_of_their_group() -> None:
    stage = Stage("a", "b", "c", strategy="one_for_all", intensity=1)
    stage.silent.add("c")
    stage.start()
    stage.dies("a")
    stage.dies("b")
    stage.silent.clear()
    stage.doing(lambda: stage.up("c"))
    assert stage.exit is None and stage.did[3:] == ["stop c", "start a", "start b", "start c"]


def test_ends_during_a_first_start_that_fails_do_not_matter() -> None:
    stage = Stage("a", "b", "c", strategy="one_for_all")
    stage.silent.add("c")
    stage.start().dies("b")
    stage.start_fails("c", StartFailed("c cannot"))
    stage.settle()
    assert stage.did[-1] == "stop a" and stage.exit is not None


def test_a_stop_ends_a_group_restart_at_any_point() -> None:
    for stubborn, silent, expected in (({"c"}, set(), ["stop b", "stop a"]), (set(), {"b"}, ["stop b", "stop a"])):
        stage = started("a", "b", "c", "d")
        stage.stubborn, stage.silent = stubborn, silent
        stage.dies("d")
        stage.shutdown()
        for child_id in stubborn:
            stage.dies(child_id)
        assert stage.did[-2:] == expected and stage.exit is not None
    stage = started("a", "b", strategy="one_for_all")
    stage.failing["a"] = 1
    stage.dies("b")
    assert stage.shutdown() == [] and stage.exit is not None


# -- requests meanwhile


def test_requests_wait_until_a_group_restart_has_ended() -> None:
    stage = started("a", "b", "c")
    stage.silent.add("b")
    stage.dies("c")
    late = [stage.ask("terminate_child", "a"), stage.ask("delete_child", "b"), stage.ask("terminate_child", "nobody")]
    assert [stage.outcome(each) for each in late] == ["open"] * 3
    stage.doing(lambda: stage.up("b"))
    assert [stage.outcome(each) for each in late] == ["a", "ChildExists", "NoSuchChild"]


def test_requests_that_wait_are_answered_when_the_supervisor_gives_up() -> None:
    stage = started("a", "b", intensity=0)
    stage.stubborn.add("a")
    stage.dies("b")
    assert stage.answer("terminate_child", "a") == "NotSupported"


def test_an_end_while_a_child_starts_on_request_is_answered_after_that() -> None:
    stage = started("a", "b")
    stage.silent.add("c")
    number = stage.ask("start_child", spec("c"))
    assert stage.dies("a") == [] and stage.outcome(number) == "open"
    stage.silent.clear()
    assert stage.doing(lambda: stage.up("c")) == ["stop c", "stop b", "start a", "start b", "start c"]
    assert stage.outcome(number) == "c"


def test_a_child_that_is_being_terminated_when_its_group_is_restarted_comes_back_with_it() -> None:
    stage = started("a", "b", "c")
    stage.stubborn.add("b")
    number = stage.ask("terminate_child", "b")
    assert stage.dies("a") == ["stop c"]
    assert stage.doing(lambda: stage.ends("b")) == ["start a", "start b", "start c"]
    assert stage.outcome(number) == "b"
