"""The messages that every server understands, and the envelope they travel in, whatever carries it."""

from __future__ import annotations

import pickle  # nosec B403 - between processes that proved the boot's key to each other
from dataclasses import dataclass, field
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
    """Casts that travel as one message; they are handled one after another, as if each had come by itself.

    One that is sent to several is pickled once: what is in it must not change after the first has it.
    """

    messages: tuple[Any, ...]
    _pickled: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._pickled:
            self._pickled.append(pickle.dumps(self.messages, pickle.HIGHEST_PROTOCOL))
        return _batch_of, (self._pickled[0],)


def _batch_of(pickled: bytes) -> Batch:
    return Batch(pickle.loads(pickled))  # nosec B301 - see wire.py


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
