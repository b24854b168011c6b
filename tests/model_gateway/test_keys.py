"""Keys at the gateway: who may ask what, how much, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from actorgrid.actors.ledger.api_keys import hash_of, make_key
from actorgrid.actors.model_gateway.gateway_news import GatewayNews, read_news
from actorgrid.actors.model_gateway.key_gate import KeyCount, KeyGate, month_of
from actorgrid.actors.model_gateway.month_budgets import Spent
from actorgrid.actors.model_gateway.refusals import RequestRefused
from actorgrid.actors.serving.routing import ReplicaLoad
from actorgrid.actors.serving.table import ServiceKey, ServiceTable
from actorgrid.errors import MalformedMessage

from .running import RunningGateway, endpoint, route, table
from .scripted_replica import ScriptedReplica

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
AT = 1_795_000_020.0


def a_key(number: int = 1, **more: Any) -> tuple[str, ServiceKey]:
    text, record = make_key(bytes([number] * 5), bytes([number] * 30), "ada", "admin", AT)
    return text, ServiceKey(record["id"], record["sha256"], "ada", **more)


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


@pytest.fixture
def keyed(replica: ScriptedReplica, gateways: Callable[[ServiceTable], RunningGateway]) -> Any:
    def make(**more: Any) -> tuple[RunningGateway, openai.OpenAI]:
        text, key = a_key(**more)
        made = table(route(endpoint(replica)), route(endpoint(replica, 1), name="b", models=("b",)), keys=(key,))
        gateway = gateways(made)
        return gateway, openai.OpenAI(api_key=text, base_url=gateway.url, max_retries=0)

    return make


def test_without_the_right_key_nothing_is_told(keyed: Any) -> None:
    gateway, client = keyed()
    for wrong in ("sk-made-up", a_key(2)[0], client.api_key[:-1] + "a", ""):
        with openai.OpenAI(api_key=wrong or "x", base_url=gateway.url, max_retries=0) as other:
            for ask in (
                lambda other=other: other.models.list(),
                lambda other=other: other.chat.completions.create(model="m", messages=HELLO),
            ):
                with pytest.raises(openai.AuthenticationError) as caught:
                    ask()
                assert caught.value.code == "invalid_api_key"
    assert client.chat.completions.create(model="m", messages=HELLO).choices
    client.close()


def test_a_key_sees_and_asks_its_models_and_no_others(keyed: Any) -> None:
    _, client = keyed(models=("m",))
    assert [each.id for each in client.models.list()] == ["m"]
    client.chat.completions.create(model="m", messages=HELLO)
    for ask in (lambda: client.chat.completions.create(model="b", messages=HELLO), lambda: client.models.retrieve("b")):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert caught.value.code == "model_not_found"
    client.close()


def test_a_rate_that_is_reached_says_when_to_come_again(keyed: Any) -> None:
    _, client = keyed(requests_per_minute=2)
    client.chat.completions.create(model="m", messages=HELLO)
    client.chat.completions.create(model="m", messages=HELLO)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="m", messages=HELLO)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert "x-should-retry" not in caught.value.response.headers
    client.close()


def test_a_budget_that_is_spent_is_not_worth_another_try(keyed: Any, replica: ScriptedReplica) -> None:
    gateway, client = keyed(tokens_per_month=11)
    client.chat.completions.create(model="m", messages=HELLO)  # 11 tokens, by what the replica says
    before = len(replica.seen)
    with pytest.raises(openai.RateLimitError) as caught:
        client.with_options(max_retries=3).chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(replica.seen) == before
    assert gateway.ask(lambda each: each.figures.refused_total) == 1, "the client did not try again"
    client.close()


def test_usage_is_told_by_key_and_model(keyed: Any) -> None:
    gateway, client = keyed()
    client.chat.completions.create(model="m", messages=HELLO)
    list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    list(client.responses.create(model="b", input="x", stream=True))
    rows = {row.model: row for row in gateway.ask(lambda each: each.usage.take())}
    assert {row.user for row in rows.values()} == {"ada"}
    of_m, of_b = rows["m"], rows["b"]
    assert (of_m.requests, of_m.prompt_tokens, of_m.cached_tokens, of_m.completion_tokens) == (2, 18, 8, 4)
    assert (of_b.service, of_b.prompt_tokens, of_b.cached_tokens, of_b.completion_tokens) == ("b", 5, 3, 1)
    assert of_m.estimated_tokens == of_b.estimated_tokens == 0
    assert gateway.ask(lambda each: each.usage.take()) == ()
    client.close()


# -- without a socket


def gate(**more: Any) -> tuple[KeyGate, ServiceKey]:
    _, key = a_key(**more)
    made = KeyGate()
    made.use([key], required=True)
    return made, key


def refused(made: KeyGate, key: ServiceKey, tokens: int, at: float) -> RequestRefused | None:
    try:
        made.admit(key, tokens, at, at)
    except RequestRefused as found:
        return found
    return None


def test_the_minute_slides() -> None:
    made, key = gate(requests_per_minute=60)
    assert [refused(made, key, 1, AT + 59) is None for _ in range(61)] == [True] * 60 + [False]
    assert refused(made, key, 1, AT + 60.5) is not None, "most of the last minute is still within 60 s"
    assert [refused(made, key, 1, AT + 90) is None for _ in range(40)].count(True) in (29, 30, 31)
    assert [refused(made, key, 1, AT + 300) is None for _ in range(61)].count(True) == 60


def test_tokens_count_as_the_answer_tells_them() -> None:
    made, key = gate(tokens_per_minute=100)
    assert refused(made, key, 50, AT) is None
    made.settle(key, 50, 10, AT)
    assert refused(made, key, 90, AT) is None
    found = refused(made, key, 1, AT)
    assert found is not None and found.status == 429 and found.should_retry is None
    fresh, key = gate(tokens_per_minute=100)
    assert refused(fresh, key, 1_000, AT) is None, "one that is larger than the limit passes where nothing else does"


def test_what_other_gateways_admitted_counts_too() -> None:
    made, key = gate(requests_per_minute=10)
    assert refused(made, key, 1, AT) is None
    made.hear("other", {key.key_id: KeyCount(int(AT // 60), 9)}, AT)
    assert refused(made, key, 1, AT) is not None
    assert refused(made, key, 1, AT + 120) is None, "that gateway has not been heard of since"


@pytest.mark.parametrize(
    ("limit", "spent"), [("tokens_per_month", Spent(990, 0)), ("requests_per_month", Spent(0, 999))]
)
def test_a_budget_counts_what_was_used_elsewhere_and_begins_anew_with_the_month(limit: str, spent: Spent) -> None:
    made, key = gate(**{limit: 1_000})
    made.spent_elsewhere(month_of(AT), {key.key_id: spent})
    assert refused(made, key, 10, AT) is None
    assert made.take_spent(AT) == (month_of(AT), {key.key_id: Spent(10, 1)})
    found = refused(made, key, 1, AT)
    assert found is not None and found.code == "insufficient_quota" and found.should_retry is False
    assert made.take_spent(AT)[1] == {}, "what is refused counts for nothing"
    made.settle(key, 10, 4, AT)
    assert made.take_spent(AT)[1] == {key.key_id: Spent(4, 1)}
    assert refused(made, key, 1, AT + 40 * 86_400) is None
    unbounded, other = gate()
    assert refused(unbounded, other, 1, AT) is None and unbounded.take_spent(AT)[1] == {}


def test_a_key_opens_nothing_once_it_has_run_out() -> None:
    text, key = a_key(expires_at=AT + 5)
    made = KeyGate()
    made.use([key], required=False)
    assert made.check(bearer(text), "", 0.0, AT) == key
    with pytest.raises(RequestRefused) as caught:
        made.check(bearer(text), "", 0.0, AT + 5)
    assert caught.value.status == 401


def test_without_keys_only_this_machine_is_served() -> None:
    made = KeyGate()
    made.use([], required=False)
    for said in (None, b"Bearer sk-made-up", b"Basic x", b""):
        assert made.check(said, "", 0.0, AT) is None
        with pytest.raises(RequestRefused):
            made.check(said, "10.0.0.9", 0.0, AT)
    with pytest.raises(RequestRefused):
        made.check(bearer(a_key()[0]), "", 0.0, AT)


def test_wrong_keys_of_one_address_are_slowed_down_and_right_ones_pass() -> None:
    text, key = a_key()
    made = KeyGate()
    made.use([key], required=True)
    statuses = []
    for _ in range(30):
        with pytest.raises(RequestRefused) as caught:
            made.check(b"Bearer wrong", "10.0.0.9", 0.0, AT)
        statuses.append(caught.value.status)
    assert statuses == [401] * 20 + [429] * 10
    assert made.check(bearer(text), "10.0.0.9", 0.0, AT) == key


def test_news_come_out_as_they_went_in_and_all_else_is_refused() -> None:
    news = GatewayNews()
    news.blocks("chat", "r0.1", (1, 2**64 - 1))
    loads = {("chat", "r0.1"): ReplicaLoad(1, 2, 3)}
    keys = {"k": KeyCount(1, 2, 3, 4, 5)}
    body = news.take(loads, keys)
    read = read_news(body)
    assert (read.blocks, read.loads, read.keys) == ({("chat", "r0.1"): (1, 2**64 - 1)}, loads, keys)
    assert read_news(news.take({}, {})).blocks == {}
    import msgpack

    for wrong in (b"", b"\xc1", b"\x93", msgpack.packb([1, 2, 3]), msgpack.packb([[["a", "b", b"1"]], [], []]),
                  msgpack.packb([[], [["a", "b", -1, 0, 0]], []]), msgpack.packb([[], [], [["k"]]]),
                  msgpack.packb({"a": 1}), b"\xdd\xff\xff\xff\xff"):  # fmt: skip
        with pytest.raises(MalformedMessage):
            read_news(wrong)


def test_the_hash_of_nothing_is_no_keys_hash() -> None:
    made = KeyGate()
    made.use([ServiceKey("x", hash_of(""), "ada")], required=True)
    with pytest.raises(RequestRefused):
        made.check(b"Bearer ", "", 0.0, AT)
