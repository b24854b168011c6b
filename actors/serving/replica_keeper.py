"""Asks the replicas of services that run on this host whether they answer, and tells the ledger. A part of
ClusterManager.

The ledger has it and not gossip: a replica changes its state a few times in its life, its address has to go with its
attempt's token in one piece, and every host knows who answers from the same entry that it knows all else from, with no
majority left too. What changes faster, gateways see themselves. Bounds: 8 are asked at once; a silent one holds up
nobody but those who come after 7 of them.
"""

from __future__ import annotations

from functools import partial
from time import time

from actorgrid.actors.ledger.attempt_ids import job_of
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import ReportReplica
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.service_records import ReplicaRecord, ServiceRecord, revision_in
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.port_owner import PortOwner
from actorgrid.actors.work.service_ports import port_of
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.runtime import Timer
from actorgrid.supervisors.server import Server

from .probing import probe_own
from .replica_watch import ProbeKind, ReplicaWatch

THREADS = 8
LOOK_S, LOOK_AGAIN_S = 0.25, 1.0
REASON_CHARS_MAX = 500


class _Watched:
    """One replica that runs here."""

    def __init__(
        self, service: str, attempt_id: str, token: list[int], port: int, owner: PortOwner, watch: ReplicaWatch
    ) -> None:
        self.service = service
        self.attempt_id = attempt_id
        self.token = token
        self.port = port
        self.owner = owner
        self.watch = watch
        self.is_told = False


class ReplicaKeeper:
    """The replicas on the host of *server*, found in its copy of the ledger."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._watched: dict[str, _Watched] = {}
        self._threads = 0
        self._idle: list[Background] = []
        self._timer: Timer | None = None
        self.probes_total = 0

    def __len__(self) -> int:
        return len(self._watched)

    def look(self) -> None:
        """Follow the ledger: ask those that run here, and nobody else."""
        here = self._server.host.host_id
        found: dict[str, tuple[ServiceRecord, ReplicaRecord, JobRecord]] = {}
        for record in self._ledger.services.values():
            for replica in record["replicas"]:
                job = self._ledger.jobs.get(replica["job_id"]) if replica["host"] == here else None
                if job is not None and replica["state"] != "draining" and job["state"] == "running":
                    found[_first_member(job)] = (record, replica, job)
        for attempt_id in self._watched.keys() - found.keys():
            del self._watched[attempt_id]
        for attempt_id, (record, replica, job) in found.items():
            if attempt_id not in self._watched:
                self._begin(attempt_id, record, replica, job)
        if self._watched and self._timer is None:
            self._tick()

    def _begin(self, attempt_id: str, record: ServiceRecord, replica: ReplicaRecord, job: JobRecord) -> None:
        allocation = self._ledger.allocations.get(attempt_id)
        spec = AttemptDir(self._server.host.paths.attempts_dir, attempt_id).read_spec()
        port = port_of(spec)
        serving = revision_in(record, replica["revision"])["serving"]
        if allocation is None or not port:
            return  # it has just ended, or is of a host that did not know services
        now = time()
        started_at = job["attempts"][-1]["started_at"] or now
        known = replica["state"] if replica["attempt_id"] == attempt_id else "starting"
        watch = ReplicaWatch(serving, started_at, known, now)
        watch.served = watch.served and replica["ready_at"] is not None
        watch.model = replica["model"]
        owner = PortOwner(self._server.host.paths.attempts_dir, attempt_id, port)
        self._watched[attempt_id] = _Watched(record["name"], attempt_id, list(allocation["token"]), port, owner, watch)

    def _tick(self) -> None:
        self._timer = None
        now = time()
        for each in list(self._watched.values()):
            if not self._idle and self._threads >= THREADS:
                break
            asked = each.watch.due(now)
            if asked is not None:
                self._server.spawn(self._ask(each, *asked))
        for each in self._watched.values():
            self._tell(each)
        if self._watched:
            soonest = min(each.watch.next_at for each in self._watched.values())
            self._timer = self._server.runtime.after(min(LOOK_AGAIN_S, max(LOOK_S, soonest - now)), self._tick)

    async def _ask(self, each: _Watched, kind: ProbeKind, timeout_s: float) -> None:
        if self._idle:
            thread = self._idle.pop()
        else:
            self._threads += 1
            thread = Background(self._server.runtime, f"replicas{self._threads}")
        self.probes_total += 1
        answer = await thread.run(partial(probe_own, each.owner, each.port, each.watch.serving, kind, timeout_s))
        self._idle.append(thread)
        each.watch.answered(time(), answer.reason, answer.model, is_stranger=answer.is_stranger)
        if each.attempt_id in self._watched:
            self._tell(each)

    def _tell(self, each: _Watched) -> None:
        """Have the ledger say what is so."""
        record = self._ledger.services.get(each.service)
        replicas = [] if record is None else record["replicas"]
        known = next((one for one in replicas if one["job_id"] == job_of(each.attempt_id)), None)
        if each.is_told or known is None or known["state"] == "draining":
            return
        is_known = known["attempt_id"] == each.attempt_id
        if each.watch.state == "starting" or (is_known and known["state"] == each.watch.state):
            return
        each.is_told = True
        self._server.spawn(self._report(each))

    async def _report(self, each: _Watched) -> None:
        watch = each.watch
        command = ReportReplica(
            each.attempt_id, each.token, watch.state, each.port, watch.model, watch.reason[:REASON_CHARS_MAX]
        )
        try:
            await self._ledger.propose(command)
        except ActorGridError as error:  # looked at again with the next tick, if it is still so
            self._server.log.info("replica %s is %s: %s", each.attempt_id, watch.state, error)
        finally:
            each.is_told = False


def _first_member(job: JobRecord) -> str:
    """The id of the attempt of a job that runs; of a gang, that of its first member, which is asked for all."""
    attempt = job["attempts"][-1]
    members = attempt.get("members")
    return members[0]["allocation_id"] if members else attempt["allocation_id"]
