"""Answers to :class:`Query`, from the state and the history together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.messages import QueryArguments
from actorgrid.actors.ledger.query_answers import (
    AllocationRecords,
    ApiKeyRecords,
    AuditHeadRecords,
    CachedGraphs,
    EventsPage,
    FilesInUse,
    GraphStates,
    GraphSteps,
    HostRecords,
    JobsPage,
    JobStates,
    JoinTokenRecords,
    LedgerCounts,
    LockRecords,
    PayloadsPage,
    QuotaRecords,
    SecretRecords,
    SettingValues,
    TenantRows,
)
from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.jobs import FINAL, GRAPH
from actorgrid.errors import BadRequest, UnknownJob

from .history import EndedJobs, History

LIST_MAX = 10_000
LIST_DEFAULT = 100
EVENTS_DEFAULT = 1_000
COUNTED_MAX = 1_000
NAMES_MAX = 1_000
SLICE = 1_000


def is_live(job: JobRecord) -> bool:
    """Whether the job has not ended."""
    return job["state"] not in FINAL


class Queries:
    """Reads of one ledger. Records are live ones: what is answered is to be sent off, not kept."""

    def __init__(self, ledger: Ledger, history: History) -> None:
        self._ledger = ledger
        self._history = history
        self._kinds: dict[str, Callable[[QueryArguments], Any]] = {
            "job": self._job,
            "job_states": self._job_states,
            "payloads": self._payloads,
            "jobs": self._jobs,
            "allocations": lambda _: AllocationRecords(allocations=list(ledger.allocations.values())),
            "hosts": lambda _: HostRecords(hosts=[host for _, host in sorted(ledger.hosts.items())]),
            "lock": lambda args: ledger.locks.get(str(args["name"])),
            "locks": lambda _: LockRecords(locks=[lock for _, lock in sorted(ledger.locks.items())]),
            "quotas": lambda _: QuotaRecords(quotas=ledger.quotas.rows()),
            "tenants": lambda _: TenantRows(tenants=ledger.quotas.tenants.rows()),
            "join_tokens": lambda _: JoinTokenRecords(join_tokens=list(ledger.join_tokens.values())),
            "api_keys": lambda _: ApiKeyRecords(api_keys=list(ledger.api_keys.values())),
            "audit_heads": self._audit_heads,
            "secrets": lambda _: SecretRecords(secrets=list(ledger.secrets.values())),
            "gossip_key": lambda _: ledger.gossip_key,
            "settings": lambda _: SettingValues(settings=dict(sorted(ledger.settings.items()))),
            "graph": self._graph,
            "graph_steps": self._graph_steps,
            "cached_graphs": self._cached_graphs,
            "events": self._events,
            "counts": self._counts,
        }

    def answer(self, kind: str, args: QueryArguments) -> Any:
        """Answer a query of that kind. Raises BadRequest for a kind or an argument that is none."""
        reader = self._kinds.get(kind)
        if reader is None:
            raise BadRequest(f"the ledger has no query {kind!r}", found=f"known: {', '.join(sorted(self._kinds))}")
        try:
            return reader(args)
        except (TypeError, ValueError, KeyError) as error:
            raise BadRequest(f"query {kind}: wrong arguments: {error}", asked=repr(args)[:200]) from None

    def _audit_heads(self, args: QueryArguments) -> AuditHeadRecords:
        heads = self._ledger.audit_heads
        wanted = heads if args.get("host_id") is None else [str(args["host_id"])]
        return AuditHeadRecords(heads=[heads[each] for each in wanted if each in heads])

    def _job(self, args: QueryArguments) -> JobRecord | None:
        job_id = str(args["job_id"])
        return self._ledger.jobs.get(job_id) or self._history.job(job_id)

    def _job_states(self, args: QueryArguments) -> JobStates:
        found = {}
        for job_id in map(str, args["job_ids"][:LIST_MAX]):
            record = self._job({"job_id": job_id})
            if record is not None:
                found[job_id] = record["state"]
        return {"states": found}

    def _payloads(self, args: QueryArguments) -> PayloadsPage:
        limit = max(1, min(int(args.get("limit") or EVENTS_DEFAULT), LIST_MAX))
        digests: dict[str, None] = {}
        last = None
        if args.get("behind") is None:
            kept = (*self._graph_files(), *self._repeated_files())
            digests.update(dict.fromkeys(file for _, files in kept for file in files))
        for count, (job_id, named) in enumerate(self._ledger.jobs.own_fields(JOB_FILES, is_live, args.get("behind"))):
            if count == limit:
                return {"digests": list(digests), "next": last}
            last = job_id
            digests.update(dict.fromkeys(digest for digest in named if digest))
        return {"digests": list(digests), "next": None}

    def _graph_files(self) -> Iterator[tuple[str, list[str]]]:
        """Whose each graph is that runs, or may be begun again, and its files."""
        graphs = (self._ledger.jobs[graph_id] for graph_id in self._ledger.step_counts)
        return ((graph["user_id"], graph["graph"]["files"]) for graph in graphs)

    def _repeated_files(self) -> Iterator[tuple[str, list[str]]]:
        """The same of each schedule, of the job that it makes; and of services, of the replicas of each revision."""
        services = self._ledger.services.values()
        revisions = ((service["user_id"], each["job"]) for service in services for each in service["revisions"])
        scheduled = ((each["user_id"], each["job"]) for each in self._ledger.schedules.values())
        return (
            (user_id, [job[name] for name in JOB_FILES if job.get(name)])
            for user_id, job in chain(scheduled, revisions)
        )

    def files_in_use(self, args: QueryArguments) -> Iterator[FilesInUse | None]:
        """The answer to ``files_in_use``, after a ``None`` for each 1,000 jobs that were looked through.

        With a *tenant*, files of its users' jobs alone. Raises BadRequest for more than 1,000 names of a kind.
        """
        wanted = {kind: {str(name) for name in args.get(kind) or ()} for kind in ("digests", "job_ids")}
        if max(map(len, wanted.values())) > NAMES_MAX:
            raise BadRequest("too many names at once", asked=str(max(map(len, wanted.values()))), found=f"{NAMES_MAX}")
        used: dict[str, set[str]] = {kind: set() for kind in wanted}
        tenant = args.get("tenant")
        for user_id, files in (*self._graph_files(), *self._repeated_files()):
            if tenant is None or tenant_of(user_id) == tenant:
                used["digests"].update(wanted["digests"].intersection(files))
        # What steps of a running graph gave is wanted by others, or by whoever waits for its end.
        running = {id for id in self._ledger.step_counts if is_live(self._ledger.jobs[id])}
        used["job_ids"] = {id for id in wanted["job_ids"] if id.partition(".")[0] in running}
        keeping = {id for id in self._ledger.step_counts if self._ledger.jobs[id]["graph"].get("cache")}
        cached = {id for id in wanted["job_ids"] if id.partition(".")[0] in keeping}
        names = ("depends_on", *JOB_FILES)
        for count, (job_id, (depends_on, *named)) in enumerate(self._ledger.jobs.own_fields(names, is_live)):
            found = wanted["digests"].intersection(named)
            if found and (tenant is None or tenant_of(self._ledger.jobs[job_id]["user_id"]) == tenant):
                used["digests"].update(found)
            used["job_ids"].update(wanted["job_ids"].intersection(depends_on or ()))
            if count % SLICE == SLICE - 1:
                yield None
        cached -= used["job_ids"]
        yield FilesInUse(
            digests=sorted(used["digests"]), job_ids=sorted(used["job_ids"]), cached_job_ids=sorted(cached)
        )

    def _jobs(self, args: QueryArguments) -> JobsPage:
        limit = max(1, min(int(args.get("limit") or LIST_DEFAULT), LIST_MAX))
        prefix = str(args.get("prefix") or "")
        before = args.get("before")
        before_ordinal = None
        if isinstance(before, str):
            last = self._job({"job_id": before})
            if last is None:
                raise UnknownJob(f"there is no job {before}, to go on after", asked=before, hint="begin anew")
            before_ordinal = int(last["ordinal"])
        wanted = JobFilter(
            states=tuple(str(state) for state in args.get("states") or ()),
            before_ordinal=before_ordinal,
            before_at=float(before) if isinstance(before, (int, float)) else None,
            prefix=prefix,
            user=str(args.get("user") or ""),
            since_at=None if args.get("since_at") is None else float(args["since_at"]),
            name=str(args.get("name") or ""),
            labels={str(key): str(value) for key, value in (args.get("labels") or {}).items()},
            host=str(args.get("host") or ""),
            tenant=str(args.get("tenant") or ""),
            # No graph has a dot in its id, and each job of its steps has: who writes one means these.
            steps=bool(args.get("steps") or "." in prefix),
        )
        # One more than the page holds, to know whether another follows; of a part, as many as are counted.
        part = wanted.of_a_part or bool(self._ledger.step_counts and not wanted.steps)
        most = limit + 1 if not part else max(limit + 1, COUNTED_MAX)
        behind = before if isinstance(before, str) else None
        in_memory = self._ledger.jobs.newest(wanted, behind)
        gone, last_seen = EndedJobs([], None), None
        if not wanted.states or any(state in FINAL for state in wanted.states):
            gone = self._history.jobs(wanted, most)
            last_seen = gone.last_seen
        found = list(islice(heapq.merge(in_memory, gone.jobs, key=lambda job: -int(job["ordinal"])), most))
        if last_seen is not None:  # further back nobody has looked yet: the page ends there
            found = [job for job in found if int(job["ordinal"]) >= last_seen[0]]
        states = wanted.states
        total = sum(count for state, count in self.job_counts().items() if not states or state in states)
        return {
            "jobs": found[:limit],
            "total": len(found) if part else total,
            "next": found[limit - 1]["job_id"] if len(found) > limit else last_seen and last_seen[1],
        }

    def job_counts(self) -> dict[str, int]:
        """All jobs by state, those that left memory too."""
        counts = dict(self._ledger.counts)
        for state, count in self._history.counts().items():
            counts[state] = counts.get(state, 0) + count
        return counts

    def _graph(self, args: QueryArguments) -> GraphStates | None:
        graph_id = str(args["graph_id"])
        job = self._job({"job_id": graph_id})
        if job is None or job["kind"] != GRAPH:
            return None
        counts = self._ledger.step_counts.get(graph_id)
        return {"job": job, "states": None if counts is None else {k: v for k, v in counts.items() if v}}

    def _cached_graphs(self, args: QueryArguments) -> CachedGraphs:
        """The graphs of a user that keep what their steps gave, the newest first."""
        user_id, limit = str(args["user_id"]), max(1, min(int(args["limit"]), COUNTED_MAX))
        jobs = (self._ledger.jobs[graph_id] for graph_id in self._ledger.step_counts)
        kept = [job for job in jobs if job["user_id"] == user_id and job["graph"].get("cache")]
        kept.sort(key=lambda job: job["ordinal"], reverse=True)
        return {"graphs": kept[:limit]}

    def _graph_steps(self, args: QueryArguments) -> GraphSteps:
        graph_id = str(args["graph_id"])
        if graph_id not in self._ledger.step_counts:
            raise UnknownJob(f"no steps of a graph {graph_id} are known", asked=graph_id)
        steps = self._ledger.steps
        if args.get("steps") is not None:
            numbers = [int(number) for number in args["steps"][:LIST_MAX]]
            found = [(number, steps.get(graph_id, number)) for number in numbers if steps.has(graph_id, number)]
            return {"steps": found, "next": None}
        first, limit = int(args.get("from") or 0), max(1, min(int(args.get("limit") or SLICE), LIST_MAX))
        total = self._ledger.jobs[graph_id]["graph"]["steps"]
        last = min(total, first + limit)
        found = [(number, steps.get(graph_id, number)) for number in range(first, last) if steps.has(graph_id, number)]
        return {"steps": found, "next": last if last < total else None}

    def _events(self, args: QueryArguments) -> EventsPage:
        limit = max(1, min(int(args.get("limit") or EVENTS_DEFAULT), LIST_MAX))
        self._history.write(self._ledger.index)
        return {"events": self._history.events(int(args.get("from") or 0), limit), "index": self._ledger.index}

    def _counts(self, _args: QueryArguments) -> LedgerCounts:
        return {
            "jobs": self.job_counts(),
            "allocations": len(self._ledger.allocations),
            "hosts": len(self._ledger.hosts),
        }
