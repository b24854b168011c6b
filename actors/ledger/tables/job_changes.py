"""The verbs of people, and of the leader, about one job that is there: cancel, change, fail, begin again. Part of the
replicated state."""

from __future__ import annotations

from typing import Any, cast

from actorgrid.actors.ledger.answers import CancelAnswer, EditAnswer, FailAnswer, RetriedJob
from actorgrid.actors.ledger.commands import CancelJob, EditJob, FailJob, RetryJob, value_or_none
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.records import NEVER_BEFORE, cancelled_before_start, resources_of
from actorgrid.errors import QueueFull, UnknownJob, WrongState
from actorgrid.labels import LABELS_MAX, is_labels

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
            raise waits_no_more(command.job_id, self._jobs.state_of(command.job_id) if job is None else job["state"])
        said: dict[str, Any] = {"priority": command.priority, "max_execution_time_s": command.max_execution_time_s}
        said["deadline"] = command.deadline
        changed = {name: value for name, value in said.items() if value is not ABSENT}
        job = self._jobs.change(command.job_id, **changed, **self._demand(job, command), **self._labels(job, command))
        limit_s = job.get("max_execution_time_s")
        answer: EditAnswer = {"job_id": job["job_id"], "priority": job["priority"], "max_execution_time_s": limit_s}
        if command.deadline is not ABSENT:
            answer["deadline"] = job["deadline"]
        if command.resources is not ABSENT:
            answer["resources"] = job["resources"]
        if command.labels is not ABSENT:
            answer["labels"] = job["labels"]
        return answer

    def _demand(self, job: JobRecord, command: EditJob) -> dict[str, Any]:
        """The fields that say what *job* is to ask for. Raises WrongState, QuotaExceeded."""
        if command.resources is ABSENT:
            return {}
        refuse_step(job, "ask for something else")
        edits = job.get("edits", 0)
        if edits != (value_or_none(command.edits) or 0):
            raise WrongState(
                f"what job {job['job_id']} asks for was changed meanwhile",
                asked="to change it",
                found=f"{edits} changes",
                hint="look at it, and change it again",
            )
        resources = resources_of(command.resources)
        members = job["resources"].get("gang", 1)
        if resources.get("gang", 1) != members:
            raise WrongState(
                f"job {job['job_id']} keeps the number of its members",
                asked=f"a gang of {resources.get('gang', 1)}",
                found=f"{members}",
            )
        self._quotas.check_edit(job, resources)
        pool = job["pool"] if command.pool is ABSENT else command.pool
        return {"resources": resources, "pool": pool, "edits": edits + 1}

    def _labels(self, job: JobRecord, command: EditJob) -> dict[str, Any]:
        """The field with the labels that *job* is to have. Raises WrongState, QueueFull."""
        if command.labels is ABSENT:
            return {}
        refuse_step(job, "have other labels")
        had = job.get("labels")
        both = {**(had if is_labels(had) else {}), **command.labels}
        labels = {key: value for key, value in both.items() if value is not None}
        if len(labels) > LABELS_MAX:
            raise WrongState(
                f"job {job['job_id']} would have too many labels",
                asked=f"{len(labels)} labels",
                found=f"at most {LABELS_MAX}",
                hint="take some away with the same change",
            )
        if command.waiting_bytes is not ABSENT:
            changed = cast("JobRecord", {**job, "labels": labels})
            self._jobs.waiting_bytes.refuse_growth(job, changed, command.waiting_bytes)
        return {"labels": labels}

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
        if "service" in job:
            name = job["service"]["name"]
            raise WrongState(
                f"job {job_id} was a replica of the service {name}",
                asked="begin it again",
                found=job["state"],
                hint=f"its service makes replicas anew: actorgrid why {name}; actorgrid scale {name} N",
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


def waits_no_more(job_id: str, state: str) -> WrongState:
    """The error for a change of a job that is in *state*."""
    return WrongState(
        f"job {job_id} does not wait any more",
        asked="to change it",
        found=state,
        hint="what runs keeps what it was started with; cancel it and submit it anew",
    )


def refuse_step(job: JobRecord, asked: str) -> None:
    """Raises WrongState for a job that runs steps of a graph: released again, it would ask for what it did before."""
    if "step_of" in job:
        raise WrongState(
            f"job {job['job_id']} is a step of a graph",
            asked=asked,
            found=job["step_of"]["graph_id"],
            hint="cancel the graph and submit it with what its steps are to have",
        )
