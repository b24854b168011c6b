"""A client of several hosts: it moves on when the one it has fails, and says what each said when all do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from actorgrid.client.http import AdminHttp
from actorgrid.errors import HostUnreachable, NotLeader, TooManyGpus
from tests.client.stand_in import StandIn


@pytest.fixture
def hosts() -> Iterator[tuple[StandIn, StandIn]]:
    made = StandIn(), StandIn()
    made[1].token = made[0].token
    yield made
    for host in made:
        host.close()


@pytest.fixture
def http(hosts: tuple[StandIn, StandIn]) -> Iterator[AdminHttp]:
    with closing(AdminHttp(f"{hosts[0].url},{hosts[1].url}", hosts[0].token, retry_s=0.5)) as made:
        yield made


def test_the_next_host_takes_over_and_is_kept(hosts: tuple[StandIn, StandIn], http: AdminHttp) -> None:
    first, second = hosts
    http.get("/api/config")
    assert (len(first.requests), http.url) == (1, first.url)
    first.shut()
    http.get("/api/config")
    first.open()
    http.get("/api/config")
    assert (len(first.requests), len(second.requests), http.url) == (1, 2, second.url)


def test_what_must_happen_once_goes_elsewhere_only_when_it_could_not_be_sent(
    hosts: tuple[StandIn, StandIn], http: AdminHttp
) -> None:
    first, second = hosts
    for host in hosts:
        host.routes["POST", "/api/x"] = lambda _body, _query: "done"
    first.shut()
    assert http.post("/api/x", {}) == "done"
    assert second.requests == [("POST", "/api/x")]

    def cut_off(_body: object, _query: object) -> object:
        raise NotLeader("this host does not lead the ledger")

    first.open()
    second.routes["POST", "/api/x"] = cut_off
    with pytest.raises(NotLeader):
        http.post("/api/x", {})
    assert len(first.requests) == 0


def test_a_host_that_is_cut_off_is_left_for_one_that_is_not(hosts: tuple[StandIn, StandIn], http: AdminHttp) -> None:
    def cut_off(_body: object, _query: object) -> object:
        raise NotLeader("this host does not lead the ledger")

    hosts[0].routes["POST", "/api/x"] = cut_off
    hosts[1].routes["POST", "/api/x"] = lambda _body, _query: "done"
    assert http.post("/api/x", {}, repeat=True) == "done"
    hosts[1].routes["POST", "/api/x"] = cut_off
    with pytest.raises(NotLeader):
        http.post("/api/x", {}, repeat=True)


def test_a_refusal_is_an_answer_and_nobody_else_is_asked(hosts: tuple[StandIn, StandIn], http: AdminHttp) -> None:
    def refuse(_body: object, _query: object) -> object:
        raise TooManyGpus("there are 8")

    hosts[0].routes["GET", "/api/x"] = refuse
    with pytest.raises(TooManyGpus):
        http.get("/api/x")
    assert hosts[1].requests == []


def test_when_nobody_answers_it_says_what_each_one_said(hosts: tuple[StandIn, StandIn], http: AdminHttp) -> None:
    urls = [host.url for host in hosts]
    for host in hosts:
        host.shut()
    with pytest.raises(HostUnreachable, match="none of the hosts answers") as caught:
        http.get("/api/config")
    for url in urls:
        assert url in caught.value.asked and f"{url}: " in caught.value.found
    assert "refused" in caught.value.found
