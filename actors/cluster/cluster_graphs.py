"""Graphs of steps, as ClusterManager has them: accepted, looked at, explained, and led on where the ledger is led.

What leads them on (``actors/jobs``) is loaded with the first graph: a cluster without graphs does not pay for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any

from actorgrid.actors.ledger.answers import SubmittedJob
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import SubmitGraph
from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.messages import Applied, LedgerSnapshot, Query
from actorgrid.actors.ledger.query_answers import GraphStates, JobsPage
from actorgrid.actors.ledger.record_types import JobRecord, ResourcesRecord
from actorgrid.actors.ledger.tables.jobs import GRAPH
from actorgrid.errors import BadRequest, UnknownJob, UnsatisfiableCost
from actorgrid.models import JobState
from actorgrid.supervisors.server import Server

from .explain.graphs import GraphProgress
from .explain.why import JobContext
from .messages import AcceptGraph, ListJobs, Why

if TYPE_CHECKING:
    from ..jobs.runner import GraphRunner

WHY_JOBS = 200
"""Jobs of a graph that are looked at to tell why it is where it is."""
ACTIVE = ("queued", "placed", "running")


@dataclass(frozen=True, slots=True)
class JobDesk:
    """What a manager does for jobs of any kind."""

    check_feasible: Callable[[ResourcesRecord], Awaitable[None]]
    """Refuses what no host could ever give."""
    commit: Callable[[Command], Awaitable[Any]]
    record_of: Callable[[str], Awaitable[JobRecord]]
    list_jobs: Callable[[ListJobs], Awaitable[JobsPage]]
    explain: Callable[[Why], Awaitable[dict[str, Any]]]


class ClusterGraphs:
    """A part of the *server* that accepts jobs; *desk* is what that does for all of them."""

    def __init__(self, server: Server, ledger: LedgerClient, desk: JobDesk) -> None:
        self._server = server
        self._ledger = ledger
        self._desk = desk
        self._runner: GraphRunner | None = None

    # -- following the ledger

    def begin(self, snapshot: LedgerSnapshot) -> None:
        """Begin with what the ledger has, after a start or a gap."""
        if self._runner is not None or any(job["kind"] == GRAPH for job in snapshot.jobs.values()):
            self._loaded().begin()

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        if self._runner is None:
            if not any(kind == "job" and job and job.get("kind") == GRAPH for kind, _, job in message.changes):
                return
            self._loaded().begin()
        self._loaded().applied(message)

    def _loaded(self) -> GraphRunner:
        if self._runner is None:
            from ..jobs.runner import GraphRunner

            self._runner = GraphRunner(self._server, self._ledger)
        return self._runner

    # -- for who asks

    async def accept(self, request: AcceptGraph) -> SubmittedJob:
        """Accept a graph. Raises UnsatisfiableCost, which names the step, and what the ledger refuses with."""
        check_exec((), request.graph.get("env") or {})
        for step, resources in request.demands:
            try:
                await self._desk.check_feasible(resources)
            except BadRequest as error:
                raise UnsatisfiableCost(
                    f"step {step} needs what nobody has: {error.message}",
                    asked=error.asked,
                    found=error.found,
                    hint=error.hint,
                    step=step,
                ) from error
        accepted: SubmittedJob = await self._desk.commit(
            SubmitGraph(
                request.graph,
                cache=request.cache or ABSENT,
                grows=request.grows or ABSENT,
                asks_commands=request.asks_commands or ABSENT,
                spec_version=request.spec_version or ABSENT,
            )
        )
        return accepted

    async def look(self, graph_id: str) -> dict[str, Any]:
        """The answer to ``AskGraph``. Raises UnknownJob for what is no graph."""
        asked = {"graph_id": graph_id}
        found: GraphStates | None = await self._server.call("consensus", Query("graph", asked))
        if found is None and self._server.host.enrolment is not None:
            found = await self._ledger.read("graph", asked)
        if found is None:
            record = await self._desk.record_of(graph_id)
            raise UnknownJob(
                f"{graph_id} is no graph",
                asked=graph_id,
                found=f"a {record['kind']}",
                hint="actorgrid ps lists the jobs there are",
            )
        here = self._runner.explain(graph_id) if self._runner is not None and self._ledger.leads else None
        return {**found, "here": here}

    async def context(self, job: JobRecord, asked: Why) -> JobContext:
        """What a graph is explained by."""
        return JobContext(now=time(), graph=await self.progress(job, asked))

    async def progress(self, job: JobRecord, asked: Why) -> GraphProgress:
        """How far a graph is; of one that runs, what its steps wait for."""
        try:
            found = await self.look(job["job_id"])
        except UnknownJob:  # it ended long ago: its steps are known no more
            return GraphProgress(None)
        if JobState(job["state"]).final:
            return GraphProgress(found["states"])
        page = await self._desk.list_jobs(ListJobs(ACTIVE, WHY_JOBS, prefix=f"{job['job_id']}.", steps=True))
        jobs = page["jobs"][::-1]
        queued = next((each for each in jobs if each["state"] == JobState.QUEUED), None)
        waits = None if queued is None else await self._desk.explain(replace(asked, job_id=queued["job_id"]))
        return GraphProgress(found["states"], (found["here"] or {}).get("held_by") or "", jobs, waits)

    def figures(self) -> Mapping[str, float]:
        """Of the graphs that are led on here; empty while there has been none."""
        return {} if self._runner is None else self._runner.figures()
