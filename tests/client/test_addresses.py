"""Which host a client of several speaks to."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.client.addresses import ADDRESSES_MAX, Addresses, nearest_first, read_address, read_addresses
from actorgrid.errors import BadRequest

A, B, C = (read_address(f"https://10.0.0.{number}:7400") for number in (1, 2, 3))


def test_a_client_stays_with_its_host_until_that_fails_it() -> None:
    line = Addresses([A, B])
    line.answered(A)
    assert line.current == A
    line.failed(A, "refused")
    assert line.current == B
    line.failed(A, "told late by another thread")
    assert line.current == B
    line.failed(B, "cut off")
    assert line.current == A
    assert line.said == f"{A.url}: told late by another thread; {B.url}: cut off"
    line.answered(A)
    assert line.said == f"{B.url}: cut off"


def test_members_that_are_learned_of_stand_behind_those_that_were_given() -> None:
    line = Addresses([A])
    line.learned([B, A, C])
    assert line.text == f"{A.url}, {B.url}, {C.url}"
    line.failed(A, "gone")
    line.learned([B, A])
    assert (line.current, len(line)) == (B, 2)
    line.learned([])
    assert line.text == A.url


def test_the_line_is_bounded() -> None:
    line = Addresses([A])
    line.learned(read_address(f"https://10.1.0.{number}") for number in range(200))
    assert len(line) == ADDRESSES_MAX
    assert line.current == A


def test_addresses_are_read_between_commas() -> None:
    assert read_addresses(" https://a:1/ ,https://b, https://a:1/") == (
        read_address("https://a:1/"),
        read_address("https://b"),
    )
    assert read_address("https://b/x/")[2:] == ("b", 443, "/x")
    for wrong in ("", ",", "a:1", "https://a:x", ",".join(f"https://h{n}" for n in range(65))):
        with pytest.raises(BadRequest):
            read_addresses(wrong)


def test_hosts_of_the_same_site_as_the_one_that_answered_come_first() -> None:
    def member(host_id: str, site: str | None, url: str | None = "") -> dict[str, Any]:
        return {"host_id": host_id, "site": site, "url": f"https://{host_id}:1" if url == "" else url}

    members = [
        member("a", "east"),
        member("b", "west"),
        member("c", None),
        member("d", "west"),
        member("e", "west", None),
    ]
    assert nearest_first("b", members) == ["https://b:1", "https://d:1", "https://a:1", "https://c:1"]
    unlabelled = [member("a", None), member("b", None)]
    assert nearest_first("b", unlabelled) == ["https://a:1", "https://b:1"]
    older = [{"host_id": "a", "url": "https://a:1"}, {"host_id": "b", "url": "https://b:1"}]
    assert nearest_first("b", older) == ["https://a:1", "https://b:1"]
