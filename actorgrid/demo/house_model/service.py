"""The house's language model as a service: chats, goes on with texts, and turns them into vectors.

    python -m actorgrid.serving actorgrid.demo.house_model.service:HouseModel --port 8000

Every byte is a step of the network, and the steps of all requests are items of one batched method: so requests join and
leave from one byte to the next, and long prompts are read in between, a block at a time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import BadRequest
from actorgrid.serving.generation import ChatRequest, CompletionRequest, Sampling, TextPiece, TokenUsage
from actorgrid.serving.service import batch, service

from .choosing import ByteChooser
from .network import NetworkState, forward
from .prefix_cache import BLOCK, PrefixDigest, StateCache
from .text_bytes import BEGIN, END, chat_prompt, encoded
from .weights_file import load

PROMPT_MAX = 64 * 1024
"""Bytes of a prompt."""
TOKENS_USUAL = 400
"""Bytes of an answer where the request says no ``max_tokens``."""
PACE_VARIABLE = "HOUSE_MODEL_TOKENS_PER_S"
"""How fast each answer comes, for demonstrations and tests; as fast as it can where this is not set."""


@dataclass(frozen=True, slots=True)
class ReadingStep:
    """Bytes that a sequence takes in; *chooser*: who then says which comes next, if it is time for that."""

    state: NetworkState
    data: bytes
    chooser: ByteChooser | None = None


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The state after a step, and the byte that was chosen."""

    state: NetworkState
    byte: int | None


@service(model="house")
class HouseModel:
    """A byte-level language model that has read the documentation of actorgrid, and writes like it."""

    def __init__(self) -> None:
        # The products are small: threads of the library cost more than they bring. Read when NumPy loads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        learned = load()
        self._shape, self._weights = learned.shape, learned.weights
        self._cache = StateCache()
        pace = os.environ.get(PACE_VARIABLE, "")
        try:
            self._pause_s = 1 / float(pace) if pace else 0.0
        except (ValueError, ZeroDivisionError):
            raise BadRequest(f"{PACE_VARIABLE} is a number over 0", asked=pace[:40]) from None

    async def chat(self, request: ChatRequest) -> AsyncIterator[TextPiece]:
        """The assistant's next turn."""
        prompt = chat_prompt((turn.role, turn.text) for turn in request.turns)
        async for piece in self._written(prompt, request.sampling):
            yield piece

    async def complete(self, request: CompletionRequest) -> AsyncIterator[TextPiece]:
        """What could follow on a text."""
        async for piece in self._written(bytes([BEGIN]) + encoded(request.prompt), request.sampling):
            yield piece

    @batch(max_size=32, max_wait_ms=1)
    def embed(self, texts: list[str]) -> list[list[float] | BadRequest]:
        """For each text a vector of length 1: the mean of what the network held while it read it."""
        import numpy as np

        found: list[list[float] | BadRequest] = []
        for text in texts:
            data = bytes([BEGIN]) + encoded(text)
            if len(data) > PROMPT_MAX:
                found.append(_too_long(len(data), "input"))
                continue
            total: Any = np.zeros(self._shape.width, np.float64)
            state = NetworkState.empty(self._shape)
            for first in range(0, len(data), 512):
                part = np.frombuffer(data[first : first + 512], np.uint8)[:, None]
                hidden, _, state = forward(self._shape, self._weights, state, part)
                total += hidden.sum((0, 1))
            found.append((total / np.linalg.norm(total)).tolist())
        return found

    @staticmethod
    def count_tokens(text: str) -> int:
        """Each byte is a token."""
        return len(encoded(text))

    @batch(max_size=64, max_wait_ms=1)
    def _advance(self, steps: list[ReadingStep]) -> list[StepTaken]:
        """Take the bytes of each step in: those of equal length in one pass."""
        import numpy as np

        found: list[Any] = [None] * len(steps)
        by_length: dict[int, list[int]] = {}
        for place, step in enumerate(steps):
            by_length.setdefault(len(step.data), []).append(place)
        for length, places in by_length.items():
            states = NetworkState.joined([steps[place].state for place in places])
            data = np.frombuffer(b"".join(steps[place].data for place in places), np.uint8)
            tokens = np.ascontiguousarray(data.reshape(len(places), length).T)
            _, logits, after = forward(self._shape, self._weights, states, tokens)
            for column, place in enumerate(places):
                chooser = steps[place].chooser
                byte = None if chooser is None else chooser.choose(logits[-1, column])
                found[place] = StepTaken(after.of(column), byte)
        return found

    async def _written(self, prompt: bytes, sampling: Sampling) -> AsyncIterator[TextPiece]:
        import asyncio

        if len(prompt) > PROMPT_MAX:
            raise _too_long(len(prompt), "messages")
        chooser = ByteChooser(sampling)
        known, state, digest = self._cache.longest(prompt)
        yield TextPiece(usage=TokenUsage(len(prompt), known))
        taken = await self._read(prompt[known:], state or NetworkState.empty(self._shape), digest, chooser)
        for _ in range(sampling.max_tokens or TOKENS_USUAL):
            assert taken.byte is not None, "the last step of a prompt chooses"
            if taken.byte == END:
                yield TextPiece(tokens=0, finish_reason="stop")
                return
            yield TextPiece(chooser.progress.take(taken.byte))
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            taken = await self._step(taken.state, bytes([taken.byte]), digest, chooser)
        yield TextPiece(tokens=0, finish_reason="length")

    async def _read(self, data: bytes, state: NetworkState, digest: PrefixDigest, chooser: ByteChooser) -> StepTaken:
        """Take the prompt in; the last byte chooses. *data* is not empty and begins a block."""
        for first in range(0, len(data), BLOCK):
            part = data[first : first + BLOCK]
            last = first + BLOCK >= len(data)
            taken = await self._step(state, part, digest, chooser if last else None)
            state = taken.state
        return taken

    async def _step(
        self, state: NetworkState, data: bytes, digest: PrefixDigest, chooser: ByteChooser | None
    ) -> StepTaken:
        found: StepTaken = await self._advance(ReadingStep(state, data, chooser))
        if digest.take(data):
            self._cache.put(digest.name, found.state)
        return found


def _too_long(size: int, parameter: str) -> BadRequest:
    return BadRequest(f"a prompt has at most {PROMPT_MAX} bytes with its roles", asked=f"{size} bytes", param=parameter)
