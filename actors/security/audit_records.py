"""What an audit record says: who, from where, what, with which outcome; as a line that is hashed, and for others.

Never in it: tokens, bodies, payloads, environments, arguments. A record is one line of JSON, and that very line is what
the tree holds: whoever has the line can check it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypedDict

TEXT_MAX = 200


class AuditFacts(NamedTuple):
    """What is told of one thing that was asked. *address*: empty for this machine; *what*: the documented path."""

    user: str
    key: str
    role: str
    tenant: str
    address: str
    verb: str
    what: str
    object: str
    status: int
    outcome: str


class AuditRecord(TypedDict):
    """One thing that was asked, and what became of it."""

    seq: int
    """Its place in the host's log, from 0."""
    at: float
    """When it was answered, seconds since 1970 by the host's clock."""
    host: str
    """The id of the host that was asked."""
    user: str
    """Whose token it was; empty: nobody's."""
    key: str
    """The id of the API key, or of the work whose credential it was; empty: the host's own token."""
    role: str
    """The role of the token then."""
    tenant: str
    """Where it has that role."""
    address: str
    """The address of the client; empty: this machine."""
    verb: str
    """The method of the request."""
    what: str
    """The path as it is documented."""
    object: str
    """The path as it was asked for."""
    status: int
    """How it was answered."""
    outcome: str
    """``done``, or the name of the error."""


def to_record(facts: AuditFacts, seq: int, at: float, host: str) -> AuditRecord:
    """The record of *facts*; long texts are cut."""
    texts = [part[:TEXT_MAX] if isinstance(part, str) else part for part in facts]
    fields: dict[str, Any] = dict(zip(AuditFacts._fields, texts, strict=True))
    return {"seq": seq, "at": round(at, 6), "host": host, **fields}  # type: ignore[typeddict-item]


def record_line(record: AuditRecord) -> bytes:
    """The record as the log has it: one line, without its end."""
    return json.dumps(record, separators=(",", ":")).encode()


def to_ocsf(line: bytes) -> dict[str, Any]:
    """The record as an event of OCSF 1.3, class 6003 (API Activity); ``raw_data`` is the line that the tree holds."""
    record: AuditRecord = json.loads(line)
    activity = {"POST": 1, "GET": 2, "PUT": 3, "DELETE": 4}.get(record["verb"], 99)
    good = record["status"] < 400
    user = {"name": record["user"], "uid": record["key"], "groups": [{"name": record["role"]}]}
    return {
        "class_uid": 6003,
        "category_uid": 6,
        "activity_id": activity,
        "type_uid": 600_300 + activity,
        "time": round(record["at"] * 1000),
        "severity_id": 1 if good else 3,
        "status_id": 1 if good else 2,
        "status_code": str(record["status"]),
        "status_detail": record["outcome"],
        "actor": {"user": {**user, "org": {"name": record["tenant"]}}},
        "api": {"operation": f"{record['verb']} {record['what']}"},
        "resources": [{"name": record["object"]}],
        "src_endpoint": {"ip": record["address"] or "127.0.0.1"},
        "metadata": {"version": "1.3.0", "product": {"name": "actorgrid"}, "uid": f"{record['host']}:{record['seq']}"},
        "raw_data": line.decode(),
    }
