"""The official OpenAI client against a served class: each row of what such clients send and need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from .served import Parrot, Served, serving


@pytest.fixture(scope="module")
def parrot() -> Iterator[Served]:
    with serving(Parrot) as served:
        yield served


@pytest.fixture
def client(parrot: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{parrot.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def said(text: str, **others: Any) -> dict[str, Any]:
    return {"model": "parrot", "messages": [{"role": "user", "content": text}], **others}


def test_models_are_listed_and_shown(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["parrot"]
    assert client.models.retrieve("parrot").owned_by == "actorgrid"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_chat_is_answered_with_its_usage(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(**said("hello old friend"))
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hello old friend")
    assert choice.finish_reason == "stop"
    assert found.usage is not None and found.usage.prompt_tokens_details is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (16, 3, 19)
    assert found.usage.prompt_tokens_details.cached_tokens == 8
    assert found._request_id


def test_a_stream_gives_the_same_text_and_usage_only_when_asked(client: openai.OpenAI) -> None:
    plain = list(client.chat.completions.create(**said("a b c"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain) == "a b c"
    assert plain[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in plain][-2:] == [None, "stop"]
    assert len({chunk.id for chunk in plain}) == 1 and all(chunk.model == "parrot" for chunk in plain)
    assert all(chunk.usage is None for chunk in plain)
    with_usage = list(
        client.chat.completions.create(**said("a b c"), stream=True, stream_options={"include_usage": True})
    )
    assert with_usage[-1].choices == [] and with_usage[-1].usage is not None
    assert with_usage[-1].usage.completion_tokens == 3


def test_a_stream_on_the_wire_is_as_clients_need_it(parrot: Served) -> None:
    status, headers, body = parrot.ask("/v1/chat/completions", said("a b", stream=True))
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-encoding" not in headers
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-2])


def test_several_answers_come_side_by_side(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(**said("x y", n=3))
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 6)
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(**said("x y", n=3), stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) == {"x y"}


def test_tokens_are_bounded_and_the_reason_says_so(client: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        found = client.chat.completions.create(**said("one two three four", **{name: 2}))
        assert found.choices[0].message.content == "one two"
        assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "stop, text",
    [(["two"], "one "), (["e t", "zzz"], "on"), ("ee f", "one two thr"), (["fourth"], "one two three four")],
)
def test_a_text_ends_before_a_stop_string_wherever_pieces_are_cut(client: openai.OpenAI, stop: Any, text: str) -> None:
    found = client.chat.completions.create(**said("one two three four", stop=stop))
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (text, "stop")
    streamed = client.chat.completions.create(**said("one two three four", stop=stop), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text


def test_content_in_parts_is_text(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]
    found = client.chat.completions.create(model="parrot", messages=[{"role": "user", "content": parts}])
    assert found.choices[0].message.content == "in parts"


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    found = client.completions.create(model="parrot", prompt=["a", "b"], seed=7, temperature=0.5, n=2)
    assert [choice.text for choice in found.choices] == [
        "a seed=7 temperature=0.5",
        "a seed=8 temperature=0.5",
        "b seed=7 temperature=0.5",
        "b seed=8 temperature=0.5",
    ]
    assert found.usage is not None and found.usage.prompt_tokens == 2
    echoed = client.completions.create(model="parrot", prompt="a", echo=True, stream=True)
    assert "".join(choice.text for chunk in echoed for choice in chunk.choices).startswith("aa seed")


def test_embeddings_as_base64_and_as_floats_are_the_same(client: openai.OpenAI, parrot: Served) -> None:
    usual = client.embeddings.create(model="parrot", input=["abc", "de"])  # asks for base64
    assert [each.embedding for each in usual.data] == [[3.0, 0.5, -1.25], [2.0, 0.5, -1.25]]
    floats = client.embeddings.create(model="parrot", input="abc", encoding_format="float")
    assert floats.data[0].embedding == [3.0, 0.5, -1.25]
    assert floats.usage.prompt_tokens == 3
    _, _, body = parrot.ask("/v1/embeddings", {"model": "parrot", "input": "abc", "encoding_format": "base64"})
    assert body["data"][0]["embedding"] == "AABAQAAAAD8AAKC/"


def test_token_ids_of_another_alphabet_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not token ids"):
        client.embeddings.create(model="parrot", input=[[1, 2], [3]])


def test_a_response_is_answered_and_streamed(client: openai.OpenAI) -> None:
    found = client.responses.create(model="parrot", input="to you", instructions="be kind")
    assert (found.output_text, found.status) == ("to you", "completed")
    assert found.usage is not None and found.usage.output_tokens == 2
    cut = client.responses.create(model="parrot", input="one two three", max_output_tokens=2)
    assert (cut.output_text, cut.status) == ("one two", "incomplete")
    events = list(client.responses.create(model="parrot", input="to you", stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    with client.responses.stream(model="parrot", input="to you") as stream:
        assert stream.get_final_response().output_text == "to you"


def test_a_class_that_fails_at_once_is_an_error_with_a_status(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="ValueError: as it was told"):
            list(client.chat.completions.create(**said("fail at once", stream=stream)))


def test_a_class_that_fails_in_the_middle_ends_the_stream_with_the_error(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**said("this then FAIL now", stream=True))
    text = ""
    with pytest.raises(openai.APIError, match="as it was told"):
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "this then"


@pytest.mark.parametrize(
    "wrong, where",
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 17}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(client: openai.OpenAI, wrong: Any, where: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**said("x"), **wrong})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == where


def test_another_model_does_not_exist(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**said("x"), "model": "gpt-9"})
    assert caught.value.code == "model_not_found"


def test_a_client_that_leaves_ends_what_the_class_does_for_it(client: openai.OpenAI, parrot: Served) -> None:
    left = parrot.replica._object.left
    stream = client.chat.completions.create(**said("streamed WAIT here", stream=True))
    assert next(iter(stream)).choices[0].delta.content == "streamed"
    stream.close()
    parrot.until(lambda: "streamed WAIT here" in left and not parrot.replica.in_flight)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(**said("whole WAIT here"))
    parrot.until(lambda: "whole WAIT here" in left and not parrot.replica.in_flight)
    _, _, metrics = parrot.ask("/metrics", method="GET")
    assert b'finished_reason="abort",model_name="parrot"} 2.0' in metrics


def test_figures_have_the_names_that_vllm_gave_them(client: openai.OpenAI, parrot: Served) -> None:
    client.chat.completions.create(**said("count me"))
    text = parrot.ask("/metrics", method="GET")[2].decode()
    for name in (
        'vllm:num_requests_running{model_name="parrot"} 0.0',
        'vllm:num_requests_waiting{model_name="parrot"} 0.0',
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_count",
        'finished_reason="stop"',
    ):
        assert name in text, name


def test_a_replica_may_go_by_other_names() -> None:
    with serving(Parrot, ("small", "small-v2")) as served:
        names = [each["id"] for each in served.ask("/v1/models", method="GET")[2]["data"]]
        assert names == ["small", "small-v2"]
        assert served.ask("/v1/chat/completions", {**said("x"), "model": "small-v2"})[2]["model"] == "small-v2"
