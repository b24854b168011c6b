from __future__ import annotations

from actorgrid.client.lanes import BUDGET_S, Lane, LeasedWorker, Pace, TaskCall
from actorgrid.client.options import WorkerShape
from actorgrid.client.pickling import FunctionCode

CODE = FunctionCode(b"0" * 16, b"", "f", "f")


def call(lane: Lane, number: int, priority: int = 50) -> TaskCall:
    return TaskCall(number, CODE, b"", None, priority, 3, lane, None)


def link(lane: Lane, name: str, now: float = 0.0) -> LeasedWorker:
    made = LeasedWorker(lane, name, name, None, None, now)
    lane.links.append(made)
    return made


def lane() -> Lane:
    return Lane(WorkerShape())


def test_an_unknown_function_travels_alone() -> None:
    queue = lane()
    worker = link(queue, "a")
    worker.took(call(queue, 1), Pace().estimate_s("f"), 0.0)
    assert not worker.has_capacity(Pace().estimate_s("f"))


def test_short_calls_travel_in_batches_bounded_by_the_budget() -> None:
    queue = lane()
    worker = link(queue, "a")
    number = 0
    while worker.has_capacity(BUDGET_S / 10.5):
        number += 1
        worker.took(call(queue, number), BUDGET_S / 10.5, 0.0)
    assert number == 10


def test_the_least_loaded_worker_is_picked() -> None:
    queue = lane()
    busy, free = link(queue, "a"), link(queue, "b")
    busy.took(call(queue, 1), 0.001, 0.0)
    assert queue.pick(0.001) is free
    free.took(call(queue, 2), 0.002, 0.0)
    assert queue.pick(0.001) is busy


def test_the_pace_jumps_up_and_comes_down_slowly() -> None:
    pace = Pace()
    pace.observe("f", 0.001)
    pace.observe("f", 1.0)
    assert pace.estimate_s("f") == 1.0
    pace.observe("f", 0.0)
    assert 0.7 < pace.estimate_s("f") < 0.9


def test_the_way_to_a_far_worker_is_no_part_of_what_a_call_takes() -> None:
    queue = lane()
    far = LeasedWorker(queue, "far", "far", None, None, 0.0, travel_s=0.25)
    far.took(call(queue, 1), 0.0, 10.0)
    far.gave(1, 10.5)
    assert far.ended(1, 10.5) == 0.25
    for number in (2, 3):
        far.took(call(queue, number), 0.0, 11.0)
    far.gave(2, 11.5)
    assert far.ended(1, 11.5) == 0.25
    # The third was on its way while the second ran.
    far.gave(3, 11.75)
    assert far.ended(1, 11.75) == 0.25
    far.took(call(queue, 4), 0.0, 12.0)
    far.gave(4, 12.125)
    assert far.ended(1, 12.125) == 0.0


def test_priority_first_then_order_of_arrival_and_cancelled_ones_are_skipped() -> None:
    queue = lane()
    for number, priority in ((1, 50), (2, 90), (3, 50), (4, 90)):
        queue.push(call(queue, number, priority), 0.0)
    skipped = queue.peek()
    assert skipped is not None
    skipped.cancelled = True
    queue.forget(skipped)
    order = []
    while (found := queue.pop()) is not None:
        order.append(found.task_id)
    assert order == [4, 1, 3]
    assert queue.waiting == 0


def test_a_queue_of_cancelled_calls_does_not_grow() -> None:
    queue = lane()
    for number in range(10_000):
        made = call(queue, number)
        queue.push(made, 0.0)
        made.cancelled = True
        queue.forget(made)
    assert sum(len(waiting) for waiting in queue._queues.values()) < 2000


def test_calls_behind_a_long_one_are_recalled_only_when_a_worker_is_idle() -> None:
    queue = lane()
    stuck = link(queue, "a")
    for number in range(3):
        stuck.took(call(queue, number), 0.0001, 0.0)
    assert queue.recall(1.0) == []
    link(queue, "b")
    assert [found.task_id for _, found in queue.recall(1.0)] == [1, 2]


def test_the_first_lease_is_wanted_at_once_and_more_only_for_a_backlog() -> None:
    queue = lane()
    assert not queue.wants_lease(0.0)
    queue.push(call(queue, 1), 0.0)
    assert queue.wants_lease(0.0)
    queue.requests = 1
    assert not queue.wants_lease(0.0)
    queue.requests = 0
    link(queue, "a")
    queue.observe(0.00005)
    assert not queue.wants_lease(0.5)
    for number in range(10_000):
        queue.push(call(queue, number), 0.0)
    assert queue.wants_lease(0.5)
    queue.quiet_until = 2.0
    assert not queue.wants_lease(0.5)


def test_ended_calls_free_the_load() -> None:
    queue = lane()
    worker = link(queue, "a")
    worker.took(call(queue, 1), 0.004, 0.0)
    assert worker.gave(1, 5.0) is not None
    assert worker.gave(1, 5.0) is None
    assert (worker.load_s, worker.idle_since) == (0.0, 5.0)


def leased(queue: Lane, name: str, index: int) -> LeasedWorker:
    made = link(queue, name)
    made.token = (1, index)
    return made


def test_what_may_have_begun_goes_to_a_newer_lease_only_and_others_go_on() -> None:
    queue = lane()
    older = leased(queue, "a", 5)
    again, fresh = call(queue, 1), call(queue, 2)
    again.may_have_begun((1, 7))
    queue.push(fresh, 0.0)
    queue.push(again, 0.0, front=True)
    assert again.attempt_number == 2 and queue.waiting == 2
    assert queue.pop(older) is fresh and queue.peek(older) is None
    assert queue.lacks_newer() and queue.wants_lease(0.0)
    equal, newer = leased(queue, "b", 7), leased(queue, "c", 8)
    assert queue.peek(equal) is None
    assert not queue.lacks_newer() and queue.pop(newer) is again and queue.waiting == 0
    again.may_have_begun((1, 6))  # of a worker that was older: the greatest counts
    assert again.token == (1, 7) and again.attempt_number == 3


def test_an_older_worker_is_given_back_only_where_no_room_is_for_a_newer_one() -> None:
    queue = lane()
    busy, idle = leased(queue, "a", 4), leased(queue, "b", 5)
    busy.took(call(queue, 1), 0.001, 0.0)
    again = call(queue, 2)
    again.may_have_begun((1, 7))
    queue.push(again, 0.0)
    assert queue.replaceable(0.5) is None and queue.wants_lease(0.5)
    queue.quiet_until = 2.0  # there was no room
    assert queue.replaceable(0.5) is idle
    idle.leaving = True
    assert queue.replaceable(0.5) is None and not idle.has_capacity(0.0) and queue.pick(0.0) is not idle
    queue.links.remove(idle)
    assert queue.replaceable(0.5) is busy
    busy.leaving = True
    assert queue.granted((1, 9)) == [] and not busy.leaving  # one came after all


def test_calls_behind_a_long_one_are_not_recalled_to_an_older_lease() -> None:
    queue = lane()
    stuck, idle = leased(queue, "a", 5), leased(queue, "b", 4)
    for number in range(3):
        stuck.took(call(queue, number), 0.0001, 0.0)
    assert queue.recall(1.0) == [] and queue.wants_lease(1.0)
    queue.quiet_until = 2.0
    assert queue.replaceable(1.0) is idle
    idle.token = (1, 6)
    assert [found.task_id for _, found in queue.recall(1.0)] == [1, 2] and queue.replaceable(1.0) is None


def test_a_ledger_that_was_made_anew_is_not_asked_for_ever() -> None:
    queue = lane()
    again = call(queue, 1)
    again.may_have_begun((1, 700))
    queue.push(again, 0.0)
    assert [queue.granted((1, index)) for index in range(1, 6)] == [[], [], [], [], [again]]
    assert queue.waiting == 0 and queue.peek() is None


def test_hosts_that_name_no_token_are_no_reason_to_wait() -> None:
    queue = lane()
    again = call(queue, 1)
    again.may_have_begun(None)
    queue.push(again, 0.0, front=True)
    assert queue.pop(link(queue, "a")) is again
