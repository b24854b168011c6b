"""Locks of the ledger: one holder in log order, tokens that only grow, a line, and leases that the leader ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.consensus import locks as locks_module
from actorgrid.actors.consensus.commands import acquire_lock, expire_lock, new_term, release_lock, renew_lock
from actorgrid.actors.consensus.ledger import Ledger
from actorgrid.actors.consensus.lock_expiry import LockExpiry
from actorgrid.errors import BadRequest, LockHeld, LockLost, QueueFull, StaleToken, WrongState
from tests.consensus.rig import AT
from tests.consensus.test_ledger import Book


def acquire(book: Book, owner: str, name: str = "deploy", **more: Any) -> dict[str, Any]:
    return book.do(acquire_lock(name, owner, 10.0, AT, **more))


def holder(book: Book, name: str = "deploy") -> str | None:
    record = book.ledger.locks.get(name)
    return None if record is None else record["holder"]["owner"]


def test_a_free_lock_is_held_with_the_index_as_its_token() -> None:
    book = Book()
    assert acquire(book, "a") == {"held": True, "token": [1, book.ledger.index], "position": 0}
    assert book.outcome.changes[0][:2] == ("lock", "deploy")
    assert [event.state for event in book.outcome.events] == ["granted"]


def test_asking_again_gives_the_same_answer_and_changes_nothing() -> None:
    book = Book()
    first = acquire(book, "a")
    assert acquire(book, "a") == first
    assert book.outcome.changes == ()


def test_a_held_lock_refuses_or_lets_wait_in_order_and_each_holder_has_a_higher_token() -> None:
    book = Book()
    tokens = [acquire(book, "a")["token"]]
    with pytest.raises(LockHeld) as refused:
        acquire(book, "b")
    assert "a of local" in refused.value.found
    assert [acquire(book, owner, wait=True)["position"] for owner in "bcd"] == [1, 2, 3]
    book.do(release_lock("deploy", "c", AT))  # one in the middle leaves the line
    for owner in "abd":
        assert holder(book) == owner
        book.do(release_lock("deploy", owner, AT))
        if holder(book) is not None:
            tokens.append(book.ledger.locks["deploy"]["holder"]["token"])
    assert tokens == sorted(tokens)
    assert len({tuple(token) for token in tokens}) == 3
    assert book.ledger.locks == {}
    assert book.do(release_lock("deploy", "d", AT)) == {"released": False}


def test_an_old_token_neither_renews_nor_releases() -> None:
    book = Book()
    old = acquire(book, "a")["token"]
    book.do(release_lock("deploy", "a", AT))
    acquire(book, "a")
    for command in (renew_lock("deploy", "a", AT, old), release_lock("deploy", "a", AT, old)):
        with pytest.raises(StaleToken):
            book.do(command)
    assert holder(book) == "a"


def test_who_lost_the_lock_is_told_so_when_it_renews() -> None:
    book = Book()
    token = acquire(book, "a")["token"]
    acquire(book, "b", wait=True)
    assert book.do(expire_lock("deploy", "a", 0, 1, AT)) == {"expired": True}
    assert holder(book) == "b"
    with pytest.raises(LockLost) as lost:
        book.do(renew_lock("deploy", "a", AT, token))
    assert "b has it" in lost.value.found
    assert book.do(renew_lock("deploy", "b", AT))["held"] is True


def test_an_expiry_that_a_renewal_overtook_does_nothing() -> None:
    book = Book()
    acquire(book, "a")
    book.do(renew_lock("deploy", "a", AT))
    assert book.do(expire_lock("deploy", "a", 0, 1, AT)) == {"expired": False}
    assert holder(book) == "a"


def test_a_waiter_that_became_the_holder_is_not_expired_by_what_was_seen_of_the_waiter() -> None:
    book = Book()
    acquire(book, "a")
    acquire(book, "b", wait=True)
    book.do(release_lock("deploy", "a", AT))
    assert book.do(expire_lock("deploy", "b", 0, 1, AT)) == {"expired": False}
    assert holder(book) == "b"


def test_an_expiry_of_an_earlier_leader_is_refused() -> None:
    book = Book()
    acquire(book, "a")
    book.do(new_term(2, AT))
    with pytest.raises(StaleToken):
        book.do(expire_lock("deploy", "a", 0, 1, AT))
    assert holder(book) == "a"


def test_the_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "LOCKS_MAX", 1)
    monkeypatch.setattr(locks_module, "WAITERS_MAX", 1)
    book = Book()
    acquire(book, "a")
    with pytest.raises(WrongState, match="maximum of locks"):
        acquire(book, "a", name="other")
    acquire(book, "b", wait=True)
    with pytest.raises(QueueFull):
        acquire(book, "c", wait=True)


@pytest.mark.parametrize(
    "fields",
    [{"ttl_s": 0.1}, {"ttl_s": float("nan")}, {"ttl_s": 1e9}, {"name": ""}, {"name": "x" * 257}, {"owner": "/"}],
)
def test_malformed_requests_name_the_field(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(fields))):
        Book().do({**acquire_lock("deploy", "a", 10.0, AT), **fields})


def test_locks_and_their_lines_survive_a_snapshot() -> None:
    book = Book()
    acquire(book, "a")
    acquire(book, "b", wait=True, user_id="bob")
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.locks == book.ledger.locks
    assert restored.digest() == book.ledger.digest()
    assert restored.live().locks["deploy"]["waiters"][0]["user_id"] == "bob"


class Keeper:
    """Proposes what the expiry says, at a clock of its own."""

    def __init__(self) -> None:
        self.book, self.expiry, self.now_s = Book(), LockExpiry(), 0.0
        self.expiry.lead(self.book.ledger.locks, self.now_s)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        answer = self.book.do(command)
        for kind, name, record in self.book.outcome.changes:
            if kind == "lock":
                self.expiry.changed(name, record, self.now_s)
        return answer

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for name, owner, renewals in self.expiry.due(self.now_s):
            self.do(expire_lock(name, owner, renewals, 1, AT))


def test_a_lease_ends_after_its_time_and_a_margin_unless_it_is_renewed() -> None:
    keeper = Keeper()
    keeper.do(acquire_lock("deploy", "a", 10.0, AT))
    keeper.pass_time(10.0)
    assert holder(keeper.book) == "a"
    keeper.do(renew_lock("deploy", "a", AT))
    keeper.pass_time(11.0)
    assert holder(keeper.book) == "a"
    keeper.pass_time(0.3)
    assert holder(keeper.book) is None
    assert keeper.expiry.next_at() is None or not keeper.expiry.due(keeper.now_s + 1000)


def test_a_waiter_who_is_gone_does_not_get_the_lock() -> None:
    keeper = Keeper()
    keeper.do(acquire_lock("deploy", "a", 100.0, AT))
    keeper.do(acquire_lock("deploy", "gone", 1.0, AT, wait=True))
    keeper.do(acquire_lock("deploy", "there", 100.0, AT, wait=True))
    keeper.pass_time(5.0)
    keeper.do(release_lock("deploy", "a", AT))
    assert holder(keeper.book) == "there"


def test_a_new_leader_starts_every_lease_anew() -> None:
    keeper = Keeper()
    keeper.do(acquire_lock("deploy", "a", 10.0, AT))
    keeper.now_s = 9.0
    keeper.expiry.lead(keeper.book.ledger.locks, keeper.now_s)
    keeper.pass_time(10.0)
    assert holder(keeper.book) == "a"
    keeper.pass_time(2.0)
    assert holder(keeper.book) is None


def test_an_expiry_that_got_lost_is_asked_for_again() -> None:
    keeper = Keeper()
    keeper.do(acquire_lock("deploy", "a", 1.0, AT))
    assert keeper.expiry.due(5.0) == [("deploy", "a", 0)]
    assert keeper.expiry.due(5.1) == []
    assert keeper.expiry.due(5.3) == [("deploy", "a", 0)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "wait", "renew", "release", "expire", "restore"]),
        st.sampled_from("xy"),
        st.sampled_from("abc"),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_one_holder_at_a_time_and_tokens_that_only_grow(steps: list[tuple[str, str, str, int]]) -> None:
    book, highest = Book(), {}
    for what, name, owner, renewals in steps:
        before = {name: dict(record) for name, record in book.ledger.locks.items()}
        try:
            if what in ("acquire", "wait"):
                book.do(acquire_lock(name, owner, 5.0, AT, wait=what == "wait"))
            elif what == "renew":
                book.do(renew_lock(name, owner, AT))
            elif what == "release":
                book.do(release_lock(name, owner, AT))
            elif what == "expire":
                book.do(expire_lock(name, owner, renewals, 1, AT))
            else:
                book.ledger = Ledger.restore(book.ledger.snapshot())
        except (LockHeld, LockLost):
            assert book.ledger.locks == before
        for each, record in book.ledger.locks.items():
            owners = [record["holder"]["owner"], *(waiter["owner"] for waiter in record["waiters"])]
            assert len(set(owners)) == len(owners)
            token = record["holder"]["token"]
            if before.get(each, {}).get("holder", {}).get("owner") != owners[0] or token != highest.get(each):
                assert token > highest.get(each, [0, 0])
                highest[each] = token
