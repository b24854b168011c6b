"""Replicas that are killed, wedged, slow, gone or lie: what clients see of it, and who gets the next request."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import openai
import pytest

from actorgrid.actors.model_gateway import replica_probe
from actorgrid.actors.serving.table import (
    LoraAdapter,
    ReplicaState,
    RevisionWeight,
    RouteLimits,
    RouteTimeouts,
    RoutingStrategy,
    ServiceTable,
)
from tests.processes import until

from .running import RunningGateway, endpoint, route, table
from .scripted_replica import ScriptedReplica

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
Gateways = Callable[[ServiceTable], RunningGateway]
Replicas = Callable[..., ScriptedReplica]


def ask(gateway: RunningGateway, retries: int = 0, **more: Any) -> Any:
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=retries) as client:
        return client.chat.completions.create(**{"model": "m", "messages": HELLO, **more})


def dead_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_one_that_refuses_is_passed_over_by_the_same_request_and_by_the_next(
    replicas: Replicas, gateways: Gateways
) -> None:
    replica = replicas()
    gateway = gateways(table(route(endpoint(dead_port(), 0), endpoint(replica, 1))))
    for _ in range(30):
        ask(gateway)
    report = gateway.ask(lambda each: each.report()).demands[0]
    dead = next(each for each in report.replicas if each.replica_id == "r0")
    assert dead.failures_total <= 5, "it is tried once in half a second, then seldom"
    assert report.errors_total == 0


def test_a_killed_replica_loses_no_request_that_has_not_begun(replicas: Replicas, gateways: Gateways) -> None:
    one, other = replicas(), replicas()
    gateway = gateways(table(route(endpoint(one, 0), endpoint(other, 1))))
    for _ in range(8):
        ask(gateway)  # connections to both are kept
    one.stop()
    for _ in range(20):
        ask(gateway)
    assert gateway.ask(lambda each: each.report()).demands[0].errors_total == 0


def test_one_that_comes_back_gets_requests_again_by_itself(replicas: Replicas, gateways: Gateways) -> None:
    flaky, steady = replicas("status:500:broken"), replicas()
    gateway = gateways(table(route(endpoint(flaky, 0), endpoint(steady, 1))))
    failed = 0
    for _ in range(20):
        try:
            ask(gateway)
        except openai.InternalServerError:
            failed += 1
    assert 3 <= failed <= 5, "three in a row, then it is passed over"
    flaky.plan = ""
    before = len(flaky.seen)
    gateway.until(lambda each: not each.services["chat"].conditions["r0.1"].is_ejected(each.now()))
    for _ in range(6):
        ask(gateway)
    assert len(flaky.seen) - before >= 2


@pytest.mark.parametrize("plan", ["garbage", "long-head", "reset"])
def test_what_is_no_answer_is_a_502_and_not_tried_again(replicas: Replicas, gateways: Gateways, plan: str) -> None:
    replica = replicas(plan)
    gateway = gateways(table(route(endpoint(replica))))
    with pytest.raises(openai.InternalServerError) as caught:
        ask(gateway)
    assert caught.value.status_code == 502
    assert len(replica.seen) == 1, "what ends a replica shall not end the next one too"


def test_an_answer_that_is_cut_short_is_not_taken_for_whole(replicas: Replicas, gateways: Gateways) -> None:
    gateway = gateways(table(route(endpoint(replicas("short")))))
    with pytest.raises(openai.APIConnectionError):
        ask(gateway)


def test_an_answer_without_a_length_ends_with_its_connection(replicas: Replicas, gateways: Gateways) -> None:
    gateway = gateways(table(route(endpoint(replicas("until-close")))))
    for _ in range(3):
        assert ask(gateway).choices[0].message.content == "ab"


def test_what_a_replica_says_unasked_reaches_nobody(replicas: Replicas, gateways: Gateways) -> None:
    replica = replicas("extra")
    gateway = gateways(table(route(endpoint(replica))))
    for _ in range(3):
        ask(gateway)
    replica.plan = ""
    assert ask(gateway).choices[0].message.content == "ab"


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_does_not_answer_in_time_is_a_504(replicas: Replicas, gateways: Gateways, stream: bool) -> None:
    replica = replicas("wedge")
    gateway = gateways(table(route(endpoint(replica), timeouts=RouteTimeouts(first_byte_s=0.2))))
    with pytest.raises(openai.InternalServerError) as caught:
        ask(gateway, stream=stream)
    assert caught.value.status_code == 504
    assert replica.seen[0].closed.wait(10), "and it is told to stop"


def test_a_stream_that_does_not_go_on_is_ended_with_an_error(replicas: Replicas, gateways: Gateways) -> None:
    replica = replicas("pause")
    gateway = gateways(table(route(endpoint(replica), timeouts=RouteTimeouts(idle_s=0.2))))
    with (
        openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client,
        pytest.raises(openai.APIError, match="in time"),
    ):
        list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    assert replica.seen[0].closed.wait(10)


def test_a_silent_stream_is_kept_alive_by_comments(replicas: Replicas, gateways: Gateways) -> None:
    replica = replicas("pause")
    gateway = gateways(table(route(endpoint(replica))))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        first = next(iter(stream))
        assert replica.seen[0].reached.wait(10)

        def late(each: Any) -> None:
            (one,) = each.clients
            one._exchange.ran_out(each.now() + 16)
            one._exchange.ran_out(each.now() + 31)

        gateway.ask(late)
        replica.go_on.set()
        rest = list(stream)
    assert first.choices[0].delta.content == "a" and rest[0].choices[0].delta.content == "b"


def test_one_that_has_said_nothing_for_long_is_passed_over(replicas: Replicas, gateways: Gateways) -> None:
    wedged, other = replicas("wedge"), replicas()
    gateway = gateways(table(route(endpoint(wedged, 0))))
    with gateway.connect() as sock:
        from .test_hostile_requests import post

        sock.sendall(post())
        wedged.wait_for(1)
        gateway.use(table(route(endpoint(wedged, 0), endpoint(other, 1))))

        def long_ago(each: Any) -> None:
            each.services["chat"].conditions["r0.1"].heard_at -= 60

        gateway.ask(long_ago)
        for _ in range(6):
            ask(gateway)
    assert len(wedged.seen) == 1


def test_requests_are_held_until_there_is_a_replica_and_all_are_answered(
    replicas: Replicas, gateways: Gateways
) -> None:
    gateway = gateways(table(route(scales_from_zero=True)))
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask, gateway) for _ in range(8)]
        assert gateway.was_woken.wait(10)
        gateway.until(lambda each: len(each.services["chat"].held) == 8)
        report = gateway.ask(lambda each: each.report()).demands[0]
        assert (report.held, report.in_flight) == (8, 0) and report.oldest_held_s > 0
        replica = replicas()
        gateway.use(table(route(endpoint(replica, state=ReplicaState.STARTING), scales_from_zero=True)))
        gateway.until(lambda each: len(each.services["chat"].held) == 8)
        gateway.use(table(route(endpoint(replica), scales_from_zero=True)))
        assert {each.result(20).choices[0].message.content for each in asked} == {"ab"}
    assert gateway.woken == ["chat"]
    assert gateway.ask(lambda each: (len(each.services["chat"].held), each.services["chat"].held_bytes)) == (0, 0)


def test_no_more_are_held_than_said(gateways: Gateways) -> None:
    limits = RouteLimits(held_max=1)
    gateway = gateways(table(route(scales_from_zero=True, limits=limits)))
    with gateway.connect() as sock:
        from .test_hostile_requests import post

        sock.sendall(post())
        gateway.until(lambda each: len(each.services["chat"].held) == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            ask(gateway)
    assert caught.value.response.headers["retry-after"] == "5"


def test_what_is_held_for_too_long_is_told_why(gateways: Gateways) -> None:
    made = route(scales_from_zero=True, limits=RouteLimits(held_s=0.2), reason="no host has a free GPU")
    gateway = gateways(table(made))
    with pytest.raises(openai.InternalServerError, match="no host has a free GPU") as caught:
        ask(gateway)
    assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"] == "30"


def test_a_service_without_replicas_answers_503_with_the_reason(gateways: Gateways) -> None:
    gateway = gateways(table(route(reason="its revision r2 ends with exit code 1")))
    with pytest.raises(openai.InternalServerError, match="exit code 1") as caught:
        ask(gateway)
    assert caught.value.status_code == 503
    assert gateway.woken == ["chat"]


def test_a_service_that_is_gone_lets_go_of_what_it_holds(gateways: Gateways) -> None:
    gateway = gateways(table(route(scales_from_zero=True)))
    with gateway.connect() as sock:
        from .test_hostile_requests import post, read_answer

        sock.sendall(post())
        gateway.until(lambda each: len(each.services["chat"].held) == 1)
        gateway.use(table())
        assert read_answer(sock)[0] == 503
    gateway.until(lambda each: each.requests_in_hand == 0)


def test_a_draining_replica_finishes_what_it_has_and_gets_no_more(replicas: Replicas, gateways: Gateways) -> None:
    old, new = replicas("pause"), replicas()
    gateway = gateways(table(route(endpoint(old, 0))))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        next(iter(stream))
        gateway.use(table(route(endpoint(old, 0, state=ReplicaState.DRAINING), endpoint(new, 1))))
        for _ in range(5):
            ask(gateway)
        old.go_on.set()
        assert [chunk.choices[0].delta.content for chunk in stream] == ["b", None]
    assert len(old.seen) == 1 and len(new.seen) == 5


def test_a_503_of_a_replica_that_goes_is_answered_by_another(replicas: Replicas, gateways: Gateways) -> None:
    going, other = replicas("slow"), replicas()
    gateway = gateways(table(route(endpoint(going, 0))))
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, gateway, extra_headers={"x-test": "slow:503"})
        going.wait_for(1)
        going.plan = "status:503:going away"
        gateway.use(table(route(endpoint(going, 0, state=ReplicaState.DRAINING), endpoint(other, 1))))
        going.go_on.set()
        assert asked.result(20).choices[0].message.content == "ab"


def test_another_model_answers_where_there_is_no_replica(replicas: Replicas, gateways: Gateways) -> None:
    other = replicas()
    first = route(endpoint(dead_port(), 0), fallback_models=("gone", "backup"))
    second = replace(route(endpoint(other, 1)), name="backup", models=("backup",))
    gateway = gateways(table(first, second))
    assert ask(gateway).choices[0].message.content == "ab"
    assert other.seen[0].json["model"] == "backup"
    gateway.use(table(replace(first, replicas=()), second))
    assert ask(gateway).choices[0].message.content == "ab"
    counts = gateway.ask(lambda each: [service.in_flight for service in each.services.values()])
    assert counts == [0, 0]


def test_an_adapter_answers_under_its_own_name_while_the_model_starts_and_the_model_is_woken(
    replicas: Replicas, gateways: Gateways
) -> None:
    other = replicas()
    first = route(fallback_models=("law",), scales_from_zero=True)
    second = replace(
        route(endpoint(other, 1)), name="backup", models=("backup",), adapters=(LoraAdapter("law", "lora-7"),)
    )
    gateway = gateways(table(first, second))
    for _ in range(2):
        assert ask(gateway).choices[0].message.content == "ab"
    assert [each.json["model"] for each in other.seen] == ["lora-7", "lora-7"]
    assert gateway.woken in (["chat"], ["chat", "chat"]), "once a second"


def test_two_gateways_that_disagree_serve_by_what_each_knows(replicas: Replicas, gateways: Gateways) -> None:
    old, new = replicas(), replicas()
    behind = gateways(table(route(endpoint(old, 0), endpoint(new, 1))))
    ahead = gateways(replace(table(route(endpoint(new, 1))), sequence=2))
    for _ in range(4):
        ask(behind)
        ask(ahead)
    old.stop()  # as the newer table says; the other has not heard
    for _ in range(8):
        ask(behind)
        ask(ahead)
    for gateway in (behind, ahead):
        assert gateway.ask(lambda each: each.report()).demands[0].errors_total == 0


def test_a_rollout_to_a_broken_revision_shows_in_its_figures(replicas: Replicas, gateways: Gateways) -> None:
    good, bad = replicas(), replicas("status:500:broken")
    made = route(
        endpoint(good, 0),
        endpoint(bad, 1, revision="v2"),
        revisions=(RevisionWeight("v1", 50), RevisionWeight("v2", 50)),
        strategy=RoutingStrategy.PREFIX_COST,
    )
    gateway = gateways(table(made))
    for number in range(12):
        with suppress(openai.InternalServerError):
            ask(gateway, messages=[{"role": "user", "content": f"session {number}"}])
    revisions = {each.revision: each for each in gateway.ask(lambda each: each.report()).demands[0].revisions}
    assert revisions["v1"].failures_total == 0 and revisions["v1"].requests_total > 0
    assert revisions["v2"].failures_total == revisions["v2"].requests_total >= 3


def test_a_session_goes_to_one_replica_by_its_prompt_or_its_name(replicas: Replicas, gateways: Gateways) -> None:
    made = [replicas() for _ in range(4)]
    endpoints = [endpoint(each, at) for at, each in enumerate(made)]
    gateway = gateways(table(route(*endpoints, strategy=RoutingStrategy.PREFIX_COST)))
    system = {"role": "system", "content": "be kind " * 1000}
    for turn in range(4):
        ask(gateway, messages=[system, *HELLO, *({"role": "assistant", "content": f"x{at}"} for at in range(turn))])
    assert sorted(len(each.seen) for each in made) == [0, 0, 0, 4]
    for number in range(4):
        ask(gateway, messages=[{"role": "user", "content": f"{number}"}], extra_headers={"x-session-id": "mine"})
    for number in range(4):
        ask(gateway, messages=[{"role": "user", "content": f"{number}"}], prompt_cache_key="mine")
    places = [
        {at for at, each in enumerate(made) if any(which(seen) for seen in each.seen)}
        for which in (
            lambda seen: seen.header("x-session-id") == "mine",
            lambda seen: seen.json.get("prompt_cache_key") == "mine",
        )
    ]
    assert places[0] == places[1] and len(places[0]) == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are asked whether they are there after a moment of silence."""
    monkeypatch.setattr(replica_probe, "SUSPECT_S", 0.1)
    monkeypatch.setattr(replica_probe, "PROBE_S", 0.3)


def test_what_waits_at_a_wedged_replica_goes_to_another(
    impatient: None, replicas: Replicas, gateways: Gateways
) -> None:
    wedged, good = replicas("wedge"), replicas()
    gateway = gateways(table(route(endpoint(wedged, 0), endpoint(good, 1))))
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, gateway) for _ in range(4)]
        assert {each.result(60).choices[0].message.content for each in asked} == {"ab"}
    assert len(wedged.seen) >= 4, "some waited there, and it was asked twice"
    report = gateway.ask(lambda each: each.report()).demands[0]
    assert report.errors_total == 0 and report.in_flight == 0


def test_a_slow_replica_that_answers_an_easy_question_keeps_what_waits(
    impatient: None, monkeypatch: pytest.MonkeyPatch, replicas: Replicas, gateways: Gateways
) -> None:
    monkeypatch.setattr(replica_probe, "PROBE_S", 60.0)
    slow, other = replicas(), replicas()
    gateway = gateways(table(route(endpoint(slow, 0), endpoint(other, 1))))
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, gateway, extra_headers={"x-test": "slow"})
        taker: ScriptedReplica = until(lambda: next((each for each in (slow, other) if each.seen), None), "it is asked")
        taker.wait_for(4)  # it was asked thrice meanwhile
        taker.go_on.set()
        assert asked.result(60).choices[0].message.content == "ab"
    assert not (other if taker is slow else slow).seen
    assert b"/v1/models" in taker.seen[1].head


def test_one_that_is_alone_keeps_what_waits(impatient: None, replicas: Replicas, gateways: Gateways) -> None:
    replica = replicas("slow")
    gateway = gateways(table(route(endpoint(replica))))
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, gateway)
        replica.wait_for(1)
        turned = gateway.ask(lambda each: each.now()) + 1
        gateway.until(lambda each: each.now() > turned)  # ten looks
        replica.go_on.set()
        assert asked.result(60).choices[0].message.content == "ab"
    assert len(replica.seen) == 1
