"""What the end of an attempt tells of its devices: kept with the attempt, or with the member of a gang."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import EndAttempt
from actorgrid.actors.ledger.usage_records import UsageRecord
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT
from tests.ledger.test_gangs import Book as GangBook
from tests.ledger.test_state import Book

USAGE: UsageRecord = {
    "held_s": 8.0,
    "gpu_s": 4.0,
    "models": {"H100": 4.0},
    "memory_mib_s": 100.0,
    "memory_high_mib": 50,
    "energy_j": None,
    "energy_estimated_s": 0.0,
    "unsampled_s": 0.0,
    "simulated": False,
    "unsupported": {"energy": "the driver tells no counter of energy"},
}


def test_an_attempt_keeps_what_it_used_and_one_that_tells_nothing_has_no_such_field() -> None:
    book = Book()
    book.submit("a", retries_left=1)
    for number, more in ((1, {"usage": USAGE}), (2, {})):
        book.do(EndAttempt(f"a.{number}", book.grant("a", number=number), "failed", at=AT + 5, **more))
    first, second = book.ledger.jobs["a"]["attempts"]
    assert first["usage"] == USAGE and "usage" not in second


def test_each_member_of_a_gang_keeps_its_own() -> None:
    book = GangBook()
    token = book.granted("a")
    for rank in range(3):
        book.end(f"a.1-{rank}", token, "succeeded", usage={**USAGE, "gpu_s": float(rank)})
    assert [member["usage"]["gpu_s"] for member in book.last("a")["members"]] == [0.0, 1.0, 2.0]
    assert "usage" not in book.last("a")


def test_hosts_of_before_are_not_told_it() -> None:
    told = EndAttempt("a.1", [1, 2], "succeeded", at=AT, usage=USAGE)
    assert told.format_version == 9 and EndAttempt("a.1", [1, 2], "succeeded", at=AT).format_version == 1
    assert read_command(told.to_plain()) == told
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(told, {"b": {"ledger_version": 8}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {**USAGE, "more": 1},
        {**USAGE, "gpu_s": -1.0},
        {**USAGE, "energy_j": float("inf")},
        {**USAGE, "models": {"x" * 301: 1.0}},
        {**USAGE, "models": {str(number): 1.0 for number in range(65)}},
        {**USAGE, "unsupported": {"energy": 3}},
        {**USAGE, "simulated": 1},
        None,
    ],
)
def test_usage_that_is_not_well_formed_is_refused(wrong: Any) -> None:
    with pytest.raises(BadRequest, match="usage"):
        read_command(EndAttempt("a.1", [1, 2], "succeeded", at=AT, usage=wrong).to_plain())
