"""The gateway's parts without sockets: deadlines, streams of events, usage in pieces, chunks, ejection."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.model_gateway.chunked_body import ChunkedBody
from actorgrid.actors.model_gateway.deadline_wheel import SLOTS, TICK_S, DeadlineWheel
from actorgrid.actors.model_gateway.embedding_values import convert_embeddings
from actorgrid.actors.model_gateway.event_stream import HELD_MAX, EventRelay
from actorgrid.actors.model_gateway.refusals import RequestRefused
from actorgrid.actors.model_gateway.replica_health import (
    EJECTED_MAX_S,
    EJECTED_S,
    RETRIES_FREE,
    SILENT_S,
    ReplicaCondition,
    RetryBudget,
)
from actorgrid.actors.model_gateway.request_body import read_json
from actorgrid.actors.model_gateway.token_usage import UsageScanner, UsedTokens

from .scripted_replica import CHAT, DONE, USAGE_EVENT, delta, response_stream


@dataclass
class Waiting:
    due_at: float | None = None
    wheel_at: float | None = None
    told: list[float] = field(default_factory=list)

    def ran_out(self, now: float) -> None:
        self.told.append(now)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.001, 200)), min_size=1, max_size=20))
def test_each_is_told_once_after_its_last_deadline_and_not_before(moves: list[tuple[float, float]]) -> None:
    wheel, item, now = DeadlineWheel(0.0), Waiting(), 0.0
    last_due = 0.0
    for wait, due in moves:
        until = now + wait
        while now < until:
            now += TICK_S
            wheel.turn(now)
        item.told.clear()
        last_due = now + due
        wheel.put(item, last_due)
    while not item.told:
        now += TICK_S
        wheel.turn(now)
        assert now < last_due + 1
    assert now >= last_due
    for _ in range(SLOTS):
        now += TICK_S
        wheel.turn(now)
    assert len(item.told) == 1


def test_what_is_put_off_again_and_again_takes_one_place() -> None:
    wheel, item = DeadlineWheel(0.0), Waiting()
    for number in range(10_000):
        wheel.put(item, 1.0 + number * 0.01)
    assert sum(map(len, wheel._slots)) == 1
    wheel.turn(50.0)
    assert item.told == []
    item.due_at = None
    wheel.turn(200.0)
    assert item.told == [] and sum(map(len, wheel._slots)) == 0


STREAM = b"".join([*CHAT, b": comment\n\n", USAGE_EVENT, DONE])


@given(st.lists(st.integers(0, len(STREAM)), max_size=30), st.booleans(), st.booleans())
def test_a_stream_is_the_same_however_it_is_cut(cuts: list[int], leaves_out: bool, crlf: bool) -> None:
    whole = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    relay = EventRelay(leaves_out)
    out = b"".join(relay.feed(whole[a:b]) for a, b in pairwise(places)) + relay.end()
    usage = USAGE_EVENT.replace(b"\n", b"\r\n") if crlf else USAGE_EVENT
    assert out == (whole.replace(usage, b"") if leaves_out else whole)
    assert relay.usage == UsedTokens(9, 4, 2)


def test_what_was_passed_on_when_a_stream_breaks_off_is_whole() -> None:
    relay = EventRelay(False)
    out = relay.feed(CHAT[0] + CHAT[1][:10]) + relay.broken_off("gone", "replica_failed")
    first, second, rest = out.split(b"\n\n")
    assert first + b"\n\n" == CHAT[0] and rest == b""
    assert json.loads(second[6:])["error"]["message"] == "gone"


def test_an_event_that_is_too_long_is_passed_on_in_parts() -> None:
    relay = EventRelay(True)
    data = b"data: " + b"x" * (HELD_MAX + 10)
    out = b"".join(relay.feed(data[at : at + 1000]) for at in range(0, len(data), 1000))
    assert len(out) > HELD_MAX and data.startswith(out) and not relay.is_between
    assert relay.broken_off("gone", "c").startswith(b"\n\ndata: ")


def test_words_about_errors_are_no_errors() -> None:
    for text in ("error: no", '"error": 5', "event: error\n", '{"error":{"message":"x"}}'):
        relay = EventRelay(False)
        event = delta(text) + b"data: " + json.dumps({"choices": [{"logprob": "error"}], "error": None}).encode()
        event += b'\n\ndata: {"choices":[{"error":"in a part of it"}]}\n\n'
        assert relay.feed(event) == event and not relay.has_failed, text


@pytest.mark.parametrize(
    ("told", "failed"),
    [
        ({"error": {"message": "m", "code": 500}}, True), ({"error": {"message": "m", "code": "502"}}, True),
        ({"error": {"message": "m", "code": 400}}, False), ({"error": {"message": "m", "code": "invalid_x"}}, False),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, False), ({"error": "m"}, True),
        ({"message": "m", "code": 422}, False), ("m", True),
    ],
)  # fmt: skip
def test_an_error_counts_against_the_replica_unless_the_request_is_why(told: Any, failed: bool) -> None:
    relay = EventRelay(False)
    out = relay.feed(b"event: error\ndata: " + json.dumps(told).encode() + b"\n\n")
    _, _, text = out.partition(b"data: ")
    assert relay.has_failed is failed and json.loads(text)["error"]["message"] == "m"


def test_the_usage_of_responses_is_read() -> None:
    relay = EventRelay(True)
    whole = b"".join(response_stream())
    assert relay.feed(whole) == whole, "nothing is left out: that event says more than usage"
    assert relay.usage == UsedTokens(5, 3, 1)


def test_usage_of_null_and_what_users_write_is_no_usage() -> None:
    relay = EventRelay(True)
    chunk = {"choices": [{"delta": {"content": '"usage":{"prompt_tokens":9}'}}], "usage": None}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert relay.feed(event) == event and relay.usage is None
    for told in (
        {"prompt_tokens": -1},
        {"prompt_tokens": True},
        {"prompt_tokens": "9"},
        {"prompt_tokens": 2**99},
        {},
        [],
    ):
        relay.feed(b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n")
        assert relay.usage is None
    relay.feed(b'data: {"usage":{"prompt_tokens":9\n\n' + b"data: [[[[\n\n" + b'data: {"usage":{' * 50 + b"\n\n")
    assert relay.usage is None


@given(st.lists(st.integers(0, 400), max_size=20), st.text(max_size=50))
def test_usage_is_found_across_the_edges_of_pieces(cuts: list[int], text: str) -> None:
    plain = {
        "a": text,
        "b": '"usage":{"prompt_tokens":1}',
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        "z": text,
    }
    whole = json.dumps(plain).encode()
    places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    scanner = UsageScanner()
    for a, b in pairwise(places):
        scanner.feed(whole[a:b])
    assert scanner.usage == UsedTokens(7, 0, 3)


def test_usage_that_does_not_end_is_given_up() -> None:
    scanner = UsageScanner()
    scanner.feed(b'{"usage": {"prompt_tokens": 1, "x": "')
    for _ in range(100):
        scanner.feed(b"x" * 1000)
    scanner.feed(b'"usage": {"prompt_tokens": 2, "completion_tokens": 0}')
    assert scanner.usage == UsedTokens(2, 0, 0)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 9))
def test_chunks_are_put_together_however_they_come(parts: list[bytes], step: int) -> None:
    whole = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\nNEXT"
    body, held, is_whole = ChunkedBody(1000), bytearray(), False
    for at in range(0, len(whole), step):
        held += whole[at : at + step]
        if not is_whole:
            is_whole = body.feed(held)
    assert is_whole and bytes(body.body) == b"".join(parts) and bytes(held) == b"NEXT"


def test_chunks_are_counted_before_they_come() -> None:
    with pytest.raises(RequestRefused) as caught:
        ChunkedBody(10).feed(bytearray(b"b\r\n"))
    assert caught.value.status == 413


@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text(max_size=3))))
)
def test_edits_change_what_they_are_to_and_nothing_else(more: dict[str, object]) -> None:
    plain = {**more, "model": "m\u00e4", "stream": True}
    body = json.dumps(plain, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    try:
        request = read_json(body)
    except RequestRefused:
        assert any("\ud800" <= char <= "\udfff" for char in str(plain))
        return
    assert request.body_as(request.model, False) is body
    edited = json.loads(request.body_as("other", True))
    options = edited.pop("stream_options")
    assert options["include_usage"] is True
    assert edited == {**{k: v for k, v in plain.items() if k != "stream_options"}, "model": "other"}


def test_embeddings_that_are_none_stay_as_they_are() -> None:
    for body in (b"", b"[]", b'{"data":1}', b'{"data":[{"embedding":["x"]}]}', b'{"data":[{"embedding":[1e999]}]}',
                 b'{"data":[{"embedding":"***"}]}', b'{"data":[{"embedding":"AAA="}]}'):  # fmt: skip
        for wants in (True, False):
            assert isinstance(convert_embeddings(body, wants), bytes)
    assert convert_embeddings(b'{"data":[{"embedding":"***"}]}', False) == b'{"data":[{"embedding":"***"}]}'


def test_a_replica_is_ejected_longer_each_time_and_heals_by_one_request() -> None:
    condition = ReplicaCondition("a")
    for _ in range(2):
        condition.failed(0.0, at_once=False)
    assert not condition.is_ejected(0.0)
    condition.failed(0.0, at_once=False)
    assert condition.is_ejected(EJECTED_S - 0.01) and not condition.is_ejected(EJECTED_S)
    condition.began(EJECTED_S)
    assert condition.is_ejected(EJECTED_S), "one request is there to see"
    condition.failed(EJECTED_S, at_once=False)
    assert condition.is_ejected(EJECTED_S + 2 * EJECTED_S - 0.01)
    for number in range(20):
        condition.failed(float(number), at_once=True)
    assert condition.ejected_until == 19 + EJECTED_MAX_S
    condition.began(100.0)
    condition.gave_up()
    assert not condition.is_ejected(100.0), "a client that went away says nothing"
    condition.succeeded()
    assert not condition.is_ejected(100.0) and condition.in_a_row == 0


def test_silence_counts_while_there_are_requests() -> None:
    condition = ReplicaCondition("a")
    assert not condition.is_silent(1e9)
    condition.began(100.0)
    assert not condition.is_silent(100.0 + SILENT_S) and condition.is_silent(100.1 + SILENT_S)
    condition.heard(120.0)
    assert not condition.is_silent(121.0)
    condition.ended()
    assert not condition.is_silent(1e9)


def test_tries_are_a_tenth_of_requests_at_most() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.asked(5.0)
    assert [budget.may_retry(5.0) for _ in range(200)].count(True) == 100 + RETRIES_FREE
    assert not budget.may_retry(14.0)
    assert budget.may_retry(16.0)
