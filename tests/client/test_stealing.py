"""Calls that sit behind a long one go to who has nothing to do: once, where their worker says it has not begun them."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.client.lanes import STALL_S, UNANSWERED_S, Lane, LeasedWorker, TaskCall
from actorgrid.client.options import TaskOptions, WorkerShape, options_of
from actorgrid.client.pickling import FunctionCode
from actorgrid.client.stealing import ask_back, given_back
from actorgrid.errors import BadRequest
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import (
    CancelTask,
    Recall,
    encode_recalled,
    parse_client_frame,
)
from tests.client.scripted_workers import Leases, Worker

CODE = FunctionCode(b"0" * 16, b"", "f", "f")
LATER = 1.0


def worker(lane: Lane, name: str, index: int, answers: bool = True) -> LeasedWorker:
    made = LeasedWorker(lane, name, name, None, None, 0.0, token=(1, index), answers_recalls=answers)
    lane.links.append(made)
    return made


def held(lane: Lane, link: LeasedWorker, count: int) -> list[TaskCall]:
    calls = [TaskCall(number, CODE, b"", None, 50, 3, lane, None) for number in range(count)]
    for call in calls:
        link.took(call, 0.0001, 0.0)
    return calls


def said(link: LeasedWorker) -> list[Any]:
    frames = [parse_client_frame(frame) for frame in FrameDecoder().feed(bytes(link.out))]
    link.out.clear()
    return frames


# -- decisions


def test_a_worker_is_asked_once_and_only_while_another_has_nothing_to_do() -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 9)
    calls = held(lane, stuck, 3)
    assert not ask_back(lane, LATER), "nobody is idle"
    worker(lane, "b", 1)  # an older lease: what has not begun may go there all the same
    assert not ask_back(lane, STALL_S / 2), "it has not run long"
    assert ask_back(lane, LATER) and said(stuck) == [Recall()]
    assert not ask_back(lane, LATER + 0.1) and said(stuck) == []
    assert [call.link for call in calls] == [stuck] * 3, "nothing moves before the worker has said so"


def test_what_is_given_back_waits_again_in_its_order_and_has_not_begun() -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 1)
    calls = held(lane, stuck, 4)
    assert given_back(stuck, [3, 1, 2, 77], LATER) == (3, 0)
    assert [lane.pop() for _ in range(3)] == calls[1:]
    assert all(call.token is None and call.attempt_number == 1 for call in calls)
    assert stuck.head is calls[0]


def test_what_is_not_wanted_any_more_is_not_sent_again() -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 1)
    calls = held(lane, stuck, 3)
    calls[1].cancelled = True
    assert given_back(stuck, [1, 2], LATER) == (1, 1)
    assert lane.pop() is calls[2] and lane.waiting == 0


@pytest.mark.parametrize("nonsense", [None, "all", [None, "x", 1.5, [2]], {}])
def test_an_answer_that_is_none_gives_nothing_back(nonsense: Any) -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 1)
    held(lane, stuck, 3)
    assert given_back(stuck, nonsense, LATER) == (0, 0) and len(stuck.calls) == 3


@pytest.mark.parametrize("answers", [True, False])
def test_where_nobody_answers_calls_go_to_a_newer_lease_with_a_token(answers: bool) -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 1, answers)
    calls = held(lane, stuck, 2)
    worker(lane, "b", 2)
    assert ask_back(lane, LATER)
    if answers:
        assert said(stuck) == [Recall()]
        assert not ask_back(lane, LATER + UNANSWERED_S)
        assert ask_back(lane, LATER + UNANSWERED_S + 0.1)
    assert said(stuck) == [CancelTask(1)]
    assert lane.pop() is calls[1] and calls[1].token == (1, 1) and calls[1].attempt_number == 2


def test_a_late_answer_about_what_was_sent_elsewhere_moves_nothing() -> None:
    lane = Lane(WorkerShape())
    stuck = worker(lane, "a", 1)
    held(lane, stuck, 2)
    worker(lane, "b", 2)
    ask_back(lane, LATER)
    ask_back(lane, LATER + UNANSWERED_S + 0.1)
    assert given_back(stuck, [1], LATER + 2) == (0, 0)
    assert lane.waiting == 1 and stuck.recalled == {}


# -- who gets a call


def test_the_policy_of_a_call_or_of_its_lane_chooses_among_those_with_room() -> None:
    lane = Lane(WorkerShape())
    links = [worker(lane, name, 1) for name in "abc"]
    assert [lane.pick(0.0, "round_robin") for _ in range(4)] == [*links, links[0]]
    links[1].stuck = True
    held(lane, links[1], 1)
    lane.balancing = "round_robin"
    assert [lane.pick(0.0) for _ in range(3)] == [links[2], links[0], links[2]]
    assert lane.pick(0.0, "least_loaded") is links[0]


def test_weights_are_the_speeds_of_the_workers() -> None:
    lane = Lane(WorkerShape())
    fast, slow = worker(lane, "a", 1), worker(lane, "b", 2)
    fast.pace_s, slow.pace_s = 0.001, 0.003
    chosen = [lane.pick(0.0, "weighted_round_robin") for _ in range(40)]
    assert 29 <= chosen.count(fast) <= 31


def test_calls_of_one_key_go_to_one_worker_until_it_has_its_share() -> None:
    lane = Lane(WorkerShape())
    for number in range(4):
        worker(lane, f"w{number}", number)
    homes = {key: lane.pick(0.0, "affinity_aware", key) for key in ("ann", "bob", "cy", "dee", "eve", "flo")}
    assert len(set(homes.values())) > 1
    assert all(lane.pick(0.0, "affinity_aware", key) is home for key, home in homes.items())
    home = homes["ann"]
    assert home is not None
    held(lane, home, 3)
    assert lane.pick(0.0, "affinity_aware", "ann") is not home


def test_options_name_the_policy_and_a_key_means_affinity() -> None:
    assert options_of({"affinity": "user-7"}).balancing == "affinity_aware"
    assert options_of({"affinity": "user-7", "balancing": "least_loaded"}).balancing == "least_loaded"
    assert TaskOptions().changed(balancing="round_robin").balancing == "round_robin"
    with pytest.raises(BadRequest, match="no such balancing policy"):
        options_of({"balancing": "fastest"})
    with pytest.raises(BadRequest, match="session tasks"):
        options_of({"balancing": "round_robin", "durable": True})
    with pytest.raises(BadRequest, match="short text"):
        options_of({"affinity": "x" * 2000})


# -- the dispatcher, with workers that say what they are told


def test_a_slow_worker_gives_back_what_it_has_not_begun_and_another_runs_it_once() -> None:
    with Leases() as leases:
        dispatcher = leases.dispatcher
        first = dispatcher.submit(CODE, b"", TaskOptions())
        slow = Worker(leases, "slow", 7)
        slow.succeed(slow.task().task_id)
        assert first.result(60) == "value of 1"
        for _ in range(3):  # it is known as a short one from now on
            again = dispatcher.submit(CODE, b"", TaskOptions())
            slow.succeed(slow.task().task_id)
            again.result(60)
        dispatcher._pace._by_kin["f"] = 0.0001
        futures = [dispatcher.submit(CODE, b"", TaskOptions()) for _ in range(4)]
        sent = [slow.task().task_id for _ in futures]
        idle = Worker(leases, "idle", 2)  # of an older lease
        while not isinstance(slow.read(), Recall):
            pass
        slow.socket.sendall(encode_recalled(sent[1:]))
        stolen = [idle.task() for _ in sent[1:]]
        assert [task.task_id for task in stolen] == sent[1:]
        assert {task.attempt_number for task in stolen} == {1}, "they have not begun"
        idle.succeed(*sent[1:])
        assert [future.result(60) for future in futures[1:]] == [f"value of {id}" for id in sent[1:]]
        slow.succeed(sent[0])
        assert futures[0].result(60) == f"value of {sent[0]}"
        assert dispatcher.figures()["stolen"] == 3 and dispatcher.figures()["unfinished"] == 0


def test_a_worker_that_is_to_leave_its_host_ends_what_it_has_and_gets_nothing_more() -> None:
    with Leases() as leases:
        dispatcher = leases.dispatcher
        future = dispatcher.submit(CODE, b"", TaskOptions())
        busy = Worker(leases, "busy", 1)
        running = busy.task()
        Worker(leases, "idle", 2)
        dispatcher.leave(["busy", "idle", "nobody's"])
        assert leases.returned == ["idle"]
        waits = dispatcher.submit(CODE, b"", TaskOptions())
        busy.succeed(running.task_id)
        assert future.result(60) == "value of 1"
        assert busy.socket.recv(100) == b"", "it is let go, with nothing more sent to it"
        other = Worker(leases, "other", 3)
        other.succeed(other.task().task_id)
        assert waits.result(60) == "value of 2"
        assert leases.returned == ["idle", "busy"]
