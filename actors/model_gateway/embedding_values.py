"""Embeddings as the client asked for them: base64 of little-endian 32-bit floats, or a list of numbers. No I/O.

Both of OpenAI's clients ask for base64 unless told otherwise, and the one for node makes a wrong vector of a list
without a word; some servers never give anything but lists.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any

ANSWER_MAX = 64 * 2**20
"""A longer answer is passed on as it is."""


def convert_embeddings(body: bytes, wants_base64: bool) -> bytes:
    """The answer with its vectors in the form that was asked for; as it is where it is no such answer."""
    try:
        plain = json.loads(body)
        rows = plain["data"]
        changed = False
        for row in rows:
            value = row["embedding"]
            if wants_base64 and isinstance(value, list):
                row["embedding"] = _encoded(value)
                changed = True
            elif not wants_base64 and isinstance(value, str):
                row["embedding"] = _decoded(value)
                changed = True
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, struct.error, binascii.Error):
        return body
    return json.dumps(plain).encode() if changed else body


def _encoded(values: list[Any]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _decoded(text: str) -> list[float]:
    data = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(data) // 4}f", data))
