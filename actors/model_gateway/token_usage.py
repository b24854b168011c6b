"""The usage that answers tell of, found in bytes that are passed on as they come. No I/O.

Chat and completions say ``prompt_tokens`` and ``completion_tokens``, responses ``input_tokens`` and ``output_tokens``.
What a user wrote cannot be mistaken for it: inside of a JSON string the quotes are escaped.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

TOKENS_MAX = 2**40
USAGE_BYTES_MAX = 8 * 1024
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_EDGE = 64
"""Bytes of the last piece that are looked at again: the name may be cut in two."""
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class UsedTokens(NamedTuple):
    """Tokens of one request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def read_usage(plain: Any) -> UsedTokens | None:
    """The usage in a JSON value, where it is one."""
    if not isinstance(plain, dict):
        return None
    prompt = _count(plain.get("prompt_tokens", plain.get("input_tokens")))
    answer = _count(plain.get("completion_tokens", plain.get("output_tokens")))
    if prompt is None and answer is None:
        return None
    details = plain.get("prompt_tokens_details") or plain.get("input_tokens_details")
    if not isinstance(details, dict):
        return UsedTokens(prompt or 0, 0, answer or 0)
    return UsedTokens(prompt or 0, min(_count(details.get("cached_tokens")) or 0, prompt or 0), answer or 0)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX else None


class UsageScanner:
    """Looks for usage in an answer that is no stream of events."""

    __slots__ = ("_collected", "_edge", "usage")

    def __init__(self) -> None:
        self.usage: UsedTokens | None = None
        self._edge = b""
        self._collected: bytearray | None = None

    def feed(self, data: bytes) -> None:
        """Look at the next piece."""
        if self._collected is not None:
            self._collected += data[: USAGE_BYTES_MAX - len(self._collected)]
        else:
            looked_at = self._edge + data if self._edge else data
            at = looked_at.find(b'"usage"')
            found = _USAGE.search(looked_at, at) if at >= 0 else None
            if found is None:
                self._edge = looked_at[-_EDGE:]
                return
            self._collected = bytearray(looked_at[found.end() : found.end() + USAGE_BYTES_MAX])
        try:
            plain, _ = _scan(self._collected.decode("utf-8", "replace"), 0)
        except (ValueError, StopIteration, RecursionError):
            if len(self._collected) >= USAGE_BYTES_MAX:
                self._collected, self._edge = None, b""
            return
        self._collected, self._edge = None, b""
        self.usage = read_usage(plain) or self.usage
