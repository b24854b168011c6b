"""What a host's word of how far it keeps work apart comes to for one job: decided alike by the host that runs it, by
whoever places it, and by whoever is asked why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from actorgrid.access import DEFAULT_TENANT, tenant_of
from actorgrid.isolation_words import ASPECTS, COOPERATIVE, NONE, is_min_isolation, lacking

from .isolation_records import LEVELS, KeptApartRecord, Level, is_kept_apart
from .record_types import HostRecord, JobRecord


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
    levels, asked = kept["levels"], min_isolation_of(job)
    wanted = wanted_of_user(kept, job["user_id"])
    # What holds memory of GPUs is the device's, at any level.
    gets_more = asked and "full" in levels and lacking(asked, levels.get("basic", {}), but=("gpu_memory",))
    return "full" if gets_more and kept["setting"] == "auto" else wanted


def wanted_of_user(kept: KeptApartRecord, user_id: str) -> Level:
    """The level that work of that user is to have there, whatever it is."""
    if kept["setting"] != "auto":
        return kept["setting"]
    return "full" if tenant_of(user_id) != DEFAULT_TENANT else "basic"


def has_uids(kept: KeptApartRecord) -> bool:
    """Whether the host has another uid for work at full: then it is root, which alone can cover files at basic."""
    return "full" in kept["levels"] and kept["levels"].get("basic", {}).get("files") == COOPERATIVE


def why_not_full(job: JobRecord, kept: KeptApartRecord, *, mps: bool) -> str:
    """Why that work cannot have ``full`` on a host that has it; empty: it can. *mps*: it has a share under MPS."""
    reasons = {
        "MPS is reached over sockets, which work of that uid may not make": mps and not has_uids(kept),
    }
    return _why_container_not_full(job, kept) or next((reason for reason, holds in reasons.items() if holds), "")


def _why_container_not_full(job: JobRecord, kept: KeptApartRecord) -> str:
    if "container" not in job:
        return ""
    if not has_uids(kept):
        return "runtimes make containers by namespaces, which work of that uid may not make"
    if job.get("checkpoint") or job.get("environment"):
        return "who starts a container is root until then, and makes no checkpoint's folder and no environment for it"
    able, wanted = kept.get("containers", []), job["container"].get("runtime", "")
    if wanted and wanted not in able:
        return f"{wanted} has no containers there whose processes have a uid of their user's"
    return "" if able else "there is no podman or docker by which a container's processes have a uid of their user's"


def level_of(kept: KeptApartRecord, job: JobRecord, *, mps: bool) -> Level:
    """The level that *job* has there. *mps*: it has a share under MPS."""
    wanted = wanted_level(kept, job)
    if wanted == "full" and ("full" not in kept["levels"] or why_not_full(job, kept, mps=mps)):
        wanted = "basic"
    # At basic a container's runtime mounts what it needs, and may need newuidmap for it.
    return "off" if ("container" in job and wanted != "full") or wanted not in kept["levels"] else wanted


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
    if "container" in job:
        unlimited.add("disk")  # nobody counts what it writes into its image
    return {name: NONE if name in unlimited else row.get(name, NONE) for name in ASPECTS if name in row}


def why_worker_not_full(kept: KeptApartRecord) -> str:
    """Why a worker of sessions cannot have ``full`` on a host that has it for jobs; empty: it can."""
    return "" if has_uids(kept) else "it reaches objects and actors over sockets, which work of that uid may not make"


def level_of_worker(kept: KeptApartRecord, user_id: str) -> Level:
    """The level that a worker of sessions has there, for that user."""
    wanted = wanted_of_user(kept, user_id)
    if wanted == "full" and ("full" not in kept["levels"] or why_worker_not_full(kept)):
        wanted = "basic"
    return wanted if wanted in kept["levels"] else "off"


def enforced_of_worker(host: HostRecord, user_id: str) -> dict[str, str]:
    """As ``enforced_of``, of a worker of sessions that serves that user, and has no limit of its own on the host."""
    kept = kept_of(host)
    if kept is None:
        return {}
    row = kept["levels"].get(level_of_worker(kept, user_id), {})
    return {name: NONE if name in ("memory", "cpu") else row.get(name, NONE) for name in ASPECTS if name in row}
