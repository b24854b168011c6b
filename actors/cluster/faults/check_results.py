"""What a check of a host says: how it is, why, since when, and the figures that it was judged by; decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeGuard

TEXT_MAX = 300
EVIDENCE_MAX = 16
CHECKS_MAX = 256
"""Of one host: its servers, its devices and a dozen others."""


class CheckStatus(Enum):
    """How what was checked is. Only what failed counts towards recovery; what is degraded is told."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. ``name``: its kind, and after a colon what it is about (``server:gateway``)."""

    name: str
    status: CheckStatus
    reason: str = ""
    """For people; empty where all is well."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Figures, with their units in their names."""
    since: float | None = None
    """Since when it has this status, seconds since the epoch; put in by who keeps the last result."""

    @property
    def kind(self) -> str:
        """What was checked: the name without what it is about."""
        return self.name.partition(":")[0]

    @property
    def subject(self) -> str:
        """What the check is about, where there are several of its kind."""
        return self.name.partition(":")[2]

    def to_plain(self) -> dict[str, Any]:
        """The result as links and the API carry it."""
        return {
            "name": self.name,
            "status": self.status.value,
            "reason": self.reason[:TEXT_MAX],
            "evidence": dict(self.evidence),
            "since": self.since,
        }


def results_of(told: object) -> tuple[CheckResult, ...]:
    """The results that another host told of itself; what is malformed is left out, and what is beyond 256 of them."""
    if not isinstance(told, list):
        return ()
    return tuple(result for each in told[:CHECKS_MAX] if (result := _result(each)) is not None)


def _result(told: object) -> CheckResult | None:
    if not isinstance(told, dict):
        return None
    name, status, reason = told.get("name"), told.get("status"), told.get("reason")
    evidence, since = told.get("evidence"), told.get("since")
    known = [each.value for each in CheckStatus]
    if not isinstance(name, str) or not 0 < len(name) <= 128 or status not in known or not isinstance(reason, str):
        return None
    figures = evidence.items() if isinstance(evidence, dict) else ()
    kept = {str(key)[:64]: float(value) for key, value in figures if is_figure(value)}
    return CheckResult(
        name,
        CheckStatus(status),
        reason[:TEXT_MAX],
        dict(list(kept.items())[:EVIDENCE_MAX]),
        float(since) if is_figure(since) else None,
    )


def is_figure(value: object) -> TypeGuard[float]:
    """Whether *value* is a finite number."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # not true of a NaN either
    )


def worst(results: tuple[CheckResult, ...]) -> CheckStatus:
    """The worst status among *results*."""
    found = {result.status for result in results}
    return next((each for each in (CheckStatus.FAILED, CheckStatus.DEGRADED) if each in found), CheckStatus.OK)
