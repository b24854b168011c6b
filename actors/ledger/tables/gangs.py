"""Gangs: attempts of several members that start together, end together and are tried again together.

An attempt of a gang has ``members``, one for each rank, each with a place, a state and an end of its own; what the
attempt says of host and GPUs is of rank 0. One token is good for all. ``rendezvous`` is where rank 0 listens for the
others: chosen with the grant, so that no two gangs share a port of a host. The first member that does not succeed sets
``ending``: the hosts then stop all others. The attempt is over when all members are, and its room is given back then;
that of a member which was lost, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from actorgrid.actors.ledger.attempt_ids import attempt_id
from actorgrid.actors.ledger.commands import EndAttempt, TakeSuccess, end_facts, told_usage, value_or_none
from actorgrid.actors.ledger.record_types import (
    NO_ERROR,
    AllocationRecord,
    AttemptRecord,
    GangMemberRecord,
    JobRecord,
    MemberRecord,
    ResourcesRecord,
)
from actorgrid.actors.ledger.records import NO_FACTS, default_error, new_attempt
from actorgrid.errors import WrongState

from .allocations import GrantTarget
from .jobs import CANCELLED, FAILED, LOST, RUNNING, SUCCEEDED
from .preemption import PREEMPTED

LOOPBACK = "127.0.0.1"


def size_of(resources: ResourcesRecord) -> int:
    """How many members an attempt has that asks for *resources*."""
    return int(resources.get("gang", 1))


def refuse_layout(job: JobRecord, places: Sequence[GrantTarget]) -> None:
    """Raises WrongState for places of another number than *job* has members, or two on one host that keep apart."""
    size = size_of(job["resources"])
    if len(places) != size or size == 1:
        raise WrongState(
            "the grant names another number of members than the job has",
            asked=f"{len(places)} members",
            found=f"job {job['job_id']} has {size}",
        )
    if job["resources"].get("spread") and len({place.host for place in places}) != size:
        raise WrongState(f"the members of job {job['job_id']} are to be on hosts of their own", asked="two on one host")


def address_of(member: MemberRecord | None) -> str:
    """The address by which the other hosts reach this one; a host that is alone is reached by itself only."""
    if member is None:
        return LOOPBACK
    address: str = member["addresses"].get("raft", "")
    return address.rpartition(":")[0].strip("[]") or LOOPBACK


def new_gang_attempt(
    allocations: list[AllocationRecord], number: int, latency_us: float | None, addresses: list[str], port: int
) -> AttemptRecord:
    """A placed attempt of the members that *allocations* are for, by rank."""
    together = len({allocation["host"] for allocation in allocations}) == 1
    attempt = new_attempt(allocations[0], number, latency_us)
    return {
        **attempt,
        "attempt_id": attempt_id(allocations[0]["owner"]["job_id"], number),
        "members": [
            cast(
                "GangMemberRecord",
                {
                    "rank": rank,
                    "host": allocation["host"],
                    "incarnation": allocation["incarnation"],
                    "address": address,
                    "allocation_id": allocation["allocation_id"],
                    "gpu_indexes": allocation["gpu_indexes"],
                    "gpu_uuids": allocation["gpu_uuids"],
                    "state": "placed",
                    "started_at": None,
                    "ended_at": None,
                    "charged": False,
                    "error": None,
                    **NO_FACTS,
                },
            )
            for rank, (allocation, address) in enumerate(zip(allocations, addresses, strict=True))
        ],
        "rendezvous": {"address": LOOPBACK if together else addresses[0], "port": port},
        "ending": None,
    }


def rendezvous_port(ports: list[int], index: int, taken: Iterable[int]) -> int:
    """A port from the first to the last of *ports* that is not *taken*, another one for each *index* of the log.

    So an attempt that found it in use by a program that is none of ours gets another one the next time. Raises
    WrongState when all are taken.
    """
    first, last = ports
    used = set(taken)
    count = last - first + 1
    for step in range(count):
        port = first + (index + step) % count
        if port not in used:
            return port
    raise WrongState(
        "no port is free for the gang to meet at",
        asked=f"one of {first} to {last}",
        found=f"{count} gangs have them",
        hint="give more of them (work.rendezvous_ports), or wait for a gang there to end",
    )


def started_member(attempt: AttemptRecord, rank: int, at: float) -> AttemptRecord:
    """*attempt* once the member of that rank runs; it runs as soon as the first one does."""
    members = _with(attempt, rank, state=RUNNING, started_at=at)
    return {**attempt, "state": RUNNING, "started_at": attempt["started_at"] or at, "members": members}


def ended_member(attempt: AttemptRecord, rank: int, command: EndAttempt, at: float) -> AttemptRecord:
    """*attempt* once the member of that rank is over; the first that has not succeeded is why the others end."""
    outcome = command.outcome
    error = None
    if outcome != SUCCEEDED:
        error = value_or_none(command.error) or default_error(
            outcome, {**attempt, "attempt_id": attempt["members"][rank]["allocation_id"]}
        )
    members = _with(
        attempt,
        rank,
        state=FAILED if outcome == "timed_out" else outcome,
        ended_at=at,
        charged=outcome != SUCCEEDED and command.charge,
        error=error,
        **end_facts(command),
        **told_usage(command),
    )
    ending = attempt["ending"]
    if ending is None and outcome != SUCCEEDED:
        ending = {"rank": rank, "at": at}
    return {**attempt, "members": members, "ending": ending}


def succeeded_member(attempt: AttemptRecord, rank: int, command: TakeSuccess) -> AttemptRecord:
    """*attempt* once it is known that the member of that rank, which was lost, had succeeded."""
    facts = end_facts(command)
    return {**attempt, "members": _with(attempt, rank, state=SUCCEEDED, charged=False, error=None, **facts)}


def verdict(job: JobRecord, attempt: AttemptRecord, retry_at: float | None) -> EndAttempt:
    """The ``EndAttempt`` of a whole attempt whose members are all over.

    It succeeded when all of them did. Else the member that is to blame says how: one that was cancelled, if that was
    asked for; one that was stopped for another job; one that was lost by no fault of the job, since the others fail
    when one of them is cut off; else the first that did not succeed.
    """
    members = attempt["members"]
    whole = EndAttempt(
        attempt["attempt_id"],
        attempt["token"],
        SUCCEEDED,
        retry_at=retry_at,
        max_rss_bytes=max((member["max_rss_bytes"] or 0 for member in members), default=0) or None,
        cpu_s=sum(member["cpu_s"] or 0.0 for member in members) or None,
    )
    if attempt["ending"] is None:
        return replace(whole, exit_code=0, result_bytes=members[0]["result_bytes"])
    blamed = _blamed(job, attempt)
    error = blamed["error"] or NO_ERROR
    return replace(
        whole,
        outcome=blamed["state"],
        charge=blamed["charged"],
        exit_code=blamed["exit_code"],
        signal=blamed["signal"],
        error={**error, "message": f"rank {blamed['rank']}: {error.get('message', '')}"},
    )


def _blamed(job: JobRecord, attempt: AttemptRecord) -> GangMemberRecord:
    members: list[GangMemberRecord] = attempt["members"]

    def first(state: str, *, free: bool = False) -> GangMemberRecord | None:
        return next((each for each in members if each["state"] == state and not (free and each["charged"])), None)

    found = None
    if job["cancel_requested"]:
        found = first(CANCELLED)
    elif attempt["preemption"] is not None:
        found = first(PREEMPTED)
    found = found or first(LOST, free=True)
    if found is not None:
        return found
    assert attempt["ending"] is not None, "it did not succeed, and none is to blame"
    return members[attempt["ending"]["rank"]]


def _with(attempt: AttemptRecord, rank: int, **fields: Any) -> list[GangMemberRecord]:
    members = list(attempt["members"])
    members[rank] = cast("GangMemberRecord", {**members[rank], **fields})
    return members
