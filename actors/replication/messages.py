"""What DistributedState takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from actorgrid.access import EVERYTHING, Scope

from .namespaces import CLUSTER


class EntryRecord(TypedDict):
    """One key as readers see it. ``expires_at``: seconds since 1970, where the key ends."""

    key: str
    type: str
    value: Any
    expires_at: NotRequired[float]


class ChangeRecord(TypedDict):
    """One key that changed, as watchers see it. ``deleted``: it is not there any more, and has no type and value."""

    key: str
    type: str
    value: Any
    id: str
    expires_at: NotRequired[float]
    deleted: NotRequired[bool]


class PrefixSize(TypedDict):
    """A row of ``state top``: keys and bytes under one prefix."""

    prefix: str
    keys: int
    bytes: int


class NamespaceSize(TypedDict):
    """A row of ``state top``: keys and bytes of one namespace."""

    namespace: str
    keys: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Mutate:
    """Apply one mutator, durably. Answer: {"key", "type", "value"} after it.

    ``operation`` and ``value``/``field`` are as in state_models.StateMutation; ``delete`` takes any type, and its
    answer has no value. With ``durability="majority"`` it is answered when more than half of the cluster's members
    have it on their disks. Raises StateTypeConflict, StateCompareFailed, BadRequest, NamespaceFull, DiskFull, and
    NotReplicated when too few had it after ``within_s``: it stays, and goes on to the others.
    """

    key: str
    type: str
    operation: str
    value: Any = None
    field: str | None = None
    durability: str = "host"
    within_s: float = 5.0
    ttl_s: float | None = None
    """Of what is put: it ends so many seconds after it was written, by the clocks of the hosts."""
    expected: tuple[Any, ...] | None = None
    """Of ``compare_and_put``: the value that the key must have on this host; of no length: it must not be there."""


@dataclass(frozen=True, slots=True)
class MutateBatch:
    """Apply several mutators, all or none, in one commit of this host. Answer: their answers, in order.

    The durability of the whole is the batch's. Raises as ``Mutate``, with the number of the one that does not fit.
    """

    mutations: tuple[Mutate, ...]
    durability: str = "host"
    within_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Read:
    """Answer: {"key", "type", "value"}. Raises UnknownKey."""

    key: str


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """Answer: list of {"key", "type", "value"}, by key, at most ``limit``; of those in ``scope``."""

    prefix: str
    limit: int = 1000
    scope: Scope = EVERYTHING
    shared: tuple[str, ...] = (CLUSTER,)
    behind: str = ""
    """Only keys behind this one."""


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Answer: a ChangesPage of keys under a prefix, those in ``scope`` and of ``shared`` namespaces.

    With ``after``, the id of a change that this server has told: what changed since, each key's latest, in the order of
    the changes. Without it, or with one that is not known any more: all keys there are, behind the key ``behind``.
    """

    prefix: str
    after: str = ""
    behind: str = ""
    limit: int = 1000
    scope: Scope = EVERYTHING
    shared: tuple[str, ...] = (CLUSTER,)


class ChangesPage(TypedDict):
    """A page of changes, or of all keys."""

    known: bool
    """Whether these are the changes behind ``after``; else they are all keys, in order."""
    upto: str
    """The id of the last change before the page was read: what comes later is told to watchers."""
    changes: list[ChangeRecord]
    more: bool


@dataclass(frozen=True, slots=True)
class ReadUsage:
    """Answer: a StateUsage, of prefixes of so many parts under one."""

    prefix: str = ""
    depth: int = 1
    rows: int = 20


class PeerTraffic(TypedDict):
    """A row of ``state top``: another host, as this one sees it."""

    host_id: str
    sent_bytes: int
    received_bytes: int
    behind: int | None
    """Deltas that it is not known to hold; ``None``: it has told nothing yet."""
    heard_s: float | None
    """Seconds since its last packet."""


class OriginRow(TypedDict):
    """A row of ``state top``: a host whose writes this one has."""

    host_id: str
    starts: int
    """Names under which it wrote: one for each of its starts."""
    deltas: int


class StateUsage(TypedDict):
    """Sizes and traffic, as this host sees them since its start."""

    keys: int
    bytes: int
    namespaces: list[NamespaceSize]
    prefixes: list[PrefixSize]
    peers: list[PeerTraffic]
    """Those furthest behind first."""
    origins: list[OriginRow]


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
    """Says that a key has a new value, or that it is gone. Comes once for each change, in order."""

    key: str
    type: str
    value: Any
    id: str = ""
    """The change's, in the order of this host."""
    expires_at: float | None = None
    deleted: bool = False
    """The key is not there any more: there is no type and no value."""

    @property
    def change(self) -> ChangeRecord:
        """The same as a record."""
        record = ChangeRecord(key=self.key, type=self.type, value=self.value, id=self.id)
        if self.expires_at is not None:
            record["expires_at"] = self.expires_at
        if self.deleted:
            record["deleted"] = True
        return record


@dataclass(frozen=True, slots=True)
class ChangesLost:
    """Says that changes could not be told, for want of room on the way: ``ReadChanges`` has them. A cast."""


@dataclass(frozen=True, slots=True)
class RetiredOpenings:
    """Openings of a host's store below the incarnation *floor* that are retired, as the ledger has it or is to have it.

    ``finals``: (incarnation, chance, last sequence) of each that was not retired at the level ``base``.
    """

    host_id: str
    floor: int
    level: int
    base: int
    finals: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class RetirementFound:
    """Says to the server that speaks with other hosts that these openings may be retired: it proposes that to the
    ledger. A cast; it comes again while it stays so.
    """

    openings: RetiredOpenings


@dataclass(frozen=True, slots=True)
class MembersNow:
    """The ids of the cluster's hosts, from the ledger: whom the state is shared with. A cast, whenever they change.

    *sites*: of those that said in which site they are. *away*: those that the leader does not hear of. *retired*: whose
    earlier openings are gone for good.
    """

    host_ids: tuple[str, ...]
    sites: Mapping[str, str] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    retired: tuple[RetiredOpenings, ...] = ()


@dataclass(frozen=True, slots=True)
class PacketCame:
    """A packet of another member, which the link with it vouches for. A cast."""

    host_id: str
    packet: bytes
