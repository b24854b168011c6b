"""What opens a WebSocket: which stream, from where on; and the messages of each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody

AFTER = Field(default="", max_length=64, description="the id of the last message that came: go on behind it")


class EventsSocketQuery(RequestBody):
    """Where to go on."""

    after: str = AFTER


class StateSocketQuery(RequestBody):
    """Which keys, and where to go on."""

    prefix: str = Field(default="", max_length=1024)
    initial: bool = Field(default=True, description="without after: first send what is there")
    after: str = AFTER


class LogsSocketQuery(RequestBody):
    """Which output, and where to go on."""

    stream: Literal["stdout", "stderr"] = "stdout"
    attempt: int | None = Field(
        default=None, ge=1, le=2**31, description="only of this one; without it, of each in turn"
    )
    rank: int = Field(default=0, ge=0, le=255, description="of a gang: which member")
    form: Literal["text", "base64"] = Field(
        default="text", description="text: as UTF-8, with U+FFFD for what is none; base64: the bytes as they are"
    )
    after: str = AFTER


class MetricsSocketQuery(RequestBody):
    """Which figures, and how often."""

    prefix: str = Field(default="", max_length=128, description="only those whose names begin so")
    interval_s: float = Field(default=5.0, ge=0.2, le=3600.0)


class SocketMessage(AnswerBody):
    """A message of a WebSocket. *event*: ``message``, or what its page of the documents names; ``end`` is the last.

    *id*: what ``after`` takes to go on behind it.
    """

    event: str
    id: str | None = None
    data: Any


class OutputMessage(AnswerBody):
    """Output of an attempt: *text* or *base64*, and the *offset* behind it."""

    attempt: int
    offset: int
    text: str | None = None
    base64: str | None = None


class FiguresMessage(AnswerBody):
    """Figures that are not what they were in the message before, by name with labels, as Prometheus writes them.

    *gone*: names that are there no more. *at*: seconds since the epoch.
    """

    at: float
    changed: dict[str, float | None]
    gone: list[str]
