"""The jobs the ledger knows, and how they move from state to state: whole, ended, or only remembered by name."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from actorgrid.actors.ledger.messages import JobsWanted
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.records import cancelled_before_start, dependency_failed
from actorgrid.errors import ErrorRecord
from actorgrid.models import JobState

from .dependencies import Dependencies
from .job_table import JobTable
from .waiting_bytes import WaitingBytes

LIVE_JOBS_MAX = 1_000_000
ENDED_MAX = 1_000
REMEMBERED_MAX = 100_000

QUEUED, PLACED, RUNNING = JobState.QUEUED.value, JobState.PLACED.value, JobState.RUNNING.value
SUCCEEDED, FAILED = JobState.SUCCEEDED.value, JobState.FAILED.value
CANCELLED, LOST = JobState.CANCELLED.value, JobState.LOST.value
BEGUN = (PLACED, RUNNING)
FINAL = (SUCCEEDED, FAILED, CANCELLED, LOST)
GRAPH = "graph"
"""The kind of a job that is a graph of steps."""


class Jobs:
    """Part of the replicated state. *changed* is told of every job whose record changed, and its state; *touched*,
    of what only left memory, by kind and id.

    ``records`` holds live jobs and the last 1,000 that ended, in order of acceptance; of 100,000 more the id and
    the state are kept, so that they can be depended on and are not accepted twice. A record is never written into:
    one that changes is replaced, so that whoever has read it keeps what was true then.
    """

    def __init__(self, changed: Callable[[str, JobRecord, str], None], touched: Callable[[str, str], None]) -> None:
        self._touched = touched
        self.records = JobTable()
        self.counts: dict[str, int] = {state.value: 0 for state in JobState}
        self.waiting: dict[str, int] = {}
        """Queued jobs by user; users without any are not in it."""
        self.waiting_bytes = WaitingBytes()
        self._changed = changed
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.remembered: OrderedDict[str, str] = OrderedDict()
        self._dependencies = Dependencies()
        self._total = 0
        self._retired_total = 0
        self._kept_graphs: dict[str, None] = {}
        """Graphs that have ended, which are kept as long as their steps are."""
        self.when_ended: list[Callable[[JobRecord, float], None]] = []
        """Each is told of every job that has ended, and when."""
        self.when_moved: list[Callable[[str, JobRecord], None]] = []
        """Each is told of every job that has gone from one state into another: that before, and its record."""

    @property
    def live_count(self) -> int:
        """The number of jobs that have not ended."""
        return len(self.records) - len(self._ended) - len(self._kept_graphs)

    @property
    def next_ordinal(self) -> int:
        """The number the next accepted job gets."""
        return self._total + 1

    def known(self, job_id: str) -> bool:
        """Whether a job of that id was accepted before, as far as is remembered."""
        return job_id in self.records or job_id in self.remembered

    def state_of(self, job_id: str) -> str:
        """The state of a known job. One remembered no more has succeeded: its failure would have ended who asks."""
        if self.records.waits(job_id):
            return QUEUED
        job = self.records.get(job_id)
        return str(job["state"]) if job is not None else self.remembered.get(job_id, SUCCEEDED)

    def unmet(self, job_id: str) -> list[str]:
        """The jobs a queued one still waits for."""
        return self._dependencies.unmet(job_id)

    def wanted(self, which: JobsWanted) -> JobTable:
        """A copy of the table for a subscriber that has to know these jobs."""
        if which == "none":
            return JobTable()
        if which == "all":
            return self.records.copy(lambda job: job["state"] not in FINAL)
        return self.records.copy(lambda job: job["state"] in BEGUN, waiting=False)

    def accept(self, jobs: list[JobRecord], at: float) -> None:
        """Take in new records, already numbered; those that can never run end at once."""
        for job in jobs:
            self._total = job["ordinal"]
            self.records[job["job_id"]] = job
            self._count(job, QUEUED, 1)
            self._changed(job["job_id"], job, QUEUED)
        for job in jobs:
            self._await_dependencies(job)
        for job in jobs:
            if not job["depends_on"]:
                continue
            broken = next((name for name in job["depends_on"] if self.state_of(name) in FINAL[1:]), None)
            if broken is not None and self.state_of(job["job_id"]) == QUEUED:
                failed = dependency_failed(job["job_id"], broken, self.state_of(broken))
                self.finish(job["job_id"], FAILED, failed, at)

    def accept_running(self, job: JobRecord) -> None:
        """Take in a new record, already numbered, of a job that runs from the beginning: a graph."""
        self._total = job["ordinal"]
        self.records[job["job_id"]] = job
        self._count(job, RUNNING, 1)
        self._changed(job["job_id"], job, RUNNING)

    def reopen(self, job_id: str, state: str, **fields: Any) -> JobRecord:
        """Begin a graph anew that has ended and is kept. Gives its record."""
        del self._kept_graphs[job_id]
        return self.change(job_id, state, ended_at=None, error=None, **fields)

    def requeue(self, job_id: str, **fields: Any) -> JobRecord:
        """Let a job wait again that has ended and is kept. Gives its record."""
        del self._ended[job_id]
        job = self.change(job_id, QUEUED, ended_at=None, error=None, cancel_requested=False, **fields)
        self._await_dependencies(job)
        return job

    def change(self, job_id: str, state: str | None = None, **fields: Any) -> JobRecord:
        """Replace the job's record by one with these fields and that state; records read before stay unchanged."""
        before = self.records[job_id]
        state = state or before["state"]
        job = cast("JobRecord", {**before, **fields, "state": state})
        self._count(before, before["state"], -1)
        self._count(job, state, 1)  # as it is now: an edit may have made it larger
        self.records[job_id] = job
        self._changed(job_id, job, state)
        if before["state"] != state:
            for told in self.when_moved:
                told(before["state"], job)
        return job

    def finish(self, job_id: str, state: str, error: ErrorRecord | None, at: float, **fields: Any) -> JobRecord:
        """End a job, and with it, unless it succeeded, all that waits for it, directly or not. Gives its record."""
        first = job_id
        ending = deque([(job_id, state, error, fields)])
        while ending:
            job_id, state, error, fields = ending.popleft()
            self._dependencies.drop(job_id)
            ended = self.change(job_id, state, ended_at=at, error=error, **fields)
            (self._kept_graphs if ended["kind"] == GRAPH else self._ended)[job_id] = None
            for dependent_id in self._dependencies.leave(job_id):
                if state != SUCCEEDED:
                    # It ends only once, whatever else it waits for.
                    self._dependencies.drop(dependent_id)
                    failed = dependency_failed(dependent_id, job_id, state)
                    ending.append((dependent_id, FAILED, failed, {}))
            for told in self.when_ended:
                told(ended, at)
        return self.records[first]

    def end(self, job_id: str, at: float, by: str) -> None:
        """End a job that waits, *by* being why; have one that runs be ended; leave one that has, or that is no more."""
        job = self.records.get(job_id)
        if job is None or job["state"] in FINAL:
            return
        if job["state"] == QUEUED:
            self.finish(job_id, CANCELLED, cancelled_before_start(by), at)
        elif not job["cancel_requested"]:
            self.change(job_id, cancel_requested=True)

    def retire(self, graphs: Iterable[str] = ()) -> list[tuple[int, JobRecord]]:
        """The ended jobs over the bound, oldest end first, and these *graphs*, with a number each: the history is
        their home now."""
        retired = []
        for graph_id in graphs:
            del self._kept_graphs[graph_id]
            retired.append(self._retire(graph_id))
        while len(self._ended) > ENDED_MAX:
            retired.append(self._retire(self._ended.popitem(last=False)[0]))
        while len(self.remembered) > REMEMBERED_MAX:
            self._touched("remembered", self.remembered.popitem(last=False)[0])
        return retired

    def _retire(self, job_id: str) -> tuple[int, JobRecord]:
        job = self.records.pop(job_id)
        self.counts[job["state"]] -= 1
        self.remembered[job_id] = job["state"]
        self._touched("job", job_id)
        self._touched("remembered", job_id)
        self._retired_total += 1
        return self._retired_total, job

    @property
    def totals(self) -> list[int]:
        """How many were ever accepted, and how many retired."""
        return [self._total, self._retired_total]

    def dump(self) -> dict[str, Iterable[Any]]:
        """Plain values, all of the state but the totals: as it is at this call, whenever they are taken."""
        return {
            "jobs": self.records.at_once(),
            "ended": list(self._ended),
            "remembered": list(self.remembered.items()),
        }

    def load(self, dumped: Mapping[str, Iterable[Any]], totals: Iterable[int]) -> None:
        """Load what ``dump`` gave; for a new, empty object."""
        self.records.update((job["job_id"], job) for job in dumped.get("jobs", ()))
        self._ended.update(OrderedDict.fromkeys(dumped.get("ended", ())))
        self.remembered.update((name, state) for name, state in dumped.get("remembered", ()))
        self._total, self._retired_total = totals
        for job in self.records.values():
            if job["kind"] == GRAPH and job["state"] in FINAL:
                self._kept_graphs[job["job_id"]] = None
            self._count(job, job["state"], 1)
            if job["state"] == QUEUED and job["depends_on"]:
                self._await_dependencies(job)

    def _count(self, job: JobRecord, state: str, by: int) -> None:
        self.counts[state] += by
        if state != QUEUED:
            return
        self.waiting_bytes.count(job, by)
        user = job["user_id"]
        count = self.waiting.pop(user, 0) + by
        if count:
            self.waiting[user] = count

    def _await_dependencies(self, job: JobRecord) -> None:
        open_ones = [name for name in job["depends_on"] if self.state_of(name) != SUCCEEDED]
        self._dependencies.add(job["job_id"], open_ones)
