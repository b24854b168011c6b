"""What OpenAI's clients send, and what of it a class is asked. What is not supported is refused, never left out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actorgrid.errors import BadRequest

from .endpoints import malformed
from .generation import ConversationTurn, Sampling

TOKENS_MAX = 1_000_000
CHOICES_MAX = 16
TEXTS_MAX = 2048

Stops = (
    Annotated[str, Field(max_length=1000)]
    | Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=16)]
    | None
)
Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Unit = Annotated[float, Field(allow_inf_nan=False)]
Prompt = str | list[str] | list[int] | list[list[int]]


class _OfOpenAi(BaseModel):
    """A body. Fields that we do not know are for models of other makes, and are let be."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str = Field(max_length=200)


class _Sampled(_OfOpenAi):
    temperature: Annotated[Unit, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Unit, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None

    def _sampling(self, tokens: int | None, presence: float | None = None, frequency: float | None = None) -> Sampling:
        return Sampling(
            max_tokens=tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            presence_penalty=presence or 0.0,
            frequency_penalty=frequency or 0.0,
        )


class StreamOptions(BaseModel):
    """What a stream is to have beside its text."""

    include_usage: bool = False


class _Generating(_Sampled):
    max_tokens: Tokens | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX)] | None = None
    stop: Stops = None
    presence_penalty: Annotated[Unit, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Unit, Field(ge=-2, le=2)] | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        """The strings before which the text ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def with_usage(self) -> bool:
        """Whether the stream ends with the tokens that it took."""
        return self.stream_options is not None and self.stream_options.include_usage


class ContentPart(BaseModel):
    """A part of what somebody said."""

    type: str = Field(max_length=40)
    text: str | None = None


class ChatMessageBody(BaseModel):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None


class ResponseFormat(BaseModel):
    """In which form the answer is to be."""

    type: str


class ChatBody(_Generating):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessageBody] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: Tokens | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self._sampling(tokens, self.presence_penalty, self.frequency_penalty)

    @property
    def turns(self) -> tuple[ConversationTurn, ...]:
        """The conversation. Raises BadRequest for what a class is not asked here."""
        if self.tools or self.functions:
            raise unsupported("this model calls no tools", "tools")
        if self.logprobs:
            raise unsupported("this model gives no logprobs", "logprobs")
        if self.response_format is not None and self.response_format.type != "text":
            raise unsupported("this model answers with text alone", "response_format")
        return tuple(_turn(each.role, each.content, f"messages.{number}") for number, each in enumerate(self.messages))


class CompletionBody(_Generating):
    """``POST /v1/completions``."""

    prompt: Prompt = ""
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return self._sampling(
            16 if self.max_tokens is None else self.max_tokens, self.presence_penalty, self.frequency_penalty
        )

    @property
    def prompts(self) -> list[str]:
        """The texts to go on with. Raises BadRequest."""
        for name in ("suffix", "logprobs"):
            if getattr(self, name) is not None:
                raise unsupported(f"this model knows no {name}", name)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("this model knows no best_of", "best_of")
        found = texts_of(self.prompt, "prompt")
        if len(found) * (self.n or 1) > CHOICES_MAX:
            raise unsupported(f"a request has at most {CHOICES_MAX} answers", "prompt")
        return found


class EmbeddingBody(_OfOpenAi):
    """``POST /v1/embeddings``."""

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=100_000)] | None = None

    @property
    def texts(self) -> list[str]:
        """What is to be embedded. Raises BadRequest."""
        found = texts_of(self.input, "input")
        if len(found) > TEXTS_MAX:
            raise unsupported(f"at most {TEXTS_MAX} texts at once", "input")
        return found


class ResponseItem(BaseModel):
    """An item of the input of ``/v1/responses``."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[ContentPart] = ""


class ResponseBody(_Sampled):
    """``POST /v1/responses``."""

    input: str | list[ResponseItem] = Field(max_length=8_000_000)
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    tools: list[Any] | None = None

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return self._sampling(self.max_output_tokens)

    @property
    def turns(self) -> tuple[ConversationTurn, ...]:
        """The conversation. Raises BadRequest for what a class is not asked here."""
        for name in ("tools", "previous_response_id", "background", "conversation"):
            if getattr(self, name):
                raise unsupported(f"this server keeps nothing and calls nothing: it has no {name}", name)
        turns = [] if not self.instructions else [ConversationTurn("system", self.instructions)]
        if isinstance(self.input, str):
            turns.append(ConversationTurn("user", self.input))
        else:
            for number, each in enumerate(self.input):
                if each.type != "message":
                    raise unsupported(f"an input of type {each.type[:40]} is not text", f"input.{number}")
                turns.append(_turn(each.role, each.content, f"input.{number}"))
        if not turns:
            raise unsupported("nothing was said", "input")
        return tuple(turns)


def parsed(body: bytes, model: type[BaseModel]) -> Any:
    """The body as *model*. Raises MalformedBody, which names what is wrong with it."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = malformed(error, "the request")
        paths = found.details.get("paths") or [None]
        found.details["param"] = paths[0] if paths[0] != "(the whole)" else None
        raise found from None


def unsupported(message: str, name: str) -> BadRequest:
    """The refusal of a field that asks for what there is not."""
    return BadRequest(message, param=name)


def texts_of(given: Prompt, name: str) -> list[str]:
    """*given* as texts. Raises BadRequest for token ids, which are of another model's alphabet, and for nothing."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise unsupported(f"{name} is empty", name)
    found = [each for each in given if isinstance(each, str)]
    if len(found) != len(given):
        raise BadRequest(
            "this model reads texts, not token ids: ids of another model's alphabet would be other words to it",
            hint="send texts (of LangChain: check_embedding_ctx_length=False)",
            param=name,
        )
    return found


def _turn(role: str, content: str | list[ContentPart] | None, path: str) -> ConversationTurn:
    if role in ("tool", "function"):
        raise unsupported("this model calls no tools, and so reads no answers of them", path)
    if content is None:
        return ConversationTurn(role, "")
    if isinstance(content, str):
        return ConversationTurn(role, content)
    for part in content:
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            raise unsupported(f"this model reads text alone, not {part.type[:40]}", path)
    return ConversationTurn(role, "".join(part.text or "" for part in content))
