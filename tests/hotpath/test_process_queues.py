"""Mailboxes, run queues and tables of pids: one contract for the compiled kernels and their twins."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import BadRequest, TooManyActors
from actorgrid.hotpath.light import LIGHT_COMPILED

PLACES = ["actorgrid.hotpath.reference"] + (["actorgrid.hotpath"] if LIGHT_COMPILED else [])


def kernel(place: str, module: str) -> Any:
    return import_module(f"{place}.{module}")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_mailbox_refuses_what_is_over_its_limit(place: str) -> None:
    mailbox = kernel(place, "mailbox").Mailbox(2)
    assert [mailbox.push(n) for n in range(3)] == [True, True, False]
    assert [mailbox.pop(), mailbox.pop()] == [0, 1]
    for wrong in (mailbox.pop, lambda: mailbox.peek(0), lambda: mailbox.take(0), lambda: mailbox.take(-1)):
        with pytest.raises(IndexError):
            wrong()
    for limit in (0, 1 << 31):
        with pytest.raises(BadRequest):
            kernel(place, "mailbox").Mailbox(limit)


@pytest.mark.parametrize("where", PLACES)
@given(steps=st.lists(st.tuples(st.sampled_from(["push", "push", "pop", "take", "clear"]), st.integers(0, 300))))
def test_a_mailbox_is_a_bounded_deque(where: str, steps: list[tuple[str, int]]) -> None:
    mailbox = kernel(where, "mailbox").Mailbox(500)
    model: deque[int] = deque()
    count = 0
    for what, amount in steps:
        if what == "push":
            for _ in range(amount):
                assert mailbox.push(count) is (len(model) < 500)
                if len(model) < 500:
                    model.append(count)
                count += 1
        elif what == "clear" and amount < 30:
            mailbox.clear()
            model.clear()
        elif model:
            place = amount % len(model) if what == "take" else 0
            assert mailbox.peek(place) == model[place]
            assert (mailbox.take(place) if what == "take" else mailbox.pop()) == model[place]
            del model[place]
        assert len(mailbox) == len(model)
        assert [mailbox.peek(at) for at in range(len(mailbox))] == list(model)


@pytest.mark.parametrize("where", PLACES)
@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=300))
def test_a_run_queue_serves_by_priority_and_lets_low_have_one_of_nine(where: str, steps: list[int | None]) -> None:
    module = kernel(where, "run_queue")
    queue = module.RunQueue()
    lines: list[list[int]] = [[], [], [], []]
    normal_turns = 0
    for count, priority in enumerate(steps):
        if priority is not None:
            queue.push(count, priority)
            lines[priority].append(count)
        elif any(lines):
            level = next(level for level in range(4) if lines[level])
            if lines[2] and lines[3] and level == 2:
                level = 3 if normal_turns == 8 else 2
                normal_turns = 0 if level == 3 else normal_turns + 1
            elif level == 3:
                normal_turns = 0
            assert queue.pop() == lines[level].pop(0)
        else:
            with pytest.raises(IndexError):
                queue.pop()
        assert len(queue) == sum(map(len, lines))


def test_a_run_queue_grows_and_is_emptied(place: str) -> None:
    queue = kernel(place, "run_queue").RunQueue()
    for n in range(1000):
        queue.push(n)
        if n % 3 == 0:
            queue.pop()
    assert queue.pop() == 334
    queue.clear()
    assert len(queue) == 0
    with pytest.raises(BadRequest):
        queue.push(1, 4)


def test_a_number_is_found_in_its_own_generation_alone(place: str) -> None:
    table = kernel(place, "pid_table").PidTable(2)
    first, second = table.add("a"), table.add("b")
    assert (first, second) == ((0, 1), (1, 1))
    with pytest.raises(TooManyActors):
        table.add("c")
    assert table.remove(*first)
    assert not table.remove(*first)
    assert table.get(*first) is None
    third = table.add("c")
    assert third == (0, 2)
    assert [table.get(*each) for each in (first, second, third, (7, 1), (-1, 1))] == [None, "b", "c", None, None]
    assert list(table) == ["c", "b"]
    assert len(table) == 2
    with pytest.raises(BadRequest):
        kernel(place, "pid_table").PidTable(0)


@pytest.mark.parametrize("where", PLACES)
@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 50)), max_size=200))
def test_nobody_is_found_under_a_former_number(where: str, steps: list[int | None]) -> None:
    table = kernel(where, "pid_table").PidTable(1000)
    living: dict[tuple[int, int], int] = {}
    dead: list[tuple[int, int]] = []
    for count, step in enumerate(steps):
        if step is None or not living:
            key = table.add(count)
            assert key not in living
            assert key not in dead
            living[key] = count
        else:
            key = sorted(living)[step % len(living)]
            assert table.remove(*key)
            dead.append(key)
            del living[key]
        assert all(table.get(*key) == item for key, item in living.items())
        assert all(table.get(*key) is None for key in dead)
        assert sorted(table) == sorted(living.values())


def test_the_garbage_collector_sees_through_all_of_them(place: str) -> None:
    class Holder:
        pass

    for make in (
        lambda: kernel(place, "mailbox").Mailbox(9),
        lambda: kernel(place, "run_queue").RunQueue(),
        lambda: kernel(place, "pid_table").PidTable(9),
    ):
        holder = Holder()
        holder.kernel = make()
        for _ in range(3):
            (getattr(holder.kernel, "push", None) or holder.kernel.add)(holder)
        found = weakref.ref(holder)
        del holder
        gc.collect()
        assert found() is None
