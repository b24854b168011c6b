"""Graphs of steps: how far each step is. Part of the replicated state and its verbs.

A graph is a job of the kind ``graph``, which runs nothing itself and is running from its acceptance to its end. What
its steps are is in a file that the ledger only names. Whoever leads reads that, and leads the graph on
(``advance_graph``): it releases jobs that run steps, decides about steps that nobody has to run, and ends the graph.
All that this needs is here, so that the next leader goes on from it.

A step is released under the number of a run, one more each time, and only the job of that run decides it: what an
earlier run says later changes nothing. So a step has one result, that of one attempt, at any time.

When a job of steps ends, they are decided in the same entry: those with a result of their own by that; those that were
not begun wait again. A job that ended without saying anything of its steps (it crashed) has failed if it ran one; of
several, all wait again, each to run alone.

Bounds: 1,000 graphs that run, with 1,000,000 steps; 100 that have ended, with 300,000 steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from actorgrid.actors.ledger.answers import AdvanceAnswer, EndGraphAnswer, RetryAnswer, SubmittedJob
from actorgrid.actors.ledger.commands.graphs import AdvanceGraph, EndGraph, RetryGraph, SubmitGraph
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.graph_checks import EXTENSIONS_MAX, FILES_MAX, STEPS_MAX
from actorgrid.actors.ledger.graph_records import GraphFacts, StepRecord, StepResultRecord
from actorgrid.actors.ledger.record_types import NO_ERROR, JobRecord
from actorgrid.actors.ledger.records import new_job
from actorgrid.actors.ledger.snapshot import pack, unpack
from actorgrid.errors import DependencyFailed, ErrorRecord, QueueFull, TaskCancelled, UnknownJob, WrongState
from actorgrid.job_outcome import deciding_attempt

from .jobs import CANCELLED, FAILED, FINAL, GRAPH, LOST, QUEUED, RUNNING, SUCCEEDED, Jobs
from .quotas import Quotas

RUNNING_MAX, RUNNING_STEPS_MAX = 1_000, 1_000_000
ENDED_MAX, ENDED_STEPS_MAX = 100, 300_000
WAITING, RELEASED, STUMBLED, SKIPPED = "waiting", "released", "stumbled", "skipped"
OF_THE_GRAPH = (
    "user_id",
    "python",
    "priority",
    "policy",
    "max_isolation_s",
    "deadline",
    "preemptible",
    "grace_s",
    "submitted_at",
)
"""What the jobs of its steps have of a graph."""
LONG_S = 1e9
"""What nobody has told of: it took until the end of its attempt."""
NOT_BEGUN = ("", WAITING, STUMBLED)
"""States of a step that may be released."""
NEW_STEP: StepRecord = {
    "state": WAITING,
    "run": 0,
    "failures": 0,
    "job_id": "",
    "attempt_id": "",
    "host": "",
    "offset": 0,
    "size": 0,
    "started_at": None,
    "ended_at": None,
}


class StepTable:
    """The steps that have a record, by graph and number; each kept as bytes, which is a fifth of what it is else."""

    def __init__(self) -> None:
        self._packed: dict[str, dict[int, bytes]] = {}

    def begin(self, graph_id: str) -> None:
        """Begin a graph, none of whose steps has a record."""
        self._packed[graph_id] = {}

    def forget(self, graph_id: str) -> list[int]:
        """Forget a graph; gives the steps that had a record."""
        return list(self._packed.pop(graph_id, ()))

    def get(self, graph_id: str, step: int) -> StepRecord:
        """The record of a step."""
        packed = self._packed[graph_id].get(step)
        return NEW_STEP if packed is None else cast("StepRecord", unpack(packed))

    def put(self, graph_id: str, step: int, record: StepRecord) -> None:
        """Replace the record of a step."""
        self._packed[graph_id][step] = pack(record)

    def items(self, graph_id: str) -> Iterator[tuple[int, StepRecord]]:
        """The records of a graph, in the order in which they came to be."""
        return ((step, cast("StepRecord", unpack(packed))) for step, packed in self._packed[graph_id].items())

    def at_once(self, graphs: Iterable[str]) -> Iterator[list[Any]]:
        """[graph, step, record] of all of these, as they are at this call, whenever they are taken."""
        kept = [(graph_id, dict(self._packed[graph_id])) for graph_id in graphs]
        return ([graph_id, step, unpack(packed)] for graph_id, steps in kept for step, packed in steps.items())

    def ids(self) -> Iterator[str]:
        """GRAPH/STEP of all that have a record."""
        return (f"{graph_id}/{step}" for graph_id, steps in self._packed.items() for step in steps)

    def has(self, graph_id: str, step: int) -> bool:
        """Whether a step has a record."""
        return step in self._packed.get(graph_id, ())


class StepsById(Mapping[str, StepRecord]):
    """The steps as the digest looks at them: by GRAPH/STEP."""

    def __init__(self, steps: StepTable) -> None:
        self._steps = steps

    def __getitem__(self, id: str) -> StepRecord:
        graph_id, _, step = id.rpartition("/")
        if not step.isdecimal() or not self._steps.has(graph_id, int(step)):
            raise KeyError(id)
        return self._steps.get(graph_id, int(step))

    def __iter__(self) -> Iterator[str]:
        return self._steps.ids()

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Graphs:
    """The verbs of graphs. They change *jobs*. *told* hears which steps of a graph have changed, with their records;
    *touched*, of each of them by id, for the digest."""

    def __init__(
        self,
        jobs: Jobs,
        quotas: Quotas,
        told: Callable[[str, list[tuple[int, StepRecord]]], None],
        touched: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._quotas = quotas
        self._told = told
        self._touched = touched
        self.steps = StepTable()
        self.by_id = StepsById(self.steps)
        self._graph_of: dict[str, str] = {}  # by job: the graph some of whose steps it is to run
        self._running: dict[str, int] = {}  # graphs that run, with their steps
        self._ended: OrderedDict[str, int] = OrderedDict()
        self.counts: dict[str, dict[str, int]] = {}
        """Of each graph, how many steps with a record are in which state."""
        jobs.when_ended.append(self._job_ended)

    # -- what is kept

    def dump(self) -> dict[str, Iterable[Any]]:
        """Plain values, all of the state: as it is at this call, whenever they are taken."""
        graphs = [*self._running, *self._ended]
        return {"graphs": graphs, "graph_steps": self.steps.at_once(graphs)}

    def load(self, dumped: Mapping[str, Iterable[Any]]) -> None:
        """Load what ``dump`` gave, with the jobs in place; for a new, empty object."""
        for graph_id in dumped.get("graphs", ()):
            self.steps.begin(graph_id)
            self.counts[graph_id] = {}
            job = self._jobs.records[graph_id]
            (self._ended if job["state"] in FINAL else self._running)[graph_id] = job["graph"]["steps"]
        for graph_id, step, record in dumped.get("graph_steps", ()):
            self.steps.put(graph_id, step, record)
            self._count(graph_id, record, 1)
            if record["state"] == RELEASED:
                self._graph_of[record["job_id"]] = graph_id

    def graph_of(self, job_id: str) -> str | None:
        """The graph whose steps a job runs; ``None`` for any other."""
        return self._graph_of.get(job_id)

    # -- verbs

    @applies(SubmitGraph)
    def submit(self, command: SubmitGraph, entry: EntryContext) -> SubmittedJob:
        """Accept a graph. Raises QueueFull."""
        given = cast("JobRecord", command.graph)
        graph_id = given["job_id"]
        if self._jobs.known(graph_id):
            return {"job_id": graph_id, "duplicate": True}
        steps = given["graph"]["steps"]
        self._check_running(1, steps)
        if command.waiting_bytes is not ABSENT:
            most = command.waiting_bytes
            self._jobs.waiting_bytes.refuse_over([given], most["user"], most["all"])
        facts: GraphFacts = {**given["graph"], "stopping": False, "retries": 0, "extensions": []}
        if command.cache is True:
            facts["cache"] = True
        if command.grows is True:
            facts["grows"] = True
        own = {**given, "kind": GRAPH, "resources": {}, "graph": facts, "depends_on": []}
        job = new_job(own, self._jobs.next_ordinal, entry.index, entry.at)
        self._jobs.accept_running(cast("JobRecord", {**job, "state": RUNNING}))
        self.steps.begin(graph_id)
        self.counts[graph_id] = {}
        self._running[graph_id] = steps
        return {"job_id": graph_id, "duplicate": False}

    @applies(AdvanceGraph)
    def advance(self, command: AdvanceGraph, entry: EntryContext) -> AdvanceAnswer:
        """Lead a graph on. Raises UnknownJob, WrongState for what was decided from another state than this,
        QuotaExceeded, QueueFull."""
        graph_id = command.graph_id
        job = self.known_graph(graph_id)
        facts = job["graph"]
        if job["state"] in FINAL:
            raise WrongState(f"graph {graph_id} is over", asked="lead it on", found=job["state"])
        if command.releases and (facts["stopping"] or job["cancel_requested"]):
            raise WrongState(f"graph {graph_id} is being stopped", asked="release steps of it")
        facts = self._extended(graph_id, facts, command)
        self._check(graph_id, facts["steps"], command)
        own = {name: job[name] for name in OF_THE_GRAPH}  # type: ignore[literal-required]
        released = [
            cast("JobRecord", {**each, **own, "env": {**job["env"], **each.get("env", {})}})
            for each in command.releases
        ]
        self._quotas.check_submit(released)
        cached = self._taken_over(graph_id, job, facts["steps"], command)
        self._check_put_back(job, command)
        # Nothing is refused from here on.
        changed: dict[int, None] = {}
        if facts is not job["graph"]:
            self._running[graph_id] = facts["steps"]
            job = self._jobs.change(graph_id, graph=facts)
        for step, record in cached.items():
            self.put(graph_id, step, {**record, "ended_at": entry.at})
            changed[step] = None
        for settled in command.settled:
            self._settle(graph_id, settled, entry.at)
            changed[settled["step"]] = None
        for job_id in command.withdrawn:
            waiting = self._jobs.records.get(job_id)
            if waiting is not None and waiting["state"] == QUEUED:
                self._jobs.finish(job_id, CANCELLED, _anew(job_id), entry.at)
        if released:
            self._release(graph_id, released, entry, changed)
        if command.stop:
            self.stop(graph_id, _stopped(graph_id), entry.at)
        self.tell(graph_id, changed)
        return {"released": [each["job_id"] for each in released]}

    @applies(EndGraph)
    def end(self, command: EndGraph, entry: EntryContext) -> EndGraphAnswer:
        """End a graph. Raises UnknownJob, WrongState while anything of it runs."""
        graph_id = command.graph_id
        job = self.known_graph(graph_id)
        if job["state"] in FINAL:
            return {"state": job["state"]}
        left = self.counts[graph_id].get(RELEASED, 0)
        if left:
            raise WrongState(f"graph {graph_id} is not over", asked="end it", found=f"{left} steps are released")
        # Those that run nothing (values, inlined calls) have no records: that all others have is for the leader to say.
        undone = {each: count for each, count in self.counts[graph_id].items() if each not in (SUCCEEDED, SKIPPED)}
        if command.state == SUCCEEDED and any(undone.values()):
            raise WrongState(
                f"graph {graph_id} has not succeeded",
                asked="end it as succeeded",
                found=", ".join(f"{count} steps {each}" for each, count in sorted(undone.items()) if count),
            )
        state = CANCELLED if job["cancel_requested"] and command.state != SUCCEEDED else command.state
        error = command.error
        if state == CANCELLED:
            error = TaskCancelled(f"graph {graph_id} was cancelled").to_dict()
        self._jobs.finish(graph_id, state, None if state == SUCCEEDED else error, entry.at)
        self._ended[graph_id] = self._running.pop(graph_id)
        return {"state": state}

    @applies(RetryGraph)
    def retry(self, command: RetryGraph, entry: EntryContext) -> RetryAnswer:
        """Begin a graph again. Raises UnknownJob, WrongState, QueueFull."""
        graph_id = command.graph_id
        job = self.known_graph(graph_id)
        if job["state"] not in FINAL or job["state"] == SUCCEEDED:
            raise WrongState(
                f"graph {graph_id} has {'succeeded' if job['state'] == SUCCEEDED else 'not ended'}",
                asked="begin it again",
                found=job["state"],
                hint="submit it again under another id, or wait for its end",
            )
        self.begin_again(graph_id, job["graph"])
        again: dict[int, None] = {}
        for step, record in list(self.steps.items(graph_id)):
            if record["state"] not in (SUCCEEDED, WAITING):
                fresh: StepRecord = {**NEW_STEP, "run": record["run"]}
                self.put(graph_id, step, fresh)
                again[step] = None
        self.tell(graph_id, again)
        return {"state": RUNNING, "again": len(again)}

    def begin_again(self, graph_id: str, before: GraphFacts) -> None:
        """Let a graph that has ended run again; its steps are as they were. Raises QueueFull."""
        self._check_running(1, self._ended[graph_id])
        facts: GraphFacts = {**before, "stopping": False, "retries": before["retries"] + 1}
        self._running[graph_id] = self._ended.pop(graph_id)
        self._jobs.reopen(graph_id, RUNNING, graph=facts, cancel_requested=False)

    def stop(self, graph_id: str, error: ErrorRecord, at: float) -> None:
        """End all jobs of a graph: those that wait at once, those that run as soon as their hosts can."""
        facts = self._jobs.records[graph_id]["graph"]
        if not facts["stopping"]:
            self._jobs.change(graph_id, graph={**facts, "stopping": True})
        jobs = {record["job_id"]: None for _, record in self.steps.items(graph_id) if record["state"] == RELEASED}
        for job_id in jobs:
            job = self._jobs.records.get(job_id)
            if job is None or job["state"] in FINAL:
                continue
            if job["state"] == QUEUED:
                self._jobs.finish(job_id, CANCELLED, error, at)
            elif not job["cancel_requested"]:
                self._jobs.change(job_id, cancel_requested=True)

    def forget_oldest(self) -> list[str]:
        """The graphs over the bound of those that have ended, the oldest end first: they are known no more."""
        gone = []
        while len(self._ended) > ENDED_MAX or sum(self._ended.values()) > ENDED_STEPS_MAX:
            graph_id, _ = self._ended.popitem(last=False)
            for step in self.steps.forget(graph_id):
                self._touched(f"{graph_id}/{step}")
            del self.counts[graph_id]
            gone.append(graph_id)
        return gone

    # -- inside

    def _check_running(self, graphs: int, steps: int) -> None:
        """Refuse so many graphs and steps more than run. Raises QueueFull."""
        running = sum(self._running.values())
        if len(self._running) + graphs > RUNNING_MAX or running + steps > RUNNING_STEPS_MAX:
            raise QueueFull(
                "the ledger holds its maximum of graphs that run",
                asked=f"{steps} steps more",
                found=f"{len(self._running)} graphs with {running} steps",
                hint="wait for one to end, or cancel one",
            )

    def known_graph(self, graph_id: str) -> JobRecord:
        """The job of a graph whose steps are remembered. Raises UnknownJob, WrongState."""
        job = self._jobs.records.get(graph_id)
        if graph_id not in self.counts or job is None:
            if self._jobs.known(graph_id):
                raise WrongState(
                    f"{graph_id} is no graph, or its steps are remembered no more",
                    asked=graph_id,
                    found=self._jobs.state_of(graph_id),
                    hint=f"of graphs that have ended, the last {ENDED_MAX} are; submit it again",
                )
            raise UnknownJob(f"there is no graph {graph_id}", asked=graph_id)
        return job

    def _extended(self, graph_id: str, facts: GraphFacts, command: AdvanceGraph) -> GraphFacts:
        for extension in command.extensions:
            if extension["first"] != facts["steps"]:
                raise WrongState(
                    f"graph {graph_id} has another number of steps",
                    asked=f"more from number {extension['first']} on",
                    found=f"{facts['steps']} steps",
                )
            files = [*facts["files"], *(f for f in extension["files"] if f not in facts["files"])]
            steps = facts["steps"] + extension["steps"]
            if steps > STEPS_MAX or len(files) > FILES_MAX or len(facts["extensions"]) >= EXTENSIONS_MAX:
                raise QueueFull(
                    f"graph {graph_id} grows too large",
                    asked=f"{extension['steps']} more steps",
                    found=f"{facts['steps']} steps, {len(facts['extensions'])} extensions, {len(facts['files'])} files",
                )
            self._check_running(0, steps - self._running[graph_id])
            kept = {name: extension[name] for name in ("parent", "first", "steps", "file")}
            facts = cast(
                "GraphFacts", {**facts, "files": files, "steps": steps, "extensions": [*facts["extensions"], kept]}
            )
        return facts

    def _check(self, graph_id: str, steps: int, command: AdvanceGraph) -> None:
        """Refuse what was decided from another state than this. Raises WrongState."""
        settled = {each["step"]: each["state"] for each in command.settled}
        named: set[int] = set()
        for job in command.releases:
            job_id = job["job_id"]
            if job["step_of"]["graph_id"] != graph_id:
                raise WrongState(f"job {job_id} is for another graph", asked=graph_id, found=job["step_of"]["graph_id"])
            if self._jobs.known(job_id):
                raise WrongState(f"there is a job {job_id} already", asked=f"release it for graph {graph_id}")
            for step, run, _, _ in job["step_of"]["steps"]:
                record = self.steps.get(graph_id, step)
                state = settled.get(step, record["state"])
                if step >= steps or step in named or state not in NOT_BEGUN or run != record["run"] + 1:
                    raise WrongState(
                        f"step {step} of graph {graph_id} is not to be released",
                        asked=f"run {run}",
                        found=f"{state or 'new'}, after run {record['run']} of {steps} steps",
                    )
                named.add(step)
        for step, state in settled.items():
            record = self.steps.get(graph_id, step)
            if step >= steps or record["state"] == RELEASED:
                raise WrongState(f"step {step} of graph {graph_id} is {record['state']}", asked=f"settle it as {state}")
        for job_id in command.withdrawn:
            if self._graph_of.get(job_id) != graph_id:
                raise WrongState(f"job {job_id} runs nothing of graph {graph_id}", asked="withdraw it")

    def _check_put_back(self, job: JobRecord, command: AdvanceGraph) -> None:
        """Refuse jobs that put back what steps of others left, or of nobody. Raises WrongState."""
        for each in command.releases:
            other_id, there = each["step_of"].get("puts_back", ("", 0))
            other = self._jobs.records.get(other_id) if other_id in self.counts else None
            known = other is not None and other["user_id"] == job["user_id"]
            if other_id and not (known and self.steps.get(other_id, there)["state"] == SUCCEEDED):
                raise WrongState(
                    f"job {each['job_id']} has nothing to put back",
                    asked=f"step {there} of graph {other_id}",
                    found="no graph of this user, or a step that has not succeeded",
                )

    def _taken_over(self, graph_id: str, job: JobRecord, steps: int, command: AdvanceGraph) -> dict[int, StepRecord]:
        """The records of the steps that take a result over. Raises WrongState."""
        found: dict[int, StepRecord] = {}
        begun = {step for each in command.releases for step, _, _, _ in each["step_of"]["steps"]}
        for step, other_id, there in () if command.cached is ABSENT else command.cached:
            before = self.steps.get(graph_id, step)
            if step >= steps or step in begun or before["state"] not in NOT_BEGUN:
                raise WrongState(f"step {step} of graph {graph_id} is {before['state']}", asked="take a result over")
            other = self._jobs.records.get(other_id) if other_id in self.counts else None
            source = NEW_STEP if other is None else self.steps.get(other_id, there)
            if other is None or other["user_id"] != job["user_id"] or source["state"] != SUCCEEDED:
                raise WrongState(
                    f"step {step} of graph {graph_id} has nothing to take over",
                    asked=f"step {there} of graph {other_id}",
                    found="no graph of this user" if other is None else source["state"],
                )
            record: StepRecord = {
                **NEW_STEP,
                "state": SUCCEEDED,
                "run": before["run"],
                "failures": before["failures"],
                "cached_from": [other_id, there],
            }
            for name in ("job_id", "attempt_id", "host", "offset", "size", "word", "digest"):
                if name in source:
                    record[name] = source[name]
            found[step] = record
        return found

    def _release(self, graph_id: str, released: list[JobRecord], entry: EntryContext, changed: dict[int, None]) -> None:
        first = self._jobs.next_ordinal
        jobs = []
        for place, given in enumerate(released):
            job = new_job(given, first + place, entry.index, entry.at)
            not_before = cast("Any", given).get("not_before", job["not_before"])
            jobs.append(cast("JobRecord", {**job, "not_before": not_before}))
            self._graph_of[job["job_id"]] = graph_id
            for step, run, _, _ in job["step_of"]["steps"]:
                before = self.steps.get(graph_id, step)
                record: StepRecord = {
                    **NEW_STEP,
                    "state": RELEASED,
                    "run": run,
                    "failures": before["failures"],
                    "job_id": job["job_id"],
                }
                if before.get("alone"):
                    record["alone"] = True
                self.put(graph_id, step, record)
                changed[step] = None
        self._jobs.accept(jobs, entry.at)

    def _settle(self, graph_id: str, settled: Mapping[str, Any], at: float) -> None:
        step, state = settled["step"], settled["state"]
        before = self.steps.get(graph_id, step)
        kept: StepRecord = before if state == FAILED else {**NEW_STEP, "run": before["run"]}
        record: StepRecord = {
            **kept,
            "state": state,
            "failures": before["failures"],
            "ended_at": None if state == WAITING else at,
        }
        if state == WAITING and before.get("alone"):
            record["alone"] = True
        if "error" in settled:
            record["error"] = settled["error"]
        if "same_as" in settled:
            record["same_as"] = settled["same_as"]
            other = self.steps.get(graph_id, settled["same_as"])
            for name in ("job_id", "attempt_id", "host", "offset", "size", "word", "digest", "started_at"):
                if name in other:
                    record[name] = other[name]
        self.put(graph_id, step, record)

    def _job_ended(self, job: JobRecord, at: float) -> None:
        """A job has ended: decide the steps that it was to run."""
        graph_id = self._graph_of.pop(job["job_id"], None)
        if graph_id is None:
            return
        steps = job["step_of"]["steps"]
        attempt = deciding_attempt(job)
        results: list[StepResultRecord] = attempt.get("results") or []
        if job["state"] == SUCCEEDED and not results and len(steps) == 1:
            size = int(attempt.get("result_bytes") or 0)
            results = [{"ok": True, "offset": 0, "size": size, "took_s": LONG_S}]
        began = attempt.get("started_at") or attempt.get("placed_at")
        # Attempts before the last one: only a step that is alone in its job is tried again by it.
        before_that = sum(each["state"] == FAILED for each in job["attempts"][:-1])
        changed: dict[int, None] = {}
        for place, (step, run, _, _) in enumerate(steps):
            before = self.steps.get(graph_id, step)
            if before["state"] != RELEASED or before["run"] != run or before["job_id"] != job["job_id"]:
                continue
            found = results[place] if place < len(results) else None
            record: StepRecord = {
                **before,
                "attempt_id": str(attempt.get("allocation_id") or ""),
                "host": str(attempt.get("host") or ""),
                "started_at": began,
                "ended_at": at,
            }
            if attempt.get("gpu_indexes"):
                record["gpu_indexes"] = attempt["gpu_indexes"]
            if found is not None:
                _with_result(record, found, began, at)
                if found["ok"] and "puts_back" in job["step_of"]:
                    record["cached_from"] = job["step_of"]["puts_back"]
                began = record["ended_at"]
                record["failures"] += before_that
                if not found["ok"]:
                    self._failed(record, job, alone=len(steps) == 1)
            elif len(steps) == 1 and job["state"] in (FAILED, LOST) and not _never_began(job):
                record["failures"] += before_that
                self._failed(record, job, alone=True)
            else:
                if before.get("cancelled"):
                    self.put(graph_id, step, {**record, "state": FAILED, "error": before["error"]})
                    changed[step] = None
                    continue
                record = {**NEW_STEP, "run": run, "failures": before["failures"]}
                if before.get("alone") or (len(steps) > 1 and not results and job["state"] in (FAILED, LOST)):
                    record["alone"] = True
            self.put(graph_id, step, record)
            changed[step] = None
        self.tell(graph_id, changed)

    def _failed(self, record: StepRecord, job: JobRecord, *, alone: bool) -> None:
        record["state"] = FAILED if alone else STUMBLED
        record["failures"] += 1
        if job["error"] is not None:
            record["error"] = job["error"]
        if not alone:
            record["alone"] = True

    def put(self, graph_id: str, step: int, record: StepRecord) -> None:
        """Replace the record of a step."""
        if self.steps.has(graph_id, step):
            self._count(graph_id, self.steps.get(graph_id, step), -1)
        self.steps.put(graph_id, step, record)
        self._count(graph_id, record, 1)
        self._touched(f"{graph_id}/{step}")

    def _count(self, graph_id: str, record: StepRecord, by: int) -> None:
        counts, state = self.counts[graph_id], record["state"]
        counts[state] = counts.get(state, 0) + by

    def tell(self, graph_id: str, changed: Iterable[int]) -> None:
        """Tell which steps of a graph have changed."""
        told = [(step, self.steps.get(graph_id, step)) for step in changed]
        if told:
            self._told(graph_id, told)


def _with_result(record: StepRecord, found: StepResultRecord, began: float | None, at: float) -> None:
    """Put into *record* what an attempt says of its step, which began then."""
    record["state"] = SUCCEEDED if found["ok"] else STUMBLED
    record["offset"], record["size"] = found["offset"], found["size"]
    record["started_at"] = began
    record["ended_at"] = at if began is None else min(at, began + max(0.0, found["took_s"]))
    for name in ("word", "digest"):
        if name in found:
            record[name] = found[name]


def _never_began(job: JobRecord) -> bool:
    """Whether a job failed without being tried: what it waited for did not succeed."""
    return (job["error"] or NO_ERROR).get("code") == DependencyFailed.__name__ and not job["attempts"]


def _anew(job_id: str) -> ErrorRecord:
    return TaskCancelled(f"job {job_id} is released anew: something that it takes has to be made again").to_dict()


def _stopped(graph_id: str) -> ErrorRecord:
    return TaskCancelled(f"graph {graph_id} was ended, as a step of it has failed").to_dict()
