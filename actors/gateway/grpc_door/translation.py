"""Messages of protobuf as requests of HTTP, and answers and errors back. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from actorgrid.errors import ActorGridError, BadRequest, HostUnreachable, MalformedMessage, error_from_dict
from actorgrid.rpc import actorgrid_pb2 as pb

from .verbs import HttpVerb

DETAIL_BYTES_MAX = 4096
"""Of an error among the trailers: clients take 8 KiB of metadata. What is longer is told without its details."""
TYPE_URL = "type.googleapis.com/actorgrid.v1.Error"
EVENT_BYTES_MAX = 128 * 2**20
"""Of one event of a stream: the largest value of the shared state, and how JSON may write it."""
_PART = re.compile(r"\{([a-z_]+)\}")
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "FAILED_PRECONDITION",
    410: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    507: "RESOURCE_EXHAUSTED",
}
"""Statuses of gRPC by those of HTTP; INTERNAL for every other."""
NUMBERS = {
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}


@dataclass(frozen=True, slots=True)
class HttpAsk:
    """A request as it goes out: the path with its query as plain values, or a body."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes | None
    wait_s: float
    """How long it says that it waits."""


def ask_of(verb: HttpVerb, request: Message) -> HttpAsk:
    """The request that *request* is. Raises BadRequest for a part of the path that is missing."""
    plain = plain_of(request)
    path = path_of(verb.path, plain)
    more = plain.pop("more", {})
    fields = {**more, **plain}
    wait_s = fields.get("wait_s", 0.0)
    wait_s = float(wait_s) if isinstance(wait_s, int | float) and 0 <= wait_s <= 86_400 else 0.0
    if verb.place == "body":
        return HttpAsk(verb.method, path, {}, json.dumps(fields).encode(), wait_s)
    return HttpAsk(verb.method, path, {name: word_of(value) for name, value in fields.items()}, None, wait_s)


def plain_of(request: Message) -> dict[str, Any]:
    """The fields that *request* has, by name. Its whole numbers are numbers, which JSON's form of protobuf has not."""
    plain: dict[str, Any] = MessageToDict(request, preserving_proto_field_name=True)
    for field in request.DESCRIPTOR.fields:
        if field.name in plain and field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            found = plain[field.name]
            plain[field.name] = [int(each) for each in found] if isinstance(found, list) else int(found)
    return plain


def path_of(path: str, plain: dict[str, Any]) -> str:
    """*path* with its parts filled in from *plain*, where they are taken out. Raises BadRequest."""
    for name in _PART.findall(path):
        value = str(plain.pop(name, ""))
        if not value or value in (".", ".."):
            raise BadRequest(f"{name} is missing, or names nothing", asked=value, hint=f"set the field {name}")
        path = path.replace("{" + name + "}", quote(value, safe=""))
    return path


def word_of(value: Any) -> str:
    """A value as a query has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer_of(text: bytes, message: Message) -> Message:
    """*message*, filled from an answer in JSON; fields that it does not have are left out. Raises MalformedMessage."""
    return filled(parsed(text), message)


def parsed(text: bytes) -> Any:
    """An answer's JSON. Raises MalformedMessage."""
    try:
        return json.loads(text)
    except ValueError:
        raise MalformedMessage("the host's answer is no JSON", found=text[:100].decode("utf-8", "replace")) from None


def filled(plain: Any, message: Message) -> Message:
    """*message*, filled from plain values. Raises MalformedMessage."""
    try:
        return ParseDict(plain, message, ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError) as error:
        raise MalformedMessage("the host's answer is not as the message has it", found=str(error)[:300]) from None


def whole_numbers(plain: Any) -> Any:
    """*plain* with whole numbers as such: protobuf's values know floats alone, and ``max_tokens`` is to be none."""
    if isinstance(plain, float):
        return int(plain) if plain.is_integer() and abs(plain) < 2**53 else plain
    if isinstance(plain, list):
        return [whole_numbers(each) for each in plain]
    return {name: whole_numbers(each) for name, each in plain.items()} if isinstance(plain, dict) else plain


def text_of(chunk: Any) -> str:
    """What is new of the first choice, in a piece of a chat's or a completion's stream; empty where there is none."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return ""
    delta = first.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else first.get("text")
    return text if isinstance(text, str) else ""


def error_in(status: int, text: bytes) -> ActorGridError:
    """The named error of an answer."""
    try:
        return error_from_dict(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        kind = HostUnreachable if status >= 500 else BadRequest
        return kind("the host did not answer as its API does", found=f"HTTP {status}")


def status_name(error: ActorGridError) -> str:
    """The status of gRPC that an error has."""
    return _STATUS.get(error.http_status, "INTERNAL")


def packed_error(error: ActorGridError) -> bytes:
    """The error as ``grpc-status-details-bin`` carries it: a ``google.rpc.Status`` with an ``Error`` in it."""
    plain = error.to_dict()
    number = NUMBERS[status_name(error)]
    for details in (plain.get("details") or {}, {}):
        shown = {name: str(plain.get(name, ""))[:500] for name in ("code", "message", "asked", "found", "hint")}
        inner = filled({**shown, "details": details}, pb.Error())
        packed = pb.PackedDetail(type_url=TYPE_URL, value=inner.SerializeToString())
        whole: bytes = pb.Status(code=number, message=shown["message"], details=[packed]).SerializeToString()
        if len(whole) <= DETAIL_BYTES_MAX:
            return whole
    return b""


def event_of(index: int, plain: Mapping[str, Any], kind: str, ids: frozenset[str]) -> pb.Event | None:
    """An event of the ledger, with its changes of *kind* (empty: all) and of *ids* (none: all); ``None``: it has
    none."""
    kept = [
        each for each in plain["changes"] if (not kind or each["kind"] == kind) and (not ids or str(each["id"]) in ids)
    ]
    if not kept:
        return None
    changes = [
        {
            **{name: str(each.get(name) or "") for name in ("kind", "id", "state")},
            "more": {name: value for name, value in each.items() if name not in ("kind", "id", "state")},
        }
        for each in kept
    ]
    event = pb.Event()
    filled({"index": index, "at": plain["at"], "type": plain["type"], "changes": changes}, event)
    return event


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """A server-sent event."""

    event: str
    id: str
    data: bytes


class EventReader:
    """Server-sent events out of the bytes of an answer, which come in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[StreamedEvent]:
        """The events that are whole by now. Raises MalformedMessage for one that is too long."""
        self._held += data
        while (end := self._held.find(b"\n\n", self._searched)) >= 0:
            block = bytes(self._held[:end])
            del self._held[: end + 2]
            self._searched = 0
            found = {"event": b"message", "id": b"", "data": b""}
            for line in block.split(b"\n"):
                name, _, value = line.partition(b": ")
                found[name.decode("utf-8", "replace")] = value
            if found["data"]:
                yield StreamedEvent(found["event"].decode(), found["id"].decode(), found["data"])
        self._searched = max(0, len(self._held) - 1)
        if len(self._held) > EVENT_BYTES_MAX:
            raise MalformedMessage("an event of the host's is too long", found=f"over {EVENT_BYTES_MAX} bytes")
