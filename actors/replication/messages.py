"""What DistributedState takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutate:
    """Apply one mutator, durably. Answer: {"key", "type", "value"} after it.

    ``operation`` and ``value``/``field`` as in models.StateMutation. With ``durability="majority"`` it is answered when
    more than half of the cluster's members have it on their disks. Raises StateTypeConflict, BadRequest, DiskFull, and
    NotReplicated when too few had it after ``within_s``: it stays, and goes on to the others.
    """

    key: str
    type: str
    operation: str
    value: Any = None
    field: str | None = None
    durability: str = "host"
    within_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Read:
    """Answer: {"key", "type", "value"}. Raises UnknownKey."""

    key: str


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """Answer: list of {"key", "type", "value"}, by key, at most ``limit``; of those that ``user`` may see, if given."""

    prefix: str
    limit: int = 1000
    user: str | None = None
    shared: tuple[str, ...] = ()


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
    """Says that a key has a new value."""

    key: str
    type: str
    value: Any


@dataclass(frozen=True, slots=True)
class MembersNow:
    """The ids of the cluster's hosts, from the ledger: whom the state is shared with. A cast, whenever they change.

    *sites*: of those that said in which site they are. *away*: those that the leader does not hear of.
    """

    host_ids: tuple[str, ...]
    sites: Mapping[str, str] = field(default_factory=dict)
    away: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PacketCame:
    """A packet of another member, which the link with it vouches for. A cast."""

    host_id: str
    packet: bytes
