"""Why a service is as it is, in words, with what to do about it. Decisions only."""

from __future__ import annotations

from typing import NamedTuple

from actorgrid.actors.ledger.service_records import (
    ReplicaRecord,
    ServiceRecord,
    goal_of,
    revision_in,
)

from .rollout import next_start_at

SHOWN = 3


class ServiceStory(NamedTuple):
    """What is told."""

    headline: str
    notes: list[str]
    next_steps: list[str]


def state_of(record: ServiceRecord) -> str:
    """ready, starting, rolling_out, short (fewer than there are to be), idle (none, on purpose), failing, removing."""
    if "removed_by" in record:
        return "removing"
    ready = _count(record, "ready")
    if record["rollout"] is not None:
        return "rolling_out"
    if record["target"] == 0:
        return "idle"
    if revision_in(record, goal_of(record))["failures"] and not ready:
        return "failing"
    if ready >= record["target"]:
        return "ready"
    return "short" if record["problem"] else "starting"


def explain_service(record: ServiceRecord, now: float) -> ServiceStory:
    """Why it is as it is."""
    name, state, ready, target = record["name"], state_of(record), _count(record, "ready"), record["target"]
    goal = revision_in(record, goal_of(record))
    notes = [_replica(each, now) for each in record["replicas"] if each["state"] not in ("ready", "draining")]
    steps: list[str] = []
    if state == "removing":
        count = len(record["replicas"])
        headline = f"{name} is removed by {record['removed_by']}: {count} replicas finish what they have"
        steps.append(f"actorgrid services rm {name} --now ends them at once")
    elif record["rollout"] is not None:
        there = sum(each["revision"] == goal["revision"] and each["state"] == "ready" for each in record["replicas"])
        headline = f"{name} goes over to revision {goal['revision']}: {there} of {max(1, target)} replicas of it answer"
        if record["rollout"]["canary"]:
            headline += f"; a canary, with {record['rollout']['canary']} % of the requests"
        steps.append(f"actorgrid rollback {name} keeps what served before")
    elif state == "idle":
        headline = f"{name} has no replica, because nobody has asked for it in {record['scale']['idle_s']:g} s"
        steps.append(
            "a request starts one; actorgrid scale " + name + " 1:" + str(record["scale"]["max"]) + " keeps one"
        )
    elif state == "failing":
        headline = f"the replicas of {name} end by themselves, {goal['failures']} in a row: {goal['failed_with']}"
    elif state == "ready":
        headline = f"{name} serves: {ready} of {target} replicas answer"
    else:
        headline = f"{ready} of {target} replicas of {name} answer"
        if record["problem"]:
            headline += f": {record['problem']}"
    if goal["failures"] and state not in ("ready", "idle", "removing"):
        left_s = next_start_at(goal) - now
        if left_s > 0:
            notes.append(f"the next try is in {left_s:.0f} s: the time doubles with each failure, up to 300 s")
        ended = [each for each in record["ended"] if not each["asked"] and each["revision"] == goal["revision"]]
        steps += [f"actorgrid logs {each['job_id']}" for each in ended[-1:]]
        steps.append(f"actorgrid rollout {name} -- CMD runs something else")
    if record.get("last_rollout"):
        notes.append(f"the last exchange: {record['last_rollout']}")
    waiting = [each for each in record["replicas"] if each["state"] == "queued"]
    steps += [f"actorgrid why {each['job_id']}" for each in waiting[:1]]
    return ServiceStory(headline, notes[: 2 * SHOWN], steps or ["nothing to do"])


def _replica(replica: ReplicaRecord, now: float) -> str:
    where = f" on {replica['host']}" if replica["host"] else ""
    why = f": {replica['reason']}" if replica["reason"] else ""
    return f"{replica['job_id']} is {replica['state']}{where}, for {max(0.0, now - replica['since']):.0f} s{why}"


def _count(record: ServiceRecord, state: str) -> int:
    return sum(each["state"] == state for each in record["replicas"])
