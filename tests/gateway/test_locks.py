"""Locks over HTTP, before the real servers: waiting in line, clients that go away, doors that close meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import pytest

from actorgrid.actors.consensus import actor as consensus
from actorgrid.actors.gateway.routes.locks import fence
from actorgrid.actors.ledger.command import refuse_if_too_new


def ask(town: Any, verb: str, owner: str, name: str = "deploy", **body: Any) -> Any:
    return town.http("POST", f"/api/locks/{quote(name, safe='')}/{verb}", json={"owner": owner, **body})


def begin(town: Any, owner: str, name: str = "deploy", **body: Any) -> Future[Any]:
    """The same, without waiting for the answer."""
    started: Future[Any] = town.start(
        town.fetch("POST", f"/api/locks/{name}/acquire", json={"owner": owner, "wait_s": 60, **body})
    )
    return started


def record(town: Any, name: str = "deploy") -> dict[str, Any]:
    found: dict[str, Any] = town.servers["consensus"]._replica.ledger.locks.get(name, {"holders": [], "waiters": []})
    return found


def owners(town: Any, kind: str, name: str = "deploy") -> list[str]:
    return [each["owner"] for each in record(town, name)[kind]]


def wait_in_line(town: Any, *line: str) -> None:
    town.until(lambda: owners(town, "waiters") == list(line), f"{line} to wait")


def test_a_lock_is_held_renewed_listed_and_given_back(real_town: Any) -> None:
    held = ask(real_town, "acquire", "me", ttl_s=20, user_id="ann")
    assert held.status == 200, held.body
    token = held.json["token"]
    assert held.json["held"] and held.json["fence"] == fence(token) and held.json["position"] == 0
    assert 0 < held.json["expires_in_s"] <= 20 == held.json["ttl_s"]
    assert ask(real_town, "acquire", "me", ttl_s=20).json["token"] == token
    assert ask(real_town, "renew", "me", token=token).json["token"] == token
    listed = real_town.http("GET", "/api/locks?prefix=dep").json
    assert listed["total"] == 1
    (holder,) = listed["locks"][0]["holders"]
    assert (holder["owner"], holder["user_id"], holder["token"], holder["ttl_s"]) == ("me", "ann", token, 20)
    assert real_town.http("GET", "/api/locks?prefix=x").json == {"locks": [], "total": 0}
    stale = ask(real_town, "release", "me", token=[1, 1])
    assert (stale.status, stale.error["code"]) == (409, "StaleToken")
    assert ask(real_town, "release", "me", token=token).json["released"] is True
    assert ask(real_town, "release", "me", token=token).json["released"] is False
    lost = ask(real_town, "renew", "me", token=token)
    assert (lost.status, lost.error["code"]) == (409, "LockLost")


@pytest.mark.parametrize("name", ["a/b", "a b", "José", "x/acquire", "?", "%", "x" * 256])
def test_any_printable_name_is_one(real_town: Any, name: str) -> None:
    assert ask(real_town, "acquire", "me", name).json["name"] == name
    assert real_town.http("GET", "/api/locks").json["locks"][0]["name"] == name


@pytest.mark.parametrize("name", ["x" * 257, "a\tb", "\x07"])
def test_a_name_that_cannot_be_one_is_refused(real_town: Any, name: str) -> None:
    assert ask(real_town, "acquire", "me", name).status == 400


@pytest.mark.parametrize(
    "body",
    [{"ttl_s": 0.1}, {"ttl_s": 1e9}, {"slots": 0}, {"slots": 1001}, {"wait_s": 601}, {"owner": "a b"}, {"wiat_s": 1}],
)
def test_a_wrong_field_is_named(real_town: Any, body: dict[str, Any]) -> None:
    reply = ask(real_town, "acquire", **{"owner": "me", **body})
    assert reply.status == 400 and reply.error["details"]["field"] == next(iter(body))


def test_a_lock_that_is_held_is_refused_at_once_or_after_the_wait(real_town: Any) -> None:
    ask(real_town, "acquire", "me")
    assert ask(real_town, "acquire", "you").error["code"] == "LockHeld"
    late = ask(real_town, "acquire", "you", wait_s=0.05)
    assert (late.status, late.error["code"]) == (409, "LockTimeout")
    assert owners(real_town, "waiters") == []
    other = ask(real_town, "acquire", "you", slots=2)
    assert (other.status, other.error["code"]) == (409, "LockSlotsDiffer")


def test_who_waits_gets_it_in_the_order_of_asking(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    second = begin(real_town, "b")
    wait_in_line(real_town, "b")
    third = begin(real_town, "c")
    wait_in_line(real_town, "b", "c")
    ask(real_town, "release", "a")
    tokens = [real_town.finish(second).json["token"]]
    assert not third.done()
    ask(real_town, "release", "b")
    tokens.append(real_town.finish(third).json["token"])
    assert tokens[0] < tokens[1]


def test_a_semaphore_lets_so_many_in(real_town: Any) -> None:
    first = [ask(real_town, "acquire", owner, slots=2).json["token"] for owner in "ab"]
    assert first[0] != first[1]
    third = begin(real_town, "c", slots=2)
    wait_in_line(real_town, "c")
    ask(real_town, "release", "b")
    assert real_town.finish(third).json["held"] and owners(real_town, "holders") == ["a", "c"]


def test_who_stays_keeps_the_place_and_finds_it_again(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    places = [ask(real_town, "acquire", owner, wait_s=0.02, stay=True).json["position"] for owner in "bc"]
    assert places == [1, 2] and owners(real_town, "waiters") == ["b", "c"]
    again = ask(real_town, "acquire", "c", stay=True).json
    assert (again["held"], again["token"], again["fence"], again["position"]) == (False, None, None, 2)
    ask(real_town, "release", "a")
    assert ask(real_town, "acquire", "b").json["held"]


def test_a_client_that_goes_away_leaves_the_line(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    gone, there = begin(real_town, "gone"), begin(real_town, "there")
    real_town.until(lambda: len(owners(real_town, "waiters")) == 2, "both to wait")
    gone.cancel()
    wait_in_line(real_town, "there")
    ask(real_town, "release", "a")
    assert real_town.finish(there).json["held"]


def test_a_client_that_goes_away_as_it_is_granted_gives_the_lock_back(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    gone = begin(real_town, "gone")
    wait_in_line(real_town, "gone")
    # The door hears neither of the grant nor of the release before the client has hung up.
    real_town.gateway._ledger._on_applied = lambda _message: None
    ask(real_town, "release", "a")
    assert owners(real_town, "holders") == ["gone"]
    gone.cancel()
    real_town.until(lambda: not owners(real_town, "holders"), "the lock to be free")


def test_a_client_that_asks_again_elsewhere_is_not_given_up_by_the_door_it_left(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    first = begin(real_town, "b")
    wait_in_line(real_town, "b")
    again = begin(real_town, "b")
    real_town.until(lambda: record(real_town)["waiters"][0]["renewals"] == 1, "the second question")
    first.cancel()
    before = real_town.servers["consensus"]._replica.ledger.index
    real_town.until(lambda: real_town.servers["consensus"]._replica.ledger.index > before, "the first to be given up")
    assert owners(real_town, "waiters") == ["b"]
    ask(real_town, "release", "a")
    assert real_town.finish(again).json["held"]


def test_a_door_that_closes_says_so_and_the_place_is_kept(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    waiting = begin(real_town, "b")
    wait_in_line(real_town, "b")
    real_town.gateway._thread.finish()
    reply = real_town.finish(waiting)
    assert (reply.status, reply.error["code"]) == (503, "HostUnreachable")
    assert owners(real_town, "waiters") == ["b"]


def test_a_door_keeps_the_places_of_its_clients_alive(real_town: Any) -> None:
    ask(real_town, "acquire", "a", ttl_s=60)
    waiting = begin(real_town, "b", ttl_s=0.5)
    wait_in_line(real_town, "b")
    real_town.until(lambda: record(real_town)["waiters"][0]["renewals"] >= 2, "two renewals", timeout_s=15)
    ask(real_town, "release", "a")
    assert real_town.finish(waiting).json["held"]


def test_a_lease_that_nobody_renews_ends_also_where_nothing_else_happens(real_town: Any) -> None:
    ask(real_town, "acquire", "a", ttl_s=0.5)
    real_town.until(lambda: owners(real_town, "holders") == [], "the lease to end")


def test_a_broken_lock_goes_on_and_its_owner_and_the_events_tell(real_town: Any) -> None:
    token = ask(real_town, "acquire", "a").json["token"]
    waiting = begin(real_town, "b")
    wait_in_line(real_town, "b")
    assert ask(real_town, "release", "a", force=True, user_id="root").json["released"]
    assert real_town.finish(waiting).json["held"]
    assert ask(real_town, "renew", "a", token=token).error["code"] == "LockLost"
    nobody = ask(real_town, "release", "a", force=True)
    assert (nobody.status, nobody.error["code"]) == (404, "NotFound")

    async def read(response: Any) -> str:
        async for line in response.content:
            if b"break_lock" in line:
                return str(line.decode())
        raise AssertionError("no such event")

    assert "broken by root, granted" in real_town.finish(real_town.with_stream("/api/events?from=0", read))


def test_one_who_waits_and_is_taken_out_of_the_line_is_told(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    waiting = begin(real_town, "b")
    wait_in_line(real_town, "b")
    ask(real_town, "release", "b", force=True)
    assert real_town.finish(waiting).error["code"] == "LockLost"


def test_locks_need_the_token(real_town: Any) -> None:
    assert real_town.http("GET", "/api/locks", token=None).status == 401
    assert real_town.http("POST", "/api/locks/x/acquire", token=None, json={"owner": "a"}).status == 401


def test_the_number_of_a_token_compares_as_the_pair_does() -> None:
    pairs = [(1, 1), (1, 2), (1, 2**40), (2, 1), (2, 3), (300, 0)]
    assert [fence(list(pair)) for pair in pairs] == sorted(fence(list(pair)) for pair in pairs)
    assert fence([32_767, 2**48 - 1]) < 2**63


def test_many_wait_at_one_door(real_town: Any) -> None:
    ask(real_town, "acquire", "first")

    async def all_of_them() -> list[Any]:
        async def one(number: int) -> Any:
            await real_town.fetch("POST", "/api/locks/deploy/acquire", json={"owner": f"o{number}", "wait_s": 60})
            return await real_town.fetch("POST", "/api/locks/deploy/release", json={"owner": f"o{number}"})

        return await asyncio.gather(*(one(number) for number in range(30)))

    everyone = real_town.start(all_of_them())
    real_town.until(lambda: len(owners(real_town, "waiters")) == 30, "thirty to wait")
    ask(real_town, "release", "first")
    assert all(reply.json["released"] for reply in real_town.finish(everyone))
    assert record(real_town)["holders"] == []


def test_a_second_question_keeps_what_the_first_was_granted_when_its_client_hangs_up(real_town: Any) -> None:
    ask(real_town, "acquire", "a")
    first = begin(real_town, "b", request=1)
    wait_in_line(real_town, "b")
    again = begin(real_town, "b", request=2)
    superseded = real_town.finish(first)
    assert (superseded.status, superseded.error["code"]) == (409, "LockLost")
    ask(real_town, "release", "a")
    assert real_town.finish(again).json["held"]
    assert owners(real_town, "holders") == ["b"]


def test_while_hosts_of_an_earlier_version_are_there_locks_work_without_requests(
    real_town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"old": {"node": 9, "ledger_version": 1}}
    monkeypatch.setattr(consensus, "refuse_if_too_new", lambda command, _: refuse_if_too_new(command, members))
    assert ask(real_town, "acquire", "a", request=1).json["held"]
    assert "request" not in record(real_town)["holders"][0]
    waiting = begin(real_town, "b", request=1, ttl_s=0.5)
    wait_in_line(real_town, "b")
    waiting.cancel()
    real_town.until(lambda: not record(real_town)["waiters"], "its lease to end", timeout_s=20)
    assert ask(real_town, "release", "a").json["released"]
