"""The worker side of a simulated host: keeps its lease, runs the attempts granted to it, reports their ends.

As on a live host it starts what is granted without asking, while its lease lasts, and each process has a deadline after
the lease's last renewal. Reports come late or twice. A crash of the host ends its processes; the next life says so.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from actorgrid.actors.ledger.attempt_ids import rank_of
from actorgrid.actors.ledger.commands import (
    ConfirmHost,
    EndAttempt,
    RegisterHost,
    ReportReplica,
    StartAttempt,
    TakeSuccess,
)
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, HostFacts, JobRecord
from actorgrid.actors.ledger.records import isolation_of
from actorgrid.actors.raft.messages import Dropped, ReadState
from actorgrid.actors.work.host_lease import LEASE_MAX_S, HostLease
from actorgrid.actors.work.standing import STANDING_S, StandingAttempts
from actorgrid.chaos.checkers.checker import AttemptProcess

from .clock import MS
from .requests import ClientReply, Requester

if TYPE_CHECKING:
    from .node import SimulatedHost

GPUS = 2
CPU_MILLI = 16_000
MEMORY_MIB = 64_000
GPU_MEMORY_MIB = 80_000
PART_MILLI = 428
"""Of a GPU that is cut: how much each of its two instances is of it."""
RUNS_US = (20 * MS, 900 * MS)
LATE_US = (100 * MS, 2_000 * MS)
DIES_US = (1 * MS, 300 * MS)
"""What is stopped because the ledger holds it no more takes so long to die; at its deadline it is killed at once."""
HANGS = 0.15
HANGS_US = (500 * MS, 4_000 * MS)
"""So many of those that are killed hang in a driver: they do nothing any more, but hold their devices so long."""
RENEW_S = 1.0
RENEWALS_IN_PATIENCE = 4
ANSWERS_US = (50 * MS, 700 * MS)
"""After its start a replica of a service answers."""
PORT = 20_000
BROKEN = "broken"
"""The command of a replica that ends instead."""
RUNS_FOR = "RUNS_MS"
"""A variable of a job that says how long it runs."""


class Agent:
    """One life of a host's workers. It acts on the ledger as this host has applied it, which may be behind."""

    lease_class: ClassVar[type[HostLease]] = HostLease

    def __init__(self, node: SimulatedHost) -> None:
        self._node = node
        self._rng = node.rng
        self._asker = Requester(node.world, f"{node.name}/agent{node.boots}", node.hosts, node.rng)
        self._lease = self.lease_class(LEASE_MAX_S)
        self._read: tuple[bytes, float, int | None] | None = None  # under way: context, when asked, the index to reach
        self._reads = 0
        self._next_at = 0.0
        self._confirming = False
        self._granted: dict[str, AllocationRecord] = {}  # not begun
        self._standing = StandingAttempts()
        self._seen: set[str] = set()
        self._processes: dict[str, AttemptProcess] = {}
        self._patience: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self._registered = self._asked = self._is_cut = False
        self.review()
        if node.world.timing.cut_us:
            node.later(self._rng.randrange(node.world.timing.cut_us), self._cut)
        node.later(self._rng.randrange(200 * MS), self._renew_when_due)

    # -- events

    def changed(self, outcome: Outcome) -> None:
        """Take the changes of an entry, as far as they are about this host."""
        for kind, id, record in outcome.changes:
            if kind == "allocation":
                if record is None:
                    self._disowned(id)
                elif record["host"] == self._node.host_id:
                    self._take(id, record)
            elif kind == "host" and id == self._node.host_id:
                self.review()
            elif kind == "job" and record is not None and (record["cancel_requested"] or _is_ending(record)):
                self._stop(record)

    def review(self) -> None:
        """Look at all there is: at the start of a life, and after a snapshot. A host registers once it has a state:
        one that is no member yet would never hear what is granted to it."""
        if not self._asked and self._node.ledger.index:
            self._asked = True
            self._asker.write(RegisterHost(self._record(), at=self._node.now), self._is_registered)
        held = self._node.ledger.allocations
        for id in [id for id in (*self._processes, *self._granted) if id not in held]:
            self._disowned(id)
        for id, record in list(held.items()):
            if record["host"] == self._node.host_id:
                self._take(id, record)
        self._look()

    def host_down(self) -> None:
        """Power off: every process ends with the host."""
        self._asker.stop()
        for process in list(self._processes.values()):
            self._gone(process)

    def woke(self) -> None:
        """The host stood still and goes on: its shims look at the clock before anything else happens."""
        self._look_at_deadlines()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits to be reported."""
        ends = self._processes.keys() - set(self.replicas())
        return self._registered == self._asked and self._asker.idle and not ends

    # -- the lease

    def _renew_when_due(self) -> None:
        if self._node.boottime >= self._next_at:
            self._renew()

    def _renew(self) -> None:
        """Ask the leader for a renewal again, and drop what it has not answered."""
        self._reads += 1
        context = b"lease %d.%d.%d" % (self._node.id, self._node.boots, self._reads)
        self._read = (context, self._node.boottime, None)
        if isinstance(self._node.core.read_index(context), Dropped):
            self._read = None
        self._node.pump()
        self._node.world.on_lease(self._node.id)
        self._next_at = self._node.boottime + RENEW_S
        self._plan([*self._patience.values(), *(isolation_of(record, NO_JOB) for record in self._granted.values())])
        self._look()

    def _plan(self, patiences: list[float]) -> None:
        """Plan renewals often enough for these processes."""
        every_s = min([RENEW_S, *(patience / RENEWALS_IN_PATIENCE for patience in patiences)])
        self._next_at = min(self._next_at, self._node.boottime + every_s)
        self._node.later(self._node.until_us(self._next_at), self._renew_when_due)

    def read_ready(self, state: ReadState) -> None:
        """A read may be answered once its index is applied."""
        if self._read is not None and self._read[0] == state.context:
            self._read = (*self._read[:2], state.index)
            self.applied()

    def applied(self) -> None:
        """Take note that the state moved on, perhaps as far as the read of the lease has to see."""
        if self._read is None or self._read[2] is None or self._read[2] > self._node.ledger.index:
            return
        asked_at, self._read = self._read[1], None
        self._look_at_deadlines()
        self._lease.renewed(asked_at, self._node.ledger.index, self._node.boottime)
        for id in self._processes:
            if self._deadlines[id] != math.inf:
                self._set_deadline(id)
        self._look()

    def _may_start(self) -> bool:
        record = self._node.ledger.hosts.get(self._node.host_id)
        return (
            record is not None
            and record["incarnation"] == self._node.boots
            and record["state"] == "up"
            and self._lease.confirmed(record["seen_index"])
            and self._lease.valid(self._node.boottime)
        )

    def _look(self) -> None:
        """Start what may start; confirm in the ledger that the host is up when that is wanted."""
        if self._may_start():
            for id, record in list(self._granted.items()):
                if self._lease.valid(self._node.boottime, isolation_of(record, NO_JOB)):
                    del self._granted[id]
                    self._begin(id, record)
            return
        known = self._node.ledger.hosts.get(self._node.host_id)
        if known is None or known["incarnation"] != self._node.boots or known["state"] == "down":
            return
        if self._confirming or not self._lease.valid(self._node.boottime):
            return
        if known["state"] == "lost" and self.strays():
            return
        self._confirming = True
        command = ConfirmHost(self._node.host_id, self._node.boots, known.get("lost_at"), at=self._node.now)
        self._asker.write(command, self._confirmed)

    def strays(self) -> list[str]:
        """The work that lives here and is not in the ledger."""
        return [id for id in self._processes if id not in self._node.ledger.allocations]

    def _confirmed(self, _told: ClientReply) -> None:
        self._confirming = False
        self._node.later(self._rng.randrange(*DIES_US), self._look)

    # -- attempts

    def _record(self) -> HostFacts:
        host = self._node.host_id
        devices = [
            {"uuid": f"GPU-{host}-{index}", "index": index, "model": "H100", "memory_mib": GPU_MEMORY_MIB}
            for index in range(GPUS)
        ]
        if self._is_cut:
            whole = devices.pop()
            part = {"parent": whole["uuid"], "share_milli": PART_MILLI, "memory_mib": GPU_MEMORY_MIB // 2}
            devices += [{**whole, **part, "uuid": f"MIG-{host}-{n}", "index": GPUS + n} for n in range(2)]
        facts = {
            "host_id": host,
            "incarnation": self._node.boots,
            "cpu_milli": CPU_MILLI,
            "memory_mib": MEMORY_MIB,
            "devices": devices,
        }
        return cast("HostFacts", facts)

    def _cut(self) -> None:
        """Cut the last GPU, or put it together, as somebody does with the driver's own tools: nobody is asked."""
        self._node.later(self._node.world.timing.cut_us, self._cut)
        if self._registered and self._asker.idle and self._node.world.faults_strike:
            self._is_cut = not self._is_cut
            self._asker.write(RegisterHost(self._record(), at=self._node.now), lambda told: None)

    def _is_registered(self, told: ClientReply) -> None:
        self._registered = True
        assert told.error is None, f"registering {self._node.host_id}: {told.error}"
        self.review()

    def _take(self, id: str, record: AllocationRecord) -> None:
        if not self._registered:
            return
        if id in self._standing:
            self._moved(id, record)
            return
        if id in self._seen:
            return
        self._seen.add(id)
        if record["owner"]["kind"] != "attempt":
            return
        if record["incarnation"] != self._node.boots:
            # Of an earlier life: its process ended with the host.
            self._report(id, list(record["token"]), "lost", charge=False)
            return
        if "behind" in record:
            self._stand(id, record["behind"])
            return
        self._granted[id] = record
        self._plan([isolation_of(record, NO_JOB)])
        self._look()

    # -- those who stand behind others

    def _stand(self, id: str, front: str) -> None:
        """Wait for the one in front to be gone, for a while."""
        self._standing.add(id, front, self._node.boottime)
        self._node.later(self._node.until_us(self._node.boottime + STANDING_S), self._give_back_late)

    def _moved(self, id: str, record: AllocationRecord) -> None:
        """Follow the ledger: another is in front now, or the place is its own."""
        if "behind" in record:
            self._standing.add(id, record["behind"], self._node.boottime)
        else:
            self._standing.remove(id)
            self._granted[id] = record
            self._look()

    def _move_up(self, front: str) -> None:
        """Begin who stands behind *front*, of which nothing is left here."""
        id = self._standing.behind(front)
        record = None if id is None else self._node.ledger.allocations.get(id)
        if id is not None and record is not None and front in self._node.ledger.allocations:
            self._standing.remove(id)
            self._granted[id] = record
            self._look()

    def _give_back_late(self) -> None:
        for id in self._standing.late(self._node.boottime):
            self._standing.remove(id)
            record = self._node.ledger.allocations.get(id)
            if record is not None:
                self._report(id, list(record["token"]), "lost", charge=False)

    def _begin(self, id: str, record: AllocationRecord) -> None:
        job = self._node.ledger.jobs[record["owner"]["job_id"]]
        token = (record["token"][0], record["token"][1])
        if job["cancel_requested"] or _is_ending(job):
            self._report(id, list(token), "cancelled", charge=False)
            return
        process = AttemptProcess(
            host=self._node.host_id,
            attempt_id=id,
            job_id=record["owner"]["job_id"],
            token=token,
            gpus=tuple(record["gpu_indexes"]),
            gpu_milli=record["gpu_milli"],
            cpu_milli=record["cpu_milli"],
            host_cpu_milli=CPU_MILLI,
        )
        self._processes[id] = process
        self._patience[id] = isolation_of(record, NO_JOB)
        self._node.world.trace.add(self._node.name, f"runs {id}")
        self._node.world.tell(lambda checker: checker.started(process, self._node.world.now_us))
        self._set_deadline(id)
        command = StartAttempt(id, list(token), at=self._node.now)
        self._asker.write(command, lambda told: self._is_started(process, told))
        if "service" in job:
            broken = job["command"][0] == BROKEN
            answers = partial(self._process_ends, process, "failed") if broken else partial(self._answers, process)
            self._node.later(self._rng.randrange(*ANSWERS_US), answers)
            return
        outcome = "failed" if self._rng.random() < 0.1 else "succeeded"
        runs_us = int(job["env"].get(RUNS_FOR, 0)) * MS or self._rng.randrange(*RUNS_US)
        self._node.later(runs_us, lambda: self._process_ends(process, outcome))

    # -- replicas of services

    def replicas(self) -> list[str]:
        """The attempts that run here and are replicas, or members of one."""
        jobs = self._node.ledger.jobs
        return [id for id, each in self._processes.items() if "service" in jobs.get(each.job_id, NO_JOB)]

    def runs(self, attempt_id: str) -> bool:
        """Whether a process of that attempt runs here."""
        return attempt_id in self._processes

    def dies_by_itself(self, attempt_id: str) -> None:
        """End a process as it fails."""
        self._process_ends(self._processes[attempt_id], "failed")

    def _answers(self, process: AttemptProcess) -> None:
        """A replica answers: the ledger is told where. Of a gang, rank 0 does."""
        if process.attempt_id in self._processes and not rank_of(process.attempt_id):
            command = ReportReplica(process.attempt_id, list(process.token), "ready", PORT, "m", at=self._node.now)
            self._asker.write(command, lambda told: None)

    def _is_started(self, process: AttemptProcess, told: ClientReply) -> None:
        if told.error is not None:
            self._disowned(process.attempt_id)
        elif told.result["cancel_requested"] or told.result.get("ending") or told.result.get("superseded"):
            self._process_ends(process, "cancelled")

    def _set_deadline(self, id: str) -> None:
        """Let a process live as long as the lease lets it; called again, the later deadline counts."""
        at = self._deadlines[id] = self._lease.deadline(self._patience[id])
        self._node.later(self._node.until_us(at), self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        """Kill, as a shim does, what has been without renewal for too long."""
        for id, process in list(self._processes.items()):
            if self._node.boottime >= self._deadlines[id]:
                self._node.world.trace.add(self._node.name, f"isolated: {id}")
                self._deadlines[id] = math.inf  # it is being killed
                self._node.world.tell(lambda checker, process=process: checker.killed(process))  # type: ignore[misc]
                if self._rng.random() < HANGS:
                    later_us = self._rng.randrange(*HANGS_US)
                    self._node.later(later_us, partial(self._process_ends, process, "lost", charge=False))
                else:
                    self._process_ends(process, "lost", charge=False)

    def _disowned(self, id: str) -> None:
        """Kill a process for which the ledger holds no allocation any more."""
        self._granted.pop(id, None)
        self._standing.remove(id)
        process = self._processes.get(id)
        if process is not None:
            self._node.later(self._rng.randrange(*DIES_US), partial(self._dies, process))

    def _dies(self, process: AttemptProcess) -> None:
        if process.attempt_id in self._processes:
            self._gone(process)
            self._look()

    def _stop(self, job: dict[str, Any]) -> None:
        for process in [each for each in self._processes.values() if each.job_id == job["job_id"]]:
            self._process_ends(process, "cancelled")

    def _process_ends(self, process: AttemptProcess, outcome: str, charge: bool = True) -> None:
        if process.attempt_id not in self._processes:
            return
        self._gone(process)
        self._move_up(process.attempt_id)
        self._report(process.attempt_id, list(process.token), outcome, charge)
        if self._rng.random() < 0.2:
            self._node.later(
                self._rng.randrange(*LATE_US),
                lambda: self._report(process.attempt_id, list(process.token), outcome, charge),
            )

    def _gone(self, process: AttemptProcess) -> None:
        for table in (self._processes, self._patience, self._deadlines):
            del table[process.attempt_id]
        self._node.world.tell(lambda checker: checker.ended(process, self._node.world.now_us))

    def _report(self, id: str, token: list[int], outcome: str, charge: bool = True) -> None:
        command = EndAttempt(id, token, outcome, at=self._node.now, charge=charge)
        self._asker.write(command, lambda told: self._is_told(id, token, outcome, told))

    def _is_told(self, id: str, token: list[int], outcome: str, told: ClientReply) -> None:
        """Whether a success is told that the ledger did not wait for: it may count all the same."""
        if outcome == "succeeded" and told.error is None and told.result["already"]:
            self._asker.write(TakeSuccess(id, token, at=self._node.now), lambda told: None)


def _is_ending(job: JobRecord) -> bool:
    """Whether a member of the job's gang has not succeeded, or an earlier attempt has, so that what runs is to end."""
    return any(
        (attempt.get("ending") or attempt.get("superseded")) and attempt["ended_at"] is None
        for attempt in job["attempts"][-1:]
    )
