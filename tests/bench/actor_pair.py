"""``python -m tests.bench.actor_pair DIR``: a host of two servers; one calls the other and leaves DIR/result.json."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from actorgrid.actors.host.boot import run_host
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.server import Server, handles

CALLS = 2_000
PIPELINED = 10_000
IN_FLIGHT = 64


@dataclass(frozen=True)
class Ping:
    """Answered with its number."""

    n: int


class Echo(Server):
    """Answers."""

    name: ClassVar[str] = "echo"

    @handles(Ping)
    def _ping(self, ping: Ping) -> int:
        return ping.n if ping.n else os.getpid()


class Caller(Server):
    """Calls, and writes down how long it took. Stands where a host expects its gateway."""

    name: ClassVar[str] = "gateway"

    def start(self) -> None:
        self.spawn(self._measure())

    def status(self) -> dict[str, Any]:
        return {"url": "http://127.0.0.1:1"}

    async def _measure(self) -> None:
        assert await self.call("echo", Ping(0)) != os.getpid(), "both in one process"
        for n in range(1, 200):
            await self.call("echo", Ping(n))
        samples = []
        for n in range(CALLS):
            started = time.perf_counter()
            await self.call("echo", Ping(n))
            samples.append(time.perf_counter() - started)
        started = time.perf_counter()
        pending = [self.call("echo", Ping(n)) for n in range(IN_FLIGHT)]
        for n in range(PIPELINED):
            await pending[n % IN_FLIGHT]
            pending[n % IN_FLIGHT] = self.call("echo", Ping(n))
        for waiter in pending:
            await waiter
        rate = (PIPELINED + IN_FLIGHT) / (time.perf_counter() - started)
        target = Path(self.host.paths.data_dir) / "result.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps({"samples": samples, "rate": rate}))
        partial.rename(target)


if __name__ == "__main__":
    children = [
        ChildSpec(id="echo", kind="tests.bench.actor_pair:Echo"),
        ChildSpec(id="gateway", kind="tests.bench.actor_pair:Caller"),
    ]
    run_host(Settings(), Path(sys.argv[1]), None, children)
