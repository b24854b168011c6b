"""What the ledger keeps of the hosts' audit logs: of each the latest head, proven to go on from those before."""

from __future__ import annotations

from typing import TypedDict

NOTE_MAX, KEY_MAX = 4_096, 512
ENDED_MAX = 8
"""Heads of logs that a host does not go on with: of more, the first and the last half."""


class AuditHeadFacts(TypedDict):
    """A head of an audit log."""

    log: int
    """Which log of its host, from 1: another one begins where the host cannot go on from the head that is held."""
    size: int
    """How many records it has."""
    root: str
    """The root of the Merkle tree over them, in hex."""
    note: str
    """The head as it was signed: C2SP's tlog-checkpoint. The ledger reads none, whoever verifies does."""
    key: str
    """By which the note is checked, as the host says: NAME+ID+KEY."""
    at: float
    """When it was told, by the host's clock."""


class AuditHeadRecord(AuditHeadFacts):
    """The latest head of a host's audit log."""

    host_id: str
    """The host."""
    ended: list[AuditHeadFacts]
    """The last heads of its logs of before, the oldest first."""
