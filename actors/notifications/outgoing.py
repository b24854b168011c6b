"""What is sent: the one message behind a webhook's body and a mail."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from actorgrid.actors.ledger.notice_records import NoticeRecord

LINE_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message. *message_id* is the same however often it is sent; *kind*: ``job.failed``, ``alert.firing``; *text* is
    one line for people, *data* what programs read; *at*: when it happened, seconds since the epoch."""

    message_id: str
    kind: str
    at: float
    text: str
    data: dict[str, Any] = field(default_factory=dict)

    def body(self) -> bytes:
        """As a webhook has it: ``type``, ``timestamp`` and ``data`` as Standard Webhooks has them, and ``text``, which
        is what chats that take a webhook show."""
        when = datetime.fromtimestamp(max(0.0, self.at), UTC).isoformat().replace("+00:00", "Z")
        told = {"type": self.kind, "timestamp": when, "text": self.text, "data": self.data}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    def lines(self) -> str:
        """As a mail has it: the line for people, and below it what is known, one a line."""
        known = [f"{name}: {one_line(str(value))}" for name, value in self.data.items() if value not in (None, "", [])]
        return "\n".join([self.text, "", *known, ""])


def one_line(text: str) -> str:
    """*text* in one line of characters that can be shown, cut at 300."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= LINE_CHARS_MAX else shown[: LINE_CHARS_MAX - 3] + "..."


_SAID = {
    "started": "has started",
    "requeued": "waits again",
    "succeeded": "has succeeded",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "lost": "was lost with its host",
}


def message_of(notice: NoticeRecord, cluster: str, host_name: str | None) -> OutgoingMessage:
    """The message of a notice: *host_name* is that of the last attempt's host."""
    name = f"{notice['name']} ({notice['job_id']})" if notice["name"] else notice["job_id"]
    on = f" on {host_name}" if host_name else ""
    reason = f": {notice['reason']}" if notice["reason"] else ""
    return OutgoingMessage(
        notice["notice_id"],
        f"job.{notice['event']}",
        notice["at"],
        one_line(f"{cluster}: job {name} of {notice['user_id']} {_SAID[notice['event']]}{on}{reason}"),
        {
            "job_id": notice["job_id"],
            "name": notice["name"],
            "user_id": notice["user_id"],
            "event": notice["event"],
            "attempt": notice["attempt"],
            "host": host_name,
            "exit_code": notice["exit_code"],
            "reason": notice["reason"],
            "cluster": cluster,
        },
    )
