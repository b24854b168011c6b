"""What a host's word of how far it keeps work apart comes to for one job: decided alike by the host that runs it, by
whoever places it, and by whoever is asked why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from actorgrid.access import DEFAULT_TENANT, tenant_of
from actorgrid.isolation_words import ASPECTS, NONE, is_min_isolation, lacking

from .isolation_records import LEVELS, KeptApartRecord, Level, is_kept_apart
from .record_types import HostRecord, JobRecord
from .records import working_dir_of


def min_isolation_of(job: JobRecord) -> str:
    """The least that *job* asks for; nothing where what it has is not understood."""
    asked = cast("Mapping[str, object]", job.get("resources") or {}).get("min_isolation")
    return asked if isinstance(asked, str) and is_min_isolation(asked) else ""


def kept_of(host: HostRecord) -> KeptApartRecord | None:
    """How far *host* keeps work apart; ``None`` while it has not said so that it is understood."""
    kept = host.get("kept_apart")
    return kept if kept is not None and is_kept_apart(kept) else None


def strongest(kept: KeptApartRecord) -> Mapping[str, str]:
    """Who enforces what at the strongest level that work can have there."""
    return next((kept["levels"][level] for level in reversed(LEVELS) if level in kept["levels"]), {})


def strongest_of(host: HostRecord) -> Mapping[str, str]:
    """The same of a host; nothing while it has not said."""
    kept = kept_of(host)
    return {} if kept is None else strongest(kept)


def wanted_level(kept: KeptApartRecord, job: JobRecord) -> Level:
    """The level that *job* is to have on a host that says *kept*: by the setting, by its tenant, and by what it asks.

    By itself, full is for tenants other than the one that everybody is of, and for who asks for more than basic gives.
    """
    setting, levels = kept["setting"], kept["levels"]
    if setting != "auto":
        return setting
    if tenant_of(job["user_id"]) != DEFAULT_TENANT:
        return "full"
    asked = min_isolation_of(job)
    return "full" if asked and "full" in levels and lacking(asked, levels.get("basic", {})) else "basic"


def why_not_full(job: JobRecord, *, mps: bool) -> str:
    """Why that work cannot have ``full`` on a host that has it; empty: it can. *mps*: it has a share under MPS."""
    reasons = {
        "a container is kept by its runtime": "container" in job,
        "the agent looks into its checkpoint directory while it runs": bool(job.get("checkpoint")),
        "steps of graphs exchange files with the agent": "step_of" in job,
        "its Python environment is built by itself, for all": bool(job.get("environment")),
        "the agent would read its outputs out of a directory that others change": bool(job.get("outputs"))
        and not working_dir_of(job),
        "its secrets are in files of the agent's": bool(job.get("secrets")),
        "MPS serves one uid at a time": mps,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def level_of(kept: KeptApartRecord, job: JobRecord, *, mps: bool) -> Level:
    """The level that *job* has there."""
    wanted = wanted_level(kept, job)
    if wanted == "full" and ("full" not in kept["levels"] or why_not_full(job, mps=mps)):
        wanted = "basic"
    return "off" if "container" in job or wanted not in kept["levels"] else wanted


def enforced_of(host: HostRecord, job: JobRecord, *, mps: bool) -> dict[str, str]:
    """Who enforces what of what *job* has on *host*, but for its GPUs; nothing while the host has not said.

    What it asks for none of is not limited.
    """
    kept = kept_of(host)
    if kept is None:
        return {}
    row = kept["levels"].get(level_of(kept, job, mps=mps), {})
    resources = job.get("resources") or {}
    unlimited = {name for name, amount in (("memory", "memory_mib"), ("cpu", "cpu_milli")) if not resources.get(amount)}
    return {name: NONE if name in unlimited else row.get(name, NONE) for name in ASPECTS if name in row}


def enforced_of_worker(host: HostRecord) -> dict[str, str]:
    """The same of a worker of sessions, which was there before its user, and has no limit of its own on the host."""
    kept = kept_of(host)
    if kept is None:
        return {}
    row = kept["levels"].get("basic", kept["levels"].get("off", {}))
    return {name: NONE if name in ("memory", "cpu") else row.get(name, NONE) for name in ASPECTS if name in row}
