"""What is to be done about a service's replicas: which are made, which leave, what becomes of an exchange of one
revision for another. Decisions only, from the record and what gateways see.

*Surge*: a new replica answers before an old one leaves, so that never fewer are ready than there are to be; a quarter
more than that, and one at least, are there meanwhile. *Replace*, where the engine finds no room for one more: an old
one leaves for each that waits, so that never more than one is missing (of a single one: that one). A *canary* is a
first part in which some requests, by their keys, go to the new revision. An exchange is given up where new replicas end
again and again, do not answer in time, or answer worse than the old; then the old are filled up again.

A replica that leaves gets no more requests; it is ended once all gateways have heard of it and have said since then
that it has none, or after its time. What is not ready goes first, at once.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import NamedTuple

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.service_checks import DECIDED_MAX, REASON_CHARS_MAX
from actorgrid.actors.ledger.service_records import ReplicaRecord, ServiceRecord, ServiceRevisionRecord, revision_in

SURGE_PART = 4
FAILURES_MAX = 3
"""New replicas in a row that end by themselves: then an exchange is given up."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 300.0
"""Between one that ended by itself and the next: twice as long each time."""
UNWELL_S = 30.0
"""A replica that served and does not answer has so long to do so again, before it is ended."""
HEARD_S = 2.0
"""A gateway that tells something has heard by then that a replica leaves."""


class Situation(NamedTuple):
    """What is known of a service. Times are seconds since the epoch."""

    record: ServiceRecord
    target: int
    now: float
    busy: Mapping[str, int]
    """How many requests each replica has, by its job."""
    has_room: bool = True
    """Whether the engine has a place for one more replica, or is not known to have none."""
    fault: str = ""
    """What is wrong with the answers of the new revision; empty: nothing."""
    told_at: float = math.inf
    """When the gateway told what it has whose last word is the oldest."""
    leaving: Container[str] = ()
    """Replicas, by their jobs, on a host that gets nothing new: they are exchanged for others, as old revisions are."""


class Steps(NamedTuple):
    """What is to be done; of each at most 64 at once."""

    start: tuple[str, ...] = ()
    """The revision of each replica to make."""
    drain: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    outcome: str = ""
    reason: str = ""
    widened: bool = False


def backoff_s(failures: int) -> float:
    """How long after the last of so many failures the next replica is made."""
    return 0.0 if failures <= 0 else min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 20))


def next_start_at(revision: ServiceRevisionRecord) -> float:
    """When the next replica of a revision may be made."""
    return revision["failed_at"] + backoff_s(revision["failures"])


def replicas_on(hosts: set[str], record: ServiceRecord, jobs: Mapping[str, JobRecord]) -> set[str]:
    """The replicas that are on one of *hosts*, by their jobs: of a gang, those with a member there."""
    return {each["job_id"] for each in record["replicas"] if hosts & _places(each, jobs.get(each["job_id"]))}


def _places(replica: ReplicaRecord, job: JobRecord | None) -> set[str]:
    """Nowhere before it is placed."""
    members = job["attempts"][-1].get("members", []) if job is not None and job["attempts"] else []
    return {replica["host"], *(each["host"] for each in members)} if replica["host"] else set()


def surge_of(target: int) -> int:
    """How many more than that there may be during an exchange."""
    return max(1, target // SURGE_PART)


def plan(situation: Situation) -> Steps:
    """What is to be done now."""
    record, now = situation.record, situation.now
    rollout = record["rollout"]
    ending = _overdue(situation)
    if "removed_by" in record:
        return Steps(end=_some(ending))
    if rollout is None:
        goal, outcome, reason, widened = record["revision"], "", "", False
    else:
        goal = rollout["to"]
        outcome, reason, widened = _judged(situation)
        if outcome == "aborted":
            # What is done about the replicas is decided about the record of then.
            return Steps(end=_some(ending), outcome=outcome, reason=reason[:REASON_CHARS_MAX])
    live = [each for each in record["replicas"] if each["state"] != "draining" and each["job_id"] not in ending]
    stays = [each["job_id"] not in situation.leaving or rollout is not None for each in live]
    news = [each for each, stay in zip(live, stays, strict=True) if each["revision"] == goal and stay]
    olds = [each for each in live if each not in news]
    if rollout is None:
        drain, missing = _settled(situation, news, olds)
        again = 0
    else:
        drain, missing, again = _exchanged(situation, news, olds)
        if not rollout["canary"] and not olds and sum(map(_is_ready, news)) >= max(1, situation.target):
            outcome = "promoted"
    start = _may_start(record, goal, now, missing) + _may_start(record, record["revision"], now, again)
    ended = [each["job_id"] for each in drain if not _answers(each)]
    leaving = [each["job_id"] for each in drain if _answers(each)]
    return Steps(_some(start), _some(leaving), _some([*ending, *ended]), outcome, reason, widened)


def _may_start(record: ServiceRecord, digest: str, now: float, count: int) -> tuple[str, ...]:
    """So many replicas of a revision, if it may be tried again by now."""
    return (digest,) * count if now >= next_start_at(revision_in(record, digest)) else ()


def _settled(
    situation: Situation, news: list[ReplicaRecord], olds: list[ReplicaRecord]
) -> tuple[list[ReplicaRecord], int]:
    """What leaves, and how many are missing, where nothing is exchanged: *olds* are left over from an exchange."""
    target, ready = situation.target, sum(map(_is_ready, news))
    spare = _first_to_go(situation, olds)
    bad = {each["revision"] for each in situation.record["revisions"] if each["outcome"] == "failed"}
    # What answered wrongly serves only until one of the others does.
    drain = [each for each in spare if not _is_ready(each) or (each["revision"] in bad and ready)]
    staying = [each for each in spare if each not in drain]
    drain += staying[: max(0, len(staying) + ready - target)]
    if not drain:
        drain = _making_room(situation, news, staying, 0)
    surplus = len(news) - target
    if surplus > 0:
        drain += _first_to_go(situation, news)[:surplus]
    return drain, max(0, -surplus)


def _exchanged(
    situation: Situation, news: list[ReplicaRecord], olds: list[ReplicaRecord]
) -> tuple[list[ReplicaRecord], int, int]:
    """What leaves while *olds* are exchanged for *news*, how many of the new are missing, and how many of the old."""
    rollout, target = situation.record["rollout"], max(1, situation.target)
    assert rollout is not None
    wanted = canary_of(target, rollout["canary"])
    replaces = situation.record["scale"]["strategy"] == "replace"
    ready_news, ready_olds = sum(map(_is_ready, news)), sum(map(_is_ready, olds))
    # A canary needs old ones beside it, also where one alone is to be there.
    keep = max(target - ready_news, 1 if rollout["canary"] else 0)
    order = _first_to_go(situation, olds)
    waiting = [each for each in order if not _is_ready(each)]
    drain = waiting[: max(0, len(olds) - keep)]
    drain += order[len(waiting) :][: max(0, ready_olds - keep)]
    again = keep - len(olds) if rollout["canary"] else 0
    if not drain:
        drain = _making_room(situation, news, order, wanted if replaces else 0)
        again = 0 if drain else again
    surplus = len(news) - wanted
    if surplus > 0:
        drain += _first_to_go(situation, news)[:surplus]
    most = target + (0 if replaces else surge_of(target))
    missing = min(wanted - len(news), most - (len(olds) + len(news)))
    return drain, max(0, missing), max(0, again)


def _making_room(
    situation: Situation, news: list[ReplicaRecord], olds: list[ReplicaRecord], wanted: int
) -> list[ReplicaRecord]:
    """The one of *olds*, first to go first, that leaves so that one of the *news* gets its place.

    One at a time, and only where none is missing already; what is not ready misses nobody.
    """
    if not olds or not _is_replacing(situation):
        return []
    replicas = situation.record["replicas"]
    leaving = any(each["state"] == "draining" for each in replicas)
    waits = any(each["state"] == "queued" for each in news) or len(news) < wanted
    full = sum(map(_is_ready, replicas)) >= max(1, situation.target)
    return olds[:1] if waits and not leaving and (full or not _is_ready(olds[0])) else []


def canary_of(target: int, percent: int) -> int:
    """How many of *target* replicas are of the new revision: all but in a first part."""
    return max(1, math.ceil(target * percent / 100)) if percent else target


def _judged(situation: Situation) -> tuple[str, str, bool]:
    """What becomes of an exchange, why, and whether its first part is over."""
    record, now = situation.record, situation.now
    rollout = record["rollout"]
    assert rollout is not None
    revision = revision_in(record, rollout["to"])
    news = [each for each in record["replicas"] if each["revision"] == rollout["to"]]
    if situation.fault:
        return "aborted", situation.fault, False
    if revision["failures"] >= FAILURES_MAX:
        return "aborted", f"{revision['failures']} replicas ended by themselves: {revision['failed_with']}", False
    silent = next((each for each in news if each["state"] == "unhealthy" and each["ready_at"] is None), None)
    if silent is not None:
        return "aborted", silent["reason"] or f"{silent['job_id']} never answered", False
    if not rollout["canary"]:
        return "", "", False
    wanted = canary_of(max(1, situation.target), rollout["canary"])
    ready = sorted(each["ready_at"] or now for each in news if _is_ready(each))
    widened = len(ready) >= wanted and now - ready[wanted - 1] >= rollout["canary_s"]
    return "", "", widened


def _overdue(situation: Situation) -> list[str]:
    """The replicas that are to end now: those that have left, and those that do not answer."""
    drain_s, now = situation.record["scale"]["drain_s"], situation.now
    found = []
    for each in situation.record["replicas"]:
        for_s = now - each["since"]
        if each["state"] == "unhealthy":
            over = each["ready_at"] is None or for_s >= UNWELL_S
        elif each["state"] == "draining":
            idle = not situation.busy.get(each["job_id"]) and min(now, situation.told_at) - each["since"] >= HEARD_S
            over = not each["attempt_id"] or idle or for_s >= drain_s
        else:
            over = False
        if over:
            found.append(each["job_id"])
    return found


def _first_to_go(situation: Situation, replicas: list[ReplicaRecord]) -> list[ReplicaRecord]:
    """*replicas* in the order in which they leave: what is not ready first, then what has least to do, the newest."""
    order = {"queued": 0, "unhealthy": 1, "starting": 2}
    return sorted(
        replicas,
        key=lambda each: (order.get(each["state"], 3), situation.busy.get(each["job_id"], 0), -each["made_at"]),
    )


def _is_replacing(situation: Situation) -> bool:
    strategy = situation.record["scale"]["strategy"]
    return strategy == "replace" or (strategy == "auto" and not situation.has_room)


def _is_ready(replica: ReplicaRecord) -> bool:
    return replica["state"] == "ready"


def _answers(replica: ReplicaRecord) -> bool:
    """Whether it may have requests, which it is to finish."""
    return replica["attempt_id"] != "" and replica["ready_at"] is not None


def _some(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(names[:DECIDED_MAX])
