"""Locks and semaphores of the ledger: holders in log order, tokens that only grow, a line, leases the leader ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.consensus.lock_expiry import LockExpiry
from actorgrid.actors.ledger.commands import AcquireLock, BreakLock, ExpireLock, NewTerm, ReleaseLock, RenewLock
from actorgrid.actors.ledger.snapshot import decode, encode
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import locks as locks_module
from actorgrid.errors import BadRequest, LockHeld, LockLost, LockSlotsDiffer, QueueFull, StaleToken, WrongState
from tests.consensus.rig import AT
from tests.ledger.test_state import Book


def acquire(book: Book, owner: str, name: str = "deploy", **more: Any) -> dict[str, Any]:
    return book.do(AcquireLock(name, owner, 10.0, at=AT, **more))


def holders(book: Book, name: str = "deploy") -> list[str]:
    record = book.ledger.locks.get(name)
    return [] if record is None else [each["owner"] for each in record["holders"]]


def holder(book: Book, name: str = "deploy") -> str | None:
    return next(iter(holders(book, name)), None)


def waiters(book: Book, name: str = "deploy") -> list[str]:
    return [each["owner"] for each in book.ledger.locks[name]["waiters"]]


def test_a_free_lock_is_held_with_the_index_as_its_token() -> None:
    book = Book()
    answer = acquire(book, "a")
    assert (answer["held"], answer["token"], answer["position"]) == (True, [1, book.ledger.index], 0)
    assert (answer["slots"], answer["ttl_s"]) == (1, 10.0)
    assert book.outcome.changes[0][:2] == ("lock", "deploy")
    assert [event.state for event in book.outcome.events] == ["granted"]


def test_asking_again_gives_the_same_answer_and_is_a_sign_of_life() -> None:
    book = Book()
    first = acquire(book, "a")
    again = acquire(book, "a")
    assert again == {**first, "renewals": 1}
    assert book.outcome.events == ()
    assert book.do(ExpireLock("deploy", "a", 0, 1, at=AT)) == {"expired": False}
    place = acquire(book, "b", wait=True)
    acquire(book, "c", wait=True)
    assert acquire(book, "b", wait=True) == {**place, "renewals": 1}
    assert acquire(book, "b")["position"] == 1  # who is in line already is not refused


def test_a_held_lock_refuses_or_lets_wait_in_order_and_each_holder_has_a_higher_token() -> None:
    book = Book()
    tokens = [acquire(book, "a")["token"]]
    with pytest.raises(LockHeld) as refused:
        acquire(book, "b")
    assert "a of local" in refused.value.found
    assert [acquire(book, owner, wait=True)["position"] for owner in "bcd"] == [1, 2, 3]
    book.do(ReleaseLock("deploy", "c", at=AT))  # one in the middle leaves the line
    for owner in "abd":
        assert holder(book) == owner
        book.do(ReleaseLock("deploy", owner, at=AT))
        if holder(book) is not None:
            tokens.append(book.ledger.locks["deploy"]["holders"][0]["token"])
    assert tokens == sorted(tokens)
    assert len({tuple(token) for token in tokens}) == 3
    assert book.ledger.locks == {}
    assert book.do(ReleaseLock("deploy", "d", at=AT)) == {"released": False}


def test_an_old_token_neither_renews_nor_releases() -> None:
    book = Book()
    old = acquire(book, "a")["token"]
    book.do(ReleaseLock("deploy", "a", at=AT))
    acquire(book, "a")
    for command in (RenewLock("deploy", "a", at=AT, token=old), ReleaseLock("deploy", "a", at=AT, token=old)):
        with pytest.raises(StaleToken):
            book.do(command)
    assert holder(book) == "a"


def test_who_lost_the_lock_is_told_so_when_it_renews() -> None:
    book = Book()
    token = acquire(book, "a")["token"]
    acquire(book, "b", wait=True)
    assert book.do(ExpireLock("deploy", "a", 0, 1, at=AT)) == {"expired": True}
    assert holder(book) == "b"
    with pytest.raises(LockLost) as lost:
        book.do(RenewLock("deploy", "a", at=AT, token=token))
    assert "b of local has it" in lost.value.found
    assert book.do(RenewLock("deploy", "b", at=AT))["held"] is True


def test_an_expiry_that_a_renewal_overtook_does_nothing() -> None:
    book = Book()
    acquire(book, "a")
    book.do(RenewLock("deploy", "a", at=AT))
    assert book.do(ExpireLock("deploy", "a", 0, 1, at=AT)) == {"expired": False}
    assert holder(book) == "a"


def test_a_waiter_that_became_the_holder_is_not_expired_by_what_was_seen_of_the_waiter() -> None:
    book = Book()
    acquire(book, "a")
    acquire(book, "b", wait=True)
    book.do(ReleaseLock("deploy", "a", at=AT))
    assert book.do(ExpireLock("deploy", "b", 0, 1, at=AT)) == {"expired": False}
    assert holder(book) == "b"


def test_an_expiry_of_an_earlier_leader_is_refused() -> None:
    book = Book()
    acquire(book, "a")
    book.do(NewTerm(2, at=AT))
    with pytest.raises(StaleToken):
        book.do(ExpireLock("deploy", "a", 0, 1, at=AT))
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
    [
        {"ttl_s": 0.1},
        {"ttl_s": float("nan")},
        {"ttl_s": 1e9},
        {"name": ""},
        {"name": "x" * 257},
        {"owner": "/"},
        {"slots": 0},
        {"slots": 1001},
        {"slots": True},
    ],
)
def test_malformed_requests_name_the_field(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(fields))):
        Book().do({**AcquireLock("deploy", "a", 10.0, at=AT).to_plain(), **fields})


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
            self.do(ExpireLock(name, owner, renewals, 1, at=AT))


def test_a_lease_ends_after_its_time_and_a_margin_unless_it_is_renewed() -> None:
    keeper = Keeper()
    keeper.do(AcquireLock("deploy", "a", 10.0, at=AT))
    keeper.pass_time(10.0)
    assert holder(keeper.book) == "a"
    keeper.do(RenewLock("deploy", "a", at=AT))
    keeper.pass_time(11.0)
    assert holder(keeper.book) == "a"
    keeper.pass_time(0.3)
    assert holder(keeper.book) is None
    assert keeper.expiry.next_at() is None or not keeper.expiry.due(keeper.now_s + 1000)


def test_a_waiter_who_is_gone_does_not_get_the_lock() -> None:
    keeper = Keeper()
    keeper.do(AcquireLock("deploy", "a", 100.0, at=AT))
    keeper.do(AcquireLock("deploy", "gone", 1.0, at=AT, wait=True))
    keeper.do(AcquireLock("deploy", "there", 100.0, at=AT, wait=True))
    keeper.pass_time(5.0)
    assert waiters(keeper.book) == ["gone", "there"]  # its host may be about to come back
    keeper.pass_time(1.0)
    keeper.do(ReleaseLock("deploy", "a", at=AT))
    assert holder(keeper.book) == "there"


def test_a_new_leader_starts_every_lease_anew() -> None:
    keeper = Keeper()
    keeper.do(AcquireLock("deploy", "a", 10.0, at=AT))
    keeper.now_s = 9.0
    keeper.expiry.lead(keeper.book.ledger.locks, keeper.now_s)
    keeper.pass_time(10.0)
    assert holder(keeper.book) == "a"
    keeper.pass_time(2.0)
    assert holder(keeper.book) is None


def test_an_expiry_that_got_lost_is_asked_for_again() -> None:
    keeper = Keeper()
    keeper.do(AcquireLock("deploy", "a", 1.0, at=AT))
    assert keeper.expiry.due(5.0) == [("deploy", "a", 0)]
    assert keeper.expiry.due(5.1) == []
    assert keeper.expiry.due(5.3) == [("deploy", "a", 0)]


# -- semaphores


def test_as_many_hold_it_as_it_has_slots_each_with_a_token_of_its_own() -> None:
    book = Book()
    tokens = [acquire(book, owner, slots=3)["token"] for owner in "abc"]
    assert tokens == sorted(tokens) and len({tuple(token) for token in tokens}) == 3
    with pytest.raises(LockHeld) as refused:
        acquire(book, "d", slots=3)
    assert "a of local and 2 more have it, 0 wait" in refused.value.found
    assert acquire(book, "d", slots=3, wait=True)["position"] == 1
    assert acquire(book, "e", slots=3, wait=True)["position"] == 2
    book.do(ReleaseLock("deploy", "b", at=AT, token=tokens[1]))
    assert (holders(book), waiters(book)) == (["a", "c", "d"], ["e"])
    assert book.ledger.locks["deploy"]["holders"][-1]["token"] > tokens[-1]
    assert [event.state for event in book.outcome.events] == ["released, granted"]


def test_another_number_of_slots_is_refused_while_anybody_has_it() -> None:
    book = Book()
    acquire(book, "a", slots=2)
    for owner, wait in (("a", False), ("b", False), ("b", True)):
        with pytest.raises(LockSlotsDiffer) as refused:
            acquire(book, owner, slots=3, wait=wait)
    assert refused.value.asked == "3" and refused.value.found.startswith("2, a of local has it")
    book.do(ReleaseLock("deploy", "a", at=AT))
    assert acquire(book, "b", slots=3)["slots"] == 3


def test_one_holder_of_several_is_expired_and_the_others_stay() -> None:
    keeper = Keeper()
    for owner in "ab":
        keeper.do(AcquireLock("deploy", owner, 10.0, at=AT, slots=2))
    keeper.do(AcquireLock("deploy", "c", 10.0, at=AT, slots=2, wait=True))
    keeper.pass_time(9.0)
    for owner in "bc":
        keeper.do(RenewLock("deploy", owner, at=AT))
    keeper.pass_time(3.0)
    assert holders(keeper.book) == ["b", "c"]


def test_who_leaves_for_one_that_seems_gone_does_nothing_to_one_that_came_back() -> None:
    book = Book()
    acquire(book, "a")
    seen = acquire(book, "b", wait=True)["renewals"]
    acquire(book, "b", wait=True)  # by another door
    assert book.do(ReleaseLock("deploy", "b", at=AT, renewals=seen)) == {"released": False}
    assert book.do(ReleaseLock("deploy", "b", at=AT, renewals=seen + 1)) == {"released": True}
    assert waiters(book) == []


def ask(book: Book, owner: str, *request: Any, **more: Any) -> dict[str, Any]:
    return acquire(book, owner, wait=True, request=request, **more)


def clean_up(book: Book, owner: str, *request: Any) -> bool:
    return bool(book.do(ReleaseLock("deploy", owner, at=AT, request=request))["released"])


def test_what_a_request_was_given_is_taken_back_under_its_name_alone() -> None:
    book = Book()
    assert ask(book, "a", 1, "x")["held"]
    assert not clean_up(book, "a", 1, "y") and not clean_up(book, "a", 2, "x") and not clean_up(book, "b", 1, "x")
    ask(book, "b", 1, "z")
    assert clean_up(book, "a", 1, "x") and holder(book) == "b"
    assert clean_up(book, "b", 1, "z"), "granted while it waited, and told to nobody"
    assert "deploy" not in book.ledger.locks


@pytest.mark.parametrize("second", [(2, "y"), (1, "y"), (0, "y")], ids=["later", "of one number", "without a number"])
def test_a_holder_that_asks_again_is_told_and_nobody_takes_it_back(second: tuple[int, str]) -> None:
    book = Book()
    token = ask(book, "a", 1, "x")["token"]
    assert ask(book, "a", *second)["token"] == token
    assert not clean_up(book, "a", 1, "x") and not clean_up(book, "a", *second)
    assert holder(book) == "a"


def test_a_place_in_line_goes_over_to_the_request_with_the_highest_number() -> None:
    book = Book()
    ask(book, "a", 1, "x")
    ask(book, "b", 2, "y")
    ask(book, "b", 1, "late")  # overtaken on its way
    assert not clean_up(book, "b", 1, "late")
    ask(book, "b", 3, "z")
    assert not clean_up(book, "b", 2, "y") and waiters(book) == ["b"]
    assert clean_up(book, "b", 3, "z") and waiters(book) == []


@pytest.mark.parametrize("second", [(1, "y"), (0, "y")], ids=["of one number", "without a number"])
def test_of_two_requests_that_nobody_can_order_neither_is_cleaned_up(second: tuple[int, str]) -> None:
    book = Book()
    ask(book, "a", 1, "x")
    ask(book, "b", 1, "x")
    ask(book, "b", *second)
    assert not clean_up(book, "b", 1, "x") and not clean_up(book, "b", *second)
    ask(book, "b", 2, "z")
    assert clean_up(book, "b", 2, "z") and waiters(book) == []


def test_a_late_request_does_not_give_what_its_successor_holds_a_name() -> None:
    book = Book()
    ask(book, "a", 2, "y")
    ask(book, "a", 1, "x")
    assert not clean_up(book, "a", 1, "x") and holder(book) == "a"


def test_an_owner_that_renews_by_itself_knows_what_it_has() -> None:
    book = Book()
    ask(book, "a", 1, "x")
    book.do(RenewLock("deploy", "a", at=AT, request=(1, "x")))  # by the host where it waits
    book.do(RenewLock("deploy", "a", at=AT))
    assert not clean_up(book, "a", 1, "x")


def test_the_host_of_an_earlier_request_does_not_keep_the_place_of_a_later_one() -> None:
    book = Book()
    ask(book, "a", 1, "x")
    ask(book, "b", 1, "x")
    ask(book, "b", 2, "y")
    with pytest.raises(LockLost, match="asked for lock deploy again"):
        book.do(RenewLock("deploy", "b", at=AT, request=(1, "x")))
    assert book.do(RenewLock("deploy", "b", at=AT, request=(2, "y")))["position"] == 1


def test_records_of_versions_without_requests_stay_as_they_were() -> None:
    book = Book()
    acquire(book, "a")
    ask(book, "a", 1, "x")
    assert "request" not in book.ledger.locks["deploy"]["holders"][0] and not clean_up(book, "a", 1, "x")
    command = AcquireLock("deploy", "a", 10.0, at=AT)
    asked = AcquireLock("deploy", "a", 10.0, at=AT, request=[1, "x"])
    assert (command.to_plain()["v"], asked.to_plain()["v"]) == (1, 2)
    for wrong in ({"request": [1]}, {"request": [1, ""]}, {"request": [-1, "x"]}, {"request": "x"}):
        with pytest.raises(BadRequest):
            Book().do({**AcquireLock("deploy", "a", 10.0, at=AT, request=(1, "x")).to_plain(), **wrong})


def test_a_broken_lock_goes_to_the_next_and_says_who_broke_it() -> None:
    book = Book()
    token = acquire(book, "a")["token"]
    acquire(book, "b", wait=True)
    assert book.do(BreakLock("deploy", "a", "ann", at=AT)) == {"broken": True}
    assert [event.state for event in book.outcome.events] == ["broken by ann, granted"]
    assert book.outcome.changes[-1] == ("lock_break", "deploy", {"owner": "a", "by": "ann"})
    assert holder(book) == "b"
    with pytest.raises(LockLost):
        book.do(RenewLock("deploy", "a", at=AT, token=token))
    assert book.do(BreakLock("deploy", "a", "ann", at=AT)) == {"broken": False}
    assert book.outcome.changes == ()
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


def test_an_entry_of_an_earlier_version_asks_for_one_slot() -> None:
    book = Book()
    command = AcquireLock("deploy", "a", 10.0, at=AT).to_plain()
    del command["slots"]
    assert book.do(command)["slots"] == 1


def test_a_snapshot_of_locks_with_one_holder_each_is_read() -> None:
    book = Book()
    acquire(book, "a")
    acquire(book, "b", wait=True)
    header, sections = decode(book.ledger.snapshot())
    for lock in sections["locks"]:
        (lock["holder"],) = lock.pop("holders")
        del lock["slots"]
    restored = Ledger.restore(b"".join(encode({**header, "format": 5}, sections)))
    assert restored.locks == book.ledger.locks
    assert restored.digest() == book.ledger.digest()


# -- all together


class Model:
    """What a semaphore is, in few words: the first so many of a line hold it, since when each came to the front."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.line: list[str] = []
        self.tokens: dict[str, int] = {}

    def move_up(self, index: int) -> None:
        self.tokens = {owner: self.tokens.get(owner, index) for owner in self.line[: self.slots]}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "wait", "renew", "release", "expire", "break", "leave", "restore"]),
        st.sampled_from("xy"),
        st.sampled_from("abcde"),
        st.integers(0, 2),
    ),
    max_size=60,
)
SLOTS = {"x": 1, "y": 3}


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_a_semaphore_is_the_first_so_many_of_a_line(steps: list[tuple[str, str, str, int]]) -> None:
    book = Book()
    models = {name: Model(slots) for name, slots in SLOTS.items()}
    for what, name, owner, renewals in steps:
        model, before = models[name], book.ledger.snapshot()
        present = owner in model.line
        held = owner in model.tokens
        if what in ("acquire", "wait"):
            full = len(model.line) >= model.slots
            try:
                answer = book.do(AcquireLock(name, owner, 5.0, at=AT, wait=what == "wait", slots=model.slots))
            except LockHeld:
                assert full and not present and what == "acquire"
            else:
                if not present:
                    model.line.append(owner)
                model.move_up(book.ledger.index)
                assert answer["held"] == (owner in model.tokens)
                assert answer["position"] == max(0, model.line.index(owner) + 1 - model.slots)
        elif what == "renew":
            try:
                assert book.do(RenewLock(name, owner, at=AT))["held"] == held
            except LockLost:
                assert not present
        elif what == "restore":
            book.ledger = Ledger.restore(before)
        else:
            entry = next(
                (
                    each
                    for each in (
                        *book.ledger.locks.get(name, {}).get("holders", ()),
                        *book.ledger.locks.get(name, {}).get("waiters", ()),
                    )
                    if each["owner"] == owner
                ),
                None,
            )
            due = entry is not None and (what in ("release", "break") or entry["renewals"] == renewals)
            make = {
                "release": lambda name=name, owner=owner: ReleaseLock(name, owner, at=AT),
                "break": lambda name=name, owner=owner: BreakLock(name, owner, "ann", at=AT),
                "leave": lambda name=name, owner=owner, seen=renewals: ReleaseLock(name, owner, at=AT, renewals=seen),
                "expire": lambda name=name, owner=owner, seen=renewals: ExpireLock(name, owner, seen, 1, at=AT),
            }[what]
            assert list(book.do(make()).values()) == [due]
            if due:
                model.line.remove(owner)
                model.move_up(book.ledger.index)
        for each, wanted in models.items():
            assert {*holders(book, each)} == wanted.tokens.keys()
            record = book.ledger.locks.get(each, {"holders": [], "waiters": []})
            assert {h["owner"]: h["token"] for h in record["holders"]} == {o: [1, i] for o, i in wanted.tokens.items()}
            assert [w["owner"] for w in record["waiters"]] == wanted.line[wanted.slots :]


def test_a_field_that_came_later_is_no_field_of_an_entry_of_before() -> None:
    """Older hosts have carried it out without it, whatever it holds."""
    for request in ([1, "x"], "anything"):
        book = Book()
        book.do({**AcquireLock("deploy", "a", 10.0, at=AT).to_plain(), "request": request})
        assert "request" not in book.ledger.locks["deploy"]["holders"][0]
