"""What the doors take and give of hosts in trouble: checks, what was done, maintenance."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody

MAINTENANCE_MAX_S = 30 * 86_400.0


class HostCheck(AnswerBody):
    """One check of a host. ``evidence``: figures, with their units in their names; ``since``: since when it is so."""

    name: str
    status: Literal["ok", "degraded", "failed"]
    reason: str
    evidence: dict[str, float]
    since: float | None


class HostWitness(AnswerBody):
    """A host that cannot reach another, and what it got instead."""

    host_id: str
    hostname: str
    why: str


class HostHealthEvent(AnswerBody):
    """A check that began to fail, went on failing, was degraded, or was well again."""

    at: float
    check: str
    word: Literal["failed", "still_failed", "degraded", "ok"]
    reason: str


class RecoveryAction(AnswerBody):
    """What was done about a host. ``outcome`` is empty while it is under way; ``index`` is its entry in the ledger."""

    number: int
    action: str
    strategy: str
    reason: str
    evidence: dict[str, Any]
    failures: int
    index: int
    term: int
    at: float
    outcome: Literal["", "done", "dry_run", "failed", "unknown"]
    found: str
    ended_at: float | None


class MaintenanceWindow(AnswerBody):
    """A time in which nothing is done about a host."""

    begun_at: float
    until: float
    reason: str
    by: str


class NextAction(AnswerBody):
    """What would be done next. ``at``: not before then; ``held_back``: why it is not done now."""

    action: str | None
    strategy: str | None
    at: float | None
    more_failures: int
    held_back: str


class HostWhyAnswer(AnswerBody):
    """Why a host is as it is, as the host that leads knows it.

    ``penalty`` is that of flap damping; ``level``: how many steps of escalation were taken.
    """

    host_id: str
    hostname: str
    condition: Literal["healthy", "degraded", "failed", "away", "lost", "maintenance", "restarting", "unknown"]
    headline: str
    checks: list[HostCheck]
    witnesses: list[HostWitness]
    history: list[HostHealthEvent]
    failures: int
    penalty: float
    suppressed: bool
    reuse_in_s: float | None
    level: int
    draining: bool
    maintenance: MaintenanceWindow | None
    actions: list[RecoveryAction]
    next: NextAction
    try_: list[str] = Field(alias="try")


class FaultsQuery(RequestBody):
    """How many to list, and of which host."""

    limit: int = Field(default=100, ge=1, le=1000)
    host_id: str = Field(default="", max_length=128)


class FaultRow(AnswerBody):
    """Something that happened to a host (``check``, ``prediction``), or was done about it (``action``)."""

    at: float
    host_id: str
    hostname: str
    kind: Literal["action", "check", "prediction"]
    what: str
    outcome: str
    reason: str
    found: str
    evidence: dict[str, Any]


class FaultsAnswer(AnswerBody):
    """What happened to hosts and was done about them, newest first."""

    faults: list[FaultRow]


class MaintenanceRequest(RequestBody):
    """For how long a host is worked on, and what is done there."""

    for_s: float = Field(ge=1, le=MAINTENANCE_MAX_S)
    reason: str = Field(default="", max_length=1000)


class MaintenanceSet(AnswerBody):
    """It is so now; ``until`` null: no window is open."""

    host: str
    until: float | None
    was: bool


class HostMaintenance(MaintenanceWindow):
    """A host under maintenance."""

    host_id: str
    hostname: str


class MaintenanceListed(AnswerBody):
    """The hosts that are under maintenance now."""

    maintenance: list[HostMaintenance]
