"""The placement engine at what the ledger says: hosts as its nodes, allocations and proposed grants as placements.

A single allocation is followed as it comes and goes; after any other change the engine is built anew, once, before it
is next asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from actorgrid.actors.ledger.record_types import NO_HOST, AllocationRecord, HostRecord
from actorgrid.actors.ledger.records import DEVICE_MILLI, parent_of, share_of
from actorgrid.demand import Demand
from actorgrid.errors import AdoptRefused, UnknownNode
from actorgrid.hotpath import Placement, PlacementEngine, TypicalTask
from actorgrid.hotpath.records import Shares

from ..scheduling.arrivals import Arrivals
from ..scheduling.fair_share import NodeSize
from ..scheduling.policies import SchedulingPolicy
from ..scheduling.scheduler import Scheduler
from .device_closeness import told_near
from .enforcement import enough_devices, host_lacks
from .feasibility import accepted_models, model_name
from .placement_records import PlacementRecords, by_placement, demand_held, shares_of
from .proposals import Proposals
from .scheduler_requests import limits_of, past_of, request_of_job, request_of_lease, terms_of

MODELS_MAX = 1024
"""Sets of models whose names are remembered."""
_NO_MODEL = "no device"
_NO_MEMORY_LIMIT = 2**40


class EngineMirror:
    """Keeps ``engine`` at what the ledger says, and ``scheduler``, over it, at what runs and who may have how much.

    ``arrivals`` is the mix of work that ``engine`` weighs by; ``notes`` say, by placement, what is given out and does
    not fit any more. ``now`` is when news came last. Ask the engine or the scheduler only after ``catch_up``.
    """

    def __init__(
        self,
        records: PlacementRecords,
        proposals: Proposals,
        policy: str,
        queue: str | SchedulingPolicy,
        queue_max: int,
        clock_ns: Callable[[], int],
        rng: Callable[[int], int] | None,
    ) -> None:
        self._records = records
        self._proposals = proposals
        self._policy = policy
        self._queue = queue
        self._clock_ns = clock_ns
        self._rng = rng
        self.now = 0.0
        self.notes: dict[str, str] = {}
        self.arrivals = Arrivals()
        self.fresh = True
        """Whether what tenants held of late is to be taken from the ledger: from then on it is counted here."""
        self.unhealthy: dict[str, str] = {}
        self.scores: dict[tuple[str, int], int] = {}
        self.absent: frozenset[str] = frozenset()
        self.stale = False
        self._models: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._fences: list[int | str] = []
        self._gaps = False
        self._parts = False
        self._short = False
        self.engine = PlacementEngine(policy, rng)
        self.scheduler = self._new_scheduler(queue_max)

    # -- what the ledger says

    def invalidate(self) -> None:
        """Have ``catch_up`` build the engine anew: something has changed that is not followed step by step."""
        self.stale = True

    def catch_up(self) -> None:
        """Build the engine anew if it was invalidated."""
        if self.stale:
            self.rebuild()

    def rebuild(self) -> None:
        """Build the engine anew: the ledger's hosts and allocations, then what is proposed, then devices held back."""
        # First: over an engine that counts as stale, ``_fence`` holds nothing back.
        self.stale = False
        self.notes.clear()
        self._models.clear()
        self.engine = PlacementEngine(self._policy, self._rng)
        self._fences.clear()
        if self.arrivals.told:
            self._tell_typical_tasks()
        # Before anything is placed: it forgets what ran, and is then told of each that the new engine holds.
        self.scheduler.rebind(self.engine, self.now)
        self._gaps = self._add_nodes()
        # What the ledger holds goes first: a proposed grant that is in its way will be refused there, not the other
        # way round. Devices are held back last, since a fence takes all that is still free of one.
        for id, records in by_placement(self._records.allocations).items():
            if "behind" not in records[0]:
                self._adopt(id, records)
        for id, grant in self._proposals.grants.items():
            if grant.behind:
                continue
            demand = grant.demand
            try:
                placement = self._hold(id, grant.shares, demand)
            except (AdoptRefused, UnknownNode):
                continue  # others hold that room now: the ledger will refuse it
            self._runs(placement, demand, grant.job_id, grant.user_id, self.now)
        self._score_devices()
        self._fence_beyond_shares()
        self._fence()
        self.share()
        self.scheduler.refresh(self.now)

    def renew_scheduler(self) -> None:
        """Take a new scheduler, in which nothing waits; what runs it is told by ``catch_up``."""
        self.stale = self.fresh = True
        self.scheduler = self._new_scheduler(self.scheduler.queue_max)
        self.limit_tenants()

    def limit_tenants(self) -> None:
        """Have the scheduler hold users to the ledger's quotas."""
        self.scheduler.limit(*limits_of(self._records.quotas), self.now)

    def share(self) -> None:
        """Have the scheduler share between tenants, by the ledger's terms and what hosts that are there have."""
        records = self._records
        if not records.tenants and not self.scheduler.fair_share.in_force:
            return
        nodes = {
            id: NodeSize(
                host["cpu_milli"],
                host["memory_mib"],
                tuple(
                    (model_name(by_index[each]), by_index[each]["memory_mib"]) if each in by_index else (_NO_MODEL, 0)
                    for each in range(1 + max(by_index, default=-1))
                ),
            )
            for id, host in records.hosts.items()
            if host["state"] == "up"
            for by_index in [{device["index"]: device for device in host["devices"]}]
        }
        hosts = records.hosts.values()
        terms = terms_of(records.tenants, lambda asked: accepted_models(asked, hosts))
        past = past_of(records.tenant_uses, lambda asked: accepted_models(asked, hosts)) if self.fresh else None
        self.fresh = False
        self.scheduler.share(terms, self.now, nodes=nodes, past=past)

    def granted(self, id: str, records: list[AllocationRecord]) -> None:
        """Hold what the ledger holds under *id*: *records*, as they were proposed from here, or otherwise."""
        if id in self.engine:
            if self.engine.placement(id).shares == shares_of(records):
                return
            self.release(id)
        self.stale = not self._adopt(id, records) or self.stale
        if self._parts:
            self._fence()  # what is given out as a whole is not given out in parts

    def ended(self, id: str) -> None:
        """Give back what is held under *id*: the ledger holds nothing under it any more."""
        self.notes.pop(id, None)
        if id not in self.engine:
            # What no host has room for any more counts for its user all the same (``_adopt``).
            self.scheduler.gave_back(id)
            return
        self.release(id)
        self.stale = self.stale or self._short
        self._fence()  # what came free of a device in trouble is not for others

    def release(self, id: str) -> None:
        """Give back what the engine holds under *id*."""
        if id in self.scheduler.running:
            self.scheduler.finished(id, self.now)
        else:
            self.engine.release(id)
            self.scheduler.gave_back(id)
            self.scheduler.refresh(self.now)

    # -- what hosts and devices are like

    def set_unhealthy(self, devices: Mapping[str, str]) -> None:
        """Set the devices in trouble, by UUID with what troubles them; nothing new is placed there."""
        if dict(devices) != self.unhealthy:
            self.unhealthy = dict(devices)
            self._fence()
            self.scheduler.refresh(self.now)

    def set_absent(self, hosts: frozenset[str]) -> None:
        """Set the hosts that the leader has not heard of for a while; nothing new is placed there."""
        self.absent, self.stale = hosts, self.stale or hosts != self.absent

    def set_scores(self, scores: Mapping[tuple[str, int], int]) -> None:
        """Set how well devices do, 0 to 1000 by (host, index): what the policy ``device_score`` goes by."""
        self.scores = dict(scores)
        if not self.stale:
            self._score_devices()

    def takes_work(self, host_id: str) -> bool:
        """Whether that host may be given new work."""
        host = self._records.hosts.get(host_id)
        return host is not None and self._eligible(host)

    def weigh_arrivals(self, now: float) -> None:
        """Have the engine weigh by what has come of late, when that has changed enough."""
        if self.arrivals.news(now) is not None:
            self._tell_typical_tasks()

    # -- inside

    def _new_scheduler(self, queue_max: int) -> Scheduler:
        return Scheduler(
            self.engine, self._queue, queue_max=queue_max, translate=self._arguments, clock_ns=self._clock_ns
        )

    def _arguments(self, demand: Demand) -> dict[str, Any] | None:
        """*demand* as the arguments of ``place``, with the engine's names of models and indexes of devices.

        ``None`` when no device there is could serve it.
        """
        arguments = demand.arguments()
        if demand.gpu_models:
            models = self._models.get(demand.gpu_models)
            if models is None:
                if len(self._models) >= MODELS_MAX:
                    self._models.clear()
                models = accepted_models(demand.gpu_models, self._records.hosts.values())
                self._models[demand.gpu_models] = models
            if not models:
                return None
            arguments["gpu_models"] = models
        if demand.affinity_hard:
            wanted = set(demand.affinity_hard)
            found = [
                (host["host_id"], tuple(device["index"] for device in host["devices"] if device["uuid"] in wanted))
                for host in self._records.hosts.values()
            ]
            arguments["within"] = tuple(share for share in found if share[1])
            if not arguments["within"]:
                return None
        if demand.hosts:
            within = arguments.get("within") or self._all_devices()
            arguments["within"] = tuple(share for share in within if share[0] in demand.hosts)
            if not arguments["within"]:
                return None
        if demand.min_isolation:
            kept = dict(arguments.get("within") or self._all_devices())
            arguments["within"] = tuple(self._enforcing(demand, kept))
            if not arguments["within"]:
                return None
        return arguments

    def _all_devices(self) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (id, tuple(range(1 + max((device["index"] for device in host["devices"]), default=-1))))
            for id, host in self._records.hosts.items()
        ]

    def _enforcing(self, demand: Demand, among: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The hosts that enforce as much as *demand* asks for, with their devices on which that is so of memory."""
        for id, indexes in among.items():
            host = self._records.hosts[id]
            if host_lacks(demand, host):
                continue
            enough = {device["index"] for device in enough_devices(demand, host["devices"])}
            yield id, tuple(index for index in indexes if index in enough)

    def _add_nodes(self) -> bool:
        """Add a node for each host, draining unless eligible; ``True`` when some have indexes without a device.

        Indexes go as far as someone still holds one, so that what is held can be adopted.
        """
        gaps = False
        held: dict[str, int] = {}
        for record in self._records.allocations.values():
            held[record["host"]] = max(held.get(record["host"], -1), *record["gpu_indexes"], -1)
        for id, host in self._records.hosts.items():
            by_index = {device["index"]: device for device in host["devices"]}
            last = max([*by_index, held.get(id, -1)])
            numa = [by_index[index].get("numa_node") if index in by_index else None for index in range(last + 1)]
            near = tuple(told_near(by_index[index]) if index in by_index else "" for index in range(last + 1))
            gaps = gaps or last + 1 > len(by_index)
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
                numa=None if None in numa else cast("tuple[int, ...]", tuple(numa)),
                near=near if any(near) else None,
                rack=host.get("rack"),
            )
            self.engine.drain(id, not self._eligible(host))
        return gaps

    def _eligible(self, host: HostRecord) -> bool:
        free_to_take = host["state"] == "up" and not host.get("draining") and not host.get("unreachable")
        here = free_to_take and host["host_id"] not in self.absent
        # Of this host the ledger may still hold the record of an earlier life, with devices that are gone.
        return here and (host["host_id"] != self._records.own_host or self._records.registered)

    def _hold(self, id: str, shares: Shares, demand: Demand) -> Placement:
        """Hold *shares* as they would be had *demand* been placed there. Raises AdoptRefused, UnknownNode."""
        return self.engine.adopt(
            id,
            shares,
            cpu_milli=demand.cpu_milli,
            memory_mib=demand.memory_mib,
            gpu_milli=demand.gpu_milli,
            gpu_memory_mib=demand.gpu_memory_mib,
        )

    def _adopt(self, id: str, records: list[AllocationRecord]) -> bool:
        """Hold what the ledger has given out; ``False``, and a note, when a host has not got it any more."""
        first = records[0]
        shares = shares_of(records)
        # A host may have come back with less CPU or memory; its devices stay reserved all the same.
        for cpu_milli, memory_mib in ((first["cpu_milli"], first["memory_mib"]), (0, 0)):
            held = demand_held(records, cpu_milli, memory_mib)
            try:
                placement = self._hold(id, shares, held)
            except (AdoptRefused, UnknownNode) as error:
                where = ", ".join(dict.fromkeys(record["host"] for record in records))
                self.notes[id] = f"allocation {id} is more than {where} has now: {error.message}"
                continue
            self._runs(placement, held, first["owner"].get("job_id", ""), first["user_id"], first["granted_at"])
            return True
        # The ledger counts it all the same.
        unplaced = demand_held(records, first["cpu_milli"], first["memory_mib"])
        self.scheduler.tenant_limits.hold(id, first["user_id"], unplaced)
        return False

    def _runs(self, placement: Placement, demand: Demand, job_id: str, user: str, since: float) -> None:
        """Tell the scheduler what the engine holds already, when it will be stopped at the latest, and for whom."""
        id = str(placement.id)
        # It is where it is, whatever else would have done.
        held = replace(
            demand, gpu_models=(), affinity_hard=(), affinity_soft=(), hosts=(), min_isolation="", gpu_topology=""
        )
        job = self._records.jobs.get(job_id)
        request = request_of_lease(id, held, user, "") if job is None else request_of_job(id, held, job)
        stopping_at, stopped_for = self._proposals.stopping(id)
        self.scheduler.adopt(request, placement, since, stopping_at=stopping_at, stopped_for=stopped_for)

    def _tell_typical_tasks(self) -> None:
        """Tell the engine what usually comes; for a model that is not here nothing need be kept."""
        tasks = []
        for demand, part in self.arrivals.told.items():
            models = accepted_models(demand.gpu_models, self._records.hosts.values())
            if models or not demand.gpu_models:
                tasks.append(TypicalTask(demand.cpu_milli, demand.gpu_count, demand.gpu_milli, part, models))
        self.engine.set_typical_tasks(tasks)

    def _score_devices(self) -> None:
        """Tell the engine how well devices do, of those that are there; only one policy looks at it."""
        if self._policy != "device_score":
            return
        for (id, index), score in self.scores.items():
            if any(device["index"] == index for device in self._records.hosts.get(id, NO_HOST).get("devices", ())):
                self.engine.set_device_score(id, index, score)

    def _fence(self) -> None:
        """Hold what is free of devices that are in trouble or gone, so that nothing new lands there."""
        for id in self._fences:
            self.engine.release(id)
        self._fences.clear()
        if self.stale or not (self.unhealthy or self._gaps or self._parts):
            return
        not_both = self._not_both() if self._parts else frozenset()
        for view in self.engine.nodes():
            devices = {device["index"]: device["uuid"] for device in self._records.hosts[view.name]["devices"]}
            for index, gpu in enumerate(view.gpus):
                uuid = devices.get(index)
                if gpu.milli_free and (uuid is None or uuid in self.unhealthy or (view.name, uuid) in not_both):
                    held = self.engine.reserve(view.name, gpu_indexes=(index,), gpu_milli=gpu.milli_free)
                    if held is not None:
                        self._fences.append(held.id)

    def _fence_beyond_shares(self) -> None:
        """Hold what a MIG instance is less than a whole device, for as long as this engine lasts."""
        self._short = False
        # Also while an instance that somebody has is not listed any more: its GPU may be, as a whole.
        self._parts = any(record.get("gpu_parents") for record in self._records.allocations.values())
        views = None
        for id, host in self._records.hosts.items():
            parts = [device for device in host["devices"] if share_of(device) < DEVICE_MILLI]
            self._parts = self._parts or any(device.get("cut") or parent_of(device) for device in host["devices"])
            if not parts:
                continue
            views = views or {view.name: view for view in self.engine.nodes()}
            for device in parts:
                beyond = DEVICE_MILLI - share_of(device)
                held = min(beyond, views[id].gpus[device["index"]].milli_free)
                # Somebody has more of it than there is, since a time when an instance counted as a device.
                self._short = self._short or held < beyond
                if held:
                    self.engine.reserve(id, gpu_indexes=(device["index"],), gpu_milli=held)

    def _not_both(self) -> frozenset[tuple[str, str]]:
        """The devices, by host and UUID, that the ledger's guard refuses: cut, or given out as a whole or in parts."""
        held: set[tuple[str, str]] = set()
        parts: set[tuple[str, str]] = set()
        for record in self._records.allocations.values():
            held.update((record["host"], uuid) for uuid in record["gpu_uuids"])
            parts.update((record["host"], uuid) for uuid in record.get("gpu_parents", ()))
        return frozenset(
            (id, device["uuid"])
            for id, host in self._records.hosts.items()
            for device in host["devices"]
            if device.get("cut") is True or (id, parent_of(device)) in held or (id, device["uuid"]) in parts
        )
