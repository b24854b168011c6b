from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.scheduling.queue import Shape, Waiting, WaitingQueue
from actorgrid.errors import QueueFull


def shape(gpus: int = 1, milli: int = 1000, cpu: int = 0, **more: object) -> Shape:
    return Shape.of({"gpu_count": gpus, "gpu_milli": milli, "cpu_milli": cpu, **more})


def served(queue: WaitingQueue, limit: int = 1000) -> list[str]:
    order: list[str] = []

    def place(waiting: Waiting) -> bool:
        order.append(waiting.id)
        return True

    queue.serve(place, limit)
    return order


def test_higher_priority_goes_first_then_who_came_first() -> None:
    queue = WaitingQueue(10)
    queue.add("late", shape(), priority=50, order=(9,))
    queue.add("early", shape(2), priority=50, order=(1,))
    queue.add("urgent", shape(), priority=90, order=(10,))
    queue.add("second of a batch", shape(), priority=50, order=(1, 2))
    assert served(queue) == ["urgent", "early", "second of a batch", "late"]
    assert len(queue) == 0


def test_fifo_jobs_stand_at_the_default_priority() -> None:
    queue = WaitingQueue(10)
    queue.add("fifo", shape(), priority=99, order=(2,), policy="fifo")
    queue.add("first", shape(), priority=50, order=(1,))
    queue.add("gang", shape(), priority=60, order=(3,), policy="gang")
    assert served(queue) == ["gang", "first", "fifo"]


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    queue = WaitingQueue(1)
    queue.add("a", shape())
    with pytest.raises(QueueFull):
        queue.add("b", shape())
    queue.add("a", shape(2))  # the same one, described anew
    assert served(queue) == ["a"]


def test_a_shape_that_does_not_fit_is_not_tried_again_until_room_is_freed() -> None:
    queue = WaitingQueue(10_000)
    for number in range(100):
        queue.add(f"big{number}", shape(8), order=(number,))
    queue.add("small", shape(1), order=(1000,))
    tried: list[str] = []

    def only_small(waiting: Waiting) -> bool:
        tried.append(waiting.id)
        return waiting.shape.gpu_count == 1

    assert queue.serve(only_small, 1000) == 1
    assert tried == ["big0", "small"]
    queue.add("big100", shape(8), order=(2000,))
    assert queue.serve(only_small, 1000) == 0
    assert tried == ["big0", "small"]
    queue.freed()
    queue.serve(only_small, 1000)
    assert tried == ["big0", "small", "big0"]


def test_a_larger_shape_is_not_tried_where_a_smaller_one_did_not_fit() -> None:
    queue = WaitingQueue(10)
    queue.add("small", shape(1, cpu=100), order=(1,))
    queue.add("larger", shape(2, cpu=100), order=(2,))
    queue.add("other model", shape(2, cpu=100, gpu_models=["A100"]), order=(3,))
    queue.add("cpu only", shape(0, cpu=50), order=(4,))
    tried: list[str] = []

    def never(waiting: Waiting) -> bool:
        tried.append(waiting.id)
        return False

    queue.serve(never, 10)
    assert tried == ["small", "other model", "cpu only"]


def test_a_pause_keeps_a_job_aside_until_it_is_over() -> None:
    queue = WaitingQueue(10)
    queue.add("retry", shape(), not_before=5.0, now=1.0)
    assert served(queue) == []
    assert queue.next_wake() == 5.0
    assert queue.waits_for("retry") == ([], 5.0)
    queue.wake(4.9)
    assert served(queue) == []
    queue.wake(5.0)
    assert served(queue) == ["retry"]
    assert queue.next_wake() is None


def test_a_job_waits_for_all_it_depends_on() -> None:
    queue = WaitingQueue(10)
    queue.add("c", shape(), unmet=("a", "b"))
    queue.resolve("a")
    assert served(queue) == []
    assert queue.waits_for("c") == (["b"], None)
    queue.resolve("b")
    assert served(queue) == ["c"]


def test_a_removed_job_is_not_served_and_a_requeued_one_only_once() -> None:
    queue = WaitingQueue(10)
    queue.add("gone", shape(), unmet=("x",))
    assert queue.remove("gone")
    assert not queue.remove("gone")
    queue.resolve("x")
    for _ in range(3):
        queue.add("again", shape(), order=(1,))
    assert served(queue) == ["again"]


def test_the_limit_is_kept() -> None:
    queue = WaitingQueue(10)
    for number in range(5):
        queue.add(str(number), shape(), order=(number,))
    assert served(queue, limit=2) == ["0", "1"]
    assert served(queue) == ["2", "3", "4"]


def test_a_position_counts_those_that_may_start() -> None:
    queue = WaitingQueue(10)
    queue.add("a", shape(), order=(1,))
    queue.add("paused", shape(), order=(2,), not_before=9.0)
    queue.add("b", shape(), order=(3,))
    assert [queue.position(id) for id in ("a", "paused", "b", "unknown")] == [1, None, 2, None]


def test_memory_follows_the_number_of_entries() -> None:
    queue = WaitingQueue(10)
    for number in range(20_000):
        queue.add("same", shape(), order=(number,), not_before=float(number % 2), now=0.5)
    assert len(queue._delayed) + sum(map(len, queue._ready.values())) < 5000
    queue.wake(1.0)
    assert served(queue) == ["same"]


jobs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=30)


@given(jobs=jobs, room=st.integers(0, 12))
def test_serving_by_shape_takes_what_trying_everyone_in_order_would(
    jobs: list[tuple[int, int, int]], room: int
) -> None:
    queue = WaitingQueue(100)
    for number, (priority, cpu, gpus) in enumerate(jobs):
        queue.add(str(number), shape(gpus, cpu=cpu), priority=priority, order=(number,))
    left = room

    def place(waiting: Waiting) -> bool:
        nonlocal left
        if waiting.shape.gpu_count > left:
            return False
        left -= waiting.shape.gpu_count
        taken.append(waiting.id)
        return True

    taken: list[str] = []
    queue.serve(place, 1000)
    expected, free = [], room
    for number, (_, _, gpus) in sorted(enumerate(jobs), key=lambda item: (-item[1][0], item[0])):
        if gpus <= free:
            free -= gpus
            expected.append(str(number))
    assert taken == expected
