"""What a served language model is asked and what it gives: requests, pieces of text, tokens that were counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "content_filter"]
FINISH_REASONS = ("stop", "length", "content_filter")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are to be chosen. What a model does not know of, it leaves out."""

    max_tokens: int | None = None
    """Tokens of an answer; the server ends it there, whatever the model does. ``None``: as many as the model gives."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    """The same seed and request give the same answer."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """Who said what: *role* is system, developer, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the method ``chat`` of a class gets. Stop strings and ``max_tokens`` are seen to by the server."""

    model: str
    turns: tuple[ConversationTurn, ...]
    sampling: Sampling = Sampling()

    @property
    def prompt(self) -> str:
        """All that was said, for counting."""
        return "".join(turn.text for turn in self.turns)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What the method ``complete`` of a class gets: a text to go on with."""

    model: str
    prompt: str
    sampling: Sampling = Sampling()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Those of the prompt that were not computed again."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of an answer: *text*, made of so many *tokens*. The last one may say why it is the last; any may say what
    the prompt came to. A plain ``str`` is a piece of one token."""

    text: str = ""
    tokens: int = 1
    finish_reason: FinishReason | None = None
    usage: TokenUsage | None = None


class StopStrings:
    """Ends a text before the first of some strings, which may come in parts. Holds back what could become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def take(self, text: str) -> tuple[str, bool]:
        """What may be given out now that *text* has come, and whether that was the end."""
        if not self._stops:
            return text, False
        self._held += text
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            given, self._held = self._held[: min(found)], ""
            return given, True
        safe = len(self._held)
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                safe = len(self._held) - length
                break
        given, self._held = self._held[:safe], self._held[safe:]
        return given, False

    def rest(self) -> str:
        """What was held back, when the text has ended without a stop string."""
        given, self._held = self._held, ""
        return given
