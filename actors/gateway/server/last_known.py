"""What an answer says of its own age: a host that hears no leader shows what it knew last, and says so.

Work on a host that is not there is marked as well: that it runs is what was last known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time
from typing import Any

from actorgrid.actors.cluster.messages import ClusterHealthReport, HealthReport
from actorgrid.actors.gateway.job_notices import notices_shown
from actorgrid.actors.gpu.enforcement import enforced_of_job
from actorgrid.actors.ledger.notice_records import NoticeRecord
from actorgrid.actors.ledger.record_types import NO_HOST, HostRecord, JobRecord
from actorgrid.amounts import duration
from actorgrid.errors import ActorGridError
from actorgrid.models import HostPresence, JobState

from .route import RequestContext

HEALTH_S = 3.0
ON_A_HOST = (JobState.PLACED, JobState.RUNNING)
GONE = {
    HostPresence.AWAY: "has not been heard of",
    HostPresence.LOST: "is lost",
    HostPresence.UNKNOWN: "cannot be asked about: nobody is known to lead",
}

Plain = dict[str, Any]


async def cluster_known(call: RequestContext, *, fresh: bool = True) -> Plain | None:
    """The verdict on the cluster (``cluster/health.py``), or ``None`` while the server that knows is restarting.

    *fresh*: the host that leads is asked whom it misses, which may take a second.
    """
    try:
        if fresh:
            found: Plain = await call.ask("fault_detector", ClusterHealthReport(), HEALTH_S)
        else:
            found = (await call.ask("fault_detector", HealthReport(), HEALTH_S))["cluster"]
    except ActorGridError:
        return None
    return found


def last_known(known: Plain | None) -> Plain | None:
    """``{"at", "age_s", "why"}`` of an answer that may be old; ``None`` for one of now."""
    if known is None or known["known_at"] is None:
        return None
    why = [problem["what"] for problem in known["problems"] if problem["name"] in ("no_quorum", "no_leader")]
    return {
        "at": known["known_at"],
        "age_s": round(max(0.0, time() - known["known_at"]), 1),
        "why": why[0] if why else "",
    }


def presence(known: Plain | None, host_id: str) -> str:
    """The presence of that host: a word of HostPresence."""
    if known is None or host_id not in known["hosts"]:
        return HostPresence.UNKNOWN.value
    return str(known["hosts"][host_id]["presence"])


def marked(
    jobs: Iterable[JobRecord],
    known: Plain | None,
    names: Mapping[str, HostRecord],
    notices: Mapping[str, NoticeRecord],
) -> list[Plain]:
    """*jobs*, with why they are ``unconfirmed`` where they are placed or run on a host that is not there, and who holds
    them to what they have of GPUs.

    *names*: records of hosts. *notices*: what jobs are still to tell, or could not.
    """
    return [
        {
            **job,
            **notices_shown(job, notices),
            "unconfirmed": _unconfirmed(job, known, names),
            "enforced_by": enforced_of_job(job, names),
        }
        for job in jobs
    ]


def _unconfirmed(job: JobRecord, known: Plain | None, names: Mapping[str, HostRecord]) -> str | None:
    if known is None or job["state"] not in ON_A_HOST or not job["attempts"]:
        return None
    attempt = job["attempts"][-1]
    hosts = [str(part["host"]) for part in attempt.get("members") or (attempt,)]
    for host_id in dict.fromkeys(hosts):
        view = known["hosts"].get(host_id)
        if view is None or view["presence"] == HostPresence.PRESENT:
            continue
        name = names.get(host_id, NO_HOST).get("hostname", host_id)
        heard = ""
        if view["heard_at"] is not None and view["presence"] != HostPresence.UNKNOWN:
            heard = f" for {duration(time() - view['heard_at'])}"
        return f"its host {name} {GONE[HostPresence(view['presence'])]}{heard}"
    return None
