"""The verbs of people, and of the leader, about one job that is there: cancel, change, fail, begin again. Part of the
replicated state."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger.answers import CancelAnswer, EditAnswer, FailAnswer, RetriedJob
from actorgrid.actors.ledger.commands import CancelJob, EditJob, FailJob, RetryJob
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.records import NEVER_BEFORE, cancelled_before_start
from actorgrid.errors import QueueFull, UnknownJob, WrongState

from .graphs import Graphs
from .jobs import (
    CANCELLED,
    ENDED_MAX,
    FAILED,
    FINAL,
    GRAPH,
    LIVE_JOBS_MAX,
    PLACED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Jobs,
)
from .quotas import Quotas


class JobChanges:
    """They change *jobs*; of a graph, all of its steps' jobs. *quotas* say who may have one more wait."""

    def __init__(self, jobs: Jobs, graphs: Graphs, quotas: Quotas) -> None:
        self._quotas = quotas
        self._jobs = jobs
        self._graphs = graphs

    @applies(CancelJob)
    def cancel(self, command: CancelJob, entry: EntryContext) -> CancelAnswer:
        """Cancel a job: what waits has ended, what runs is to. Raises UnknownJob."""
        job_id = command.job_id
        job = self._jobs.records.get(job_id)
        if job is None:
            if self._jobs.known(job_id):
                return {"state": self._jobs.state_of(job_id), "cancel_requested": False}
            raise UnknownJob(f"there is no job {job_id}", asked=job_id)
        if job["kind"] == GRAPH and job["state"] not in FINAL and not job["cancel_requested"]:
            job = self._jobs.change(job_id, cancel_requested=True)
            self._graphs.stop(job_id, cancelled_before_start(command.by), entry.at)
            job = self._jobs.records[job_id]
        elif job["state"] == QUEUED:
            job = self._jobs.finish(job_id, CANCELLED, cancelled_before_start(command.by), entry.at)
        elif job["state"] not in FINAL and not job["cancel_requested"]:
            job = self._jobs.change(job_id, cancel_requested=True)
        return {"state": job["state"], "cancel_requested": job["cancel_requested"]}

    @applies(EditJob)
    def edit(self, command: EditJob, _entry: EntryContext) -> EditAnswer:
        """Change a job that waits. Raises UnknownJob, WrongState."""
        job = self._jobs.records.get(command.job_id)
        if job is None and not self._jobs.known(command.job_id):
            raise UnknownJob(f"there is no job {command.job_id}", asked=command.job_id)
        if job is None or job["state"] != QUEUED:
            found = self._jobs.state_of(command.job_id) if job is None else job["state"]
            raise WrongState(
                f"job {command.job_id} does not wait any more",
                asked="to change it",
                found=found,
                hint="what runs keeps what it was started with; cancel it and submit it anew",
            )
        said: dict[str, Any] = {"priority": command.priority, "max_execution_time_s": command.max_execution_time_s}
        said["deadline"] = command.deadline
        job = self._jobs.change(command.job_id, **{name: value for name, value in said.items() if value is not ABSENT})
        limit_s = job.get("max_execution_time_s")
        answer: EditAnswer = {"job_id": job["job_id"], "priority": job["priority"], "max_execution_time_s": limit_s}
        return answer if command.deadline is ABSENT else {**answer, "deadline": job["deadline"]}

    @applies(RetryJob)
    def retry(self, command: RetryJob, entry: EntryContext) -> RetriedJob:
        """Queue a job again that has not succeeded. Raises UnknownJob, WrongState, QuotaExceeded, QueueFull."""
        job_id = command.job_id
        job = self._jobs.records.get(job_id)
        if job is None and not self._jobs.known(job_id):
            raise UnknownJob(f"there is no job {job_id}", asked=job_id)
        if job is None:
            raise WrongState(
                f"job {job_id} ended too long ago",
                asked="begin it again",
                found=self._jobs.state_of(job_id),
                hint=f"the last {ENDED_MAX:,} that ended can be; submit it anew",
            )
        if job["kind"] == GRAPH or "step_of" in job:
            raise WrongState(
                f"job {job_id} is {'a graph' if job['kind'] == GRAPH else 'a step of a graph'}",
                asked="begin it again as a job",
                found=job["state"],
                hint="begin its graph again: actorgrid retry GRAPH",
            )
        if job["state"] not in FINAL or job["state"] == SUCCEEDED:
            raise WrongState(
                f"job {job_id} has {'succeeded' if job['state'] == SUCCEEDED else 'not ended'}",
                asked="begin it again",
                found=job["state"],
                hint="submit it anew under another id, or wait for its end",
            )
        for name in job["depends_on"]:
            state = self._jobs.state_of(name)
            if state in FINAL and state != SUCCEEDED:
                raise WrongState(
                    f"job {job_id} waits for {name}, which {state}",
                    asked="begin it again",
                    found=state,
                    hint=f"first: actorgrid retry {name}",
                )
        if self._jobs.live_count >= LIVE_JOBS_MAX:
            raise QueueFull(
                "the ledger holds its maximum of jobs", asked="1 more", found=f"{self._jobs.live_count} are there"
            )
        self._quotas.check_submit([job])
        deadline = job["deadline"]
        kept: dict[str, Any] = {
            "deadline": deadline if deadline is None or deadline > entry.at else None,
            "not_before": NEVER_BEFORE,
        }
        job = self._jobs.requeue(job_id, **kept)
        return {"job_id": job_id, "attempts": len(job["attempts"])}

    @applies(FailJob)
    def fail(self, command: FailJob, entry: EntryContext) -> FailAnswer:
        """Fail a job that waits. Raises UnknownJob, WrongState."""
        job_id = command.job_id
        job = self._jobs.records.get(job_id)
        if job is None:
            if self._jobs.known(job_id):
                return {"state": self._jobs.state_of(job_id)}
            raise UnknownJob(f"there is no job {job_id}", asked=job_id)
        if job["state"] in (PLACED, RUNNING):
            raise WrongState(
                f"job {job_id} is {job['state']}", asked="fail it before it starts", hint="cancel it instead"
            )
        if job["state"] == QUEUED:
            job = self._jobs.finish(job_id, FAILED, command.error, entry.at)
        return {"state": job["state"]}
