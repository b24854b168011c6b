"""What of a request's body concerns the gateway: the model, whether it streams, and what it begins with. No I/O.

The body goes on as the client wrote it. Only the value of ``model`` (where the replica has another name for it) and
``stream_options`` (where usage is to be told) are replaced, at their place in the text: whatever else is in there,
known to us or not, stays byte for byte. A name that is there twice is refused: the replica may read the other one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from actorgrid.actors.serving.prefix_index import chain_of
from actorgrid.actors.serving.routing import PromptHead
from actorgrid.hotpath.model_requests import JsonMember, json_members, opened

from .refusals import RequestRefused

NAMED_SESSION_MAX = 512
COMPLETION_HEAD = 1_024
"""Characters of a prompt without messages that say which session it is of."""
_FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')


@dataclass(slots=True)
class ModelRequest:
    """A request for a model."""

    model: str
    body: bytes
    is_stream: bool = False
    wants_usage: bool = False
    """Whether the client asked for the usage of a stream."""
    wants_base64: bool = False
    """Whether embeddings are asked for in base64; what is not asked for is floats."""
    text: str | None = None
    """The body as text; ``None`` where it is a form."""
    members: dict[str, JsonMember] | None = None

    def body_as(self, model: str, asks_usage: bool) -> bytes:
        """The body for a replica that knows the model as *model*; *asks_usage*: with usage at the end of a stream."""
        text, members = self.text, self.members
        if text is None or members is None:
            return self.body
        edits: list[tuple[int, int, str]] = []
        if model != self.model:
            edits.append((*members["model"][1:], json.dumps(model)))
        if asks_usage:
            options = members.get("stream_options")
            if options is None:
                at = opened(text)
                edits.append((at, at, '"stream_options":{"include_usage":true},'))
            else:
                said = options.value if isinstance(options.value, dict) else {}
                edits.append((*options[1:], json.dumps({**said, "include_usage": True})))
        if not edits:
            return self.body
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text.encode("utf-8", "surrogatepass")

    def prompt(self, adapter: str, tenant: str, header: str | None, with_chain: bool) -> PromptHead:
        """What of the request says where it belongs. *header*: how the client names the session, if it does."""
        members = self.members or {}
        named = header
        if named is None and "prompt_cache_key" in members and isinstance(members["prompt_cache_key"].value, str):
            named = members["prompt_cache_key"].value
        salt = f"{self.model}\0{adapter}\0{tenant}"
        head, texts = _texts(members)
        session = f"{salt}\0{named[:NAMED_SESSION_MAX]}" if named else f"{salt}\0{head}"
        chain: tuple[int, ...] = ()
        if with_chain and texts:
            chain = chain_of("\0".join(texts).encode("utf-8", "surrogatepass"), salt.encode("utf-8", "surrogatepass"))
        return PromptHead(session, bool(named), chain, len(self.body))


def read_json(body: bytes) -> ModelRequest:
    """The request in a JSON body. Raises RequestRefused."""
    try:
        text = body.decode()
        members = json_members(text)
    except (ValueError, StopIteration, IndexError, RecursionError):
        raise RequestRefused(400, "the body is not a JSON object", "malformed_json") from None
    found = members.get("model")
    if found is None or not isinstance(found.value, str) or not found.value or len(found.value) > 256:
        raise RequestRefused(400, "you must provide a model parameter", "missing_model", param="model")
    stream = members.get("stream")
    options = members.get("stream_options")
    asked = options.value.get("include_usage") if options and isinstance(options.value, dict) else None
    encoding = members.get("encoding_format")
    return ModelRequest(
        found.value,
        body,
        is_stream=stream is not None and stream.value is True,
        wants_usage=asked is True,
        wants_base64=encoding is not None and encoding.value == "base64",
        text=text,
        members=members,
    )


def read_form(body: bytes) -> ModelRequest:
    """The request in a form with files (multipart/form-data). Raises RequestRefused."""
    found = _FORM_MODEL.findall(body)
    if len(found) != 1:
        raise RequestRefused(400, "you must provide one model parameter", "missing_model", param="model")
    try:
        return ModelRequest(found[0].decode(), body)
    except UnicodeDecodeError:
        raise RequestRefused(400, "the model's name is not text", "missing_model", param="model") from None


def _texts(members: dict[str, JsonMember]) -> tuple[str, list[str]]:
    """The head of the session (what the system says and the user says first), and all texts in their order."""
    texts: list[str] = []
    if "tools" in members:
        texts.append(json.dumps(members["tools"].value))
    if "instructions" in members:
        texts.append(_text(members["instructions"].value))
    spoken = members.get("messages") or members.get("input")
    if spoken is not None and isinstance(spoken.value, list):
        head_at = None
        for message in spoken.value:
            is_message = isinstance(message, dict)
            texts.append(f"{message.get('role')}\0{_text(message.get('content'))}" if is_message else _text(message))
            if is_message and message.get("tool_calls"):
                texts.append(json.dumps(message["tool_calls"]))
            if head_at is None and (not is_message or message.get("role") == "user"):
                head_at = len(texts)
        return "\0".join(texts[:head_at]), texts
    for name in ("prompt", "input"):
        if name in members:
            texts.append(_text(members[name].value))
    return "\0".join(texts)[:COMPLETION_HEAD], texts


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict) and "text" in content[0]:
        return _text(content[0]["text"])
    return json.dumps(content)
