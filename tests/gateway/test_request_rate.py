"""How much may be asked with a key: the arithmetic, and what the door says of it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.access import Identity, Role
from actorgrid.actors.gateway.server.request_rate import COUNTED_MAX, SECOND_NS, RequestLimits, RequestRate

OFF = RequestRate(0, 1)


def who(key: str = "k", tenant: str = "lab") -> Identity:
    return Identity(key, "ann@lab", Role.USER, tenant, key)


def taken(limits: RequestLimits, rate: RequestRate, now_ns: int, cost: int = 1, key: str = "k") -> bool:
    left = limits.take(who(key), rate, OFF, now_ns, cost)
    return left is not None and not left.wait_s


@given(per_s=st.integers(1, 5000), burst=st.integers(1, 300), start=st.integers(0, 10**15))
def test_a_burst_is_exactly_a_burst_and_comes_back_at_the_rate(per_s: int, burst: int, start: int) -> None:
    limits, rate = RequestLimits(), RequestRate(per_s, burst)
    assert [taken(limits, rate, start) for _ in range(burst)] == [True] * burst
    assert not taken(limits, rate, start) and not taken(limits, rate, start + rate.interval_ns - 1)
    assert taken(limits, rate, start + rate.interval_ns) and not taken(limits, rate, start + rate.interval_ns)
    later = start + rate.interval_ns * (burst + 1)
    assert [taken(limits, rate, later) for _ in range(burst + 1)] == [True] * burst + [False]


@given(costs=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 50)), max_size=60))
def test_in_any_span_no_more_is_taken_than_the_burst_and_the_rate_give(costs: list[tuple[int, int]]) -> None:
    limits, rate, now, log = RequestLimits(), RequestRate(20, 40), 0, []
    for wait_ns, cost in costs:
        now += wait_ns
        if taken(limits, rate, now, cost):
            log.append((now, min(cost, 40)))
    for first in range(len(log)):
        for last in range(first, len(log)):
            span_ns = log[last][0] - log[first][0]
            assert sum(cost for _, cost in log[first : last + 1]) <= 40 + span_ns * 20 // SECOND_NS


def test_what_is_refused_says_when_there_is_room_and_then_there_is() -> None:
    limits, rate = RequestLimits(), RequestRate(2, 4)
    assert taken(limits, rate, 0, 4)
    refused = limits.take(who(), rate, OFF, 0, 3)
    assert refused is not None and (refused.wait_s, refused.left) == (2, 0)
    assert refused.headers == {"RateLimit-Policy": '"key";q=4;w=2', "RateLimit": '"key";r=0;t=2'}
    assert taken(limits, rate, 2 * SECOND_NS, 3)
    assert taken(RequestLimits(), rate, 0, 1000), "a batch over the burst takes all of it"


def test_a_tenants_keys_share_and_others_do_not() -> None:
    limits, key, tenant = RequestLimits(), RequestRate(1, 100), RequestRate(1, 3)
    left = [limits.take(who(f"k{number}"), key, tenant, 0) for number in range(4)]
    assert [(each.name, each.left, each.wait_s) for each in left if each] == [
        *(("tenant", room, 0) for room in (2, 1, 0)),
        ("tenant", 0, 1),
    ]
    of_biz = limits.take(who("b", "biz"), key, tenant, 0)
    assert of_biz is not None and of_biz.left == 2
    before = len(limits)
    assert limits.take(who("k9"), key, tenant, 0) is not None and len(limits) == before, (
        "what is refused is not counted"
    )


def test_the_hosts_own_token_is_not_limited_and_what_is_remembered_is_bounded() -> None:
    limits = RequestLimits()
    assert limits.take(Identity("admin", "admin", Role.ADMIN, "*"), RequestRate(1, 1), RequestRate(1, 1), 0) is None
    for number in range(COUNTED_MAX + 5):
        limits.take(who(f"k{number}"), RequestRate(1, 1), OFF, 0)
    assert len(limits) == COUNTED_MAX


@pytest.fixture
def limited(town: Any) -> Any:
    town.host.settings.security.requests_per_s = 1
    town.host.settings.security.requests_burst = 3
    return town


def test_the_door_says_how_much_is_left_and_when_to_ask_again(limited: Any) -> None:
    key = limited.http("POST", "/api/keys", json={"user_id": "ann", "role": "user", "tenant": "lab"}).json["key"]
    replies = [limited.http("GET", "/api/jobs", key) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert replies[0].headers["RateLimit"].startswith('"key";r=2;')
    assert replies[3].headers["RateLimit-Policy"] == '"key";q=3;w=3'
    assert replies[3].error["code"] == "TooManyRequests" and int(replies[3].headers["Retry-After"]) >= 1
    limited.add_job("a", user_id="ann@lab")
    assert limited.http("POST", "/api/jobs/a/cancel", key).status == 200, "a cancel always gets through"
    assert limited.http("GET", "/api/me", key).status == 200
    assert "RateLimit" not in limited.http("GET", "/api/jobs").headers


def test_who_leaves_answers_unread_is_cut_off(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.actors.gateway.server.loop.SLOW_READER_S", 0.2)
    app = town.gateway._app
    _, _, port = town.url.rpartition(":")
    ask = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {town.token}\r\n\r\n".encode()
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", int(port)))
        lazy.sendall(ask * 64)
        town.until(lambda: len(app.connections) == 1, "it to be heard")
        town.until(lambda: len(app.connections) == 0, "it to be cut off")


def test_a_batch_costs_as_many_as_its_jobs(limited: Any) -> None:
    key = limited.http("POST", "/api/keys", json={"user_id": "ann", "role": "user", "tenant": "lab"}).json["key"]
    batch = {"jobs": [{"command": ["true"]} for _ in range(2)]}
    assert limited.http("POST", "/api/jobs/batch", key, json=batch).status == 201
    assert limited.http("POST", "/api/jobs/batch", key, json=batch).status == 429
