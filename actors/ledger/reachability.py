"""What the ledger holds of membership: the members' secret, and of a host that nobody reaches who found that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict


class UnreachableRecord(TypedDict):
    """That a host is not reached, by how many, and since when."""

    since: float
    """When the leader first heard of it, seconds since the epoch, by its clock."""
    witnesses: list[str]
    """The hosts that did not reach it, each by itself; at most 16."""


class GossipKeyRecord(TypedDict):
    """The secret that members seal their gossip with."""

    number: int
    """Which one it is, from 1."""
    secret: str
    """32 bytes in hex. Shown to nobody: not by ``ledger dump``, inspection, logs, events or HTTP."""
    removals: int
    """How many members had been removed when it was made: after one more it is known to a host that is none."""


@dataclass(frozen=True, slots=True)
class GossipKey:
    """What the membership server asks its ledger for; a type of its own, so that no trace of messages shows it."""

    number: int
    """0: there is none yet."""
    due: bool
    """Whether it is time for the next: there is none and there are two members, or one that knew it was removed."""
    secret: bytes = field(repr=False)
