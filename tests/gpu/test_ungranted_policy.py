"""What is done about processes that hold a device without a grant: decisions alone."""

from __future__ import annotations

from actorgrid.actors.gpu.device_users import UngrantedProcess
from actorgrid.actors.gpu.ungranted_policy import GIVE_UP_AFTER, KILL_AFTER_S, EndStranger, UngrantedPolicy, Whose

OURS = UngrantedProcess("gpu", 10, 500, "gone.1")
LIVE = UngrantedProcess("gpu", 11, 500, "live.1")
THEIRS = UngrantedProcess("gpu", 12, 500)
DEAD = UngrantedProcess("gpu", 13, 500, is_gone=True)
ALL = [OURS, LIVE, THEIRS, DEAD]


def took(policy: UngrantedPolicy, seen: list[UngrantedProcess], word: str, now_s: float) -> list[EndStranger]:
    return policy.take(seen, {"live.1"}, word, 60.0, now_s, 1e9 + now_s)


def ended(word: str) -> set[int]:
    policy = UngrantedPolicy()
    assert took(policy, ALL, word, 0.0) == took(policy, ALL, word, 59.0) == [], "they have a grace"
    return {end.pid for end in took(policy, ALL, word, 60.0)}


def test_nobody_is_ended_where_they_are_only_to_be_reported() -> None:
    assert ended("report") == set()


def test_what_is_left_of_ended_work_is_ended() -> None:
    assert ended("end-own") == {OURS.pid}


def test_what_is_nobodys_is_ended_too_if_that_is_asked_for_and_live_work_never() -> None:
    assert ended("end-all") == {OURS.pid, THEIRS.pid}


def test_one_that_stays_is_killed_and_given_up_in_the_end() -> None:
    policy = UngrantedPolicy()
    took(policy, [OURS], "end-own", 0.0)
    now, signals = 60.0, []
    for _ in range(2 * GIVE_UP_AFTER):
        signals += [(end.hard, end.since_s) for end in took(policy, [OURS], "end-own", now)]
        now += KILL_AFTER_S
    assert signals == [(False, 0.0), (True, 0.0), (True, 0.0)]


def test_one_that_must_be_left_alone_is_not_asked_for_again() -> None:
    policy = UngrantedPolicy()
    took(policy, [THEIRS], "end-all", 0.0)
    (end,) = took(policy, [THEIRS], "end-all", 60.0)
    policy.done(end, "it is the system's", 1.0)
    assert took(policy, [THEIRS], "end-all", 600.0) == []
    assert policy.events[-1].what == "is left alone: it is the system's"


def test_one_that_ends_is_counted_and_one_that_comes_back_has_its_grace_again() -> None:
    policy = UngrantedPolicy()
    took(policy, [OURS], "end-own", 0.0)
    (end,) = took(policy, [OURS], "end-own", 60.0)
    policy.done(end, "", 60.0)
    took(policy, [], "end-own", 61.0)
    assert policy.ended_total == 1
    assert [event.what for event in policy.events] == [
        "has 500 MiB of it without a grant",
        "is told to end",
        "has ended",
    ]
    assert took(policy, [OURS], "end-own", 62.0) == took(policy, [OURS], "end-own", 121.0) == []


def test_work_that_ends_while_its_process_stays_has_the_grace_from_then_on() -> None:
    policy = UngrantedPolicy()
    policy.take([LIVE], {"live.1"}, "end-own", 60.0, 0.0, 0.0)
    assert policy.take([LIVE], set(), "end-own", 60.0, 100.0, 0.0) == []
    assert [end.pid for end in policy.take([LIVE], set(), "end-own", 60.0, 160.0, 0.0)] == [LIVE.pid]


def test_a_context_without_a_process_is_told_only_when_it_stays() -> None:
    policy = UngrantedPolicy()
    took(policy, [DEAD], "end-all", 0.0)
    took(policy, [], "end-all", 5.0)
    assert not policy.events
    took(policy, [DEAD], "end-all", 10.0)
    took(policy, [DEAD], "end-all", 70.0)
    assert policy.count(Whose.GONE) == 1
    assert "a reset of the device frees it" in policy.events[-1].what
