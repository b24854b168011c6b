"""The batcher's promises, over any course of events, and its rules one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import BadRequest, ExecutorDied, ItemExpired, ItemTooLarge, ServiceBusy, WrongResultLength
from actorgrid.serving.arrivals import ArrivalRate
from actorgrid.serving.batch_cost import BatchCost
from actorgrid.serving.batch_size import ENOUGH, BatchSize
from actorgrid.serving.batching import Batcher, BatchItem, BatchLimits, ItemBatch, ItemOutcome, ItemState


@dataclass
class Course:
    """Plays events against a batcher on a clock of its own, and holds each decision to the promises."""

    limits: BatchLimits
    executors: int
    now_s: float = 100.0
    running: list[ItemBatch[int]] = field(default_factory=list)
    offered: dict[int, BatchItem[int]] = field(default_factory=dict)
    outcomes: dict[int, ItemOutcome[int]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    started: list[int] = field(default_factory=list)
    refused: int = 0
    wake_at_s: float | None = None

    def __post_init__(self) -> None:
        self.batcher: Batcher[int] = Batcher(self.limits)
        self.names = itertools.count()

    def offer(self, rows: int, priority: int, patience_s: float | None) -> None:
        name = next(self.names)
        waiting = self.batcher.waiting
        expires = None if patience_s is None else self.now_s + patience_s
        try:
            item = self.batcher.offer(name, self.now_s, rows=rows, priority=priority, expires_at_s=expires)
        except ServiceBusy:
            assert waiting == self.limits.queue_max
            self.refused += 1
            return
        self.offered[name] = item
        self.decide()

    def cancel(self, which: int) -> None:
        open_items = [name for name in self.offered if name not in self.outcomes and name not in self.left]
        if open_items:
            name = open_items[which % len(open_items)]
            begun = self.offered[name].state is ItemState.RUNNING
            assert self.batcher.cancel(self.offered[name]) is not begun
            self.left.add(name)
            self.decide()

    def pass_time(self, seconds: float) -> None:
        """Time goes by in the steps in which the batcher asked to be woken."""
        end = self.now_s + seconds
        for _ in range(10_000):
            if self.wake_at_s is None or self.wake_at_s > end:
                break
            self.now_s = max(self.now_s, self.wake_at_s)
            self.decide()
        else:
            raise AssertionError("it asks to be woken without end")
        self.now_s = end
        self.decide()

    def end(self, which: int, how: str) -> None:
        if not self.running:
            return
        batch = self.running.pop(which % len(self.running))
        names = [item.value for item in batch.items]
        if how == "good":
            self.take(self.batcher.finished(batch, [-name for name in names], self.now_s))
        elif how == "one bad":
            results = [ValueError(str(name)) if not place else -name for place, name in enumerate(names)]
            self.take(self.batcher.finished(batch, results, self.now_s))
        elif how == "short":
            self.take(self.batcher.finished(batch, names[1:], self.now_s))
        elif how == "raises":
            self.take(self.batcher.failed(batch, OSError("no"), self.now_s))
        else:
            found = self.batcher.executor_died(batch, how)
            assert all(isinstance(each.error, ExecutorDied) for each in found)
            assert {each.item.value for each in found} == set(names) - self.left
            self.take(found)
        self.decide()

    def take(self, outcomes: list[ItemOutcome[int]]) -> None:
        for outcome in outcomes:
            name = outcome.item.value
            assert name not in self.outcomes, "settled twice"
            assert name not in self.left, "told of one that has left"
            if outcome.error is None:
                assert outcome.value == -name
            self.outcomes[name] = outcome

    def decide(self) -> None:
        idle = self.executors - len(self.running)
        waiting = {name for name, item in self.offered.items() if item.state is ItemState.WAITING}
        decision = self.batcher.decide(self.now_s, idle)
        self.take(decision.settled)
        self.wake_at_s = decision.wake_at_s
        assert len(decision.start) <= idle
        for batch in decision.start:
            assert batch.items and batch.rows <= self.limits.max_size
            for item in batch.items:
                assert item.value in waiting and item.value not in self.left
                assert item.expires_at_s is None or item.expires_at_s > self.now_s
                if not batch.alone:
                    self.started.append(item.value)
            self.running.append(batch)
        # Nobody who waits is of a better priority than what was just started, unless no room was left for it.
        still = [item for item in self.offered.values() if item.state is ItemState.WAITING]
        assert self.batcher.waiting == len(still) <= self.limits.queue_max + self.executors * self.limits.max_size
        if still and len(self.running) < self.executors:
            oldest = min(item.arrived_at_s for item in still)
            assert decision.wake_at_s is not None
            assert self.now_s < decision.wake_at_s <= oldest + self.limits.max_wait_s
        assert decision.wake_at_s is None or decision.wake_at_s > self.now_s


seconds = st.floats(0, 0.01) | st.floats(0, 2)
events = st.one_of(
    st.tuples(st.just("offer"), st.integers(1, 4), st.integers(0, 9), st.none() | st.floats(1e-4, 0.5)),
    st.tuples(st.just("offer"), st.just(1), st.just(5), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("pass_time"), seconds),
    st.tuples(
        st.just("end"), st.integers(0, 3), st.sampled_from(["good", "good", "one bad", "short", "raises", "died"])
    ),
)
bounds = st.builds(
    BatchLimits,
    max_size=st.integers(4, 9),
    max_wait_s=st.sampled_from([0.0, 0.002, 0.1]),
    queue_max=st.integers(1, 30),
    target_p99_s=st.none() | st.floats(0.001, 1),
    rerun_alone=st.booleans(),
)


@settings(max_examples=120, deadline=None)
@given(bounds, st.integers(1, 3), st.lists(events, max_size=80))
def test_every_promise_holds_over_any_course(
    limits: BatchLimits, executors: int, course: list[tuple[object, ...]]
) -> None:
    play = Course(limits, executors)
    for name, *arguments in course:
        getattr(play, str(name))(*arguments)
    for _ in range(10_000):  # let all come to an end
        if not play.running and not play.batcher.waiting:
            break
        play.pass_time(1.0)
        play.end(0, "good")
    assert set(play.outcomes) | play.left == set(play.offered), "an item was forgotten"
    # In each priority the order of arrival, but for those that left.
    for priority in range(10):
        of_it = [name for name in play.started if play.offered[name].priority == priority]
        assert of_it == sorted(of_it)


def batcher(**limits: object) -> Batcher[str]:
    return Batcher(BatchLimits(**{"max_wait_s": 0.0, **limits}))  # type: ignore[arg-type]


def only(batches: list[ItemBatch[str]]) -> list[str]:
    (batch,) = batches
    return [item.value for item in batch.items]


def test_an_idle_executor_takes_what_there_is_at_once() -> None:
    found = batcher(max_size=8)
    found.offer("a", 0.0)
    assert only(found.decide(0.0, 1).start) == ["a"]
    for name in "bcd":
        found.offer(name, 0.1)
    assert found.decide(0.1, 0).start == []
    assert only(found.decide(0.2, 1).start) == ["b", "c", "d"]


def test_better_priorities_go_first_and_nobody_passes_within_one() -> None:
    found = batcher(max_size=2)
    for name, priority in (("late", 9), ("usual", 5), ("first", 0), ("second", 0)):
        found.offer(name, 0.0, priority=priority)
    assert only(found.decide(0.0, 1).start) == ["first", "second"]
    assert only(found.decide(0.0, 1).start) == ["usual", "late"]


def test_rows_are_counted_and_not_items() -> None:
    found = batcher(max_size=4)
    for name, rows in (("a", 3), ("b", 2), ("c", 1)):
        found.offer(name, 0.0, rows=rows)
    assert only(found.decide(0.0, 1).start) == ["a"]
    assert only(found.decide(0.0, 1).start) == ["b", "c"]
    with pytest.raises(ItemTooLarge, match="asked: 5 rows"):
        found.offer("d", 0.0, rows=5)


def test_one_more_than_may_wait_is_refused_and_room_comes_back() -> None:
    found = batcher(queue_max=2)
    first = found.offer("a", 0.0)
    found.offer("b", 0.0)
    with pytest.raises(ServiceBusy):
        found.offer("c", 0.0)
    assert found.cancel(first)
    found.offer("c", 0.0)
    assert only(found.decide(0.0, 1).start) == ["b", "c"]


def test_what_expired_is_told_so_even_while_nothing_can_run() -> None:
    found = batcher()
    found.offer("a", 0.0, expires_at_s=0.5)
    assert found.decide(0.0, 0).wake_at_s == 0.5
    (outcome,) = found.decide(0.5, 0).settled
    assert isinstance(outcome.error, ItemExpired)
    assert found.decide(0.6, 1).start == []


def test_results_that_are_exceptions_fail_alone() -> None:
    found = batcher()
    found.offer("a", 0.0)
    found.offer("b", 0.0)
    (batch,) = found.decide(0.0, 1).start
    bad, good = found.finished(batch, [KeyError("a"), "B"], 0.1)
    assert isinstance(bad.error, KeyError)
    assert (good.error, good.value) == (None, "B")


@pytest.mark.parametrize("given", [["one"], ["one", "two", "three"], None, "ab", {"a": 1, "b": 2}, iter(["a", "b"])])
def test_anything_but_one_result_for_each_item_is_one_named_error(given: object) -> None:
    found = batcher()
    found.offer("a", 0.0)
    found.offer("b", 0.0)
    (batch,) = found.decide(0.0, 1).start
    outcomes = found.finished(batch, given, 0.1)
    assert [type(each.error) for each in outcomes] == [WrongResultLength] * 2
    assert found.waiting == 0


def test_a_batch_that_raises_is_tried_again_one_by_one_before_others() -> None:
    found = batcher()
    for name in "ab":
        found.offer(name, 0.0)
    (batch,) = found.decide(0.0, 1).start
    found.offer("c", 0.0)
    assert found.failed(batch, ValueError("both"), 0.1) == []
    (alone,) = found.decide(0.1, 1).start
    assert [item.value for item in alone.items] == ["a"] and alone.alone
    (outcome,) = found.failed(alone, ValueError("a"), 0.2)
    assert str(outcome.error) == "a"
    (alone,) = found.decide(0.2, 1).start
    (outcome,) = found.finished(alone, ["B"], 0.3)
    assert outcome.value == "B"
    assert only(found.decide(0.3, 1).start) == ["c"]


def test_without_reruns_all_items_fail_with_what_was_raised() -> None:
    found = batcher(rerun_alone=False)
    for name in "ab":
        found.offer(name, 0.0)
    (batch,) = found.decide(0.0, 1).start
    assert [str(each.error) for each in found.failed(batch, ValueError("both"), 0.1)] == ["both", "both"]


def test_items_that_left_take_no_room_however_many_they_are() -> None:
    found = batcher(max_size=4)
    for number in range(20_000):
        item = found.offer(str(number), 0.0, expires_at_s=1e9)
        found.cancel(item)
    assert found.waiting == 0
    assert sum(map(len, found._queues.values())) + len(found._ends) < 300


def waits(base_s: float, row_s: float, gap_s: float, rows: int = 1) -> bool:
    """Whether a batcher that learned these figures makes *rows* items wait for another."""
    found: Batcher[str] = Batcher(BatchLimits(max_size=16, max_wait_s=0.002))
    for count in (1, 4, 8, 2, 6, 1, 5, 3):
        found.cost.ran(count, base_s + row_s * count)
    now = 0.0
    for _ in range(40):
        now += gap_s
        found.arrivals.arrived(now)
    for _ in range(rows):
        found.offer("x", now)
    return not found.decide(now, 1).start


def test_it_waits_only_where_another_is_expected_and_the_fit_says_that_it_pays() -> None:
    assert waits(base_s=0.010, row_s=0.0001, gap_s=0.0005)
    assert not waits(base_s=0.010, row_s=0.0001, gap_s=0.005), "the next comes after the longest wait"
    assert not waits(base_s=0.0001, row_s=0.0001, gap_s=0.0005), "a batch costs next to nothing to begin"
    assert not waits(base_s=0.002, row_s=0.0001, gap_s=0.0005, rows=8), "eight would wait for one"
    assert not waits(base_s=0.010, row_s=0.0001, gap_s=0.0005, rows=16), "it is full"


def test_nobody_waits_before_anything_is_known() -> None:
    found: Batcher[str] = Batcher(BatchLimits())
    found.offer("a", 0.0)
    assert only(found.decide(0.0, 1).start) == ["a"]


def test_the_fit_finds_what_batches_cost() -> None:
    cost = BatchCost()
    assert cost.fitted is None
    for rows in (1, 2, 4, 8, 3):
        cost.ran(rows, 0.004 + 0.0002 * rows)
    fitted = cost.fitted
    assert fitted is not None
    assert fitted == pytest.approx((0.004, 0.0002))
    alike = BatchCost()
    for _ in range(50):
        alike.ran(4, 0.01)
    assert alike.fitted is None and not alike.waiting_pays(1, 0.0)


def test_a_pause_makes_the_next_arrival_less_expected() -> None:
    rate = ArrivalRate()
    assert rate.expected_gap_s(0.0) is None
    for number in range(50):
        rate.arrived(number * 0.001)
    gap = rate.expected_gap_s(0.049)
    assert gap == pytest.approx(0.001)
    assert rate.expected_gap_s(0.149) == pytest.approx(0.1)


def settled_limit(target_s: float, base_s: float, row_s: float, most: int = 64) -> int:
    size = BatchSize(most, target_s)
    for _ in range(3000):
        run = base_s + row_s * size.limit
        size.ran(size.limit, run, [1.5 * run] * size.limit)
    return size.limit


def test_the_bound_of_rows_settles_where_the_target_is_kept() -> None:
    assert settled_limit(1.0, 0.001, 0.0001) == 64, "all may go"
    limit = settled_limit(0.1, 0.010, 0.002)
    assert 0.6 * 20 <= limit <= 21, "a run of half the target has 20 rows"
    assert settled_limit(0.001, 0.010, 0.002) == 1
    assert BatchSize(64, None).limit == 64


def test_a_queue_does_not_make_batches_smaller() -> None:
    """Items are late because more arrive than are served: smaller batches would serve fewer still."""
    size = BatchSize(16, 0.1)
    for _ in range(ENOUGH):
        size.ran(size.limit, 0.01, [5.0] * size.limit)
    assert size.limit == 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_size": 0},
        {"max_size": 1.5},
        {"max_size": True},
        {"max_wait_s": -1},
        {"max_wait_s": float("nan")},
        {"queue_max": 0},
        {"target_p99_s": 0},
    ],
)
def test_bounds_without_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        BatchLimits(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": "2"}, {"priority": 10}, {"priority": -1}])
def test_items_without_sense_are_refused_and_not_taken(wrong: dict[str, object]) -> None:
    found = batcher()
    with pytest.raises(BadRequest):
        found.offer("a", 0.0, **wrong)  # type: ignore[arg-type]
    assert found.waiting == 0


def test_all_that_wait_can_be_let_go_at_once() -> None:
    found = batcher()
    for name in "abc":
        found.offer(name, 0.0)
    assert [each.item.value for each in found.abandon(OSError("over"))] == ["a", "b", "c"]
    assert found.waiting == 0 and found.decide(0.0, 1).start == []
