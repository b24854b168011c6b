"""What a host does for one request to hold a lock: steps, without a ledger."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.gateway.lock_wait import CommitLeave, CommitRequest, GiveAnswer, LockWait, WaitTerms, WaitUntil
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.errors import LockLost, LockTimeout

AT = 1_700_000_000.0
LINE = {"held": False, "token": None, "position": 1, "slots": 1, "ttl_s": 6.0, "renewals": 0}
HELD = {**LINE, "held": True, "token": [1, 7], "position": 0}


def waits(id: str | None = "x", **terms: Any) -> LockWait:
    return LockWait(WaitTerms("deploy", "me", 6.0, number=3, **terms), id, 100.0)


def record(request: list[Any] | None, token: list[int] | None = None, owner: str = "me") -> dict[str, Any]:
    entry = {"owner": owner, "token": token, "renewals": 1, **({} if request is None else {"request": request})}
    return {"holders": [entry] if token else [], "waiters": [] if token else [entry]}


def test_what_is_granted_at_once_is_told_with_the_time_it_was_asked() -> None:
    wait = waits()
    command = wait.acquire(AT)
    assert (command.wait, command.request, command.format_version) == (False, [3, "x"], 2)
    wait.answered({**HELD, "request": [3, "x"]}, 100.5)
    assert wait.next(101.0, AT) == GiveAnswer({**HELD, "request": [3, "x"]}, 100.5)


def test_one_who_waits_is_kept_in_line_until_it_is_granted() -> None:
    wait = waits(wait_s=60)
    wait.answered(LINE, 100.0)
    assert wait.next(100.1, AT) == WaitUntil(102.0)
    renewal = wait.next(102.0, AT)
    assert isinstance(renewal, CommitRequest) and renewal.command.request == [3, "x"]
    wait.answered({**LINE, "renewals": 1}, 102.0)
    wait.changed(record([3, "x"]), 102.5)
    assert wait.next(102.5, AT) == WaitUntil(104.0)
    wait.changed(record([3, "x"], [1, 9]), 103.0)
    told = wait.next(103.0, AT)
    assert isinstance(told, GiveAnswer) and (told.answer["token"], told.asked_s) == ([1, 9], 103.0)


def test_a_record_that_is_not_known_is_asked_for() -> None:
    wait = waits(wait_s=60)
    wait.answered(LINE, 100.0)
    for missing in (None, record([1, "y"], owner="other")):
        wait.changed(missing, 100.5)
        assert isinstance(wait.next(100.5, AT), CommitRequest)
        wait.answered(LINE, 100.5)
    with pytest.raises(LockLost, match="gone"):
        wait.lost(LockLost("gone"))


def test_a_request_that_a_later_one_has_taken_over_is_not_told() -> None:
    for tell in (
        lambda wait: wait.answered({**LINE, "request": [4, "y"]}, 101.0),
        lambda wait: wait.changed(record([4, "y"], [1, 9]), 101.0),
    ):
        wait = waits(wait_s=60)
        wait.answered(LINE, 100.0)
        with pytest.raises(LockLost, match="asked for lock deploy again"):
            tell(wait)


def test_one_that_belongs_to_no_request_is_told_to_all_of_them() -> None:
    wait = waits(wait_s=60)
    wait.answered({**LINE, "request": [4, ""]}, 100.0)
    wait.changed(record([4, ""], [1, 9]), 101.0)
    assert isinstance(wait.next(101.0, AT), GiveAnswer)


def test_the_time_is_over_and_the_line_is_left() -> None:
    wait = waits(wait_s=1)
    wait.answered({**LINE, "renewals": 5}, 100.0)
    leave = wait.next(101.0, AT)
    assert isinstance(leave, CommitLeave) and (leave.command.renewals, leave.command.request) == (5, [3, "x"])
    wait.left({"released": True})
    with pytest.raises(LockTimeout, match="held all the time"):
        wait.next(101.1, AT)


@pytest.mark.parametrize("last", [HELD, LINE, None])
def test_who_was_granted_it_at_the_last_moment_is_told(last: dict[str, Any] | None) -> None:
    wait = waits(wait_s=1)
    wait.answered(LINE, 100.0)
    assert isinstance(wait.next(101.0, AT), CommitLeave)
    wait.left({"released": False})
    assert isinstance(wait.next(101.0, AT), CommitRequest)
    if last is None:
        wait.lost(LockLost("it is gone"))
    else:
        wait.answered(last, 101.0)
    if last is HELD:
        assert isinstance(wait.next(101.1, AT), GiveAnswer)
    else:
        with pytest.raises(LockTimeout):
            wait.next(101.1, AT)


def test_who_stays_is_told_its_place_after_a_last_renewal() -> None:
    wait = waits(wait_s=1, stay=True)
    wait.answered(LINE, 100.0)
    assert isinstance(wait.next(101.0, AT), CommitRequest)
    wait.answered({**LINE, "position": 2}, 101.0)
    assert wait.next(101.0, AT) == GiveAnswer({**LINE, "position": 2}, 101.0)
    at_once = waits(stay=True)
    at_once.answered(LINE, 100.0)
    assert at_once.next(100.0, AT) == GiveAnswer(LINE, 100.0)


def test_what_it_was_given_is_taken_back_under_its_name_or_not_at_all() -> None:
    command = waits().clean_up(AT)
    assert command is not None and command.request == [3, "x"] and command.renewals is ABSENT
    old = waits(id=None)
    assert old.clean_up(AT) is None and old.acquire(AT).format_version == 1
