"""From reports of health to what is listed of a host, of the cluster, and of a job that waits; decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.actors.ledger.record_types import HostRecord, JobRecord
from actorgrid.amounts import duration
from actorgrid.models import ClusterHealth, HostPresence, NodeHealth

Plain = dict[str, Any]
Report = Mapping[str, Any]


def unknown_report(why: str) -> Plain:
    """The report that stands for a FaultDetector that does not answer."""
    silent = {
        "name": "server_silent",
        "level": "critical",
        "what": f"fault_detector: {why}",
        "found": "how this host and the cluster are is not known",
        "try": "ask again in a moment; actorgrid inspect shows each process",
        "read_at": 0.0,
        "since": None,
        "hosts": [],
    }
    cluster = {
        "health": ClusterHealth.NOT_READY.value,
        "ready": False,
        "can_commit": True,
        "problems": [silent],
        "hosts": {},
        "hosts_present": None,
        "gpus": 0,
        "gpus_present": None,
        "known_at": None,
    }
    return {
        "health": NodeHealth.DEGRADED.value,
        "ready": False,
        "problems": [silent["what"]],
        "servers": {},
        "cluster": cluster,
    }


def summary_of(known: Report) -> Plain:
    """The fields of ClusterAnswer that come from the verdict, as ``status`` shows them."""
    findings = list(known["problems"])
    return {
        "health": known["health"],
        "ready": known["ready"],
        "can_commit": known["can_commit"],
        "problems": [each["what"] for each in findings if each["level"] != "note"],
        "findings": findings,
        "known_at": known["known_at"],
        "hosts_present": known["hosts_present"],
        "gpus_present": known["gpus_present"],
    }


def start_blockers(report: Report) -> tuple[str, ...]:
    """The problems that keep jobs from starting: those of the host that was asked, or of the cluster as a whole."""
    critical = [each["what"] for each in report["cluster"]["problems"] if each["level"] == "critical"]
    return tuple(dict.fromkeys([*report["problems"], *critical]))


def away_s(report: Report, now: float) -> dict[str, float]:
    """Seconds for which each absent host has not been heard of, where that is known."""
    views = report["cluster"]["hosts"].items()
    return {
        host_id: now - view["heard_at"]
        for host_id, view in views
        if view["presence"] != HostPresence.PRESENT and view["heard_at"] is not None
    }


def unsure_note(report: Report, here: str, job: JobRecord, now: float) -> tuple[str, ...]:
    """The note that news of a job running elsewhere is old: nobody leads, so nobody here can know."""
    known_at = report["cluster"]["known_at"]
    if known_at is None or all(attempt["host"] == here for attempt in job["attempts"][-1:]):
        return ()
    why = [each["what"] for each in report["cluster"]["problems"] if each["name"] in ("no_quorum", "no_leader")]
    return (f"last known {duration(now - known_at)} ago, it may have ended or moved: {why[0] if why else ''}",)


def condition_of(record: HostRecord, reports: Mapping[str, Report], known: Report, now: float) -> Plain:
    """The condition of a host: as it says itself, else as the host that is asked knows it."""
    host_id = str(record["host_id"])
    view = known["hosts"].get(host_id, {"presence": HostPresence.UNKNOWN.value, "heard_at": None})
    presence, heard_at = HostPresence(view["presence"]), view["heard_at"]
    problems: list[str] = []
    if presence is HostPresence.AWAY:
        health = NodeHealth.UNREACHABLE
    elif host_id in reports:
        health, heard_at = NodeHealth(reports[host_id]["health"]), now
        problems = list(reports[host_id]["problems"])
        presence = HostPresence.PRESENT if presence is HostPresence.UNKNOWN else presence
    else:
        health = NodeHealth.UNKNOWN
        heard_at = now if presence is HostPresence.PRESENT else heard_at
    if record["state"] == "lost":
        health, heard_at = NodeHealth.LOST, view["heard_at"] or record["heard_at"]
        problems.insert(0, "it was away for too long: it gets work again once nothing lives there of what it had")
    unreachable, reached_by = record.get("unreachable"), list(view.get("reached_by", ()))
    if unreachable is not None:
        problems.append(f"nobody reaches it, say {len(unreachable['witnesses'])} hosts: it gets nothing new")
    elif reached_by:
        problems.append(f"the leader does not reach it, but {len(reached_by)} other hosts do")
    return {
        "health": health.value,
        "presence": presence.value,
        "problems": problems,
        "last_heartbeat": heard_at,
        "unreachable": unreachable,
        "reached_by": reached_by,
    }


def url_of(addresses: dict[str, str]) -> dict[str, Any]:
    """The URL for clients of other machines, and the port, which is not the base port everywhere."""
    https = addresses.get("https", "")
    return {"url": f"https://{https}", "port": int(https.rpartition(":")[2])} if https else {}
