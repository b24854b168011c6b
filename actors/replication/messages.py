"""What DistributedState takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutate:
    """Apply one mutator, durably. Answer: {"key", "type", "value"} after it.

    ``operation`` and ``value``/``field`` as in models.StateMutation. Raises StateTypeConflict, BadRequest,
    DiskFull.
    """

    key: str
    type: str
    operation: str
    value: Any = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Answer: {"key", "type", "value"}. Raises UnknownKey."""

    key: str


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """Answer: list of {"key", "type", "value"}, by key, at most ``limit``."""

    prefix: str
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class WatchPrefix:
    """Tell the caller (a server) of changes under a prefix, from now on. Answer: None; then StateChanged casts."""

    prefix: str


@dataclass(frozen=True, slots=True)
class UnwatchPrefix:
    """Stop telling the caller."""

    prefix: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A key has a new value."""

    key: str
    type: str
    value: Any
