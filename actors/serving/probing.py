"""Asks a replica of a service on this host, over HTTP on loopback. It blocks: for a thread of its own.

What it gets back is bounded: 1 MiB, and in time.
"""

from __future__ import annotations

import http.client
import json
from time import monotonic
from typing import Any, NamedTuple

from actorgrid.actors.ledger.service_records import ServingRecord
from actorgrid.actors.work.port_owner import PortOwner

from .replica_watch import ProbeKind

ANSWER_BYTES_MAX = 2**20
PIECE_BYTES = 65_536
REASON_CHARS_MAX = 300
LOOPBACK = "127.0.0.1"
NOT_HERE = (400, 404, 405, 415, 422, 501)
"""Said by servers that do not do what was asked for: another thing is asked then."""
_CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": False}
_COMPLETION = {"prompt": "hi", "max_tokens": 1, "stream": False}
_EMBEDDING = {"input": "hi"}
_REAL = (
    ("/v1/chat/completions", _CHAT, "choices"),
    ("/v1/completions", _COMPLETION, "choices"),
    ("/v1/embeddings", _EMBEDDING, "data"),
)


class ProbeAnswer(NamedTuple):
    """What came of it."""

    reason: str
    """What was wrong; empty: nothing."""
    model: str = ""
    """The name under which it knows its model."""
    is_stranger: bool = False
    """Whether somebody else listens on its port, who was asked nothing."""


class _Reply(NamedTuple):
    status: int
    body: bytes


def probe_own(owner: PortOwner, port: int, serving: ServingRecord, kind: ProbeKind, timeout_s: float) -> ProbeAnswer:
    """Ask it, unless somebody else listens on its port, before or after it was asked."""
    if reason := owner.stranger():
        return ProbeAnswer(reason, is_stranger=True)
    answer = probe(port, serving, kind, timeout_s)
    if reason := owner.stranger():
        return ProbeAnswer(reason, is_stranger=True)
    return answer


def probe(port: int, serving: ServingRecord, kind: ProbeKind, timeout_s: float) -> ProbeAnswer:
    """Ask it; never raises for what it does."""
    deadline = monotonic() + timeout_s
    try:
        if kind is ProbeKind.LIFE:
            return _judged(_ask(port, "GET", serving["live_path"], "", deadline), serving["live_path"])
        if serving["ready_path"]:
            body = serving["ready_body"]
            reply = _ask(port, "POST" if body else "GET", serving["ready_path"], body, deadline)
            return _judged(reply, serving["ready_path"])
        return _real_answer(port, serving, deadline)
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = str(error) or type(error).__name__
        return ProbeAnswer(f"port {port}: {said}"[:REASON_CHARS_MAX])


def _real_answer(port: int, serving: ServingRecord, deadline: float) -> ProbeAnswer:
    """One real completion, or embedding, of the model that it is to serve."""
    model = serving["model"]
    if not model:
        listed = _ask(port, "GET", "/v1/models", "", deadline)
        if listed.status != 200:
            return _judged(listed, "/v1/models")
        model = _first_model(listed.body)
        if not model:
            return ProbeAnswer("/v1/models lists no model")
    last = ProbeAnswer("it was not asked")
    for path, asked, part in _REAL:
        reply = _ask(port, "POST", path, json.dumps({"model": model, **asked}), deadline)
        if reply.status == 200:
            return ProbeAnswer("" if _has(reply.body, part) else f"{path} answered without {part!r}", model)
        last = _judged(reply, path)
        if reply.status not in NOT_HERE:
            break
    return last


def _ask(port: int, method: str, path: str, body: str, deadline: float) -> _Reply:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=max(0.1, deadline - monotonic()))
    try:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(method, path, body.encode() if body else None, headers)
        answer = connection.getresponse()
        pieces, size = [], 0
        while size < ANSWER_BYTES_MAX and (piece := answer.read1(PIECE_BYTES)):
            pieces.append(piece)
            size += len(piece)
            if monotonic() > deadline:
                raise TimeoutError("the answer did not end in time")
        return _Reply(answer.status, b"".join(pieces))
    finally:
        connection.close()


def _judged(reply: _Reply, path: str) -> ProbeAnswer:
    if 200 <= reply.status < 300:
        return ProbeAnswer("")
    said = reply.body[:200].decode("utf-8", "replace").strip()
    return ProbeAnswer(f"{path} answered {reply.status}: {said}"[:REASON_CHARS_MAX])


def _first_model(body: bytes) -> str:
    listed: Any = json.loads(body)
    data = listed.get("data") if isinstance(listed, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name[:256] if isinstance(name, str) else ""


def _has(body: bytes, part: str) -> bool:
    answer: Any = json.loads(body)
    return isinstance(answer, dict) and bool(answer.get(part))
