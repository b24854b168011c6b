"""What one proposal may be, what clocks and hosts may do, and what an allocator of another package may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from actorgrid.actors.jobs.decisions import CHARS_AT_ONCE, INPUTS_AT_ONCE, RELEASES_AT_ONCE, Advance, ClusterCapacity
from actorgrid.actors.jobs.execution import RETRY_MAX_S
from actorgrid.actors.jobs.guarded_allocator import GuardedAllocator
from actorgrid.dag.allocators import FirstAvailable
from actorgrid.dag.hosts import ClusterTracker, HostCapacity
from actorgrid.errors import InvalidGraph

from .play import Play, function, graph

NOBODY = ClusterCapacity(0, frozenset())
MANY = ClusterCapacity(10_000, frozenset({"h0", "h1"}))


def decided(play: Play, capacity: ClusterCapacity) -> Advance:
    found = play.execution.decide(capacity, play.now)
    assert isinstance(found, Advance)
    return found


def test_a_proposal_has_so_many_jobs_and_no_more() -> None:
    play = Play(graph(*({"id": f"s{n}", "command": "x"} for n in range(1_000))))
    assert len(decided(play, MANY).releases) == RELEASES_AT_ONCE


def test_jobs_with_large_commands_go_in_several_proposals() -> None:
    large = "x" * 100_000
    play = Play(graph(*({"id": f"s{n}", "command": [large]} for n in range(100))))
    releases = decided(play, MANY).releases
    assert len(releases) == -(-CHARS_AT_ONCE // 100_000)


def test_jobs_that_take_from_many_go_in_several_proposals() -> None:
    wide = INPUTS_AT_ONCE // 50
    steps = [function(f"a{n}") for n in range(wide)]
    steps += [function(f"b{n}", [step["id"] for step in steps]) for n in range(60)]
    play = Play(graph(*steps))
    done = {"host": "h0", "attempt_id": "a.1", "state": "succeeded", "started_at": None, "ended_at": None, "size": 9}
    record: Any = {"run": 1, "failures": 0, "job_id": "j", "offset": 0, **done}
    play.execution.load([(number, record) for number in range(wide)])
    assert len(decided(play, MANY).releases) == 50


def test_without_hosts_some_jobs_wait_where_people_see_them() -> None:
    play = Play(graph(*(function(f"s{n}", function="f", runtime_s=0.001) for n in range(100))))
    assert decided(play, NOBODY).releases


def test_a_step_that_failed_waits_no_longer_than_it_may_whatever_the_clock_does() -> None:
    play = Play(graph(function("a", retries=3), function("b", ["a"])))
    failed: Any = {"state": "stumbled", "run": 1, "failures": 1, "job_id": "j", "attempt_id": "a.1", "host": "h0"}
    failed |= {"offset": 0, "size": 0, "started_at": None, "ended_at": play.now + 1e6}
    play.execution.load([(0, failed)])
    assert decided(play, MANY).releases, "it was put off by a clock that was a million seconds ahead"
    play = Play(graph(function("a", retries=3), function("b", ["a"])))
    play.execution.load([(0, {**failed, "ended_at": play.now})])
    assert play.execution.decide(MANY, play.now) is None
    at = play.execution.next_wakeup(play.now)
    assert at is not None and play.now < at <= play.now + RETRY_MAX_S


@pytest.mark.parametrize("numbers", [[-1], [10**9], [True], []])
def test_inputs_that_are_no_steps_are_not_made_again(numbers: list[int]) -> None:
    play = Play(graph(function("a"), function("b", ["a"])))
    play.execution.inputs_lost("g.0-1", numbers)
    assert [job["job_id"] for job in decided(play, MANY).releases][:1] == ["g.0-1"]


class Wrong(FirstAvailable):
    """An allocator that does nothing right."""

    def __init__(self, urgency: Sequence[float] | None) -> None:
        self.urgency = urgency

    def prepare(self, graph: Any, tracker: Any) -> Sequence[float] | None:
        return self.urgency

    def allocate(self, ready: Sequence[int], tracker: Any, now_s: float) -> None:
        raise ZeroDivisionError

    def hint(self, step: int) -> str:
        raise KeyError(step)


def test_what_an_allocator_raises_is_no_opinion() -> None:
    play = Play(graph(function("a"), function("b")))
    tracker = ClusterTracker(play.spec.graph, [HostCapacity("h0")])
    guarded = GuardedAllocator(Wrong(None))
    assert guarded.prepare(play.spec.graph, tracker) is None
    guarded.allocate([0], tracker, 0.0)
    assert not tracker.claimed
    assert guarded.hint(0) == ""


@pytest.mark.parametrize("urgency", [[1.0], [1.0, 2.0, 3.0], [1.0, math.nan]])
def test_an_urgency_that_is_none_is_refused(urgency: list[float]) -> None:
    play = Play(graph(function("a"), function("b")))
    tracker = ClusterTracker(play.spec.graph, [HostCapacity("h0")])
    with pytest.raises(InvalidGraph, match="urgency"):
        GuardedAllocator(Wrong(urgency)).prepare(play.spec.graph, tracker)
