"""The worker side of a simulated host: registers it, runs the attempts granted to it, reports their ends.

Reports come late or twice. A crash of the host ends its processes; the next life says so, as a live host does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorgrid.actors.consensus.commands import end_attempt, register_host, start_attempt
from actorgrid.actors.consensus.outcome import Outcome
from actorgrid.chaos.checkers.checker import Process

from .asking import Asker, Told
from .clock import MS

if TYPE_CHECKING:
    from .node import Node

GPUS = 2
CPU_MILLI = 16_000
MEMORY_MIB = 64_000
GPU_MEMORY_MIB = 80_000
RUNS_US = (20 * MS, 900 * MS)
LATE_US = (100 * MS, 2_000 * MS)


class Agent:
    """One life of a host's workers. It acts on the ledger as this host has applied it, which may be behind."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._dice = node.dice
        self._asker = Asker(node.world, f"{node.name}/agent{node.boots}", node.hosts, node.dice)
        self._seen: set[str] = set()
        self._processes: dict[str, Process] = {}
        self._registered = self._asked = False
        self.review()

    def changed(self, outcome: Outcome) -> None:
        """An entry changed something; look whether it is about this host."""
        for kind, id, record in outcome.changes:
            if kind == "allocation" and record is not None and record["host"] == self._node.host_id:
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
            self._asker.write(register_host(self._record(), self._node.now), self._is_registered)
        for id, record in list(self._node.ledger.allocations.items()):
            if record["host"] == self._node.host_id:
                self._take(id, record)

    def host_down(self) -> None:
        """Power off: every process ends with the host."""
        self._asker.stop()
        for process in list(self._processes.values()):
            self._gone(process)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits to be reported."""
        return self._registered == self._asked and self._asker.idle and not self._processes

    def _record(self) -> dict[str, Any]:
        host = self._node.host_id
        devices = [
            {"uuid": f"GPU-{host}-{index}", "index": index, "model": "H100", "memory_mib": GPU_MEMORY_MIB}
            for index in range(GPUS)
        ]
        return {
            "host_id": host,
            "incarnation": self._node.boots,
            "cpu_milli": CPU_MILLI,
            "memory_mib": MEMORY_MIB,
            "devices": devices,
        }

    def _is_registered(self, told: Told) -> None:
        self._registered = True
        assert told.error is None, f"registering {self._node.host_id}: {told.error}"
        self.review()

    def _take(self, id: str, record: dict[str, Any]) -> None:
        if not self._registered or id in self._seen:
            return
        self._seen.add(id)
        if record["owner"]["kind"] != "attempt":
            return
        token = list(record["token"])
        if record["incarnation"] != self._node.boots:
            # Of an earlier life: its process ended with the host.
            self._report(id, token, "lost", charge=False)
            return
        command = start_attempt(id, token, self._node.now)
        self._asker.write(command, lambda told: self._may_start(id, record, told))

    def _may_start(self, id: str, record: dict[str, Any], told: Told) -> None:
        if told.error is not None:
            return
        token = list(record["token"])
        if told.result["already"]:
            self._report(id, token, "lost", charge=False)
            return
        if told.result["cancel_requested"] or told.result.get("ending"):
            self._report(id, token, "cancelled", charge=False)
            return
        process = Process(
            host=self._node.host_id,
            attempt_id=id,
            job_id=record["owner"]["job_id"],
            token=(token[0], token[1]),
            gpus=tuple(record["gpu_indexes"]),
            gpu_milli=record["gpu_milli"],
        )
        self._processes[id] = process
        self._node.world.trace.add(self._node.name, f"runs {id}")
        self._node.world.tell(lambda checker: checker.started(process, self._node.world.now_us))
        outcome = "failed" if self._dice.random() < 0.1 else "succeeded"
        self._node.later(self._dice.randrange(*RUNS_US), lambda: self._process_ends(process, outcome))

    def _stop(self, job: dict[str, Any]) -> None:
        for process in [each for each in self._processes.values() if each.job_id == job["job_id"]]:
            self._process_ends(process, "cancelled")

    def _process_ends(self, process: Process, outcome: str) -> None:
        if process.attempt_id not in self._processes:
            return
        self._gone(process)
        self._report(process.attempt_id, list(process.token), outcome)
        if self._dice.random() < 0.2:
            self._node.later(
                self._dice.randrange(*LATE_US),
                lambda: self._report(process.attempt_id, list(process.token), outcome),
            )

    def _gone(self, process: Process) -> None:
        del self._processes[process.attempt_id]
        self._node.world.tell(lambda checker: checker.ended(process, self._node.world.now_us))

    def _report(self, id: str, token: list[int], outcome: str, charge: bool = True) -> None:
        command = end_attempt(id, token, outcome, self._node.now, charge=charge)
        self._asker.write(command, lambda told: None)


def _is_ending(job: dict[str, Any]) -> bool:
    """Whether a member of the job's gang has not succeeded, so that the others are to end."""
    return any(attempt.get("ending") and attempt["ended_at"] is None for attempt in job["attempts"][-1:])
