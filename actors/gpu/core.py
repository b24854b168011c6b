"""What GPUCoordinator decides: which waiting job or lease gets which devices, from what the ledger says.

No I/O: the ledger's snapshot and changes come in, grants to propose come out. The ledger is the guard; here are
proposals. What is proposed stays reserved in the engine until its answer: an allocation in the ledger, or a
refusal. Only hosts that are up get new work, and this host only once the ledger knows its present incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import AdoptRefused, QueueFull, UnknownNode
from actorgrid.hotpath import PlacementEngine
from actorgrid.models import JobState

from ..scheduling.queue import LEASE_PRIORITY, Shape, Waiting, WaitingQueue
from .feasibility import accepted_models, check_feasible, model_name
from .messages import AcquireLease

WHOLE_GPU_MILLI = 1000
WAITING_LEASES_MAX = 4096
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
_NO_MODEL = "no device"
_NO_MEMORY_LIMIT = 2**40

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision to be committed; ``id`` is the allocation's. *number* is an attempt's, *lease* a lease's request."""

    id: str
    host: str
    incarnation: int
    gpu_indexes: tuple[int, ...]
    latency_us: float
    shape: Shape
    job_id: str = ""
    number: int = 0
    lease: AcquireLease | None = None

    def command(self, term: int) -> Record:
        """The ledger's command for it."""
        common: Record = {
            "host": self.host,
            "incarnation": self.incarnation,
            "gpu_indexes": list(self.gpu_indexes),
            "term": term,
        }
        if self.lease is None:
            return {
                "type": "grant_attempt",
                "job_id": self.job_id,
                "number": self.number,
                "placement_latency_us": self.latency_us,
                **common,
            }
        return {
            "type": "grant_lease",
            "lease_id": self.id,
            "session_id": self.lease.session_id,
            "resources": self.lease.resources,
            "pool": self.lease.pool,
            "env": self.lease.env,
            **common,
        }


class CoordinatorCore:
    """The scheduler's state, all of it rebuilt from the ledger at any time.

    *clock_ns* only measures how long placing took.
    """

    def __init__(
        self,
        own_host: str,
        own_incarnation: int,
        policy: str,
        queue_max: int,
        clock_ns: Callable[[], int],
        rng: Callable[[int], int] | None = None,
    ) -> None:
        self.own_host = own_host
        self.own_incarnation = own_incarnation
        self.queue = WaitingQueue(queue_max)
        self.hosts: dict[str, Record] = {}
        self.in_flight: dict[str, Grant] = {}
        self.notes: dict[str, str] = {}
        self._policy = policy
        self._rng = rng
        self._clock_ns = clock_ns
        self._jobs: Mapping[str, Record] = {}
        self._allocations: Mapping[str, Record] = {}
        self._leases: dict[str, AcquireLease] = {}
        self._lease_count = 0
        self._refusals: dict[str, int] = {}
        self._models: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._sick: dict[str, str] = {}
        self._scores: dict[tuple[str, int], int] = {}
        self._fences: list[int | str] = []
        self._gaps = False
        self._stale = False
        self._overflow = False
        self.engine = PlacementEngine(policy, rng)

    # -- what the ledger says

    def load(
        self, jobs: Mapping[str, Record], allocations: Mapping[str, Record], hosts: dict[str, Record], now: float
    ) -> None:
        """Start (again) from a snapshot. The mappings are kept, and expected to be kept current by their owner.

        What is proposed and not answered stays reserved.
        """
        self._jobs, self._allocations, self.hosts = jobs, allocations, hosts
        for id in [id for id in self.in_flight if id in allocations]:
            del self.in_flight[id]
        for id in [id for id in self._leases if id in allocations]:
            del self._leases[id]  # granted while nobody told us: it waits for nothing more
        self._rebuild()
        self.queue = WaitingQueue(self.queue.maximum)
        for lease in self._leases.values():
            if lease.lease_id not in self.in_flight:
                self._queue_lease(lease, 0.0, now)
        self._queue_jobs(now)

    def changed(self, changes: Iterable[tuple[str, str, Any]], now: float) -> None:
        """Take an Applied's changes; the mappings given to ``load`` show them already."""
        for kind, id, record in changes:
            if kind == "allocation":
                self._allocation_changed(id, record)
            elif kind == "host":
                self._host_changed(id, record)
            elif kind == "job":
                self._job_changed(id, record, now)

    def _allocation_changed(self, id: str, record: Record | None) -> None:
        self.in_flight.pop(id, None)
        self._leases.pop(id, None)
        if record is None:
            self.notes.pop(id, None)
            if id in self.engine:
                self.engine.release(id)
                self._fence()
            self.queue.freed()
            return
        self.queue.remove(id)
        if id in self.engine:
            if self.engine.placement(id).shares == _shares(record):
                return
            self.engine.release(id)
        if not self._adopt(id, record):
            self._stale = True

    def _host_changed(self, id: str, record: Record | None) -> None:
        if record is None:
            self.hosts.pop(id, None)
        else:
            self.hosts[id] = record
        self._models.clear()
        self._stale = True

    def _job_changed(self, id: str, record: Record | None, now: float) -> None:
        state = None if record is None else record["state"]
        if record is not None and state == JobState.QUEUED:
            if not any(grant.job_id == id for grant in self.in_flight.values()):
                self._queue_job(record, now)
            return
        self.queue.remove(id)
        self._refusals.pop(id, None)
        if state is None or JobState(state).final:
            # A job that ends otherwise takes those that wait for it along, in the same entry.
            self.queue.resolve(id)

    # -- asking for leases

    def ask_lease(self, lease: AcquireLease, now: float) -> None:
        """Let a lease wait for room. Raises as ``check_feasible``, or QueueFull."""
        self.check_feasible(lease.resources)
        if len(self._leases) >= WAITING_LEASES_MAX:
            raise QueueFull(
                "too many leases are being waited for", found=f"{WAITING_LEASES_MAX}", hint="try again in a moment"
            )
        self._leases[lease.lease_id] = lease
        self._queue_lease(lease, 0.0, now)

    def withdraw_lease(self, lease_id: str) -> bool:
        """Stop waiting; ``False`` when the lease is being granted already, or not known."""
        if lease_id in self.in_flight or self._leases.pop(lease_id, None) is None:
            return False
        self.queue.remove(lease_id)
        self._refusals.pop(lease_id, None)
        return True

    # -- deciding

    def schedule(self, now: float, limit: int) -> list[Grant]:
        """What to propose now, at most *limit* grants; each is reserved from here on."""
        if self._stale:
            self._rebuild()
        if self._overflow and len(self.queue) < self.queue.maximum // 2:
            self._queue_jobs(now)
        self.queue.wake(now)
        grants: list[Grant] = []
        self.queue.serve(lambda waiting: self._place(waiting, grants), limit)
        return grants

    def refused(self, grant: Grant, now: float) -> None:
        """The ledger did not commit *grant*, for certain: forget it, and try again from what the ledger says."""
        if self.in_flight.pop(grant.id, None) is None:
            return
        if grant.id in self.engine:
            self.engine.release(grant.id)
        self._stale = True
        key = grant.job_id or grant.id
        count = self._refusals.get(key, 0)
        self._refusals[key] = count + 1
        again_at = now + min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(count, 10))
        if grant.lease is not None:
            if grant.id in self._leases:
                self._queue_lease(grant.lease, again_at, now)
        elif (job := self._jobs.get(grant.job_id)) is not None and job["state"] == JobState.QUEUED:
            self._queue_job({**job, "not_before": max(job["not_before"], again_at)}, now)
        else:
            self._refusals.pop(key, None)

    def committed(self, grant: Grant, now: float) -> None:
        """*grant* is in the ledger up to where the mappings are. If they do not show it, it has ended already.

        That can pass unseen: the ledger restarts, or sends to others before us, and work ends in milliseconds.
        """
        if self.in_flight.get(grant.id) is not grant:
            return
        del self.in_flight[grant.id]
        self._leases.pop(grant.id, None)
        self._stale = True  # the engine still holds its room
        if (job := self._jobs.get(grant.job_id)) is not None and job["state"] == JobState.QUEUED:
            self._queue_job(job, now)

    def set_sick(self, devices: Mapping[str, str]) -> None:
        """The UUIDs of devices in trouble, with what troubles them; nothing new is placed there."""
        if dict(devices) != self._sick:
            self._sick = dict(devices)
            self._fence()
            self.queue.freed()

    def set_scores(self, scores: Mapping[tuple[str, int], int]) -> None:
        """How well devices do, 0 to 1000 by (host, index): what the policy ``device_score`` goes by."""
        self._scores = dict(scores)
        if not self._stale:
            self._score_devices()

    # -- answering

    def check_feasible(self, resources: Mapping[str, Any]) -> None:
        """Raises what :func:`~actorgrid.actors.gpu.feasibility.check_feasible` does."""
        check_feasible(Shape.of(resources), self.hosts.values())

    def explain(self, resources: Mapping[str, Any], job_id: str | None) -> Record:
        """The engine's ``explain`` for one attempt, with ``position``, ``depends_on`` and ``not_before`` of a job."""
        if self._stale:
            self._rebuild()
        request = self._request(Shape.of(resources))
        report: Record = self.engine.explain(**request) if request else {"fits": False, "total_nodes": len(self.hosts)}
        report["position"] = self.queue.position(job_id) if job_id else None
        if job_id:
            report["depends_on"], report["not_before"] = self.queue.waits_for(job_id)
        return report

    def allocated(self) -> dict[tuple[str, int], tuple[int, int, list[str]]]:
        """Per (host, device index): thousandths and MiB given out by the ledger, and to whom."""
        used: dict[tuple[str, int], tuple[int, int, list[str]]] = {}
        for record in self._allocations.values():
            owner = record["owner"]
            for index in record["gpu_indexes"]:
                milli, memory, owners = used.get((record["host"], index), (0, 0, []))
                owners = [*owners, owner.get("job_id") or owner.get("lease_id", "")]
                used[record["host"], index] = (
                    milli + record["gpu_milli"],
                    memory + record["gpu_memory_mib"],
                    owners,
                )
        return used

    @property
    def registered(self) -> bool:
        """Whether the ledger knows this host as it is now."""
        own = self.hosts.get(self.own_host)
        return own is not None and own["incarnation"] == self.own_incarnation

    # -- inside

    def _queue_jobs(self, now: float) -> None:
        self._overflow = False
        granted = {grant.job_id for grant in self.in_flight.values()}
        for id, job in self._jobs.items():
            if job["state"] == JobState.QUEUED and id not in granted and id not in self.queue:
                self._queue_job(job, now)

    def _queue_job(self, job: Record, now: float) -> None:
        try:
            self.queue.add(
                job["job_id"],
                Shape.of(job["resources"]),
                priority=job["priority"],
                order=(job["submitted_index"], job.get("ordinal", 0)),
                policy=job["policy"],
                not_before=job["not_before"],
                now=now,
                unmet=[name for name in job["depends_on"] if name in self._jobs],
            )
        except QueueFull:
            self._overflow = True  # the ledger keeps it; it is queued when there is room here

    def _queue_lease(self, lease: AcquireLease, not_before: float, now: float) -> None:
        self._lease_count += 1
        self.queue.maximum += 1  # leases have a bound of their own and never crowd out jobs
        try:
            self.queue.add(
                lease.lease_id,
                Shape.of(lease.resources),
                priority=LEASE_PRIORITY,
                order=(self._lease_count,),
                not_before=not_before,
                now=now,
            )
        finally:
            self.queue.maximum -= 1

    def _request(self, shape: Shape) -> Record | None:
        """*shape* as the engine's arguments; ``None`` when no device there is could serve it."""
        request: Record = {"cpu_milli": shape.cpu_milli, "memory_mib": shape.memory_mib}
        if not shape.gpu_count:
            return request
        request.update(
            gpu_count=shape.gpu_count,
            gpu_milli=shape.gpu_milli or WHOLE_GPU_MILLI,
            gpu_memory_mib=shape.gpu_memory_mib,
        )
        if shape.gpu_models:
            models = self._models.get(shape.gpu_models)
            if models is None:
                if len(self._models) >= 1024:
                    self._models.clear()
                models = self._models[shape.gpu_models] = accepted_models(shape.gpu_models, self.hosts.values())
            if not models:
                return None
            request["gpu_models"] = models
        if shape.gpu_affinity:
            wanted = set(shape.gpu_affinity)
            found = [
                (id, tuple(device["index"] for device in host["devices"] if device["uuid"] in wanted))
                for id, host in self.hosts.items()
            ]
            request["within"] = tuple(share for share in found if share[1])
            if not request["within"]:
                return None
        return request

    def _place(self, waiting: Waiting, grants: list[Grant]) -> bool:
        lease = self._leases.get(waiting.id)
        job: Record = {} if lease is not None else self._jobs[waiting.id]
        number = 0 if lease is not None else (job["attempts"][-1]["number"] if job["attempts"] else 0) + 1
        id = waiting.id if lease is not None else f"{waiting.id}.{number}"
        request = self._request(waiting.shape)
        if request is None or id in self.engine:
            return False
        before = self._clock_ns()
        placed = self.engine.place(id=id, **request)
        latency_us = (self._clock_ns() - before) / 1000
        if placed is None:
            return False
        ((host, indexes),) = placed.shares
        grant = Grant(
            id=id,
            host=host,
            incarnation=self.hosts[host]["incarnation"],
            gpu_indexes=indexes,
            latency_us=latency_us,
            shape=waiting.shape,
            job_id="" if lease is not None else waiting.id,
            number=number,
            lease=lease,
        )
        self.in_flight[id] = grant
        grants.append(grant)
        return True

    def _eligible(self, host: Record) -> bool:
        return host["state"] == "up" and (host["host_id"] != self.own_host or self.registered)

    def _rebuild(self) -> None:
        """The engine anew: hosts and allocations from the ledger, then what is proposed, then sick devices."""
        self._stale = False
        self.notes.clear()
        self._models.clear()
        self.engine = PlacementEngine(self._policy, self._rng)
        self._fences.clear()
        self._gaps = False
        held: dict[str, int] = {}
        for record in self._allocations.values():
            held[record["host"]] = max(held.get(record["host"], -1), *record["gpu_indexes"], -1)
        for id, host in self.hosts.items():
            by_index = {device["index"]: device for device in host["devices"]}
            last = max([*by_index, held.get(id, -1)])
            self._gaps = self._gaps or last + 1 > len(by_index)
            self.engine.add_node(
                id,
                cpu_milli=host["cpu_milli"],
                memory_mib=host["memory_mib"],
                devices=[
                    (model_name(by_index[index]), by_index[index]["memory_mib"])
                    if index in by_index
                    else (_NO_MODEL, _NO_MEMORY_LIMIT)
                    for index in range(last + 1)
                ],
            )
            self.engine.drain(id, not self._eligible(host))
        for id, record in self._allocations.items():
            self._adopt(id, record)
        for id, grant in self.in_flight.items():
            shape = grant.shape
            try:
                self.engine.adopt(
                    id,
                    ((grant.host, grant.gpu_indexes),),
                    cpu_milli=shape.cpu_milli,
                    memory_mib=shape.memory_mib,
                    gpu_milli=shape.gpu_milli or WHOLE_GPU_MILLI,
                    gpu_memory_mib=shape.gpu_memory_mib,
                )
            except (AdoptRefused, UnknownNode):
                continue  # others hold that room now: the ledger will refuse it
        self._score_devices()
        self._fence()
        self.queue.freed()

    def _score_devices(self) -> None:
        if self._policy != "device_score":
            return  # no other policy looks at them
        for (id, index), score in self._scores.items():
            if any(device["index"] == index for device in self.hosts.get(id, {}).get("devices", ())):
                self.engine.set_device_score(id, index, score)

    def _adopt(self, id: str, record: Record) -> bool:
        """Hold what the ledger has given out; ``False``, and a note, when the host has not got it any more."""
        for cpu_milli, memory_mib in ((record["cpu_milli"], record["memory_mib"]), (0, 0)):
            try:
                self.engine.adopt(
                    id,
                    _shares(record),
                    cpu_milli=cpu_milli,
                    memory_mib=memory_mib,
                    gpu_milli=record["gpu_milli"] or WHOLE_GPU_MILLI,
                    gpu_memory_mib=record["gpu_memory_mib"],
                )
            except (AdoptRefused, UnknownNode) as error:
                self.notes[id] = f"allocation {id} is more than {record['host']} has now: {error.message}"
                continue
            return True
        return False

    def _fence(self) -> None:
        """Hold what is free of devices that are in trouble or gone, so that nothing new lands there."""
        for id in self._fences:
            self.engine.release(id)
        self._fences.clear()
        if self._stale or not (self._sick or self._gaps):
            return
        for view in self.engine.nodes():
            devices = {device["index"]: device["uuid"] for device in self.hosts[view.name]["devices"]}
            for index, gpu in enumerate(view.gpus):
                if gpu.milli_free and (index not in devices or devices[index] in self._sick):
                    held = self.engine.reserve(view.name, gpu_indexes=(index,), gpu_milli=gpu.milli_free)
                    if held is not None:
                        self._fences.append(held.id)


def _shares(record: Record) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ((record["host"], tuple(record["gpu_indexes"])),)
