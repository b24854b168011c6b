"""What keys used of a month: counted once whatever is told twice, late, by way of others, or after a loss."""

from __future__ import annotations

import random

import msgpack
import pytest

from actorgrid.actors.model_gateway import month_budgets
from actorgrid.actors.model_gateway.month_budgets import (
    BudgetCount,
    MonthBudgets,
    Spent,
    read_counts,
    read_spent,
    write_counts,
)
from actorgrid.errors import MalformedMessage

MONTH = "2026-11"


def budgets(host: str = "a") -> MonthBudgets:
    made = MonthBudgets(host)
    made.turn(MONTH)
    return made


def tell(source: MonthBudgets, *others: MonthBudgets) -> None:
    body = write_counts(source.month, source.next_part())
    for other in others:
        other.heard(*read_counts(body))


def in_all(book: MonthBudgets, key: str = "k") -> Spent:
    return book.spent_beside(99).get(key, Spent())


def test_gateways_that_hear_each_other_in_any_order_and_twice_know_the_same() -> None:
    books = [budgets(host) for host in "abc"]
    dice = random.Random(5)
    told = {(at, worker): Spent() for at in range(3) for worker in (0, 1)}
    for stamp in range(200):
        at, worker = dice.choice(list(told))
        told[at, worker] = told[at, worker].plus(Spent(dice.randrange(-50, 200), 1))
        books[at].worker_told(worker, MONTH, {"k": told[at, worker]}, stamp)
        source, other = dice.sample(books, 2)
        tell(source, other)
    for _ in range(2):
        for book in books:
            tell(book, *books)
    total = Spent(sum(each.tokens for each in told.values()), sum(each.requests for each in told.values()))
    assert [in_all(book) for book in books] == [total] * 3
    assert books[0].spent_beside(1)["k"] == Spent().plus(total.minus(told[0, 1])), "a worker knows its own itself"


def test_a_worker_that_begins_anew_counts_on_top_of_the_one_before() -> None:
    book = budgets()
    book.worker_told(0, MONTH, {"k": Spent(70, 1)}, 1)
    book.worker_ended(0)
    assert book.spent_beside(0)["k"] == Spent(70, 1)
    book.worker_told(0, MONTH, {"k": Spent(5, 1)}, 2)
    assert in_all(book) == Spent(75, 2)
    book.worker_told(0, MONTH, {"k": Spent(2, 1)}, 2)  # the answer was shorter than what it was counted for
    assert in_all(book) == Spent(72, 2)


def test_what_was_written_goes_on_after_a_restart_and_what_others_kept_after_a_lost_disk() -> None:
    book, other = budgets("a"), budgets("b")
    book.worker_told(0, MONTH, {"k": Spent(100, 3)}, 50)
    tell(book, other)
    again = budgets("a")
    again.heard(*read_counts(book.to_bytes()))
    again.worker_told(0, MONTH, {"k": Spent(10, 1)}, 1)  # by a clock that was set back
    assert in_all(again) == Spent(110, 4)
    tell(again, other)
    assert in_all(other) == Spent(110, 4)
    empty = budgets("a")
    empty.worker_told(0, MONTH, {"k": Spent(7, 1)}, 2)
    tell(other, empty)
    assert in_all(empty) == Spent(117, 5), "what was counted since then comes on top"
    tell(empty, other)
    assert in_all(other) == Spent(117, 5)


def test_a_new_month_begins_at_nothing_and_an_old_one_is_not_heard() -> None:
    book, late = budgets("a"), budgets("b")
    late.worker_told(0, MONTH, {"k": Spent(9, 1)}, 1)
    book.turn("2026-12")
    tell(late, book)
    book.worker_told(0, MONTH, {"k": Spent(9, 1)}, 1)
    assert in_all(book) == Spent() and book.take_changed() == []
    book.worker_told(0, "2026-12", {"k": Spent(4, 1)}, 2)
    assert [row.spent for row in book.take_changed()] == [Spent(4, 1)] and book.take_changed() == []


def test_bounds_hold_and_keys_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(month_budgets, "COUNTS_MAX", 5)
    monkeypatch.setattr(month_budgets, "ROWS_OF_MESSAGE", 2)
    book = budgets()
    book.worker_told(0, MONTH, {f"k{number}": Spent(1, 1) for number in range(8)}, 1)
    assert len(book) == 5
    parts = [[row.key_id for row in book.next_part()] for _ in range(4)]
    assert [len(part) for part in parts] == [2, 2, 1, 2] and parts[3] == parts[0]
    book.keep_only({"k1"})
    assert len(book) == 1 and [row.key_id for row in book.take_changed()] == ["k1"]


@pytest.mark.parametrize(
    "plain",
    [
        None,
        ["2026-11"],
        ["2026-11-26", []],
        [MONTH, [["a", "k", 1, 2]]],
        [MONTH, [["a", "k", 1, -2, 0]]],
        [MONTH, [["a", "k" * 300, 1, 2, 0]]],
        [MONTH, [["a", "k", 2**60, 2, 0]]],
        [MONTH, {"a": 1}],
    ],
)
def test_what_is_not_as_it_should_be_is_refused_whole(plain: object) -> None:
    with pytest.raises(MalformedMessage):
        read_counts(msgpack.packb(plain))
    with pytest.raises(MalformedMessage):
        read_counts(b"\xc1" + msgpack.packb(plain))
    with pytest.raises(MalformedMessage):
        read_spent([["k", 1, "2"]])
    rows = [BudgetCount("a", "k", 3, Spent(1, 2))]
    assert read_counts(write_counts(MONTH, rows)) == (MONTH, rows) and read_spent([["k", 1, 2]]) == {"k": Spent(1, 2)}
