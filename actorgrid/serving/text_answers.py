"""Text of a served language model on its way out: stop strings, the bound of tokens, what it came to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import WrongAnswer

from .figures import ReplicaFigures
from .generation import FINISH_REASONS, ChatRequest, CompletionRequest, FinishReason, StopStrings, TextPiece, TokenUsage
from .replica import ServiceReplica

BYTES_A_TOKEN = 4
"""What a token of a prompt is taken for where the class does not say how many there are."""
HELD_PIECES = 16
"""Pieces of several answers at once that may wait for a slow reader; their models wait then."""


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """How an answer ended, and what it took."""

    finish_reason: FinishReason
    usage: TokenUsage
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class TextCall:
    """Whom to ask for a text, and how."""

    replica: ServiceReplica
    figures: ReplicaFigures
    method: str
    """``chat`` or ``complete``."""
    stops: Sequence[str]
    priority: int
    timeout_s: float | None

    async def generate(self, request: ChatRequest | CompletionRequest) -> AsyncGenerator[str | AnswerEnd, None]:
        """The text in parts, and how it ended at last. Counts it, also where whoever reads it leaves before the end."""
        most = request.sampling.max_tokens
        stops = StopStrings(self.stops)
        began = last = time.monotonic()
        tokens, reason = 0, "abort"
        usage: TokenUsage | None = None
        finish: FinishReason | None = None
        stream = self.replica.stream(self.method, (request,), {}, priority=self.priority, timeout_s=self.timeout_s)
        try:
            async with contextlib.aclosing(stream):
                async for given in stream:
                    piece = _as_piece(given, self.method)
                    usage = piece.usage or usage
                    if piece.text or (piece.finish_reason is None and piece.usage is None):
                        now = time.monotonic()
                        (self.figures.between if tokens else self.figures.first).observe(now - last)
                        last = now
                        tokens += piece.tokens
                    text, over = stops.take(piece.text)
                    if text:
                        yield text
                    if over or piece.finish_reason is not None:
                        finish = "stop" if over else piece.finish_reason
                        break
                    if most is not None and tokens >= most:
                        finish = "length"
                        break
            if rest := stops.rest():  # what could have become a stop string, and did not
                yield rest
            reason = finish or "stop"
            usage = usage or _guessed(request.prompt)
            yield AnswerEnd(finish or "stop", usage, tokens)
        except Exception:
            reason = "error"
            raise
        finally:
            self._count(reason, usage or _guessed(request.prompt), tokens, time.monotonic() - began)

    def _count(self, reason: str, usage: TokenUsage, tokens: int, seconds: float) -> None:
        figures = self.figures
        figures.ended(reason)
        figures.prompt.inc(usage.prompt_tokens)
        figures.queried.inc(usage.prompt_tokens)
        figures.hits.inc(usage.cached_tokens)
        figures.generated.inc(tokens)
        figures.whole.observe(seconds)
        if tokens:
            figures.each.observe(seconds / tokens)


@dataclass(frozen=True, slots=True)
class _Over:
    """One of several answers has ended, or raised."""

    error: Exception | None = None


async def merged(
    answers: Sequence[AsyncGenerator[str | AnswerEnd, None]],
) -> AsyncIterator[tuple[int, str | AnswerEnd]]:
    """What several answers give, as it comes, each with the answer's number. To close this closes them all."""
    if len(answers) == 1:
        async with contextlib.aclosing(answers[0]):
            async for given in answers[0]:
                yield 0, given
        return
    arrived: asyncio.Queue[tuple[int, str | AnswerEnd | _Over]] = asyncio.Queue(HELD_PIECES)

    async def read(number: int, answer: AsyncGenerator[str | AnswerEnd, None]) -> None:
        async with contextlib.aclosing(answer):
            try:
                async for given in answer:
                    await arrived.put((number, given))
                await arrived.put((number, _Over()))
            except Exception as error:  # noqa: BLE001  (whoever reads gets it)
                await arrived.put((number, _Over(error)))

    tasks = [asyncio.create_task(read(number, answer)) for number, answer in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            number, part = await arrived.get()
            if not isinstance(part, _Over):
                yield number, part
            elif part.error is not None:
                raise part.error
            else:
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _as_piece(given: Any, method: str) -> TextPiece:
    if isinstance(given, str):
        return TextPiece(given)
    if not isinstance(given, TextPiece):
        raise WrongAnswer(f"{method} gives texts or TextPieces", found=f"a {type(given).__name__}")
    if given.finish_reason is not None and given.finish_reason not in FINISH_REASONS:
        raise WrongAnswer(
            "no answer ends for that reason", found=str(given.finish_reason)[:80], hint=str(FINISH_REASONS)
        )
    return given


def guessed_tokens(text: str) -> int:
    """How many tokens a text may have, where its model does not say."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN)


def _guessed(prompt: str) -> TokenUsage:
    return TokenUsage(guessed_tokens(prompt))
