"""Inputs to a service of the cluster, several at once, from within the job that brings them."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from actorgrid.errors import InvalidWork, NotFound, Overloaded, ServingError

TIMEOUT_S = 600.0
"""For one answer, as OpenAI's clients wait."""
PATIENCE_S = 600.0
"""For a service that has too much to do just now, or no replica yet."""
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
AT_ONCE_MAX = 64
ANSWER_BYTES_MAX = 64 * 1024 * 1024
AGAIN = (429, 502, 503)


@dataclass(frozen=True, slots=True)
class ServiceQuestion:
    """What a service is asked about each input."""

    service: str
    ask: str
    """``chat``, ``complete`` or ``embed``."""
    parameters: dict[str, Any]
    """Further fields of each request."""
    url: str = ""
    """Where models are served, ``.../v1``; empty: by the host that this runs on."""
    key_env: str = ""
    """The variable that has the key, where one is needed."""


def ask_service(question: ServiceQuestion, inputs: Sequence[str], batch_size: int) -> list[Any]:
    """What the service gives for each input: a text, or a vector.

    As many requests as *batch_size* are under way at once (64 at most); of embeddings, so many texts go in one. Raises
    NotFound where there is no such service, Overloaded where it has no time for PATIENCE_S, ServingError for what it
    fails with, InvalidWork for what it refuses.
    """
    asks = _Asking(question)
    if question.ask == "embed":
        found: list[Any] = []
        for first in range(0, len(inputs), batch_size):
            part = list(inputs[first : first + batch_size])
            data = asks.ask("/embeddings", {"input": part, "encoding_format": "float"}, _vectors)
            if len(data) != len(part):
                raise ServingError("a vector for each text was expected", asked=str(len(part)), found=str(len(data)))
            found += data
        return found
    with ThreadPoolExecutor(min(batch_size, AT_ONCE_MAX)) as pool:
        return list(pool.map(asks.text, inputs))


class _Asking:
    def __init__(self, question: ServiceQuestion) -> None:
        self._question = question
        address = urlsplit(question.url or _own_url())
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidWork("an address begins with http:// or https://", asked=question.url[:200], paths=["url"])
        self._address = address
        key = os.environ.get(question.key_env, "") if question.key_env else ""
        if question.key_env and not key:
            raise InvalidWork(f"there is no key in {question.key_env}, where the work runs", paths=["key_env"])
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

    def text(self, given: str) -> str:
        if self._question.ask == "chat":
            body = {"messages": [{"role": "user", "content": given}]}
            return str(self.ask("/chat/completions", body, lambda answer: answer["choices"][0]["message"]["content"]))
        return str(self.ask("/completions", {"prompt": given}, lambda answer: answer["choices"][0]["text"]))

    def ask(self, path: str, body: dict[str, Any], pick: Callable[[Any], Any]) -> Any:
        """One answer; tried again while the service has no time. What it refuses is not."""
        data = json.dumps({"model": self._question.service, **self._question.parameters, **body})
        pauses = _pauses()
        while True:
            try:
                status, after_s, said = self._once(path, data)
            except (OSError, http.client.HTTPException) as error:
                status, after_s, said = 503, 0.0, str(error).encode()
            if status == 200:
                try:
                    return pick(json.loads(said))
                except (ValueError, KeyError, IndexError, TypeError) as error:
                    raise ServingError(f"the answer is not one to {path}: {error!r}", found=_shown(said)) from None
            if status not in AGAIN:
                break
            pause = next(pauses, None)
            if pause is None:
                raise Overloaded(f"service {self._question.service} has no time", found=f"{status}: {_shown(said)}")
            time.sleep(max(pause, min(after_s, PAUSE_MAX_S)))
        kind = NotFound if status == 404 else InvalidWork if 400 <= status < 500 else ServingError
        raise kind(f"service {self._question.service} does not answer", found=f"{status}: {_shown(said)}")

    def _once(self, path: str, data: str) -> tuple[int, float, bytes]:
        address = self._address
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(address.hostname), address.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", address.path.rstrip("/") + path, data.encode(), self._headers)
            response = connection.getresponse()
            said = response.read(ANSWER_BYTES_MAX)
            after = response.headers.get("retry-after", "")
            return response.status, float(after) if after.isascii() and after.isdecimal() else 0.0, said
        finally:
            connection.close()


def _pauses() -> Iterator[float]:
    """Longer and longer ones, until PATIENCE_S are over."""
    end, pause = time.monotonic() + PATIENCE_S, PAUSE_S
    while time.monotonic() < end:
        yield pause
        pause = min(2 * pause, PAUSE_MAX_S)


def _vectors(answer: Any) -> list[list[float]]:
    return [[float(value) for value in each["embedding"]] for each in answer["data"]]


def _own_url() -> str:
    """Where the host that this runs on serves models. Raises NotFound where it does not."""
    import actorgrid

    with actorgrid.connect() as client:
        url = str(client.http.get("/api/services").get("url", ""))
    if not url:
        raise NotFound("this host serves no models yet", hint="say url=https://HOST:PORT/v1")
    return url


def _shown(said: bytes) -> str:
    try:
        return str(json.loads(said)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return said[:300].decode("utf-8", "replace")
