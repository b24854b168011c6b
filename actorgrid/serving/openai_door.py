"""The /v1 routes of a class with ``chat``, ``complete`` or ``embed``, as OpenAI's clients know them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from actorgrid.errors import BadRequest, ServingError, WrongAnswer

from .answers import EventStream, UnknownModel, answer, priority_of, timeout_of
from .figures import ReplicaFigures
from .generation import ChatRequest, CompletionRequest
from .openai_requests import ChatBody, CompletionBody, EmbeddingBody, parsed
from .replica import ServiceReplica
from .text_answers import AnswerEnd, TextCall, guessed_tokens, merged

Shown = dict[str, Any]


class LanguageDoor:
    """Serves one replica under the names *models*; the first is the one that answers say."""

    def __init__(self, replica: ServiceReplica, models: Sequence[str], figures: ReplicaFigures) -> None:
        self.replica = replica
        self.models = tuple(models)
        self.figures = figures
        self._created = int(time.time())

    # -- models

    async def list_models(self, _request: web.Request) -> web.StreamResponse:
        """``GET /v1/models``."""
        return answer({"object": "list", "data": [self._model(name) for name in self.models]})

    async def show_model(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/models/NAME``."""
        name = request.match_info["name"]
        self.check_model(name)
        return answer(self._model(name))

    def _model(self, name: str) -> Shown:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "actorgrid"}

    def check_model(self, name: str) -> None:
        """Raise UnknownModel where the replica does not serve it."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise UnknownModel(f"the model {name[:100]!r} does not exist here", found=known, param="model")

    def call_of(self, request: web.Request, method: str, stops: Sequence[str]) -> TextCall:
        """How the class is asked for a text. Raises BadRequest on headers without sense."""
        return TextCall(self.replica, self.figures, method, stops, priority_of(request), timeout_of(request))

    # -- texts

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        body: ChatBody = parsed(await request.read(), ChatBody)
        self.check_model(body.model)
        call = self.call_of(request, "chat", body.stops)
        asked = ChatRequest(body.model, body.turns, body.sampling)
        requests = [replace(asked, sampling=_seeded(asked.sampling, number)) for number in range(body.n or 1)]
        head = _head("chatcmpl", body.model)
        answers = merged([call.generate(each) for each in requests])
        if not body.stream:
            texts, ends = await _gathered(answers, len(requests))
            choices = [
                {
                    "index": number,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": end.finish_reason,
                }
                for number, (text, end) in enumerate(zip(texts, ends, strict=True))
            ]
            return answer(
                {**head, "object": "chat.completion", "choices": choices, "usage": usage_of(ends, body.n or 1)}
            )
        head["object"] = "chat.completion.chunk"
        begun: set[int] = set()

        def choice(number: int, given: str | AnswerEnd) -> Shown:
            delta: Shown = {} if number in begun else {"role": "assistant", "content": ""}
            begun.add(number)
            if isinstance(given, str):
                delta["content"] = given
            reason = given.finish_reason if isinstance(given, AnswerEnd) else None
            return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}

        return await self._stream(request, answers, head, choice, len(requests) if body.with_usage else 0)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/completions``."""
        body: CompletionBody = parsed(await request.read(), CompletionBody)
        self.check_model(body.model)
        call = self.call_of(request, "complete", body.stops)
        asked = [
            CompletionRequest(body.model, prompt, _seeded(body.sampling, number))
            for prompt in body.prompts
            for number in range(body.n or 1)
        ]
        head = {**_head("cmpl", body.model), "object": "text_completion"}
        answers = merged([call.generate(each) for each in asked])
        before = [each.prompt if body.echo else "" for each in asked]
        if not body.stream:
            texts, ends = await _gathered(answers, len(asked))
            choices = [
                {"index": number, "text": echo + text, "logprobs": None, "finish_reason": end.finish_reason}
                for number, (echo, text, end) in enumerate(zip(before, texts, ends, strict=True))
            ]
            return answer({**head, "choices": choices, "usage": usage_of(ends, body.n or 1)})

        def choice(number: int, given: str | AnswerEnd) -> Shown:
            text, before[number] = before[number], ""
            reason = given.finish_reason if isinstance(given, AnswerEnd) else None
            text += given if isinstance(given, str) else ""
            return {"index": number, "text": text, "logprobs": None, "finish_reason": reason}

        return await self._stream(request, answers, head, choice, (body.n or 1) if body.with_usage else 0)

    async def _stream(
        self,
        request: web.Request,
        answers: Any,
        head: Shown,
        choice: Callable[[int, str | AnswerEnd], Shown],
        usage_choices: int,
    ) -> web.StreamResponse:
        stream = EventStream(request)
        ends: dict[int, AnswerEnd] = {}
        no_usage: Shown = {"usage": None} if usage_choices else {}
        async with stream.commented(), contextlib.aclosing(answers):
            try:
                async for number, given in answers:
                    await stream.send({**head, "choices": [choice(number, given)], **no_usage})
                    if isinstance(given, AnswerEnd):
                        ends[number] = given
            except ConnectionResetError:
                raise  # the client is gone: there is nobody to tell
            except Exception as error:  # noqa: BLE001  (whatever the class raises is its caller's to hear)
                await stream.fail(error)
                return await stream.broken()
        if usage_choices:
            in_order = [ends[number] for number in sorted(ends)]
            await stream.send({**head, "choices": [], "usage": usage_of(in_order, usage_choices)})
        return await stream.end()

    # -- embeddings

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/embeddings``."""
        body: EmbeddingBody = parsed(await request.read(), EmbeddingBody)
        self.check_model(body.model)
        texts = body.texts
        how: Any = {"priority": priority_of(request), "timeout_s": timeout_of(request)}
        if self.replica.is_batched("embed"):
            asked = [asyncio.ensure_future(self.replica.call("embed", (text,), {}, **how)) for text in texts]
            try:
                vectors = await asyncio.gather(*asked)
            finally:
                for each in asked:
                    each.cancel()
        else:
            given = await self.replica.call("embed", (texts,), {}, **how)
            vectors = list(given) if hasattr(given, "__len__") else []
        if len(vectors) != len(texts):
            raise WrongAnswer("embed gives one vector for each text", asked=f"{len(texts)}", found=f"{len(vectors)}")
        plain = [_vector(each) for each in vectors]
        if body.dimensions is not None and any(body.dimensions != len(each) for each in plain):
            raise BadRequest(f"vectors of this model have {len(plain[0])} dimensions", param="dimensions")
        data = [
            {"object": "embedding", "index": number, "embedding": _encoded(each, body.encoding_format)}
            for number, each in enumerate(plain)
        ]
        tokens = sum(map(getattr(self.replica.cls, "count_tokens", None) or guessed_tokens, texts))
        self.figures.prompt.inc(tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return answer({"object": "list", "data": data, "model": body.model, "usage": usage})


def usage_of(ends: Sequence[AnswerEnd], choices: int = 1) -> Shown:
    """The tokens of a request with these answers, as OpenAI shows them: a prompt with several *choices* counts once."""
    prompt = sum(end.usage.prompt_tokens for end in ends[::choices])
    made = sum(end.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(end.usage.cached_tokens for end in ends[::choices])},
    }


async def _gathered(answers: Any, count: int) -> tuple[list[str], list[AnswerEnd]]:
    """The whole texts, and how each ended."""
    texts: list[list[str]] = [[] for _ in range(count)]
    ends: dict[int, AnswerEnd] = {}
    async with contextlib.aclosing(answers):
        async for number, given in answers:
            if isinstance(given, AnswerEnd):
                ends[number] = given
            else:
                texts[number].append(given)
    return ["".join(each) for each in texts], [ends[number] for number in range(count)]


def _head(kind: str, model: str) -> Shown:
    return {"id": f"{kind}-{uuid.uuid4().hex}", "object": "", "created": int(time.time()), "model": model}


def _seeded(sampling: Any, number: int) -> Any:
    """The sampling of one of several answers: from one seed, each has another."""
    return sampling if sampling.seed is None or not number else replace(sampling, seed=sampling.seed + number)


def _vector(given: Any) -> list[float]:
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, list | tuple) or not values:
        raise WrongAnswer("embed gives a list of numbers for each text", found=f"a {type(given).__name__}")
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise WrongAnswer(f"embed gives a list of numbers for each text: {error}") from None


def _encoded(vector: list[float], form: str) -> list[float] | str:
    if form == "float":
        return vector
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except OverflowError as error:
        raise ServingError(f"a vector does not fit 32-bit floats: {error}") from None
