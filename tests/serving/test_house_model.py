"""The house's language model as a service: what it writes, what it remembers, and how requests share its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.demo.house_model.choosing import ByteChooser
from actorgrid.demo.house_model.network import NetworkShape, NetworkState
from actorgrid.demo.house_model.prefix_cache import BLOCK, StateCache
from actorgrid.demo.house_model.service import PACE_VARIABLE, PROMPT_MAX, HouseModel
from actorgrid.demo.house_model.text_bytes import END, Utf8Progress, chat_prompt
from actorgrid.errors import BadRequest
from actorgrid.serving.generation import Sampling, StopStrings

from .served import Served, serving


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with serving(HouseModel) as served:
        yield served


@pytest.fixture
def client(house: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def chat(client: openai.OpenAI, *texts: str, **others: Any) -> Any:
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return client.chat.completions.create(model="house", messages=messages, **{"max_tokens": 60, **others})


WORDS = {"the", "a", "of", "is", "and", "to", "it", "that", "host", "hosts", "cluster", "in", "its", "are", "ledger"}


def test_it_writes_english_like_the_documentation(client: openai.OpenAI) -> None:
    text = chat(client, "Tell me about locks.", seed=1, max_tokens=400).choices[0].message.content
    words = text.lower().split()
    assert len(words) > 40
    assert sum(word in WORDS for word in words) > len(words) / 5


def test_a_seed_makes_the_same_text_and_another_another(client: openai.OpenAI) -> None:
    texts = [chat(client, "What is a lease?", seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    cold = [chat(client, "What is a lease?", temperature=0).choices[0].message.content for _ in range(2)]
    assert cold[0] == cold[1]


def test_tokens_are_bytes_and_are_counted(client: openai.OpenAI) -> None:
    found = chat(client, "Hello", seed=3, max_tokens=25)
    assert found.usage.completion_tokens == len(found.choices[0].message.content.encode()) == 25
    assert found.usage.prompt_tokens == len(b"Hello") + 3  # begin, whose turn it is, whose it is next
    assert found.choices[0].finish_reason == "length"


def test_it_ends_by_itself(client: openai.OpenAI) -> None:
    found = chat(client, "What is Locks and semaphores?", seed=9, temperature=0.6, max_tokens=2000)
    assert found.choices[0].finish_reason == "stop"
    assert 0 < found.usage.completion_tokens < 2000


def test_a_conversation_that_goes_on_is_not_read_again(client: openai.OpenAI) -> None:
    question = "How does placement decide which host gets the work, and why? " * 4
    first = chat(client, question, seed=1)
    answer = first.choices[0].message.content
    second = chat(client, question, answer, "And then?", seed=1)
    cached = second.usage.prompt_tokens_details.cached_tokens
    read = first.usage.prompt_tokens + first.usage.completion_tokens
    assert cached % BLOCK == 0 and read - BLOCK <= cached <= read
    again = chat(client, question, answer, "And then?", seed=1)
    assert again.choices[0].message.content == second.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - BLOCK
    other = chat(client, "No: " + question)
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_requests_share_their_steps_and_each_has_its_own_text(client: openai.OpenAI, house: Served) -> None:
    alone = [chat(client, f"Question {number}", temperature=0).choices[0].message.content for number in range(6)]
    runner = house.replica.runners["_advance"]
    batches, items = runner.batches, runner.items

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=60) as many:
            asked = [
                many.chat.completions.create(
                    model="house",
                    messages=[{"role": "user", "content": f"Question {number}"}],
                    temperature=0,
                    max_tokens=60,
                )
                for number in range(6)
            ]
            return [found.choices[0].message.content or "" for found in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == alone
    assert (runner.items - items) > 1.5 * (runner.batches - batches)


def test_similar_texts_have_similar_vectors(client: openai.OpenAI) -> None:
    texts = ["a lock of the cluster", "locks of a cluster", "0x7f 0x80 #### ||||", ""]
    found = np.array([each.embedding for each in client.embeddings.create(model="house", input=texts).data])
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    likeness = found @ found.T
    assert likeness[0, 1] > likeness[0, 2]


def test_what_is_too_long_is_refused_before_anything_is_computed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 65536 bytes"):
        chat(client, "x" * PROMPT_MAX, stream=True)
    with pytest.raises(openai.BadRequestError, match="at most 65536 bytes"):
        client.embeddings.create(model="house", input=["fine", "x" * PROMPT_MAX])


@pytest.mark.parametrize("text", ["Ünïcödé → 日本語 🎉", "\x00\x01", "", "\u2028"])
def test_any_text_may_be_asked_and_what_comes_is_text(client: openai.OpenAI, text: str) -> None:
    given = chat(client, text, seed=5, temperature=2, max_tokens=80).choices[0].message.content
    assert "\ufffd" not in given
    assert all(character >= " " or character in "\n\t" for character in given)


def test_a_text_cannot_take_another_role() -> None:
    for text in ("\xff\xfe\xfd\xfc\xfb", "\udcfd", "<assistant>"):
        prompt = chat_prompt([("user", text)])
        assert [byte for byte in prompt if byte >= 0xF8] == [0xFF, 0xFE, 0xFD]


def test_its_pace_can_be_set_and_has_to_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("fast", "0"):
        monkeypatch.setenv(PACE_VARIABLE, wrong)
        with pytest.raises(BadRequest, match=PACE_VARIABLE):
            HouseModel()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=60))
def test_only_utf8_is_let_through_and_all_of_it(offered: list[int]) -> None:
    progress, taken, text = Utf8Progress(), bytearray(), ""
    for byte in offered:
        if progress.allows(byte):
            taken.append(byte)
            text += progress.take(byte)
    assert bytes(taken).decode("utf-8", "ignore") == text
    assert progress.inside or bytes(taken).decode("utf-8") == text


@settings(deadline=None)
@given(st.text())
def test_no_text_is_refused_by_the_alphabet(text: str) -> None:
    progress = Utf8Progress()
    found = ""
    for byte in text.encode():
        assert progress.allows(byte)
        found += progress.take(byte)
    assert found == text and not progress.inside


def chosen(sampling: Sampling, logits: np.ndarray, count: int = 200) -> list[int]:
    chooser = ByteChooser(sampling)
    found = []
    for _ in range(count):
        found.append(chooser.choose(logits))
        if found[-1] != END:
            chooser.progress.take(found[-1])
    return found


def test_bytes_are_drawn_by_their_odds_within_top_p() -> None:
    logits = np.full(256, -50, np.float32)
    logits[[97, 98, 99]] = np.log([0.6, 0.3, 0.1])
    drawn = chosen(Sampling(seed=1, temperature=1 / 0.7), logits, 4000)  # the model's own odds
    assert [drawn.count(byte) / 4000 for byte in (97, 98, 99)] == pytest.approx([0.6, 0.3, 0.1], abs=0.04)
    assert set(chosen(Sampling(seed=1, temperature=1 / 0.7, top_p=0.85), logits)) == {97, 98}
    assert set(chosen(Sampling(seed=1, top_p=1e-6), logits)) == {97}
    assert set(chosen(Sampling(temperature=0), logits)) == {97}


def test_penalties_make_what_was_said_less_likely() -> None:
    logits = np.full(256, -50, np.float32)
    logits[[97, 98]] = [1.0, 0.0]
    assert chosen(Sampling(temperature=0), logits, 3) == [97, 97, 97]
    assert chosen(Sampling(temperature=0, presence_penalty=1.5), logits, 3) == [97, 98, 97]
    assert chosen(Sampling(temperature=0, frequency_penalty=0.6), logits, 4) == [97, 97, 98, 97]


def test_no_answer_ends_or_breaks_within_a_character() -> None:
    logits = np.zeros(256, np.float32)
    logits[END] = 8
    logits[0xF0] = 9
    found = chosen(Sampling(temperature=0), logits, 4)
    bytes(found).decode("utf-8")
    never = np.zeros(256, np.float32)
    never[[0x00, 0x80, 0xC0, 0xF8, 0xFD, 0xFE, 0xFF]] = 99
    assert not set(chosen(Sampling(seed=2), never)) & {0x00, 0xC0, 0xF8, 0xFD, 0xFE, 0xFF}


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    shape = NetworkShape(width=8, memory=8, inner=8, layers=1, hashed=8)
    one = NetworkState.empty(shape).size_bytes + 600
    cache = StateCache(bytes_max=3 * one)

    def remember(text: bytes) -> None:
        known, _, digest = cache.longest(text + b"!")
        for first in range(known, len(text), BLOCK):
            assert digest.take(text[first : first + BLOCK])
            cache.put(digest.name, NetworkState.empty(shape))

    a, b = b"a" * BLOCK, b"b" * BLOCK
    remember(a + b)
    remember(b)
    assert (cache.longest(a + b + b"?")[0], cache.longest(a + a)[0], len(cache)) == (2 * BLOCK, BLOCK, 3)
    cache.longest(a + b + b"?")
    remember(b"c" * BLOCK)
    assert cache.longest(b + b"?")[0] == 0, "b alone was used longest ago"
    assert cache.longest(a + b + b"?")[0] == 2 * BLOCK
    assert cache.size_bytes <= 3 * one
    assert cache.longest(a)[0] == 0, "the last byte has to be read, for the odds of the next"


def test_stop_strings_never_give_out_what_they_cut() -> None:
    stops = StopStrings(["END", "E!"])
    given = [stops.take(piece) for piece in ("so E", "N", "x EN", "D more")]
    assert given == [("so ", False), ("", False), ("ENx ", False), ("", True)]
    assert StopStrings([]).take("any") == ("any", False)
    held = StopStrings(["END"])
    assert held.take("the EN") == ("the ", False)
    assert held.rest() == "EN"
