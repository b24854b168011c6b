"""What the ledger keeps of a host that gave trouble: what was done about it, and when it may not be touched.

Plain maps of JSON values, as in ``record_types.py``. Times are seconds since the epoch by the proposer's clock.
"""

from __future__ import annotations

from typing import Any, TypedDict

PROCESS_RESTART = "process_restart"
WORK_REDISTRIBUTION = "work_redistribution"
NODE_RESTART = "node_restart"
CLUSTER_REBALANCE = "cluster_rebalance"
RELEASE = "release"
ESCALATION = (PROCESS_RESTART, WORK_REDISTRIBUTION, NODE_RESTART, CLUSTER_REBALANCE)
"""What is done about a host, from the least to the most; the first has level 1."""
RECOVERY_ACTIONS = (*ESCALATION, RELEASE)
RECOVERY_OUTCOMES = ("done", "dry_run", "failed", "unknown")
"""``unknown``: whoever began it led no more before it said how it ended; it is not done a second time."""


class RecoveryRecord(TypedDict):
    """One thing that was done about a host."""

    number: int
    """Its number among those of its host, from 1."""
    action: str
    """One of ``RECOVERY_ACTIONS``."""
    strategy: str
    """The name of the recovery strategy that carries it out."""
    reason: str
    """Why, for people."""
    evidence: dict[str, Any]
    """The figures it was decided by, with units in their names; texts are names."""
    failures: int
    """How many failures of the host counted then."""
    index: int
    """The entry that began it."""
    term: int
    """The leadership that began it."""
    at: float
    """When it began."""
    outcome: str
    """One of ``RECOVERY_OUTCOMES``; empty until it ended."""
    found: str
    """What came of it, for people."""
    ended_at: float | None
    """When it ended."""


class MaintenanceRecord(TypedDict):
    """A time in which nothing is done about a host, because somebody works on it."""

    begun_at: float
    """Since when."""
    until: float
    """It ends by itself then."""
    reason: str
    """What is done there, for people."""
    by: str
    """Whose word it is."""


class HostRecoveryRecord(TypedDict):
    """What was done about one host."""

    host_id: str
    """Its id."""
    number: int
    """Of the last action."""
    level: int
    """How far it went since the host was last released: 0 for nothing, else the place in ``ESCALATION``, from 1."""
    drained: bool
    """Whether its drain is of that, and ends with it."""
    open: int
    """The number of the action that has not ended yet; 0: none."""
    actions: list[RecoveryRecord]
    """The last 16, oldest first."""
    maintenance: MaintenanceRecord | None
    """The last window that was set; it may be over."""


NO_RECOVERY: HostRecoveryRecord = {
    "host_id": "",
    "number": 0,
    "level": 0,
    "drained": False,
    "open": 0,
    "actions": [],
    "maintenance": None,
}
"""Of a host that nothing was ever done about. Not to be written into."""


def maintained(record: HostRecoveryRecord | None, now: float) -> MaintenanceRecord | None:
    """The maintenance window that is open at *now*; ``None``: there is none."""
    window = None if record is None else record["maintenance"]
    return window if window is not None and window["begun_at"] <= now < window["until"] else None
