"""What a host says of who holds work is of version 10: in entries of a lower one it is no field."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import RegisterHost
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT, host_record
from tests.ledger.test_quotas import Book


def registered(**more: Any) -> RegisterHost:
    record = host_record("h1", gpus=1)
    return RegisterHost({**record, "devices": [{**device, **more} for device in record["devices"]]}, at=AT)


FIELDS = ("watched", "mps", "dmem")


@pytest.mark.parametrize("field", FIELDS)
def test_hosts_of_before_are_not_told_it(field: str) -> None:
    told = registered(**{field: True})
    assert (told.format_version, registered(share_milli=142).format_version, registered().format_version) == (10, 9, 1)
    assert read_command(told.to_plain()) == told
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(told, {"b": {"ledger_version": 9}})  # type: ignore[dict-item]


@pytest.mark.parametrize("field", FIELDS)
def test_what_is_no_truth_is_refused(field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        read_command(registered(**{field: "yes"}).to_plain())


def test_a_registration_that_comes_late_counts_for_nothing() -> None:
    book = Book()

    def tell(told: int, incarnation: int = 1, **more: Any) -> None:
        record = host_record("h9", incarnation, gpus=1, told=told)
        book.do(RegisterHost({**record, "devices": [{**device, **more} for device in record["devices"]]}, at=AT))

    tell(5)
    tell(7, cut=True)
    tell(6)  # proposed before the cut, and committed after it
    assert book.ledger.hosts["h9"]["devices"][0].get("cut") is True and book.ledger.hosts["h9"]["told"] == 7
    tell(8)
    assert "cut" not in book.ledger.hosts["h9"]["devices"][0]
    tell(1, incarnation=2)
    assert book.ledger.hosts["h9"]["incarnation"] == 2, "a new start counts anew"
