"""Runs graphs where the ledger is led: reads their files, plans, and proposes what their executions decide.

It holds nothing that is not in the ledger and in the graphs' files. A host that begins to lead reads both, and goes on;
one that leads no more forgets. What is read and planned of a large graph takes a second, in a thread of its own.

A part of ClusterManager, loaded with the first graph.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.actors.files.untrusted_files import open_to_read, read_whole
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import AdvanceGraph, EndGraph
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.messages import Applied, Query
from actorgrid.actors.ledger.query_answers import CachedGraphs, GraphSteps
from actorgrid.actors.ledger.record_types import HostRecord, JobRecord
from actorgrid.actors.ledger.tables.jobs import FINAL, GRAPH
from actorgrid.actors.links.messages import AskHost, FetchBlobs, FetchResult, SpreadBlobs
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.kept_attempts import kept_attempts
from actorgrid.dag.allocators import Allocator, FirstAvailable, TimeOptimized, find_allocator
from actorgrid.dag.hosts import ClusterTracker
from actorgrid.errors import (
    ActorError,
    ActorGridError,
    BadRequest,
    CallTimeout,
    CyclicGraph,
    HostUnreachable,
    InputLost,
    InvalidGraph,
    MailboxFull,
    MissingProducer,
    NotARegularFile,
    NotFound,
    Overloaded,
    QuotaExceeded,
    UnsatisfiableCost,
)
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.server import Server

from .cluster_capacity import bandwidth, capacities, hosts_up, live_claims, slots
from .decisions import Advance, ClusterCapacity, Finish
from .execution import GraphExecution
from .extensions import EXTENDED_AT_ONCE, ReadExtension, read_further_steps, refuse_too_many
from .graph_spec import SPEC_BYTES_MAX, GraphSpec, read_spec, spec_files
from .guarded_allocator import GuardedAllocator
from .step_cache import GRAPHS_MAX, NO_STEPS, StepCache

PAGE = 5_000
"""Steps that the ledger is asked about in one question."""
GATHER_S = 0.003
"""Ends that are heard of within it are answered together: a commit costs more than the wait."""
AGAIN_S = 1.0
"""Until what was refused for want of room, or could not be read, is tried again."""
FETCH_S = 60.0
KEPT_S = 3.0
"""Until a host has to say which results it keeps."""
ATTEMPTS_ASKED = 10_000
REFUSALS_QUIET = 3
"""So many in a row are nothing that people should know of: something else was faster."""
IDLE_ROUNDS_MAX = 100
"""Proposals in a row that change no step before the graph is given time: something decides in circles."""


@dataclass(slots=True)
class _Graph:
    """A graph that is led on here."""

    execution: GraphExecution | None = None
    note: str = ""
    """What people should know of it."""
    kicked: bool = False
    proposing: bool = False
    loading: bool = False
    extending: bool = False
    wake_at: float | None = None
    held_until: float = 0.0
    idle_rounds: int = 0
    refusals: int = 0
    """Proposals in a row that the ledger has refused."""
    heard: list[tuple[int, StepRecord]] = field(default_factory=list)
    """Of steps, while it is read."""
    placed: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Of jobs, while it is read: where each was placed last, and whether it is there now."""


class GraphRunner:
    """All graphs of a cluster that run, on the host that leads its ledger. *background* may be shared."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._graphs: dict[str, _Graph] = {}
        self._background = Background(server.runtime, "graphs")
        self._takes_s: dict[str, dict[str, float]] = {}  # by user, of functions by name
        self.advanced_total = 0
        self.released_total = 0

    # -- what the ledger says

    def begin(self) -> None:
        """Lead on all graphs that run, if this host leads; forget them else."""
        self._graphs.clear()
        if self._ledger.leads:
            for job_id, job in self._ledger.jobs.items():
                if job["kind"] == GRAPH and job["state"] not in FINAL:
                    self._take_up(job_id)

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        for kind, identity, record in message.changes:
            if kind == "steps":
                self._steps_changed(identity, record)
            elif kind == "job" and record is not None:
                self._job_changed(identity, record)
            elif kind == "host":
                self._host_changed(identity, gone=record is None or record["state"] == "lost")
            elif kind == "leader":
                self.begin()
                break

    def _host_changed(self, host_id: str, *, gone: bool) -> None:
        for graph_id, graph in self._graphs.items():
            if graph.execution is not None:
                tell = graph.execution.host_lost if gone else graph.execution.host_is_there
                tell(host_id)
                self._kick(graph_id)

    def _steps_changed(self, graph_id: str, records: Sequence[tuple[int, StepRecord]]) -> None:
        graph = self._graphs.get(graph_id)
        if graph is None:
            return
        if graph.execution is None:
            graph.heard += records
            return
        graph.idle_rounds = 0
        with self._contained(graph_id, graph):
            graph.execution.changed(records)
        self._kick(graph_id)

    def _job_changed(self, job_id: str, record: JobRecord) -> None:
        graph = self._graphs.get(job_id)
        if record.get("kind") == GRAPH:
            if record["state"] in FINAL:
                self._graphs.pop(job_id, None)
            elif graph is None:
                if self._ledger.leads:
                    self._take_up(job_id)
            elif graph.execution is not None:
                graph.execution.job = record
                self._kick(job_id)
            return
        graph_id = job_id.partition(".")[0]
        graph = self._graphs.get(graph_id)
        attempts = record.get("attempts") or ()
        if graph is None or not attempts:
            return
        last, runs = attempts[-1], record["state"] != "queued"
        if graph.execution is None:
            graph.placed[job_id] = last["host"], runs
            return
        if graph.execution.placed(job_id, last["host"], runs=runs):
            self._kick(graph_id)
        error = last["error"]
        # Only hosts end attempts as lost: what a step raises under that name is its own failure.
        if record["state"] == "queued" and last["state"] == "lost" and error and error["code"] == InputLost.__name__:
            steps = (error.get("details") or {}).get("steps")
            if isinstance(steps, list):
                graph.execution.inputs_lost(job_id, [each for each in steps if isinstance(each, int)])
                self._kick(graph_id)

    @contextlib.contextmanager
    def _contained(self, graph_id: str, graph: _Graph) -> Iterator[None]:
        """What is wrong with leading one graph on ends that graph, not the server that leads all."""
        try:
            yield
        except Exception as error:
            self._server.log.exception("graph %s cannot be led on", graph_id)
            graph.execution = None
            self._server.spawn(self._give_up(graph_id, _unexpected(error)))

    # -- reading a graph

    def _take_up(self, graph_id: str) -> None:
        graph = self._graphs[graph_id] = _Graph(loading=True)
        self._server.spawn(self._load(graph_id, graph))

    async def _load(self, graph_id: str, graph: _Graph) -> None:
        while self._graphs.get(graph_id) is graph and self._ledger.leads:
            job = self._ledger.jobs.get(graph_id)
            if job is None:
                return
            try:
                await self._read(graph_id, graph, job)
            except InvalidGraph as error:
                await self._give_up(graph_id, error)
                return
            except ActorGridError as error:
                if job["cancel_requested"]:
                    await self._give_up(graph_id, error)
                    return
                graph.note = f"its files cannot be read: {error.message}"
                self._server.log.warning("graph %s: %s", graph_id, error)
                await self._server.sleep(AGAIN_S)
                continue
            except Exception as error:
                self._server.log.exception("graph %s cannot be read", graph_id)
                await self._give_up(graph_id, _unexpected(error))
                return
            graph.loading = False
            self._kick(graph_id)
            return

    async def _read(self, graph_id: str, graph: _Graph, job: JobRecord) -> None:
        facts = job["graph"]
        contents = [await self._content(digest) for digest in spec_files(facts)]
        hosts = hosts_up(self._ledger.hosts, self._ledger.absent)
        prepared = await self._background.run(lambda: _prepare(contents, facts["strategy"], hosts))
        spec, allocator, urgency, graph.note = prepared
        records = await self._records(graph_id)
        if len(spec.graph) != self._ledger.jobs.get(graph_id, job)["graph"]["steps"]:
            raise CallTimeout("the graph has grown meanwhile", asked=graph_id)
        takes_s = self._takes_s.setdefault(job["user_id"], {})
        cache = await self._cache(graph_id, job, spec) if facts.get("cache") else NO_STEPS
        job = self._ledger.jobs.get(graph_id, job)
        execution = GraphExecution(spec, job, allocator, urgency, self._server.runtime.monotonic(), takes_s, cache)
        execution.load(records)
        execution.changed(graph.heard, learn=False)
        for job_id, (host, runs) in graph.placed.items():
            execution.placed(job_id, host, runs=runs)
        for job_id, found in self._ledger.jobs.items():
            if job_id.startswith(f"{graph_id}.") and found["attempts"]:
                execution.placed(job_id, found["attempts"][-1]["host"], runs=found["state"] != "queued")
        execution.only_there({id for id, known in self._ledger.hosts.items() if known["state"] != "lost"})
        graph.heard, graph.placed = [], {}
        graph.execution = execution

    async def _content(self, digest: str) -> bytes:
        folder: Path = self._server.host.paths.blobs_dir
        if not (folder / digest).exists() and self._server.host.enrolment is not None:
            await self._server.call("links", FetchBlobs((digest,)), FETCH_S)

        def read() -> bytes:
            try:
                data = read_whole(folder, digest, SPEC_BYTES_MAX)
            except (OSError, NotARegularFile) as error:
                raise NotFound(f"a file of the graph is not here: {error}", asked=digest) from error
            if data is None:
                raise InvalidGraph("the file that describes the graph is too large", asked=digest)
            return data

        return await self._background.run(read)

    async def _records(self, graph_id: str) -> list[tuple[int, StepRecord]]:
        found: list[tuple[int, StepRecord]] = []
        first: int | None = 0
        while first is not None:
            asked = Query("graph_steps", {"graph_id": graph_id, "from": first, "limit": PAGE})
            page: GraphSteps = await self._server.call("consensus", asked)
            found += page["steps"]
            first = page["next"]
        return found

    # -- further steps

    async def _extend(self, graph_id: str, graph: _Graph, execution: GraphExecution) -> None:
        """Look for the further steps that steps gave, and have them proposed."""
        try:
            await self._look_for_further(execution)
        except ActorGridError as error:
            graph.note = f"further steps cannot be added: {error.message}"
            self._server.log.info("graph %s: %s", graph_id, error)
            await self._server.sleep(AGAIN_S)
        graph.extending = False
        self._kick(graph_id)

    async def _look_for_further(self, execution: GraphExecution) -> None:
        """Raises what is wrong with this host, or the way to another; then it is tried again."""
        spec, first = execution.spec, len(execution.spec.graph)
        hosts = {host["host_id"]: host for host in hosts_up(self._ledger.hosts, self._ledger.absent)}
        looked_at: list[int] = []
        extensions: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        files: list[bytes] = []
        for number in list(execution.further.open)[:EXTENDED_AT_ONCE]:
            record = execution.records[number]
            path = await self._result_path(record)
            if path is None:
                execution.inputs_lost("", [number])
                continue
            look = functools.partial(_further_of, path, record, spec, number, hosts)
            try:
                found = await self._background.run(look)
                record_of = None if found is None else found.to_record(number, first)
                if record_of is not None:
                    refuse_too_many(execution.job["graph"], extensions, record_of)
            except (InvalidGraph, CyclicGraph, MissingProducer, UnsatisfiableCost, BadRequest) as error:
                failed.append({"step": number, "state": "failed", "error": error.to_dict()})
                looked_at.append(number)
                continue
            looked_at.append(number)
            if found is not None and record_of is not None:
                extensions.append(record_of)
                spec, first = found.spec, first + found.steps
                files += found.files
        if files:
            store, least = BlobStore(self._server.host.paths.blobs_dir), self._server.host.settings.performance
            await self._background.run(functools.partial(_keep, store, files, least.min_free_bytes))
            if self._server.host.enrolment is not None:
                digests = tuple(dict.fromkeys(digest for each in extensions for digest in each["files"]))
                await self._server.call("links", SpreadBlobs(digests), FETCH_S)
        execution.further.looked_at(looked_at, extensions, failed)

    async def _result_path(self, record: StepRecord) -> Path | None:
        """Where the result file of a step is on this host, brought here if need be; ``None``: nowhere any more."""
        host_id, attempt_id = record["host"], record["attempt_id"]
        if host_id == self._server.host.host_id:
            path = AttemptDir(self._server.host.paths.attempts_dir, attempt_id).result
            return path if path.exists() else None
        try:
            return Path(await self._server.call("links", FetchResult(host_id, attempt_id), FETCH_S))
        except NotFound:
            return None
        except HostUnreachable:
            if host_id not in self._ledger.hosts or self._ledger.hosts[host_id]["state"] == "lost":
                return None
            raise

    # -- what earlier graphs gave

    async def _cache(self, graph_id: str, job: JobRecord, spec: GraphSpec) -> StepCache:
        """What of the user's earlier graphs may be taken over: whose results are there now."""
        found = StepCache()
        if all(step.cache is None or step.cache.refresh for step in spec.request.steps):
            return found
        asked = Query("cached_graphs", {"user_id": job["user_id"], "limit": GRAPHS_MAX})
        graphs: CachedGraphs = await self._server.call("consensus", asked)
        for other in graphs["graphs"]:
            if other["job_id"] == graph_id or other["ordinal"] > job["ordinal"]:
                continue
            try:
                contents = [await self._content(digest) for digest in spec_files(other["graph"])]
                records = dict(await self._records(other["job_id"]))
                await self._background.run(functools.partial(_add_to, found, other["job_id"], contents, records))
            except ActorGridError as error:  # its files are gone: there is less to find
                self._server.log.info("graph %s cannot be looked through: %s", other["job_id"], error)
        kept: dict[str, set[str]] = {}
        for host_id, names in found.attempts().items():
            host = self._ledger.hosts.get(host_id)
            if host is not None and host["state"] == "up" and host_id not in self._ledger.absent:
                kept[host_id] = await self._kept_attempts(host_id, names)
        found.keep_only(kept)
        return found

    async def _kept_attempts(self, host_id: str, names: list[str]) -> set[str]:
        """Which of these attempts still have their results, as that host says; none where it does not answer."""
        if host_id == self._server.host.host_id:
            folder: Path = self._server.host.paths.attempts_dir
            return await self._background.run(lambda: set(kept_attempts(folder, names)))
        kept: set[str] = set()
        for first in range(0, len(names), ATTEMPTS_ASKED):
            ask = AskHost(host_id, "kept_attempts", {"attempts": names[first : first + ATTEMPTS_ASKED]}, KEPT_S)
            try:
                answer: Mapping[str, Any] = await self._server.call("links", ask, KEPT_S + 1)
            except (ActorGridError, ActorError) as error:
                self._server.log.info("host %s does not say which results it has: %s", host_id, error)
                return kept
            kept.update(answer["attempts"])
        return kept

    async def _give_up(self, graph_id: str, error: ActorGridError) -> None:
        """End a graph that cannot be led on."""
        self._server.log.error("graph %s: %s", graph_id, error)
        with contextlib.suppress(ActorGridError):
            await self._ledger.propose(AdvanceGraph(graph_id, self._ledger.term, [], [], [], [], stop=True))
            await self._ledger.propose(EndGraph(graph_id, self._ledger.term, "failed", error.to_dict()))
            return
        await self._server.sleep(AGAIN_S)
        if graph_id in self._graphs and self._ledger.leads:
            self._server.spawn(self._give_up(graph_id, error))

    # -- leading it on

    def _kick(self, graph_id: str) -> None:
        graph = self._graphs.get(graph_id)
        if graph is not None and not graph.kicked and graph.execution is not None:
            graph.kicked = True
            self._server.runtime.after(GATHER_S, lambda: self._turn(graph_id, graph))

    def _turn(self, graph_id: str, graph: _Graph) -> None:
        graph.kicked = False
        if self._graphs.get(graph_id) is not graph or not self._ledger.leads or graph.proposing:
            return
        execution = graph.execution
        now = time()
        if execution is None:
            return
        if now < graph.held_until:
            self._wake(graph_id, graph, graph.held_until - now)
            return
        if execution.further.open and not graph.extending:
            graph.extending = True
            self._server.spawn(self._extend(graph_id, graph, execution))
        found: Advance | Finish | None = None
        with self._contained(graph_id, graph):
            found = execution.decide(self._capacity(execution), now)
        if found is None:
            at = execution.next_wakeup(now)
            if at is None and execution.is_held:
                at = now + AGAIN_S  # for room, on hosts that nobody tells of
            if at is not None:
                self._wake(graph_id, graph, at - now)
            return
        graph.idle_rounds += 1
        if graph.idle_rounds > IDLE_ROUNDS_MAX:
            graph.held_until = now + AGAIN_S
        graph.proposing = True
        self._server.spawn(self._propose(graph_id, graph, execution, found))

    def _wake(self, graph_id: str, graph: _Graph, delay_s: float) -> None:
        at = self._server.runtime.monotonic() + delay_s
        if graph.wake_at is not None and self._server.runtime.monotonic() < graph.wake_at <= at:
            return
        graph.wake_at = at
        self._server.runtime.after(max(0.0, delay_s), lambda: self._kick(graph_id))

    def _capacity(self, execution: GraphExecution) -> ClusterCapacity:
        hosts = hosts_up(self._ledger.hosts, self._ledger.absent)
        up = frozenset(host["host_id"] for host in hosts)
        if execution.allocator.by_plan:
            return ClusterCapacity(slots(hosts), up)
        elapsed_s = self._server.runtime.monotonic() - execution.began_at
        allocations = list(self._ledger.allocations.values())
        claims = live_claims(
            execution.spec.graph, execution.allocator, hosts, allocations, execution.records, elapsed_s
        )
        return ClusterCapacity(slots(hosts), up, claims)

    async def _propose(self, graph_id: str, graph: _Graph, execution: GraphExecution, found: Advance | Finish) -> None:
        command: AdvanceGraph | EndGraph
        if isinstance(found, Finish):
            command = EndGraph(graph_id, self._ledger.term, found.state, found.error)
        else:
            command = AdvanceGraph(
                graph_id,
                self._ledger.term,
                found.releases,
                found.settled,
                found.withdrawn,
                found.extensions,
                found.stop,
                cached=found.cached or ABSENT,
            )
        try:
            await self._ledger.propose(command)
        except (QuotaExceeded, Overloaded, CallTimeout, MailboxFull) as error:
            # Nothing is wrong with it: there is no room, or nobody knows whether it was committed.
            graph.note = f"held up: {error.message}"
            self._server.log.info("graph %s: %s", graph_id, error)
            await self._server.sleep(AGAIN_S)
            self._anew(graph_id, graph)
        except ActorGridError as error:
            self._server.log.info("graph %s is decided anew: %s", graph_id, error)
            graph.refusals += 1
            if graph.refusals > REFUSALS_QUIET:
                graph.note = f"held up: {error.message}"
            await self._server.sleep(min(AGAIN_S, GATHER_S * 2.0 ** min(graph.refusals, 16)))
            self._anew(graph_id, graph)
        else:
            graph.note = ""
            graph.refusals = 0
            graph.proposing = False
            execution.carried_out()
            if isinstance(found, Advance):
                self.advanced_total += 1
                self.released_total += len(found.releases)
                if found.extensions:
                    self._anew(graph_id, graph)
            self._kick(graph_id)

    def _anew(self, graph_id: str, graph: _Graph) -> None:
        """Read a graph anew from the ledger: what was proposed is not what is there."""
        if self._graphs.get(graph_id) is graph and self._ledger.leads:
            self._take_up(graph_id)
            self._graphs[graph_id].note = graph.note
            self._graphs[graph_id].refusals = graph.refusals

    # -- for people

    def explain(self, graph_id: str) -> dict[str, Any] | None:
        """What a graph waits for here, as far as it is led on here."""
        graph = self._graphs.get(graph_id)
        if graph is None:
            return None
        if graph.execution is None:
            return {"loading": True, "held_by": graph.note, "counts": None}
        return {
            "loading": False,
            "held_by": graph.note or graph.execution.held_by,
            "counts": graph.execution.counts(),
        }

    def figures(self) -> Mapping[str, float]:
        """Graphs that are led on here, and what was proposed for them."""
        return {
            "graphs_running": float(len(self._graphs)),
            "graph_advances_total": float(self.advanced_total),
            "graph_jobs_released_total": float(self.released_total),
        }


def _prepare(
    contents: Sequence[bytes], strategy: str, hosts: Sequence[HostRecord]
) -> tuple[GraphSpec, Allocator, Sequence[float] | None, str]:
    """The graph in these files, with its allocator prepared for these hosts; and what people should know. Raises
    InvalidGraph."""
    spec = read_spec(contents)
    tracker = ClusterTracker(spec.graph, capacities(hosts), bandwidth=bandwidth(hosts))
    note = ""
    try:
        allocator: Allocator = find_allocator(strategy)
        if isinstance(allocator, TimeOptimized):
            allocator = TimeOptimized(bandwidth(hosts))
        allocator = GuardedAllocator(allocator)
        urgency = allocator.prepare(spec.graph, tracker) if hosts else None
    except Exception as error:  # noqa: BLE001 - an allocator may be anybody's, and a graph goes on without it
        note = f"the strategy {strategy} cannot be used here: {type(error).__name__}: {error}"[:300]
        allocator = FirstAvailable()
        urgency = None
    return spec, allocator, urgency, note


def _add_to(cache: StepCache, graph_id: str, contents: Sequence[bytes], records: Mapping[int, StepRecord]) -> None:
    cache.add(read_spec(contents), graph_id, records)


def _further_of(
    path: Path, record: StepRecord, spec: GraphSpec, number: int, hosts: Mapping[str, HostRecord]
) -> ReadExtension | None:
    """The further steps behind what a step gave. Raises InvalidGraph and the like."""
    try:
        with open_to_read(path.parent, path.name) as fd:

            def read(offset: int, size: int) -> bytes:
                return os.pread(fd, size, record["offset"] + record["size"] + offset)

            return read_further_steps(spec, number, read, hosts, capacities(hosts.values()))
    except (OSError, NotARegularFile) as error:
        raise NotFound(f"what a step left cannot be read: {error}", asked=path.name) from error


def _keep(store: BlobStore, files: Sequence[bytes], min_free_bytes: int) -> None:
    store.check_room(sum(map(len, files)), min_free_bytes)
    store.put_all(files)


def _unexpected(error: Exception) -> InvalidGraph:
    return InvalidGraph(
        "the graph cannot be led on: a fault of the program, or of its files",
        found=f"{type(error).__name__}: {error}"[:300],
        hint="the log of the host that leads has more of it",
    )
