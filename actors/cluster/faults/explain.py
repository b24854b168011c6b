"""Why a host is as it is, what was done about it, and what would be next: for people, from what the leader knows."""

from __future__ import annotations

from typing import Any, Protocol

from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.actors.ledger.recovery_records import NO_RECOVERY, HostRecoveryRecord, maintained
from actorgrid.errors import NotFound

from .check_results import CheckStatus
from .core import HostOutlook, HostPicture
from .escalation import EscalationPolicy

EVENTS_SHOWN = 32
FAULTS_KEPT = 5_000
TRY = {
    "server": "actorgrid inspect shows each process; agent.log there says why it ended",
    "disk": "make room, or look at the disk: dmesg, smartctl",
    "disk_latency_trend": "move what matters before it is slow: actorgrid drain HOST; dmesg, smartctl",
    "disk_room_trend": "make room: actorgrid jobs and their output, or something else on that disk",
    "memory": "less work there, or more memory: quotas and --memory bound what work takes",
    "processor": "less beside the agent on that machine; nothing is declared dead for it",
    "clock": "run one time service on all hosts: chronyc tracking",
    "network": "its cables, switch and firewall: ports of actorgrid hosts",
    "gpu": "actorgrid gpus shows its readings; nvidia-smi -q there the rest",
    "gpus": "the driver: dmesg, nvidia-smi; restart the machine if it does not come back",
    "reachable": "see to its machine, its network and its agent; actorgrid leave --host HOST --force if it is gone",
}


class Copy(Protocol):
    """What is read of the ledger."""

    hosts: dict[str, HostRecord]
    recoveries: dict[str, HostRecoveryRecord]


class Deciding(Protocol):
    """What is read of the leader's decisions."""

    outlooks: dict[str, HostOutlook]
    pictures: dict[str, HostPicture]

    def witnesses(self, host_id: str) -> dict[str, str]:
        """Who cannot reach it, and why."""

    def policy(self) -> EscalationPolicy:
        """The thresholds."""

    def strategy_of(self, action: str) -> str:
        """What carries *action* out."""


def why_host(host_id: str, ledger: Copy, deciding: Deciding, now: float) -> dict[str, Any]:
    """The answer of ``why host``. Raises NotFound."""
    record = ledger.hosts.get(host_id)
    if record is None:
        raise NotFound(
            f"no host of the id {host_id}",
            asked=host_id,
            found=f"{len(ledger.hosts)} hosts",
            hint="actorgrid hosts lists them",
        )
    picture = deciding.pictures.get(host_id) or HostPicture(host_id, str(record["hostname"]))
    outlook = deciding.outlooks.get(host_id)
    recovery = ledger.recoveries.get(host_id) or NO_RECOVERY
    window = maintained(recovery, now)
    checks = sorted(
        picture.results, key=lambda each: ({"failed": 0, "degraded": 1}.get(each.status.value, 2), each.name)
    )
    condition = _condition(record, picture, window is not None)
    return {
        "host_id": host_id,
        "hostname": str(record["hostname"]),
        "condition": condition,
        "headline": _headline(condition, picture, outlook),
        "checks": [check.to_plain() for check in checks],
        "witnesses": [
            {"host_id": id, "hostname": _name(ledger, id), "why": why}
            for id, why in sorted(deciding.witnesses(host_id).items())
        ],
        "history": [event.to_plain() for event in reversed(picture.events[-EVENTS_SHOWN:])],
        "failures": 0 if outlook is None else outlook.failures,
        "penalty": 0.0 if outlook is None else round(outlook.damping.penalty, 1),
        "suppressed": outlook is not None and outlook.damping.suppressed,
        "reuse_in_s": None if outlook is None or not outlook.damping.suppressed else outlook.damping.reuse_in_s,
        "level": recovery["level"],
        "draining": bool(record.get("draining", False)),
        "maintenance": None if window is None else dict(window),
        "actions": [dict(action) for action in reversed(recovery["actions"])],
        "next": _next(outlook, deciding),
        "try": _hints(picture),
    }


def _name(ledger: Copy, host_id: str) -> str:
    record = ledger.hosts.get(host_id)
    return host_id if record is None else str(record["hostname"])


def _condition(record: HostRecord, picture: HostPicture, maintained_now: bool) -> str:
    """One word: maintenance, restarting, lost, away, failed, degraded, healthy, or unknown."""
    if maintained_now:
        return "maintenance"
    if picture.expected_away:
        return "restarting"
    if record["state"] == "lost":
        return "lost"
    if picture.away:
        return "away"
    if not picture.results:
        return "unknown"
    worst = {result.status for result in picture.results}
    if CheckStatus.FAILED in worst:
        return "failed"
    return "degraded" if CheckStatus.DEGRADED in worst else "healthy"


def _headline(condition: str, picture: HostPicture, outlook: HostOutlook | None) -> str:
    bad = [each for each in picture.results if each.status is not CheckStatus.OK]
    first = sorted(bad, key=lambda each: each.status is not CheckStatus.FAILED)
    what = first[0].reason or first[0].name if first else "all of its checks are well"
    more = f", and {len(first) - 1} more" if len(first) > 1 else ""
    if condition == "unknown":
        return "nothing of its checks has come yet"
    held = f"; {outlook.held_back}" if outlook is not None and outlook.held_back else ""
    return f"{what}{more}{held}"


def _next(outlook: HostOutlook | None, deciding: Deciding) -> dict[str, Any]:
    """What would be done next, when, and what holds it back."""
    if outlook is None:
        return {"action": None, "strategy": None, "at": None, "more_failures": 0, "held_back": ""}
    action = outlook.next_action
    if not outlook.level and not outlook.failures:
        action = ""  # nothing ever failed: what would come at some time is no news of this host
    return {
        "action": action or None,
        "strategy": deciding.strategy_of(action) if action else None,
        "at": outlook.next_at,
        "more_failures": outlook.more_failures if action else 0,
        "held_back": outlook.held_back,
    }


def _hints(picture: HostPicture) -> list[str]:
    """What to try, each once, for what failed first."""
    bad = [each for each in picture.results if each.status is not CheckStatus.OK]
    ranked = sorted(bad, key=lambda each: each.status is not CheckStatus.FAILED)
    hints = [TRY[each.kind].replace("HOST", picture.name) for each in ranked if each.kind in TRY]
    return list(dict.fromkeys(hints))


def fault_rows(ledger: Copy, deciding: Deciding, host_id: str = "") -> list[dict[str, Any]]:
    """What happened to hosts, and was done about them, newest first; at most 5,000."""
    rows: list[dict[str, Any]] = []
    for id, recovery in ledger.recoveries.items():
        rows += [
            {
                "at": action["at"],
                "host_id": id,
                "hostname": _name(ledger, id),
                "kind": "action",
                "what": action["action"],
                "outcome": action["outcome"] or "under way",
                "reason": action["reason"],
                "found": action["found"],
                "evidence": dict(action["evidence"]),
            }
            for action in recovery["actions"]
        ]
    for id, picture in deciding.pictures.items():
        rows += [
            {
                "at": event.at,
                "host_id": id,
                "hostname": _name(ledger, id),
                "kind": "prediction" if event.reason.startswith("predicted") else "check",
                "what": event.check,
                "outcome": event.word,
                "reason": event.reason,
                "found": "",
                "evidence": {},
            }
            for event in picture.events
        ]
    chosen = [row for row in rows if not host_id or row["host_id"] == host_id]
    chosen.sort(key=lambda row: -float(row["at"]))
    return chosen[:FAULTS_KEPT]
