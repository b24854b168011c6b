"""The messages that every server understands, and the envelope they travel in, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .ref import Ref

CALL, CAST, REPLY, ERROR, SIGNAL = "call", "cast", "reply", "error", "signal"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message. ``ref`` ties a reply to its call; a reply nobody waits for is dropped.

    ``sender`` is the sender's name, for people; ``source`` its process, as the receiving runtime proved it. A
    sender leaves ``source`` empty.
    """

    kind: str
    sender: str
    ref: tuple[int, int] | None
    body: Any
    source: Ref | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Casts that travel as one message; they are handled one after another, as if each had come by itself."""

    messages: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Ask any server for its figures: ``{name: number}``."""


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Ask any server for its ``status``: plain values, as ``actorgrid inspect`` shows them."""


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """A live setting has a new value, already committed."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Beat:
    """Cast to ``fault_detector`` by every server's runtime, from its message loop."""

    name: str
    pid: int
    handled: int
