"""What the routes of token streams take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from actorgrid.actors.gateway.server.token_streams import RESUME_S_MAX
from actorgrid.models import AnswerBody, RequestBody

MESSAGES_MAX, MODEL_CHARS_MAX = 4_096, 256
FIELDS_MAX = 64
PROMPT_CHARS_MAX = 2**22
OURS = frozenset({"model", "messages", "prompt", "stream"})


class TokenStreamRequest(RequestBody):
    """A question to a model, as OpenAI's API has it: *messages* or a *prompt*, and whatever else in *more*."""

    model: str = Field(min_length=1, max_length=MODEL_CHARS_MAX, description="a service's name, or an adapter's")
    messages: list[Annotated[dict[str, Any], Field(max_length=FIELDS_MAX)]] = Field(
        default=[], max_length=MESSAGES_MAX, description="of a chat"
    )
    prompt: str = Field(default="", max_length=PROMPT_CHARS_MAX, description="of a completion, in place of messages")
    more: dict[str, Any] = Field(
        default={},
        max_length=FIELDS_MAX,
        description="further fields of the request: max_tokens, temperature, stream_options, tools, ...",
    )
    resume_s: float = Field(
        default=0.0, ge=0, le=RESUME_S_MAX, description="how long the answer goes on while nobody reads it"
    )

    @model_validator(mode="after")
    def _asks_one_thing(self) -> TokenStreamRequest:
        if bool(self.messages) == bool(self.prompt):
            raise ValueError("either messages or a prompt")
        if self.more.keys() & OURS:
            raise ValueError(f"more has what is a field of its own: {', '.join(sorted(self.more.keys() & OURS))}")
        return self


class TokenStreamBegun(AnswerBody):
    """A stream: whoever began it reads it by this id, at this host."""

    stream_id: str


class TokenStreamQuery(RequestBody):
    """Where to go on."""

    after: int = Field(default=0, ge=0, le=2**53, description="the id of the last event that came: go on behind it")


class TokenStreamEnded(AnswerBody):
    """Whether it went on until now."""

    stream_id: str
    cancelled: Literal[True]
