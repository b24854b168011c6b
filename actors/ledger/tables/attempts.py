"""The attempts of jobs: granted, started, asked to end for another, ended. Part of the replicated state's verbs.

An attempt is of one member or, for a gang, of several (``gangs.py``), which start and end by their own ids. 1,000
attempts per job, of which the first and the last 49 are kept.

Successes heard of late: an attempt had ended well within its lease, and its host was lost before it said so.

The host's shim keeps the outcome on disk, and the host tells it when it is back. By then the leader has ended the
attempt as lost, and the job waits, or runs again. Running work again that is done helps nobody, so such a success is
the job's as long as the job is not over: ``taken`` on its record is the number of that attempt, and an attempt that
runs by then carries ``superseded`` {by, at} and is stopped by its host. Its room is given back when its processes are
gone, as ever, and only then is the job over. When the job was over before, that stays as it is, and the lost attempt
carries ``late_success_at``. Nothing of this moves a token: what the later attempt wrote under its own stays fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from actorgrid.actors.ledger.answers import (
    CheckpointAnswer,
    EndAnswer,
    GrantAnswer,
    LateSuccessAnswer,
    PreemptAnswer,
    StartAnswer,
)
from actorgrid.actors.ledger.attempt_ids import attempt_id as id_of_attempt
from actorgrid.actors.ledger.attempt_ids import attempt_of, job_of, number_of, rank_of
from actorgrid.actors.ledger.checkpoint_records import CheckpointRecord
from actorgrid.actors.ledger.commands import (
    CheckpointAttempt,
    EndAttempt,
    GrantAttempt,
    GrantGang,
    PreemptAttempt,
    StartAttempt,
    TakeSuccess,
    end_facts,
    told_usage,
    value_or_none,
)
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.record_types import (
    AttemptRecord,
    GangMemberRecord,
    JobRecord,
    MemberRecord,
    OwnerRecord,
)
from actorgrid.actors.ledger.records import default_error, last_number, new_attempt, with_attempt
from actorgrid.errors import StaleToken, WrongState
from actorgrid.job_outcome import decided_by

from . import gangs, preemption
from .allocations import Allocations, GrantTarget
from .jobs import CANCELLED, FAILED, FINAL, LOST, PLACED, QUEUED, RUNNING, SUCCEEDED, Jobs
from .preemption import PREEMPTED

ATTEMPTS_MAX, ATTEMPTS_KEPT = 1_000, 50
OfAttempt = StartAttempt | CheckpointAttempt | EndAttempt | TakeSuccess | PreemptAttempt


class Attempts:
    """The verbs of attempts.

    They change *jobs* and allocations (*given*); *hosts* are the cluster's members, where gangs meet.
    """

    def __init__(self, jobs: Jobs, given: Allocations, hosts: Mapping[str, MemberRecord]) -> None:
        self._jobs = jobs
        self._given = given
        self._hosts = hosts

    # -- grants

    @applies(GrantAttempt)
    def grant(self, command: GrantAttempt, entry: EntryContext) -> GrantAnswer:
        """Give a job of one member what it asks for."""
        place = GrantTarget(command.host, command.incarnation, command.gpu_indexes)
        self._given.host_for(place)
        job = self._waiting(command)
        if gangs.size_of(job["resources"]) != 1:
            raise WrongState(f"job {job['job_id']} is a gang", asked="an attempt of one member")
        number = command.number
        attempt_id = id_of_attempt(job["job_id"], number)
        owner: OwnerRecord = {"kind": "attempt", "job_id": job["job_id"], "attempt": number}
        allocation = self._given.give_out(
            attempt_id,
            owner,
            place,
            job["resources"],
            user=job["user_id"],
            token=entry.token,
            at=entry.at,
            pool=job["pool"],
            env={},
            max_isolation_s=job["max_isolation_s"],
            behind=value_or_none(command.behind),
        )
        self._placed(job, new_attempt(allocation, number, command.placement_latency_us))
        return {"token": entry.token, "attempt_id": attempt_id, "gpu_uuids": allocation["gpu_uuids"]}

    @applies(GrantGang)
    def grant_gang(self, command: GrantGang, entry: EntryContext) -> GrantAnswer:
        """Give all members of a gang what they ask for, or none."""
        places = [GrantTarget(each["host"], each["incarnation"], each["gpu_indexes"]) for each in command.members]
        for place in places:
            self._given.host_for(place)
        job = self._waiting(command)
        gangs.refuse_layout(job, places)
        first = places[0].host
        port = gangs.rendezvous_port(command.ports, entry.index, self._given.ports_of(first))
        number = command.number
        allocations = self._given.give_out_gang(job, number, places, port, token=entry.token, at=entry.at)
        addresses = [gangs.address_of(self._hosts.get(place.host)) for place in places]
        attempt = gangs.new_gang_attempt(allocations, number, command.placement_latency_us, addresses, port)
        self._placed(job, attempt)
        return {
            "token": entry.token,
            "attempt_id": attempt["attempt_id"],
            "gpu_uuids": [uuid for allocation in allocations for uuid in allocation["gpu_uuids"]],
        }

    def _waiting(self, command: GrantAttempt | GrantGang) -> JobRecord:
        """The job that a grant is for. Raises WrongState when it does not wait for that attempt."""
        job_id, number = command.job_id, command.number
        job = self._jobs.records.get(job_id)
        if job is None or job["state"] != QUEUED or job["cancel_requested"]:
            found = "no such live job" if job is None else f"{job['state']}"
            raise WrongState(f"job {job_id} is not waiting", asked=f"attempt {number}", found=found)
        if number != last_number(job) + 1:
            raise WrongState(
                f"job {job_id} has had another number of attempts",
                asked=f"attempt {number}",
                found=f"the next is {last_number(job) + 1}",
            )
        if job.get("edits", 0) != (value_or_none(command.edits) or 0):
            raise WrongState(f"job {job_id} asks for something else by now", asked=f"attempt {number}", found="an edit")
        unmet = self._jobs.unmet(job_id)
        if unmet:
            raise WrongState(f"job {job_id} waits for others", found=f"not ended: {', '.join(unmet[:5])}")
        return job

    def _placed(self, job: JobRecord, attempt: AttemptRecord) -> None:
        attempts = [*job["attempts"], attempt]
        if len(attempts) > ATTEMPTS_KEPT:
            del attempts[1]
        self._jobs.change(job["job_id"], PLACED, attempts=attempts)

    # -- life

    @applies(StartAttempt)
    def start(self, command: StartAttempt, entry: EntryContext) -> StartAnswer:
        """Note that an attempt runs, or one member of a gang; the answer says what is asked of it."""
        job, attempt, rank = self._find_member(command)
        if job is None or attempt is None or _part(attempt, rank)["ended_at"] is not None:
            raise WrongState(f"attempt {command.attempt_id} is over", asked="start it")
        runs = _part(attempt, rank)["state"] == RUNNING
        answer: StartAnswer = {
            "already": runs,
            "cancel_requested": job["cancel_requested"],
            "preemption": attempt.get("preemption"),
        }
        # Only where it was wished, which takes a command that all members know: answers are part of what voters must
        # agree on, and those of the version before have no such field.
        if attempt.get("superseded") is not None:
            answer["superseded"] = attempt["superseded"]
        if rank is not None:
            answer["ending"] = attempt["ending"]
        if runs:
            return answer
        if rank is None:
            started: AttemptRecord = {**attempt, "state": RUNNING, "started_at": entry.at}
        else:
            started = gangs.started_member(attempt, rank, entry.at)
        self._jobs.change(job["job_id"], RUNNING, attempts=with_attempt(job, started))
        return answer

    @applies(PreemptAttempt)
    def preempt(self, command: PreemptAttempt, entry: EntryContext) -> PreemptAnswer:
        """Ask for the end of an attempt with all its members."""
        job, attempt = self._find(command)
        if job is None or attempt is None or attempt["ended_at"] is not None:
            raise WrongState(f"attempt {command.attempt_id} is over", asked="end it for another")
        if attempt.get("preemption") is not None or attempt.get("superseded") is not None:
            return {"already": True}
        asked: AttemptRecord = {**attempt, "preemption": preemption.asked(job, attempt, command, entry.at)}
        self._jobs.change(job["job_id"], attempts=with_attempt(job, asked))
        return {"already": False}

    @applies(CheckpointAttempt)
    def checkpoint(self, command: CheckpointAttempt, entry: EntryContext) -> CheckpointAnswer:
        """Take a checkpoint as the job's last.

        Raises StaleToken where the attempt is not the job's any more, WrongState for a gang's member but rank 0.
        """
        job, attempt, rank = self._find_member(command)
        if rank:
            raise WrongState(
                f"{command.attempt_id} is not rank 0 of its gang",
                asked="enter a checkpoint",
                hint="rank 0 makes those of a gang",
            )
        is_current = job is not None and attempt is not None and attempt["number"] == last_number(job)
        if job is None or attempt is None or not is_current or _part(attempt, rank)["ended_at"] is not None:
            raise StaleToken(
                f"attempt {command.attempt_id} is over, so its checkpoint is not taken",
                asked=f"checkpoint {command.number}",
                found=f"attempt {last_number(job)} of a job that is {job['state']}" if job else "a job that is over",
                hint="what the job goes on from is what its last attempt entered",
            )
        before = job.get("last_checkpoint")
        if before is not None and before["attempt"] == attempt["number"] and before["number"] >= command.number:
            return {"already": True}
        taken: CheckpointRecord = {
            "attempt": attempt["number"],
            "number": command.number,
            "size_bytes": command.size_bytes,
            "at": entry.at,
        }
        self._jobs.change(job["job_id"], checkpoint_digest=command.digest, last_checkpoint=taken)
        return {"already": False}

    # -- ends

    @applies(EndAttempt)
    def end(self, command: EndAttempt, entry: EntryContext) -> EndAnswer:
        """End an attempt, or one member of a gang, named by the id of its allocation."""
        job, attempt, rank = self._find_member(command)
        if job is None or attempt is None or _part(attempt, rank)["ended_at"] is not None:
            if attempt is not None and rank is not None and command.outcome == LOST:
                self._given.take_back(command.attempt_id)  # it had ended before its host was lost
            return {"already": True, "job_state": self._jobs.state_of(job_of(command.attempt_id))}
        return {"already": False, "job_state": self._end(job, attempt, rank, command, entry.at)}

    def _end(self, job: JobRecord, attempt: AttemptRecord, rank: int | None, command: EndAttempt, at: float) -> str:
        """End an attempt, or one member and with the last one the attempt. Gives the job's state after it."""
        if rank is not None:
            attempt = gangs.ended_member(attempt, rank, command, at)
            if command.outcome == LOST:
                # Its host may be lost as well: nothing there is held for a gang whose other members still stop.
                self._given.take_back(attempt["members"][rank]["allocation_id"])
            if not self.is_over(attempt):
                changed = self._jobs.change(job["job_id"], attempts=with_attempt(job, attempt))
                return str(changed["state"])
            command = gangs.verdict(job, attempt, command.retry_at)
        ended = ended_attempt(attempt, command, at)
        attempts = with_attempt(job, ended)
        state, fields = after_attempt(job, attempt["number"], command, at)
        for member in attempt.get("members", (attempt,)):
            self._given.take_back(member["allocation_id"])
        if state == QUEUED:
            self._jobs.change(job["job_id"], QUEUED, attempts=attempts, **fields)
        else:
            error = None if state == SUCCEEDED else ended["error"]
            self._jobs.finish(job["job_id"], state, error, at, attempts=attempts)
        return state

    @applies(TakeSuccess)
    def take_success(self, command: TakeSuccess, entry: EntryContext) -> LateSuccessAnswer:
        """An attempt that was lost with its host had succeeded there (the head of the module).

        ``taken`` of the answer is the number of the attempt whose outcome is the job's; ``None`` when there is none
        yet, or it is not known any more. Raises WrongState for an attempt that is not over.
        """
        job, attempt, rank = self._find_member(command)
        if job is None or attempt is None:
            return {"taken": None, "job_state": self._jobs.state_of(job_of(command.attempt_id))}
        if _part(attempt, rank)["ended_at"] is None:
            raise WrongState(
                f"attempt {command.attempt_id} is not over",
                asked="take its success late",
                found=_part(attempt, rank)["state"],
                hint="end it: end_attempt",
            )
        if attempt["state"] == LOST and _part(attempt, rank)["state"] == LOST:
            job = self._take(job, attempt, rank, command, entry.at)
        decided = job["state"] in FINAL or job.get("taken") is not None
        return {"taken": decided_by(job) if decided else None, "job_state": job["state"]}

    def _take(
        self, job: JobRecord, lost: AttemptRecord, rank: int | None, command: TakeSuccess, at: float
    ) -> JobRecord:
        """Note the success of an attempt that was *lost*, and let it be the job's unless that is decided."""
        if job["state"] in FINAL or job.get("taken") is not None:
            return self._jobs.change(job["job_id"], attempts=with_attempt(job, {**lost, "late_success_at": at}))
        told = with_success(lost, rank, command, at)
        attempts, number = with_attempt(job, told), told["number"]
        if told["state"] != SUCCEEDED:
            return self._jobs.change(job["job_id"], attempts=attempts)
        if job["state"] == QUEUED:
            return self._jobs.finish(job["job_id"], SUCCEEDED, None, at, attempts=attempts, taken=number)
        # What runs keeps its room until its host has ended it: nothing else may be given it before.
        attempts[-1] = superseded(attempts[-1], number, at)
        return self._jobs.change(job["job_id"], attempts=attempts, taken=number)

    def is_over(self, attempt: AttemptRecord) -> bool:
        """Whether nothing of a gang's attempt runs any more, so that the next one may."""
        return all(member["ended_at"] is not None for member in attempt["members"])

    # -- finding

    def _find_member(self, command: OfAttempt) -> tuple[JobRecord | None, AttemptRecord | None, int | None]:
        """The job and attempt as ``_find`` gives them, and the rank that is named.

        Raises WrongState for a gang's attempt as a whole.
        """
        job, attempt = self._find(command)
        rank = rank_of(command.attempt_id)
        if attempt is not None and rank is None and "members" in attempt:
            raise WrongState(
                f"attempt {command.attempt_id} is a gang's",
                asked=command.verb,
                hint="name one member by its rank",
            )
        return job, attempt, rank

    def _find(self, command: OfAttempt) -> tuple[JobRecord | None, AttemptRecord | None]:
        """The job and attempt a command is about; no attempt when it ended too long ago to be kept."""
        id = command.attempt_id
        job_id, number = job_of(id), number_of(id)
        job = self._jobs.records.get(job_id)
        if job is None:
            if self._jobs.known(job_id):
                return None, None
            raise _unknown(id)
        attempt = next((a for a in reversed(job["attempts"]) if a["number"] == number), None)
        if attempt is None:
            if number is not None and 1 <= number < last_number(job):
                return job, None
            raise _unknown(id)
        rank = rank_of(id)
        if (attempt_of(id) if rank is not None else id) != attempt["attempt_id"]:
            raise _unknown(id)
        if rank is not None and rank >= len(attempt.get("members", ())):
            raise _unknown(id)
        if command.token != attempt["token"]:
            raise StaleToken(
                f"the token is not that of attempt {id}", asked=f"{command.token}", found=f"{attempt['token']}"
            )
        return job, attempt


def _part(attempt: AttemptRecord, rank: int | None) -> AttemptRecord | GangMemberRecord:
    """The part that starts and ends by itself: the attempt, or the gang's member of that rank."""
    part: AttemptRecord | GangMemberRecord = attempt if rank is None else attempt["members"][rank]
    return part


def _unknown(id: str) -> WrongState:
    return WrongState(f"there is no attempt {id}", asked=id)


def ended_attempt(attempt: AttemptRecord, command: EndAttempt, at: float) -> AttemptRecord:
    """*attempt* as it is after ``end_attempt``; what came without an error and did not succeed gets one."""
    outcome = command.outcome
    error = attempt["error"]
    if outcome != SUCCEEDED:
        error = value_or_none(command.error) or default_error(outcome, attempt)
    started_at = attempt["started_at"]
    return {
        **attempt,
        "state": FAILED if outcome == "timed_out" else outcome,
        "started_at": value_or_none(command.started_at) if started_at is None else started_at,
        "ended_at": at,
        **end_facts(command),
        "error": error,
        **_results(command),
        **told_usage(command),
    }


def _results(command: EndAttempt | TakeSuccess) -> Any:
    """What is told of the steps of a graph, where an attempt ran any."""
    return {} if command.results is ABSENT else {"results": command.results}


def after_attempt(job: JobRecord, number: int, command: EndAttempt, at: float) -> tuple[str, dict[str, Any]]:
    """The state of *job* after its attempt *number* ended, and the fields that change when it waits again.

    Success counts, whatever was asked meanwhile; so does that of an earlier attempt, whose host came back with it. What
    was preempted, or came to grief by no fault of its own, is not charged a retry; a preempted job waits for nothing
    before it may start again.
    """
    outcome, charge = command.outcome, command.charge
    if outcome == SUCCEEDED or job.get("taken") is not None:
        return SUCCEEDED, {}
    if outcome == CANCELLED or job["cancel_requested"]:
        return CANCELLED, {}
    if number >= ATTEMPTS_MAX:
        return LOST, {}
    if outcome == PREEMPTED:
        return QUEUED, {"preemptions": job.get("preemptions", 0) + 1, "not_before": at}
    if not charge or job["retries_left"] > 0:
        return QUEUED, {"retries_left": job["retries_left"] - charge, "not_before": command.retry_at or at}
    return (LOST if outcome == LOST else FAILED), {}


def with_success(
    attempt: AttemptRecord, rank: int | None, command: TakeSuccess | EndAttempt, at: float
) -> AttemptRecord:
    """*attempt*, which was lost, with the success that *command* tells of it or of its member of that *rank*.

    A gang's attempt has succeeded once all of its members have.
    """
    if rank is None:
        facts = {**end_facts(command), **_results(command)}
        return cast("AttemptRecord", {**attempt, **facts, "state": SUCCEEDED, "error": None, "late_success_at": at})
    assert isinstance(command, TakeSuccess), "of a member only its host tells"
    told = gangs.succeeded_member(attempt, rank, command)
    if any(member["state"] != SUCCEEDED for member in told["members"]):
        return told
    whole = gangs.verdict(cast("JobRecord", {}), {**told, "ending": None}, None)
    return with_success(told, None, whole, at)


def superseded(attempt: AttemptRecord, by: int, at: float) -> AttemptRecord:
    """The record of a live *attempt* that is to end because attempt number *by* has done the work."""
    return {**attempt, "superseded": {"by": by, "at": at}}
