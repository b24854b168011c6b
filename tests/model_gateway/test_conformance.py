"""OpenAI's own Python client against the gateway: each row of what clients send and need."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from actorgrid.actors.model_gateway.running_service import RunningService
from tests.processes import until

from .running import RunningGateway, endpoint, route, table
from .scripted_replica import ERRORS, ScriptedReplica

HELLO: list[Any] = [{"role": "user", "content": "hi"}]


def plan(name: str) -> dict[str, str]:
    return {"x-test": name}


def stream(client: openai.OpenAI, name: str = "", **more: Any) -> list[ChatCompletionChunk]:
    return list(
        client.chat.completions.create(model="m", messages=HELLO, stream=True, extra_headers=plan(name), **more)
    )


def counted(gateway: RunningGateway) -> tuple[int, int]:
    """How many requests failed: of the replica's revision, and of the service."""

    def of(service: RunningService) -> tuple[int, int]:
        return service.revision("v1").failures_total, service.errors_total

    return gateway.ask(lambda each: of(each.services["chat"]))


def said(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_models_are_listed_and_one_is_found_by_its_name(client: openai.OpenAI) -> None:
    assert [(each.id, each.object, each.owned_by) for each in client.models.list()] == [("m", "model", "actorgrid")]
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_chat_is_answered_with_its_usage_and_a_request_id(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == "ab"
    assert answer.usage is not None and answer.usage.total_tokens == 11
    assert answer._request_id and answer._request_id.startswith("req-")


@pytest.mark.parametrize("name", ["", "crlf", "no-space", "comment", "two-lines", "no-done", "bytes", "slow"])
def test_a_stream_is_read_whatever_its_line_ends_and_pieces(
    client: openai.OpenAI, replica: ScriptedReplica, name: str
) -> None:
    replica.go_on.set()
    assert said(stream(client, name)) == "ab"


def test_usage_of_a_stream_comes_where_it_was_asked_for(client: openai.OpenAI, replica: ScriptedReplica) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 4
    assert replica.seen[-1].json["stream_options"] == {"include_usage": True}


def test_usage_is_asked_for_by_the_gateway_and_left_out_of_what_the_client_gets(
    client: openai.OpenAI, replica: ScriptedReplica
) -> None:
    chunks = stream(client)
    assert replica.seen[-1].json["stream_options"] == {"include_usage": True}
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_other_stream_options_stay_where_usage_is_asked_for(client: openai.OpenAI, replica: ScriptedReplica) -> None:
    stream(client, stream_options={"include_obfuscation": False})
    assert replica.seen[-1].json["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_a_service_may_have_usage_left_alone(replica: ScriptedReplica, gateways: Any) -> None:
    gateway = gateways(table(route(endpoint(replica), asks_usage=False)))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client:
        stream(client)
    assert "stream_options" not in replica.seen[-1].json


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_a_stream_is_raised_whatever_its_form(
    client: openai.OpenAI, gateway: RunningGateway, name: str
) -> None:
    got: list[str] = []
    failures, errors = counted(gateway)
    with pytest.raises(openai.APIError, match="engine died"):
        for chunk in client.chat.completions.create(model="m", messages=HELLO, stream=True, extra_headers=plan(name)):
            got.append(chunk.choices[0].delta.content or "")
    assert got == ["a"]
    until(lambda: counted(gateway) == (failures + 1, errors + 1), "it counts as one that failed", 10)


@pytest.mark.parametrize("name", ["response-error", "response-failed"])
def test_a_response_that_fails_tells_it_in_its_own_events(
    client: openai.OpenAI, gateway: RunningGateway, name: str
) -> None:
    failures, errors = counted(gateway)
    told = list(client.responses.create(model="m", input="x", stream=True, extra_headers=plan(name)))
    last = told[-1]
    assert len(told) == 6 and last.type in ("error", "response.failed")
    error = last.response.error if last.type == "response.failed" else last
    assert error is not None and getattr(error, "message", "") == "engine died"
    with (
        pytest.raises(RuntimeError, match=r"response\.completed"),
        client.responses.stream(model="m", input="x", extra_headers=plan(name)) as events,
    ):
        events.get_final_response()
    until(lambda: counted(gateway) == (failures + 2, errors + 2), "they count as failed", 10)


@pytest.mark.parametrize("name", ["cut", "cut-in-event"])
def test_a_stream_that_a_replica_breaks_off_is_an_error_after_what_came(client: openai.OpenAI, name: str) -> None:
    got: list[str] = []
    with pytest.raises(openai.APIError, match="closed the connection"):
        for chunk in client.chat.completions.create(model="m", messages=HELLO, stream=True, extra_headers=plan(name)):
            got.append(chunk.choices[0].delta.content or "")
    assert got == ["a"]


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (
            400,
            '{"error":{"message":"too long","type":"x","param":"messages","code":"c"}}',
            openai.BadRequestError,
            "too long",
        ),
        (404, '{"detail":"nope"}', openai.NotFoundError, "nope"),
        (409, '{"message":"busy"}', openai.ConflictError, "busy"),
        (422, '{"detail":[{"loc":["body"],"msg":"bad"}]}', openai.UnprocessableEntityError, "bad"),
        (429, "slow down", openai.RateLimitError, "slow down"),
        (500, "plain text", openai.InternalServerError, "plain text"),
        (502, "<html>x</html>", openai.InternalServerError, "a page"),
        (503, "", openai.InternalServerError, "status 503"),
    ],
)
def test_a_replicas_error_keeps_its_status_and_its_message(
    client: openai.OpenAI, status: int, body: str, error: type[openai.APIStatusError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        client.chat.completions.create(model="m", messages=HELLO, extra_headers=plan(f"status:{status}:{body}"))
    assert caught.value.status_code == status
    assert caught.value.request_id
    assert isinstance(caught.value.body, dict) and set(caught.value.body) == {"message", "type", "param", "code"}


def test_replicas_say_whether_and_when_a_client_tries_again(
    replicas: Callable[..., ScriptedReplica], gateways: Callable[..., RunningGateway]
) -> None:
    replica = replicas()
    gateway = gateways(table(route(endpoint(replica))))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=2) as client:
        for headers, tries in (
            ("", 3), ("x-should-retry: false\r\n", 1), ("retry-after-ms: 1\r\n", 3), ("retry-after: 0\r\n", 3),
        ):  # fmt: skip
            replica.more_headers = headers.encode()
            before = len(replica.seen)
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="m", messages=HELLO, extra_headers=plan("status:429:slow"))
            assert len(replica.seen) - before == tries, headers
        replica.more_headers = b"x-should-retry: true\r\n"
        before = len(replica.seen)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=HELLO, extra_headers=plan("status:400:no"))
        assert len(replica.seen) - before == 3


def test_a_model_that_is_not_is_said_to_be_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gone", messages=HELLO)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


@pytest.mark.parametrize("given", ["base64", "floats"])
@pytest.mark.parametrize("asked", ["base64", "float", None])
def test_embeddings_come_in_the_form_that_was_asked_for(client: openai.OpenAI, given: str, asked: str | None) -> None:
    raw = client.embeddings.with_raw_response.create(
        model="m",
        input=["x"],
        extra_headers=plan(given),
        **({} if asked is None else {"encoding_format": asked}),  # type: ignore[arg-type]
    )
    value = json.loads(raw.text)["data"][0]["embedding"]
    assert isinstance(value, list if asked == "float" else str), "without a word both of OpenAI's clients say base64"
    if asked != "base64":  # who asks for that gets the text
        assert raw.parse().data[0].embedding == [1.0, 2.0, 3.0]


def test_embeddings_of_token_ids_are_passed_on(client: openai.OpenAI, replica: ScriptedReplica) -> None:
    client.embeddings.create(model="m", input=[[1, 2, 3]])
    assert replica.seen[-1].json["input"] == [[1, 2, 3]]


def test_completions_are_answered(client: openai.OpenAI) -> None:
    assert client.completions.create(model="m", prompt="x").choices[0].text == "ab"


def test_responses_stream_all_their_events(client: openai.OpenAI) -> None:
    kinds = [event.type for event in client.responses.create(model="m", input="x", stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and len(kinds) == 9
    with client.responses.stream(model="m", input="x") as events:
        assert len(list(events)) == 9
        assert events.get_final_response().output_text == "hi"
    assert client.responses.create(model="m", input="x").output_text == "hi"


def test_audio_and_images_pass_through(client: openai.OpenAI, replica: ScriptedReplica) -> None:
    assert client.audio.speech.create(model="m", input="x", voice="alloy").content == b"\xff\xfb\x00\x01"
    spoken = client.audio.transcriptions.create(model="m", file=("a.wav", b"RIFF\r\n\r\n--\x00"))
    assert spoken.text == "spoken"
    assert b"RIFF\r\n\r\n--\x00" in replica.seen[-1].body
    images = client.images.generate(model="m", prompt="x")
    assert images.data is not None and images.data[0].b64_json == "aGk="


def test_unknown_fields_pass_byte_for_byte(client: openai.OpenAI, replica: ScriptedReplica, gateway: Any) -> None:
    import http.client

    body = (
        b'{ "model" : "m", "messages":[{"role":"user","content":"\\u00e4 \xc3\xa4"}], "x":1e400, "z":[1 ,2], "y":0.10 }'
    )
    asked = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    asked.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    assert asked.getresponse().status == 200
    asked.close()
    assert replica.seen[-1].body == body


def test_what_the_client_shows_of_itself_does_not_reach_the_replica(
    client: openai.OpenAI, replica: ScriptedReplica
) -> None:
    client.chat.completions.create(
        model="m",
        messages=HELLO,
        extra_headers={
            "x-forwarded-for": "9.9.9.9", "cookie": "a=b", "connection": "x-secret, keep-alive", "x-secret": "s",
            "x-actorgrid-replica": "r9", "x-kept": "yes", "te": "trailers",
        },
    )  # fmt: skip
    seen = replica.seen[-1]
    for name in ("authorization", "x-forwarded-for", "cookie", "x-secret", "x-actorgrid-replica", "te", "connection"):
        assert seen.header(name) is None, name
    assert seen.header("x-kept") == "yes"
    assert seen.header("accept-encoding") == "identity"
    assert seen.head.lower().count(b"content-length") == 1


def test_an_adapter_is_a_model_of_its_own_and_written_into_the_request(replica: ScriptedReplica, gateways: Any) -> None:
    from actorgrid.actors.serving.table import LoraAdapter

    made = route(endpoint(replica), served_as="base", adapters=(LoraAdapter("m-law", "law"),))
    gateway: RunningGateway = gateways(table(made))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client:
        assert {each.id for each in client.models.list()} == {"m", "m-law"}
        client.chat.completions.create(model="m-law", messages=[{"role": "user", "content": '"model":"m-law"'}])
        assert replica.seen[-1].json["model"] == "law"
        assert replica.seen[-1].json["messages"][0]["content"] == '"model":"m-law"'
        client.chat.completions.create(model="m", messages=HELLO)
        assert replica.seen[-1].json["model"] == "base"


def test_connections_to_replicas_are_used_again(replica: ScriptedReplica, gateways: Any) -> None:
    gateway: RunningGateway = gateways(table(route(endpoint(replica))))
    with openai.OpenAI(api_key="k", base_url=gateway.url, max_retries=0) as client:
        for _ in range(5):
            client.chat.completions.create(model="m", messages=HELLO)
            # To its very end: the client hangs up behind [DONE] where the last chunk is not there yet.
            with client.chat.completions.with_streaming_response.create(
                model="m", messages=HELLO, stream=True
            ) as answer:
                answer.read()
            client.models.list()
    assert gateway.ask(lambda each: each.pool.opened_total) == 1


def test_streams_say_that_they_are_not_to_be_buffered(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=HELLO, stream=True)
    assert raw.headers["cache-control"] == "no-cache" and raw.headers["x-accel-buffering"] == "no"
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in raw.headers
    list(raw.parse())
