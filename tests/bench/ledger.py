"""The ledger alone, in one process: commits on disk per second, and how long a large state takes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.commands import GrantAttempt, NewTerm, RegisterHost, SubmitJobs
from actorgrid.actors.ledger.messages import LedgerSnapshot, Propose
from actorgrid.actors.ledger.state import Ledger
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.hotpath import PlacementEngine
from actorgrid.supervisors.gc_pause import collection_paused
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server

from .figures import Figure, latency, registry

COMMITS = 5_000
IN_FLIGHT = 64


class Proposer(Server):
    """Keeps a number of proposals under way until all are committed."""

    name = "proposer"

    def begin_run(self, count: int, in_flight: int) -> None:
        """Start over."""
        self.left = self.running = in_flight
        self.samples: list[float] = []
        counter = itertools.count()
        session = f"bench-{time.monotonic_ns()}"

        async def worker() -> None:
            while (number := next(counter)) < count:
                command = {
                    "type": "set_setting",
                    "v": 1,
                    "at": 0.0,
                    "key": "work.kill_grace_s",
                    "value": 5.0,
                    "by": "b",
                }
                started = time.perf_counter()
                await self.call("consensus", Propose(command, session, number + 1), 30.0)
                self.samples.append(time.perf_counter() - started)
            self.running -= 1

        for _ in range(in_flight):
            self.spawn(worker())


@registry.add("ledger")
def ledger(runs: int) -> Iterator[Figure]:
    """Fsynced commits of one voter: 64 in flight, and one at a time."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # not on a memory file system
        paths = HostPaths(Path(folder) / "host")
        paths.make()
        context = HostContext(paths, Settings(), "bench", "bench", 1, "boot")
        node = InlineNode(real_time=True)
        consensus = node.add(Consensus, context)
        proposer = node.add(Proposer, context)
        assert isinstance(proposer, Proposer)
        rates, singles = [], []
        for _ in range(runs):
            started = time.perf_counter()
            proposer.begin_run(COMMITS, IN_FLIGHT)
            node.run_until(lambda: proposer.running == 0, 120.0)
            rates.append(COMMITS / (time.perf_counter() - started))
            proposer.begin_run(COMMITS // 10, 1)
            node.run_until(lambda: proposer.running == 0, 120.0)
            singles.append(proposer.samples)
        consensus.stop("bench")
    yield Figure("ledger commits, 1 voter, 64 in flight", "commits/s", rates, True, note="bar of three voters: 2,000")
    yield latency("ledger commit, one at a time", singles, "ms", 1e3)


HOSTS = 1_250
GPUS_A_HOST = 8
ALLOCATIONS = 50_000


@registry.add("ledger_state")
def ledger_state(runs: int) -> Iterator[Figure]:
    """A ledger of 10,000 GPUs and 50,000 allocations: its snapshot, and what a new leader makes of it."""
    with collection_paused():
        state = _large_ledger()
        data = state.snapshot()
        live = state.live()
        taken, restored, alone, rebuilt, digests = [], [], [], [], []
        for _ in range(runs):
            began = time.perf_counter()
            state.snapshot()
            taken.append(time.perf_counter() - began)
            began = time.perf_counter()
            again = Ledger.restore(data)
            restored.append(time.perf_counter() - began)
            began = time.perf_counter()
            again.digest()
            digests.append(time.perf_counter() - began)
            alone.append(_engine_rebuilt(live))
            core = CoordinatorCore("h0", 1, "completion", 100_000, time.perf_counter_ns, queue="easy_backfill")
            began = time.perf_counter()
            core.load(live.jobs, live.allocations, live.hosts, 1.0)
            core.schedule(1.0, 1)
            rebuilt.append(time.perf_counter() - began)
            assert core.mirror.engine.allocated_gpu_milli == ALLOCATIONS * 200
    note = f"{HOSTS * GPUS_A_HOST:,} GPUs, {ALLOCATIONS:,} allocations"
    yield Figure("snapshot of the ledger", "s", taken, False, must=0.5, note=f"{note}, {len(data) / 2**20:.0f} MiB")
    yield Figure("a new leader's placement engine rebuilt", "s", alone, False, must=1.0, note=note)
    yield Figure("the same with the scheduler's running jobs", "s", rebuilt, False, must=1.0, note=note)
    yield Figure("ledger restored from the snapshot", "s", restored, False)
    yield Figure("digest of a ledger just restored", "s", digests, False)


def _engine_rebuilt(live: LedgerSnapshot) -> float:
    """Seconds to adopt everything that the ledger has given out."""
    began = time.perf_counter()
    engine = PlacementEngine("completion")
    for host_id, host in live.hosts.items():
        devices = [(device["model"], device["memory_mib"]) for device in host["devices"]]
        engine.add_node(host_id, cpu_milli=host["cpu_milli"], memory_mib=host["memory_mib"], devices=devices)
    for allocation_id, record in live.allocations.items():
        engine.adopt(
            allocation_id,
            ((record["host"], tuple(record["gpu_indexes"])),),
            cpu_milli=record["cpu_milli"],
            memory_mib=record["memory_mib"],
            gpu_milli=record["gpu_milli"],
            gpu_memory_mib=record["gpu_memory_mib"],
        )
    assert engine.allocated_gpu_milli == ALLOCATIONS * 200
    return time.perf_counter() - began


def _large_ledger() -> Ledger:
    state = Ledger()

    def do(command: dict[str, Any]) -> None:
        outcome = state.apply(state.index + 1, command)
        assert outcome.error is None, outcome.error

    do(NewTerm(1, at=0.0))
    for host in range(HOSTS):
        devices = [
            {"uuid": f"GPU-{host}-{index}", "index": index, "memory_mib": 81_920, "model": "H100"}
            for index in range(GPUS_A_HOST)
        ]
        record = {"host_id": f"h{host}", "incarnation": 1, "cpu_milli": 128_000, "memory_mib": 10**6}
        do(RegisterHost({**record, "devices": devices}, at=0.0))
    amounts = {"gpus": 0.2, "gpu_count": 1, "gpu_milli": 200, "gpu_memory_mib": 1_000, "cpu_milli": 100}
    for first in range(0, ALLOCATIONS, 1_000):
        jobs = [{"job_id": f"j{number}", "resources": amounts} for number in range(first, first + 1_000)]
        do(SubmitJobs(jobs, at=0.0))
    for number in range(ALLOCATIONS):
        device = number // 5
        host, index = divmod(device, GPUS_A_HOST)
        do(GrantAttempt(f"j{number}", 1, f"h{host}", 1, [index], 1, at=0.0))
    return state
