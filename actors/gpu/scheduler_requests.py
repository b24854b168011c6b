"""Jobs, leases and quotas of the ledger as the scheduler takes them, and its refusals as errors for who asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from actorgrid.actors.ledger.record_types import JobRecord, QuotaRecord
from actorgrid.amounts import duration
from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, AdmissionRefused, QueueFull
from actorgrid.models import AttemptState

from ..ledger.attempt_ids import attempt_id
from ..ledger.tables.preemption import may_ask
from ..ledger.tables.quotas import EVERYONE
from ..ledger.tables.tenants import MEAN_SCALE
from ..ledger.tenant_records import JOBS_WAITING, OF_MODEL, WAITING_BYTES, TenantRecord, TenantUseRecord
from ..scheduling.fair_share import TenantTerms
from ..scheduling.request import DEFAULT_PRIORITY, LEASE_PRIORITY, Request
from ..scheduling.tenant_limits import Limits

GRACES_MAX = 1024
"""Different graces of jobs whose sum with STOPPED_S is remembered."""
STOPPED_S = 1.0
"""After its grace, until what was killed is gone and the ledger knows: planned for beside the grace."""
HINT = (
    "ask for a later --deadline or a shorter --timeout; without --timeout the deadline is not promised and only says "
    "who goes first"
)


def attempt_number(job: JobRecord) -> int:
    """The number of the attempt that a queued *job* waits for."""
    return int(job["attempts"][-1]["number"] if job["attempts"] else 0) + 1


def waiting_id(job: JobRecord) -> str:
    """The id under which a queued *job* waits: that of its next attempt."""
    return attempt_id(job["job_id"], attempt_number(job))


def request_of_job(id: str, demand: Demand, job: JobRecord) -> Request:
    """*demand* for an attempt of *job*, waiting or running. Raises BadRequest for times that are none.

    A deadline is strict when there is a time limit to plan with; without one it says only who goes first. A job that
    was stopped for another has waited since then.
    """
    attempts = [attempt for attempt in job["attempts"] if attempt["ended_at"] is not None]
    last = job["attempts"][-1] if job["attempts"] else None
    stopped = last is not None and last["state"] == AttemptState.PREEMPTED
    limit_s = job["max_execution_time_s"]
    return Request(
        id,
        demand,
        priority=DEFAULT_PRIORITY if job["policy"] == "fifo" else job["priority"],
        submitted_at=(last["ended_at"] or 0.0) if last is not None and stopped else job["submitted_at"],
        expected_s=limit_s,
        deadline=job.get("deadline"),
        strict=limit_s is not None,
        preemptible=may_ask(job),
        grace_s=_grace_s(float(job.get("grace_s") or 0.0)),
        tenant=job["user_id"],
        near=_text(job.get("near")),
        ran_s=sum(max(0.0, (attempt["ended_at"] or 0.0) - attempt["placed_at"]) for attempt in attempts),
    )


def _text(value: object) -> str:
    """A name in a record that hosts of before took unread."""
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=GRACES_MAX)
def _grace_s(given_s: float) -> float:
    return given_s + STOPPED_S  # one number for all jobs that have the same


def request_of_lease(id: str, demand: Demand, user: str, near: str) -> Request:
    """*demand* for a session of *user*, which is served before jobs and never stopped for others.

    Its client is *near*: a worker on that host is reached by one socket, on another by three.
    """
    return Request(id, demand, priority=LEASE_PRIORITY, preemptible=False, tenant=user, near=near)


def limits_of(quotas: Mapping[str, QuotaRecord]) -> tuple[dict[str, Limits], Limits | None]:
    """The scheduler's limits of each user who has a quota, and those of all others."""
    limits: dict[str, Limits] = {
        user: (quota["gpu_milli"], quota["gpu_memory_mib"], quota["cpu_milli"], quota["memory_mib"])
        for user, quota in quotas.items()
    }
    return limits, limits.get(EVERYONE)


def terms_of(
    tenants: Mapping[str, TenantRecord], models: Callable[[Sequence[str]], tuple[str, ...]]
) -> dict[str, TenantTerms]:
    """What each tenant is given, as the scheduler takes it; *models* gives the engine's names for one of a model."""

    def amounts(given: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, amount in given.items():
            if name.startswith(OF_MODEL):
                # Of several that answer to it each may have that much here; the guard counts them together.
                found.update((OF_MODEL + model, amount) for model in models((name[len(OF_MODEL) :],)))
            elif name not in (JOBS_WAITING, WAITING_BYTES):
                found[name] = amount
        return found

    return {
        name: TenantTerms(
            record["weight_milli"] / 1000,
            amounts(record["guarantee"]),
            amounts(record["limits"]),
            record["removed_at"] is not None,
        )
        for name, record in tenants.items()
    }


def past_of(
    uses: Mapping[str, TenantUseRecord], models: Callable[[Sequence[str]], tuple[str, ...]]
) -> dict[str, tuple[float, dict[str, float]]]:
    """What tenants held of late, as the scheduler takes it."""
    found = {}
    for tenant, use in uses.items():
        means: dict[str, float] = {}
        for name, mean in use["means"].items():
            known = models((name[len(OF_MODEL) :],)) if name.startswith(OF_MODEL) else ()
            means[OF_MODEL + known[0] if known else name] = mean / MEAN_SCALE
        found[tenant] = use["at"], means
    return found


def admission_refused(
    why: ActorGridError | None, text: str, deadline: float | None, limit_s: float | None, now: float
) -> AdmissionRefused:
    """The error for work that the scheduling policy refused with *why*, or gave up with no more than *text*.

    Of a deadline that cannot be kept it says how long is left, and what would be possible.
    """
    if deadline is None or limit_s is None:
        return AdmissionRefused(text, found=f"the scheduling policy says so: {why.message}" if why is not None else "")
    left_s = deadline - now
    when = f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} ago"
    possible_at = why.details.get("possible_at") if why is not None else None
    hint = HINT
    if isinstance(why, QueueFull):
        found, hint = why.found, "submit it again when some of those are done"
    elif possible_at is not None:
        found = f"as things are it would be done in {duration(possible_at - now)}"
    elif left_s < limit_s:
        found = f"it may run for {duration(limit_s)}, and there is less time than that left"
    else:
        found = "nobody knows when there will be room: what holds it has no time limit"
    more = {} if possible_at is None else {"possible_at": possible_at}
    return AdmissionRefused(
        text, asked=f"done {when}, running for up to {duration(limit_s)}", found=found, hint=hint, **more
    )
