"""A place in a trace, as it is handed on: W3C's ``traceparent`` (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

VARIABLE = "TRACEPARENT"
"""The environment variable by which processes hand it on."""
HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace, by the ids of both; *sampled*: whether what comes of it is to be recorded."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def to_text(self) -> str:
        """It as a ``traceparent``."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def below(self, name: str, subject: str) -> TraceContext:
        """The place of the span *name* of *subject* in the same trace: the same whoever asks, and however often.

        So one who goes on after a restart tells of the span that was begun before it.
        """
        return TraceContext(self.trace_id, span_id_of(self.trace_id, name, subject), self.sampled)


def span_id_of(trace_id: str, name: str, subject: str) -> str:
    """The id of the span *name* of *subject*."""
    return hashlib.sha256(f"{trace_id}/{name}/{subject}".encode()).hexdigest()[:16]


def read_traceparent(text: object) -> TraceContext | None:
    """The place that *text* names; ``None`` for what is no traceparent, which W3C has everybody pass over."""
    # In a job of before version 9 of the ledger, which nobody checked under that name, it may be anything.
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = found[2], found[3]
    if trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def is_traceparent(value: object) -> bool:
    """Whether *value* is a traceparent as ``to_text`` writes it."""
    return (
        isinstance(value, str) and len(value) == 55 and value.startswith("00-") and read_traceparent(value) is not None
    )
