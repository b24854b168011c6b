"""Bodies and queries: from bytes to checked models, and from plain values to bytes."""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import math
from typing import Any, get_args

import msgpack
from aiohttp import web
from multidict import MultiMapping
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from actorgrid.errors import BadRequest, BodyTooLarge, MalformedBody, Overloaded, UnknownPolicy

JSON = "application/json"
MSGPACK = "application/msgpack"
_MSGPACK_NAMES = {MSGPACK, "application/x-msgpack", "application/vnd.msgpack"}

MAX_DEPTH = 64
"""Levels of nesting in a body; deeper ones would exhaust the stack of whoever walks them next."""
BODY_TIMEOUT_S = 60.0
"""A body that has not arrived by then is given up."""
TOGETHER = 4
"""Bodies under way may hold this many times the largest one allowed; more are refused until some are done."""
SHOWN = 100
"""Characters of a wrong value that are shown."""
PROBLEMS = 10
"""Problems listed in one answer."""


class BodyReader:
    """Reads bodies within two bounds: each one's size, and what all those being served hold together."""

    def __init__(self) -> None:
        self.held_bytes = 0

    async def read(self, request: web.Request, limit: int) -> bytes:
        """The whole body. Raises BodyTooLarge, Overloaded or MalformedBody; then the connection should close.

        The caller gives the bytes back with :meth:`done`.
        """
        declared = request.content_length
        if declared is not None and declared > limit:
            raise _too_large(limit, declared)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise MalformedBody(
                "compressed bodies are not taken",
                found=f"Content-Encoding: {request.headers['Content-Encoding'][:SHOWN]}",
                hint="send the body as it is",
            )
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while chunk := await request.content.readany():
                    size += len(chunk)
                    self.held_bytes += len(chunk)
                    # What arrives counts, not what was announced.
                    if size > limit:
                        raise _too_large(limit, None)
                    if self.held_bytes > max(TOGETHER * limit, 2**20):
                        raise Overloaded(
                            "the bodies being received fill their share of memory",
                            found=f"{self.held_bytes} bytes",
                            hint="send again in a moment",
                        )
                    chunks.append(chunk)
        except TimeoutError:
            self.held_bytes -= size
            raise MalformedBody(
                f"the body did not arrive in {BODY_TIMEOUT_S:g} s", found=f"{size} bytes of {declared or 'unknown'}"
            ) from None
        except (BodyTooLarge, Overloaded, web.PayloadAccessError, OSError, web.RequestPayloadError):
            self.held_bytes -= size
            raise
        except asyncio.CancelledError:
            self.held_bytes -= size
            raise
        return b"".join(chunks)

    def done(self, raw: bytes) -> None:
        """Give the body's bytes back to the bound."""
        self.held_bytes -= len(raw)


def _too_large(limit: int, declared: int | None) -> BodyTooLarge:
    return BodyTooLarge(
        "the body is larger than this host takes",
        asked=f"{declared} bytes" if declared is not None else f"more than {limit} bytes",
        found=f"security.max_body_bytes = {limit}",
        hint="put large inputs into files and pass their paths, or raise security.max_body_bytes",
    )


def decode(raw: bytes, content_type: str, model: type[BaseModel]) -> BaseModel:
    """Read the body as a *model*. Raises MalformedBody (with the position or the field), or UnknownPolicy."""
    if content_type in _MSGPACK_NAMES:
        plain = _unpack(raw)
        check_plain(plain)
        try:
            return model.model_validate(plain)
        except ValidationError as error:
            raise _wrong_fields(error, model) from None
    if content_type not in (JSON, "application/octet-stream", "text/json") and not content_type.endswith("+json"):
        raise MalformedBody(
            "the body is of a type this host does not read",
            found=f"Content-Type: {content_type[:SHOWN]}",
            hint=f"send {JSON} or {MSGPACK}",
        )
    if not raw:
        raise MalformedBody("the body is empty", asked=f"a {model.__name__} as JSON", hint=f"fields: {_names(model)}")
    try:
        plain = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedBody(
            f"the body is not JSON: {error}", found=_around(raw, str(error)), hint="mend it at that position"
        ) from None
    check_plain(plain)
    try:
        # From the text again, not from *plain*: only so are base64 texts known to be bytes.
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise _wrong_fields(error, model) from None


def _unpack(raw: bytes) -> Any:
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=max(len(raw), 1), ext_hook=_no_extensions)
    try:
        unpacker.feed(raw)
        value = unpacker.unpack()
    except msgpack.OutOfData:
        raise MalformedBody(
            "the msgpack body ends too early", found=f"{len(raw)} bytes", hint="send the whole of it"
        ) from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedBody(
            f"the body is not msgpack: {error}", found=f"at byte {unpacker.tell()} of {len(raw)}", hint="mend it there"
        ) from None
    if unpacker.tell() != len(raw):
        raise MalformedBody("bytes follow the msgpack value", found=f"it ends at byte {unpacker.tell()} of {len(raw)}")
    return value


def _no_extensions(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not taken")


def check_plain(value: Any) -> None:
    """Refuse what later encoders could not carry: deep nesting, and numbers JSON has no word for."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise MalformedBody("a number is not finite", found=str(item), hint="use null for no value")
        if not below:
            return
        level = below
    raise MalformedBody("the body is nested too deeply", found=f"more than {MAX_DEPTH} levels", hint="flatten it")


def parse_query(given: MultiMapping[str], model: type[BaseModel]) -> BaseModel:
    """Read the query as a *model*. Raises BadRequest naming the parameter."""
    names = [name for name, _ in given.items()]
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"query parameter {name!r} is given twice", asked=name, hint="give it once")
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            raise BadRequest(
                f"there is no query parameter {name!r} here", asked=name, hint=_did_you_mean(name, field_names(model))
            ) from None
        raise BadRequest(f"query parameter {name}: {problem['msg']}", asked=_shown(problem["input"])) from None


def _wrong_fields(error: ValidationError, model: type[BaseModel]) -> BadRequest:
    found = error.errors(include_url=False, include_context=False)
    known = field_names(model)
    problems = [_problem(item, known) for item in found[:PROBLEMS]]
    first = problems[0]
    kind = UnknownPolicy if first["field"].rpartition(".")[2] in ("policy", "scheduling_policy") else MalformedBody
    message = f"{first['field']}: {first['problem']}" if first["field"] else first["problem"]
    if len(found) > 1:
        message += f" (and {len(found) - 1} more)"
    return kind(message, asked=first["given"], hint=first["hint"], field=first["field"], problems=problems)


def _problem(item: Any, known: list[str]) -> dict[str, str]:
    field = ".".join(str(part) for part in item["loc"])
    problem, hint = item["msg"].removeprefix("Value error, "), ""
    if item["type"] == "extra_forbidden":
        problem, hint = "there is no such field", _did_you_mean(str(item["loc"][-1]), known)
    elif item["type"] == "missing":
        problem = "this field is required"
    # A rule about several fields has no field of its own; its message names them with their values.
    whole = not item["loc"]
    given = "" if whole or item["type"] in ("missing", "json_invalid") else _given(field, item["input"])
    return {"field": field, "problem": problem, "given": given, "hint": hint}


def field_names(model: type[BaseModel]) -> list[str]:
    """The field names that a body of that model may hold, nested ones and other spellings included."""
    names: dict[str, None] = {}
    for name, field in model.model_fields.items():
        names[name] = None
        alias = field.validation_alias
        for choice in getattr(alias, "choices", [alias] if isinstance(alias, str) else []):
            names[str(choice)] = None
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                names.update(dict.fromkeys(field_names(inner)))
    return list(names)


def _names(model: type[BaseModel]) -> str:
    return ", ".join(list(model.model_fields)[:20])


def _did_you_mean(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known[:30])}"


def _given(field: str, value: Any) -> str:
    return f"{field} = {_shown(value)}"


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (bytes, dict, list)) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _around(raw: bytes, message: str) -> str:
    """The line in which the parser stopped, cut to a readable length."""
    words = message.split()
    try:
        line = int(words[words.index("line") + 1])
        column = int(words[words.index("column") + 1])
    except (ValueError, IndexError):
        return ""
    rows = raw.split(b"\n", line)
    text = rows[line - 1][max(0, column - 40) : column + 20] if line <= len(rows) else b""
    return f"near {text.decode('utf-8', 'replace')!r}"


def wants_msgpack(request: web.Request) -> bool:
    """Whether the client prefers msgpack."""
    accept = request.headers.get("Accept", "")
    return any(part.partition(";")[0].strip().lower() in _MSGPACK_NAMES for part in accept.split(","))


def encode_json(value: Any) -> bytes:
    """*value* as JSON: bytes as base64, models as their fields, a number without a name in JSON as null."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain).encode(
            "utf-8", "surrogatepass"
        )
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode()


def encode_msgpack(value: Any) -> bytes:
    """*value* as msgpack; bytes stay bytes."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, default=_plain_keeping_bytes)
    return packed


def _plain_keeping_bytes(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, int):  # beyond 64 bits, which msgpack has no form for
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"cannot encode {type(value).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return _plain_keeping_bytes(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    return _finite(_plain(value))
