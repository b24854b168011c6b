"""Which host a person means."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.cli.host_names import find_host, title
from actorgrid.errors import BadRequest, NotFound


def host(node: int | None, name: str, address: str, node_id: str) -> dict[str, Any]:
    return {"node": node, "hostname": name, "ip_address": address, "port": 7400, "node_id": node_id}


HOSTS = [
    host(1, "alpha", "10.0.0.1", "aaaa-1"),
    host(2, "beta", "10.0.0.2", "aaaa-2"),
    host(3, "beta", "10.0.0.3", "bbbb-3"),
]


@pytest.mark.parametrize("text", ["1", "alpha", "10.0.0.1", "10.0.0.1:7400", "aaaa-1"])
def test_a_host_is_known_by_number_name_address_and_id(text: str) -> None:
    assert find_host(HOSTS, text) is HOSTS[0]


def test_the_beginning_of_an_id_will_do_when_only_one_has_it() -> None:
    assert find_host(HOSTS, "bbbb") is HOSTS[2]
    with pytest.raises(BadRequest, match="2 hosts are called 'aaaa'"):
        find_host(HOSTS, "aaaa")


def test_two_of_one_name_are_told_apart_by_their_numbers() -> None:
    with pytest.raises(BadRequest, match=r"2 \(beta, 10.0.0.2:7400\), 3 \(beta, 10.0.0.3:7400\)"):
        find_host(HOSTS, "beta")
    assert title(host(None, "alone", "127.0.0.1", "x")) == "alone"


def test_a_host_that_is_none_of_them_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotFound, match="alpha"):
        find_host(HOSTS, "4")
