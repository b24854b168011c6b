"""Who chats in the demo of services: OpenAI's own client where it is installed, else a small one of ours."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from actorgrid.errors import AnswerBroken, HostUnreachable

TIMEOUT_S = 60.0
TEMPERATURE = 0.6
LINE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """Who said what: *role* is user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """The tokens of an answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class ChatClient(Protocol):
    """Asks a server of OpenAI's kind."""

    name: str

    def stream(
        self, url: str, model: str, turns: Sequence[SpokenTurn], tokens: int, seed: int
    ) -> Iterator[str | ChatUsage]:
        """The answer in pieces, and what it took at last. *url* ends in ``/v1``.

        Raises HostUnreachable where nothing was answered, AnswerBroken where the answer ended before its end.
        """
        ...


def chat_client() -> ChatClient:
    """The official client, where it is installed."""
    return OfficialClient() if importlib.util.find_spec("openai") is not None else SmallClient()


def body_of(model: str, turns: Sequence[SpokenTurn], tokens: int, seed: int) -> dict[str, Any]:
    """The request."""
    return {
        "model": model,
        "messages": [{"role": turn.role, "content": turn.text} for turn in turns],
        "max_tokens": tokens,
        "seed": seed,
        "temperature": TEMPERATURE,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class OfficialClient:
    """OpenAI's Python client, without its retries: what fails is to be seen."""

    def __init__(self) -> None:
        self._library: Any = importlib.import_module("openai")
        self.name = f"openai {self._library.__version__}"

    def stream(
        self, url: str, model: str, turns: Sequence[SpokenTurn], tokens: int, seed: int
    ) -> Iterator[str | ChatUsage]:
        """As ChatClient.stream."""
        begun = False
        body = body_of(model, turns, tokens, seed)
        with self._library.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
            usage: ChatUsage | None = None
            try:
                for chunk in client.chat.completions.create(**body):
                    begun = True
                    if chunk.usage is not None:
                        usage = _usage(chunk.usage.model_dump())
                    for choice in chunk.choices:
                        if choice.delta.content:
                            yield choice.delta.content
            except self._library.APIError as error:
                raise failure(begun, f"{type(error).__name__}: {error}") from error
        if usage is None:
            raise failure(begun, "it ended without its usage")
        yield usage


class SmallClient:
    """As little as a client of such servers needs."""

    name = "a small client of our own (pip install openai for the official one)"

    def stream(
        self, url: str, model: str, turns: Sequence[SpokenTurn], tokens: int, seed: int
    ) -> Iterator[str | ChatUsage]:
        """As ChatClient.stream."""
        begun = False
        usage: ChatUsage | None = None
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                body = json.dumps(body_of(model, turns, tokens, seed))
                connection.request(
                    "POST", f"{address.path}/chat/completions", body, {"content-type": "application/json"}
                )
                response = connection.getresponse()
                if response.status != 200:
                    raise failure(False, f"status {response.status}: {_told(response.read(LINE_BYTES_MAX))}")
                while True:
                    line = response.readline(LINE_BYTES_MAX).strip()
                    if line == b"data: [DONE]":
                        break
                    if not line and response.isclosed():
                        raise failure(begun, "the connection was closed")
                    if not line.startswith(b"data:"):
                        continue
                    chunk = json.loads(line.removeprefix(b"data:"))
                    if not isinstance(chunk, dict):
                        raise ValueError("a chunk is an object")
                    if "error" in chunk:
                        raise failure(begun, _told(line.removeprefix(b"data:")))
                    begun = True
                    if chunk.get("usage"):
                        usage = _usage(chunk["usage"])
                    for choice in chunk["choices"]:
                        if text := choice["delta"].get("content"):
                            yield text
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                raise failure(begun, f"{type(error).__name__}: {error}") from error
        if usage is None:
            raise failure(begun, "it ended without its usage")
        yield usage


def failure(begun: bool, why: str) -> AnswerBroken | HostUnreachable:
    """The error of an answer that had *begun*, or had not."""
    if begun:
        return AnswerBroken("the answer ended in the middle", found=why[:300], hint="ask again")
    return HostUnreachable("nothing was answered", found=why[:300])


def _usage(given: dict[str, Any]) -> ChatUsage:
    details = given.get("prompt_tokens_details") or {}
    return ChatUsage(given["prompt_tokens"], details.get("cached_tokens") or 0, given["completion_tokens"])


def _told(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace")
