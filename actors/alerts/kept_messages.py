"""The messages of alerts that wait to be sent, as a file of the host: an agent that starts again sends them.

What is read is looked at as if anybody had written it: what is no message counts for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from actorgrid.actors.notifications.deliveries import Delivery
from actorgrid.actors.notifications.outgoing import OutgoingMessage

FILE = "alert_messages.json"
FILE_BYTES_MAX = 1 << 20
TEXT_MAX = 4_096


def to_bytes(deliveries: Iterable[Delivery], most: int) -> bytes:
    """The first *most* of them, as the file has them."""
    rows = [
        {
            "delivery_id": each.delivery_id,
            "target": each.target,
            "message_id": each.message.message_id,
            "kind": each.message.kind,
            "at": each.message.at,
            "text": each.message.text,
            "data": each.message.data,
        }
        for each in deliveries
    ]
    return json.dumps(rows[:most]).encode("ascii")


def read(path: Path, most: int) -> list[Delivery]:
    """At most *most* messages of the file *path*; none, where it is missing or is none of ours."""
    try:
        if os.stat(path).st_size > FILE_BYTES_MAX:
            return []
        rows: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    found = [_delivery(row) for row in (rows if isinstance(rows, list) else [])[:most]]
    return [each for each in found if each is not None]


def _delivery(row: Any) -> Delivery | None:
    texts = ("delivery_id", "target", "message_id", "kind", "text")
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in texts):
        return None
    if any(len(row[name]) > TEXT_MAX for name in texts):
        return None
    at, data = row.get("at"), row.get("data")
    if isinstance(at, bool) or not isinstance(at, int | float) or not isinstance(data, dict):
        return None
    message = OutgoingMessage(row["message_id"], row["kind"], float(at), row["text"], data)
    return Delivery(row["delivery_id"], row["target"], message)
