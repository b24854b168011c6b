"""The ledger alone, in one process: commits on disk per second."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.consensus.messages import Propose
from actorgrid.actors.host.context import HostContext
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
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
