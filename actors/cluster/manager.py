"""ClusterManager: accepts jobs, answers for them, and keeps the cluster's settings.

A job is accepted once the ledger has committed it. What runs it follows the ledger: this server proposes and reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from time import time
from typing import Any, TypeVar

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.answers import QuotaAnswer, SettingAnswer, SubmittedJob
from actorgrid.actors.ledger.query_answers import JobsPage, LedgerCounts
from actorgrid.actors.ledger.record_types import (
    NO_ERROR,
    AttemptRecord,
    GangMemberRecord,
    HostRecord,
    JobRecord,
    ResourcesRecord,
)
from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, DependencyFailed, QueueFull, UnknownJob
from actorgrid.models import AttemptState, JobState
from actorgrid.supervisors.envelope import GetStatus, SettingChanged
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import handles

from ..gpu.enforcement import enforced_of_job, limits_told
from ..gpu.messages import CheckFeasible, Explain, Inventory, LatencyReport
from ..jobs.schedule_runner import ScheduleRunner
from ..ledger.client import LEADERLESS_S, LedgerClient
from ..ledger.command import Command
from ..ledger.exec_limits import check_exec
from ..ledger.messages import Applied, LedgerSnapshot, Query
from ..ledger.tables.jobs import GRAPH
from ..links.messages import AskHost, AskHosts
from ..notifications.courier import NoticeCourier
from ..work.containment_here import containment_here
from ..work.messages import StartDelay
from .cluster_graphs import ClusterGraphs, JobDesk
from .condition import away_s, condition_of, start_blockers, summary_of, unknown_report, unsure_note, url_of
from .core import choose_pool
from .demand_edits import DemandEditor
from .explain.binding import short_for
from .explain.contention import options, other_kinds, reduced
from .explain.reach import explain_in_reach
from .explain.why import JobContext
from .introduction import Introduction
from .leaving import Leaving
from .messages import (
    AcceptGraph,
    AcceptJobs,
    AnnounceRestart,
    AskGraph,
    ChangeQuota,
    ChangeSetting,
    ClusterHealthReport,
    ClusterSummary,
    GetJob,
    HealthReport,
    LeaveHost,
    LeaveStep,
    ListHosts,
    ListJobs,
    NoticeStates,
    RequestCancel,
    Why,
)
from .moving import WorkMover
from .planned_restart import PlannedRestart
from .service_manager import ServiceManager
from .sites import hosts_by_site
from .submissions import Submissions

T = TypeVar("T")
RECENT_JOBS = 1000
"""Ended jobs answered from memory; older ones are read from the ledger's history."""
LIST_LIMIT, ROOT_DEPTH_MAX, REDUCTIONS_MAX = 1000, 100, 3
EXPLAIN_S, RATE_WINDOW_S, REPORTS_S, REPORTS_MAX, STATES_MAX = 1.5, 60.0, 1.0, 256, 1_000
BAD_ENDS = (JobState.FAILED, JobState.CANCELLED, JobState.LOST)
FEASIBLE_MAX = 256  # request shapes that passed the check, remembered so that a batch of equals asks once
WITHOUT_MIRROR = ("consensus", "distributed_state")
"""Servers that do not follow the ledger, and have to be told of settings; all others hear of them there."""


class ClusterManager(ServiceManager, DemandEditor, WorkMover):
    """The server that the gateway asks about jobs and settings; it holds no truth of its own."""

    name = "cluster_manager"

    async def start(self) -> None:
        """Follow the ledger."""
        self._sources = self.host.settings.model_copy(deep=True)  # before the ledger's changes are on top
        self._recent: OrderedDict[str, JobRecord] = OrderedDict()
        self._waiters: dict[str, list[Waiter]] = {}
        self._feasible: OrderedDict[Demand, None] = OrderedDict()
        self._ended_at: list[float] = []
        self._submitted_total = 0
        self._ended_total = {state.value: 0 for state in JobState if state.final}
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="told")
        self._submissions = Submissions(self, self._commit)
        self._introduction = Introduction(self, self._ledger)
        desk = JobDesk(self._check_feasible, self._commit, self._record, self._list, self._why)
        self._graphs = ClusterGraphs(self, self._ledger, desk)
        self._schedules = ScheduleRunner(self, self._ledger)
        self._courier = NoticeCourier(self, self._ledger)
        self._services = self.begin_services(self._ledger)
        self._leaving = Leaving(self, self._ledger)
        self._planned_restart = PlannedRestart(self, self._ledger)
        await self._ledger.start()
        self._planned_restart.look(self._ledger.hosts.get(self.host.host_id))
        self.spawn(self._introduction.tell())

    def peer_restarted(self, name: str) -> None:
        """Tell a restarted server the live settings: it has those of its files only."""
        super().peer_restarted(name)
        if name in WITHOUT_MIRROR:
            for key, value in self._ledger.settings.items():
                self.cast(name, SettingChanged(key, value))

    # -- following the ledger

    def _on_snapshot(self, snapshot: LedgerSnapshot) -> None:
        for key, value in snapshot.settings.items():
            self._tell_setting(key, value)  # those started before us that do not follow the ledger
        # What ended between two snapshots was not told: those who wait read it from the ledger.
        for job_id in [job_id for job_id in self._waiters if job_id not in snapshot.jobs]:
            self.spawn(self._settle_from_history(job_id))
        self._feasible.clear()
        self._leaving.look()
        self._leaving.refuse_twin(snapshot.hosts.get(self.host.host_id))
        self._graphs.begin(snapshot)
        for part in (self._schedules, self._courier, self._services):
            part.begin()

    async def _settle_from_history(self, job_id: str) -> None:
        record = await self.call("consensus", Query("job", {"job_id": job_id}))
        if record is not None and JobState(record["state"]).final:
            self._job_ended(job_id, record)

    def _on_applied(self, message: Applied) -> None:
        for kind, identity, record in message.changes:
            if kind == "job" and record is not None and JobState(record["state"]).final:
                self._ended_total[record["state"]] += 1
                self._ended_at.append(message.at)
                self._job_ended(identity, record)
            elif kind == "job":
                self._recent.pop(identity, None)  # it may have been begun again
            elif kind == "setting":
                self._tell_setting(identity, record)
            elif kind == "host":
                self._feasible.clear()
                self._leaving.refuse_twin(record)
                if identity == self.host.host_id:
                    self._planned_restart.look(record)
            elif kind == "member":
                self._leaving.look()
                if identity == self.host.host_id:
                    self.spawn(self._introduction.tell_version())
        for each in (self._graphs, self._schedules, self._courier, self._services):
            each.applied(message)
        if len(self._ended_at) > 100_000:
            del self._ended_at[:50_000]

    def _job_ended(self, job_id: str, record: JobRecord) -> None:
        self._recent[job_id] = record
        self._recent.move_to_end(job_id)
        while len(self._recent) > RECENT_JOBS:
            self._recent.popitem(last=False)
        for waiter in tuple(self._waiters.pop(job_id, ())):  # each, going on at once, takes itself off that list
            waiter.set(None)

    def _tell_setting(self, key: str, value: Any) -> None:
        for name in WITHOUT_MIRROR:
            self.cast(name, SettingChanged(key, value))

    # -- accepting jobs

    @handles(AcceptJobs)
    async def _submit(self, request: AcceptJobs) -> list[SubmittedJob]:
        for job in request.jobs:
            check_exec(job.get("command") or (), job.get("env") or {})
        waiting = self._ledger.job_counts.get(JobState.QUEUED, 0)
        limit = self.host.settings.scheduling.queue_max
        if waiting + len(request.jobs) > limit:
            raise QueueFull(
                "the queue is full",
                asked=f"{len(request.jobs)} more job(s)",
                found=f"{waiting} waiting of {limit}",
                hint="wait for some to start, cancel some, or raise scheduling.queue_max",
            )
        for job in request.jobs:
            if job.get("deadline") is not None and not job["depends_on"]:
                # Of one that waits for others, nobody can tell yet: it is looked at when they are done.
                limit_s = job.get("max_execution_time_s")
                asked = CheckFeasible(job["resources"], job["deadline"], limit_s)
                await self.call("gpu_coordinator", asked, timeout_s=10.0)
            else:
                await self._check_feasible(job["resources"])
        settled = await self._settled_dependencies(request.jobs)
        jobs: list[JobRecord] = []
        for job in request.jobs:
            pool = choose_pool(job["resources"], job["pool"])
            depends_on = [name for name in job["depends_on"] if name not in settled]
            jobs.append({**job, "pool": pool, "depends_on": depends_on})
        accepted = await self._submissions.accept(jobs)
        self._submitted_total += len(jobs)
        return accepted

    @handles(AcceptGraph)
    async def _accept_graph(self, request: AcceptGraph) -> SubmittedJob:
        accepted = await self._graphs.accept(request)
        self._submitted_total += not accepted["duplicate"]
        return accepted

    @handles(AskGraph)
    async def _ask_graph(self, request: AskGraph) -> dict[str, Any]:
        await self._ledger.reached(request.seen)
        return await self._graphs.look(request.graph_id)

    async def _check_feasible(self, resources: ResourcesRecord) -> None:
        demand = Demand.of(resources)
        if demand in self._feasible:
            return
        await self.call("gpu_coordinator", CheckFeasible(resources), timeout_s=10.0)
        self._feasible[demand] = None
        if len(self._feasible) > FEASIBLE_MAX:
            self._feasible.popitem(last=False)

    async def _settled_dependencies(self, jobs: Sequence[JobRecord]) -> set[str]:
        """The dependencies of *jobs* that succeeded long ago: the ledger has not to watch them any more.

        Raises DependencyFailed for what ended badly, UnknownJob.
        """
        near = {job["job_id"] for job in jobs} | self._ledger.jobs.keys()
        far = {name: job["job_id"] for job in jobs for name in job["depends_on"] if name not in near}
        if not far:
            return set()
        states: dict[str, str] = {}
        names = [name for name in far if name not in self._recent]
        for first in range(0, len(names), STATES_MAX):
            asked = Query("job_states", {"job_ids": names[first : first + STATES_MAX]})
            states.update((await self.call("consensus", asked))["states"])
        settled = set()
        for name, asked_by in far.items():
            state = states.get(name) or (await self._record(name))["state"]
            if state in BAD_ENDS:
                raise DependencyFailed(
                    f"job {name} {state}, so what depends on it cannot run",
                    asked=f"job {asked_by} after {name}",
                    hint=f"actorgrid why {name}",
                )
            if state == JobState.SUCCEEDED and name not in self._recent:
                settled.add(name)
        return settled

    async def _commit(self, command: Command) -> Any:
        """Commit a command. Raises NoQuorum when nobody leads: the client can go to another host."""
        limits = self.host.settings.scheduling
        if isinstance(command, commands.SubmitGraph) or (
            isinstance(command, commands.SubmitJobs) and self._all_know(commands.LIMITS_SINCE)
        ):
            most = {"user": limits.user_waiting_bytes_max, "all": limits.waiting_bytes_max}
            command = replace(command, waiting_bytes=most)
        return await self._ledger.propose(command, leaderless_s=LEADERLESS_S)

    def _all_know(self, version: int) -> bool:
        return all(member.get("ledger_version", 1) >= version for member in self._ledger.members.values())

    @handles(AnnounceRestart)
    async def _allow_absence(self, _request: AnnounceRestart) -> int:
        return await self._planned_restart.allow()

    # -- answering

    async def _record(self, job_id: str) -> JobRecord:
        record = self._ledger.jobs.get(job_id) or self._recent.get(job_id)
        if record is None:
            record = await self.call("consensus", Query("job", {"job_id": job_id}))
        if record is None and self.host.enrolment is not None:
            # Another host may have accepted it, and this one not have heard of it yet.
            record = await self._ledger.read("job", {"job_id": job_id})
        if record is None:
            raise UnknownJob(
                f"there is no job {job_id}", asked=job_id, hint="actorgrid ps --all lists the jobs there are"
            )
        return record

    @handles(GetJob)
    async def _get(self, request: GetJob) -> JobRecord:
        await self._ledger.reached(request.seen)
        if request.wait_s <= 0:
            return await self._record(request.job_id)
        # We listen before we look: the record may have to be asked for, and the job end meanwhile.
        waiter = Waiter()
        waiting = self._waiters.setdefault(request.job_id, [])
        waiting.append(waiter)
        try:
            record = await self._record(request.job_id)
            if JobState(record["state"]).final:
                return record
            timer = self.runtime.after(request.wait_s, lambda: waiter.set(None))
            await waiter
            timer.cancel()
        finally:
            if waiter in waiting:
                waiting.remove(waiter)
            if not self._waiters.get(request.job_id):
                self._waiters.pop(request.job_id, None)
        return await self._record(request.job_id)

    @handles(ListJobs)
    async def _list(self, request: ListJobs) -> JobsPage:
        asked = replace(request, limit=max(1, min(request.limit, LIST_LIMIT)))
        answer: JobsPage = await self.call("consensus", Query("jobs", asked.to_query()))
        return answer

    @handles(RequestCancel)
    async def _cancel(self, request: RequestCancel) -> JobRecord:
        record = await self._record(request.job_id)
        if not JobState(record["state"]).final:
            await self._commit(commands.CancelJob(request.job_id, request.by))
            record = await self.call("consensus", Query("job", {"job_id": request.job_id})) or record
        return record

    @handles(Why)
    async def _why(self, request: Why) -> dict[str, Any]:
        await self._ledger.reached(request.seen)
        job = await self._record(request.job_id)
        if job["kind"] == GRAPH:
            return explain_in_reach(job, await self._graphs.context(job, request), request)
        states = {}
        for name in job["depends_on"]:
            try:
                states[name] = str((await self._record(name))["state"])
            except UnknownJob:
                states[name] = JobState.SUCCEEDED.value
        fit, openings = None, []
        if job["state"] == JobState.QUEUED:
            fit = await self._explain(job["resources"], job["job_id"])
            if fit is not None and not fit.get("fits") and not fit.get("stands_aside"):
                openings = await self._openings(Demand.of(job["resources"]), fit)
        health = await self._health()
        context = JobContext(
            now=time(),
            dependencies=states,
            fit=fit,
            problems=start_blockers(health),
            hosts=self._ledger.hosts,
            allocations=tuple(self._ledger.allocations.values()),
            jobs=self._ledger.jobs,
            openings=tuple(openings),
            waiting=int((fit or {}).get("waiting") or 0),
            root=await self._root_of_failure(job),
            quotas=self._ledger.quotas,
            away=away_s(health, time()),
            notices=tuple(each for each in self._ledger.notices.values() if each["job_id"] == request.job_id),
            unsure=unsure_note(health, self.host.host_id, job, time()),
            start_delay=await self._start_delay(job) if job["state"] == JobState.PLACED else None,
            enforced=enforced_of_job(job, self._ledger.hosts),
        )
        return explain_in_reach(job, context, request)

    async def _start_delay(self, job: JobRecord) -> dict[str, Any] | None:
        """Ask the host of a placed attempt what it waits for; for a gang, of the first member that has not begun."""
        attempt = job["attempts"][-1]
        parts: Sequence[AttemptRecord | GangMemberRecord] = attempt.get("members") or (attempt,)
        part = next((each for each in parts if each["state"] == AttemptState.PLACED), parts[0])
        host_id, attempt_id = part["host"], part["allocation_id"]
        if host_id == self.host.host_id:
            return await self._answer_or(None, "worker_manager", StartDelay(attempt_id), EXPLAIN_S)
        ask = AskHost(host_id, "start_delay", {"attempt_id": attempt_id}, EXPLAIN_S)
        return await self._answer_or(None, "links", ask, EXPLAIN_S + 1)

    async def _explain(self, resources: ResourcesRecord, job_id: str | None) -> dict[str, Any] | None:
        return await self._answer_or(None, "gpu_coordinator", Explain(resources, job_id), EXPLAIN_S)

    async def _answer_or(self, missing: T, server: str, request: Any, timeout_s: float) -> T:
        """The answer of a server, or *missing* where none comes: people are told the rest all the same."""
        try:
            answer: T = await self.call(server, request, timeout_s)
        except ActorGridError as error:
            self.log.info("%s has no answer to %s: %s", server, type(request).__name__, error)
            return missing
        return answer

    async def _openings(self, asked: Demand, fit: dict[str, Any]) -> list[str]:
        """Smaller requests that would fit now, by the engine's word; at most 6 questions."""
        openings = []
        smaller, report = asked, fit
        for _ in range(REDUCTIONS_MAX):  # what else is short shows only once the first is not
            cut = reduced(smaller, report)
            answer = None if cut is None else await self._explain(cut.to_record(), None)
            if cut is None or answer is None:
                break
            if answer.get("fits"):
                openings.append(options(asked, cut))
                break
            smaller, report = cut, answer
        for other in other_kinds(asked, self._ledger.hosts.values()):
            answer = await self._explain(other.to_record(), None)
            if answer is not None and answer.get("fits"):
                openings.append(options(asked, other))
        return openings

    async def _root_of_failure(self, job: JobRecord) -> JobRecord | None:
        """The job whose end took *job* along, through at most 100 others; ``None`` when it ended by itself."""
        root = None
        for _ in range(ROOT_DEPTH_MAX):
            at = root or job
            if (at.get("error") or NO_ERROR).get("code") != DependencyFailed.__name__:
                break
            try:
                records = [await self._record(name) for name in at["depends_on"]]
            except UnknownJob:
                break  # too long ago: what is known already has to do
            ended = [record for record in records if record["state"] in BAD_ENDS]
            if not ended:
                break
            root = ended[0]
        return root

    async def _health(self) -> dict[str, Any]:
        try:
            report: dict[str, Any] = await self.call("fault_detector", HealthReport(), timeout_s=2.0)
        except ActorGridError as error:
            return unknown_report(error.message)
        return report

    async def _cluster_health(self) -> dict[str, Any]:
        """The verdict on the cluster, with whom the host that leads misses."""
        try:
            report: dict[str, Any] = await self.call("fault_detector", ClusterHealthReport(), timeout_s=3.0)
        except ActorGridError as error:
            return dict(unknown_report(error.message)["cluster"])
        return report

    async def _devices(self) -> list[dict[str, Any]]:
        return await self._answer_or([], "gpu_coordinator", Inventory(self._ledger.index), 2.0)

    @handles(NoticeStates)
    def _notice_states(self, _request: NoticeStates) -> dict[str, dict[str, Any]]:
        return self._courier.states()

    @handles(ListHosts)
    async def _hosts(self, request: ListHosts) -> list[dict[str, Any]]:
        await self._ledger.reached(request.seen)
        own = {**await self._health(), "containment": await containment_here(self)}
        reports = {self.host.host_id: own, **await self._reports_elsewhere()}
        known = await self._cluster_health()
        devices = await self._devices()
        port = await self._port()
        voters = (await self.call("consensus", Query("status")))["voters"]
        return [
            {**self._host_view(record, reports, known, devices, port), **self._membership(host_id, voters)}
            for host_id, record in sorted(self._ledger.hosts.items())
        ]

    async def _reports_elsewhere(self) -> dict[str, dict[str, Any]]:
        """The health reports of the other hosts that answer soon; at most 256 are asked."""
        others = sorted(self._ledger.hosts.keys() & self._ledger.members.keys() - {self.host.host_id})
        if self.host.enrolment is None or not others:
            return {}
        ask = AskHosts(tuple(others[:REPORTS_MAX]), "health", {}, REPORTS_S)
        return await self._answer_or({}, "links", ask, REPORTS_S + 1)

    def _membership(self, host_id: str, voters: list[int]) -> dict[str, Any]:
        """A host's record as a member; for a host that is alone, what there is."""
        if not self._ledger.members:
            return {"node": None, "raft_role": "leader"}
        member = self._ledger.members.get(host_id)
        if member is None:
            return {"node": None, "raft_role": "none"}
        role = "voter" if member["node"] in voters else "learner"
        return {
            "node": member["node"],
            "site": member.get("site") or None,
            "raft_role": "leader" if host_id == self._ledger.leader else role,
            "ip_address": member["addresses"]["raft"].rpartition(":")[0].strip("[]"),
            **url_of(member["addresses"]),
        }

    async def _port(self) -> int:
        """The port on which the gateway really listens: the configured one may be 0, for any free one."""
        port = int(self.host.settings.cluster.base_port)
        if port:
            return port
        status = await self._answer_or({"url": ":0"}, "gateway", GetStatus(), 2.0)
        return int(status["url"].rpartition(":")[2])

    def _host_view(
        self,
        record: HostRecord,
        reports: dict[str, dict[str, Any]],
        known: dict[str, Any],
        devices: list[dict[str, Any]],
        port: int,
    ) -> dict[str, Any]:
        held = [a for a in self._ledger.allocations.values() if a["host"] == record["host_id"]]
        return {
            "node_id": record["host_id"],
            "hostname": record["hostname"],
            "ip_address": record.get("address") or self.host.settings.cluster.bind,
            "port": record.get("port") or port,
            "incarnation": record["incarnation"],
            "gpus": [device for device in devices if device["host"] == record["host_id"]],
            "cpu_milli": record["cpu_milli"],
            "cpu_milli_allocated": sum(a["cpu_milli"] for a in held),
            "memory_mib": record["memory_mib"],
            "memory_mib_allocated": sum(a["memory_mib"] for a in held),
            **condition_of(record, reports, known, time()),
            "draining": record.get("draining", False),
            "containment": (reports.get(record["host_id"]) or {}).get("containment"),
            **{name: record.get(name) for name in ("measured", "kept_apart")},
        }

    @handles(ClusterSummary)
    async def _summary(self, request: ClusterSummary) -> dict[str, Any]:
        await self._ledger.reached(request.seen)
        known = await self._cluster_health()
        health = await self._health()
        devices = await self._devices()
        counts: LedgerCounts = await self.call("consensus", Query("counts"))
        voters = (await self.call("consensus", Query("status")))["voters"]
        latency: dict[str, Any] = await self._answer_or({}, "gpu_coordinator", LatencyReport(), 2.0)
        allocated = sum(device["allocated_milli"] for device in devices)
        capacity = sum(device.get("share_milli", 1000) for device in devices)
        readings = [d["utilization_percent"] for d in devices if d["utilization_percent"] is not None]
        self._ended_at = [at for at in self._ended_at if at > time() - RATE_WINDOW_S]
        return {
            "name": self.host.settings.cluster.name,
            **summary_of(known),
            "servers": health["servers"],
            "hosts": len(self._ledger.hosts),
            "sites": hosts_by_site(self._ledger.members, self._ledger.absent, voters),
            "gpus": len(devices),
            "gpu_sources": sorted({device["source"] for device in devices}),
            "gpu_models": sorted({device["model"] for device in devices}),
            "gpu_allocated_milli": allocated,
            "gpu_capacity_milli": capacity,
            **limits_told(self._ledger.hosts.values()),
            "binding": short_for(self._ledger, (await self._list(ListJobs((JobState.QUEUED,), 200)))["jobs"]),
            "jobs": counts.get("jobs", counts),
            "allocations": len(self._ledger.allocations),
            "ledger": {"index": self._ledger.index, "term": self._ledger.term, "epoch": self._ledger.epoch},
            "performance": {
                "scheduling_latency_us": latency.get("p50_us"),
                "scheduling_latency_p99_us": latency.get("p99_us"),
                "commit_latency_ms": counts.get("commit_latency_ms"),
                "gpu_allocated_percent": 100 * allocated / capacity if capacity else None,
                "gpu_utilization_percent": sum(readings) / len(readings) if readings else None,
                "cluster_throughput_tasks_per_second": len(self._ended_at) / RATE_WINDOW_S,
                "active_tasks": len(self._ledger.jobs),
                "queued_tasks": self._ledger.job_counts.get(JobState.QUEUED, 0),
            },
        }

    @handles(ChangeSetting)
    async def _change_setting(self, request: ChangeSetting) -> SettingAnswer:
        value = self.host.settings.check_live(request.key, request.value)
        done: SettingAnswer = await self._commit(commands.SetSetting(request.key, value, request.by))
        # What the ledger had; what this host reads may be older. It has none of one that was never changed live.
        previous = self._sources.get(request.key) if done["previous"] is None else done["previous"]
        return {"key": request.key, "value": value, "previous": previous}

    @handles(LeaveHost)
    async def _leave(self, request: LeaveHost) -> dict[str, Any]:
        return await self._leaving.ask(request)

    @handles(LeaveStep)
    async def _leave_step(self, request: LeaveStep) -> dict[str, Any]:
        return await self._leaving.step(request)

    @handles(ChangeQuota)
    async def _set_quota(self, request: ChangeQuota) -> QuotaAnswer:
        answer: QuotaAnswer = await self._commit(commands.SetQuota(request.user, request.limits, request.by))
        return answer

    def metrics(self) -> dict[str, float]:
        """Jobs by state, submissions and ends."""
        counts = self._ledger.job_counts
        states: dict[str, float] = {
            f"jobs_{state.value}": counts.get(state, 0) for state in JobState if not state.final
        }
        states["jobs_submitted_total"] = self._submitted_total
        for state, count in self._ended_total.items():
            states[f"jobs_{state}_total"] = count
        more = {**self._schedules.figures(), **self._courier.figures(), **self._services.figures()}
        return {**states, **self._graphs.figures(), **more}

    def _live_count(self) -> int:
        return sum(count for state, count in self._ledger.job_counts.items() if not JobState(state).final)

    def status(self) -> dict[str, Any]:
        """How far this server follows the ledger."""
        return {"index": self._ledger.index, "jobs": self._live_count(), "waiting_calls": len(self._waiters)}
