"""Audit records as others take them: RFC 5424 for syslog, CloudEvents for webhooks. Each has the line of the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TypedDict

from .audit_records import AuditRecord

LOG_AUDIT = 13
NOTICE, WARNING = 5, 4
ENTERPRISE = 32473
"""The private enterprise number that RFC 5612 keeps for examples: we have none of our own."""
PARAMETERS = ("seq", "user", "key", "role", "tenant", "address", "object", "status", "outcome")
EVENT_TYPE = "actorgrid.audit.record"


class CloudEvent(TypedDict):
    """A record as an event of CloudEvents 1.0, in its JSON form."""

    specversion: str
    id: str
    """The number of the record: with ``source`` it names the record, however often it is sent."""
    source: str
    """The log: actorgrid/audit/HOST_ID."""
    type: str
    time: str
    subject: str
    """What was asked for."""
    datacontenttype: str
    data: AuditRecord


def to_cloud_event(line: bytes) -> CloudEvent:
    """The record of that line as an event."""
    record: AuditRecord = json.loads(line)
    return {
        "specversion": "1.0",
        "id": str(record["seq"]),
        "source": f"actorgrid/audit/{record['host']}",
        "type": EVENT_TYPE,
        "time": _time(record),
        "subject": record["object"],
        "datacontenttype": "application/json",
        "data": record,
    }


def to_syslog(line: bytes) -> bytes:
    """The record of that line as a message of RFC 5424, with its fields as structured data and the line as text."""
    record: AuditRecord = json.loads(line)
    priority = LOG_AUDIT * 8 + (NOTICE if record["status"] < 400 else WARNING)
    fields = " ".join(f'{name}="{_escaped(str(record[name]))}"' for name in PARAMETERS)  # type: ignore[literal-required]
    host, verb = _word(record["host"], 255), _word(record["verb"], 32)
    head = f"<{priority}>1 {_time(record)} {host} actorgrid - {verb} [audit@{ENTERPRISE} {fields}] "
    return head.encode() + b"\xef\xbb\xbf" + line


def framed(message: bytes) -> bytes:
    """A message as TLS carries it: its length before it (RFC 5425, 4.3.1)."""
    return b"%d %s" % (len(message), message)


def _time(record: AuditRecord) -> str:
    return datetime.fromtimestamp(record["at"], UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _escaped(text: str) -> str:
    for letter in ("\\", '"', "]"):
        text = text.replace(letter, "\\" + letter)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _word(text: str, most: int) -> str:
    """What stands between two blanks of the head: printable ASCII, ``-`` for nothing."""
    return "".join(letter for letter in text[:most] if "!" <= letter <= "~") or "-"
