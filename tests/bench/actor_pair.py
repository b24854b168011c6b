"""``python -m tests.bench.actor_pair DIR WORK``: a host of actors that measure each other; leaves DIR/result.json.

WORK is :class:`actor_work.Work` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from actorgrid.actors.host.boot import run_host
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorDown, NoSuchActor
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.signals import Down
from actorgrid.supervisors.supervisor import ChildInfo, StartChild, Supervisor

from .actor_work import ACKNOWLEDGED_EVERY, AHEAD, IN_FLIGHT, MB1_BYTES, MB64_BYTES, TIMER_S, Work

ANSWER_S = 60.0
SETTLE_S = 2.0
RETRY_S = 0.0005


@dataclass(frozen=True)
class Ping:
    """Answered with its number, or with the pid for 0."""

    n: int


@dataclass(frozen=True)
class Size:
    """Answered with the number of bytes."""

    data: bytes


@dataclass(frozen=True)
class Load:
    """Cast; every 20th is acknowledged."""

    data: bytes


@dataclass(frozen=True)
class Acknowledged:
    """So many loads have been taken."""

    count: int


@dataclass(frozen=True)
class GetNoticed:
    """Ask the wards' supervisor when it noticed their deaths."""


class Echo(Server):
    """Answers."""

    name: ClassVar[str] = "echo"

    def start(self) -> None:
        self.taken = 0

    @handles(Ping)
    def _ping(self, ping: Ping) -> int:
        return ping.n if ping.n else os.getpid()

    @handles(Size)
    def _size(self, size: Size) -> int:
        return len(size.data)

    @handles(Load)
    def _load(self, _load: Load, sender: Ref) -> None:
        self.taken += 1
        if self.taken % ACKNOWLEDGED_EVERY == 0:
            self.cast(sender, Acknowledged(ACKNOWLEDGED_EVERY))


class Wards(Supervisor):
    """Supervises the one that is killed again and again, and notes when it hears of it."""

    name: ClassVar[str] = "wards"

    def init(self, *_arguments: Any) -> tuple[SupervisorFlags, Sequence[ChildSpec]]:
        self.noticed: list[float] = []
        return SupervisorFlags(intensity=1000, period_s=1.0), [ChildSpec("victim", "tests.bench.actor_pair:Echo")]

    def child_exited(self, child_id: str, reason: ExitReason) -> None:
        self.noticed.append(time.perf_counter())
        super().child_exited(child_id, reason)

    @handles(GetNoticed)
    def _get_noticed(self, _request: GetNoticed) -> list[float]:
        return self.noticed


class Crowd(Supervisor):
    """Starts any number of the idle."""

    name: ClassVar[str] = "crowd"

    def init(self, *_arguments: Any) -> tuple[SupervisorFlags, Sequence[ChildSpec]]:
        idle = ChildSpec("idle", "tests.bench.actor_pair:Echo", shutdown="brutal_kill", register=False)
        return SupervisorFlags("simple_one_for_one"), [idle]


class Caller(Server):
    """Calls, casts, kills, and writes down how long it took. Stands where a host expects its gateway."""

    name: ClassVar[str] = "gateway"

    def start(self) -> None:
        self.work: Work = self.arguments[0]
        self.acknowledged = 0
        self.more: Waiter | None = None
        self.down: Waiter | None = None
        self.spawn(self._measure())

    def status(self) -> dict[str, Any]:
        return {"url": "http://127.0.0.1:1"}

    async def _measure(self) -> None:
        work, result = self.work, {}
        assert await self.call("echo", Ping(0)) != os.getpid(), "both in one process"
        for n in range(1, 200):
            await self.call("echo", Ping(n))
        result["trips"] = await self._trips(work.calls)
        result["calls"] = await self._pipelined(work.pipelined)
        result["casts"] = await self._casts(work.casts, b"")
        result["mb1"] = await self._casts(work.mb1, bytes(MB1_BYTES))
        result["mb64"] = await self._sizes(work.mb64, bytes(MB64_BYTES))
        result["timers"], result["bare_timers"] = await self._timers(work.timers)
        result["noticed"], result["down"], result["restart"] = await self._deaths(work.deaths)
        result["start_s"], result["pss_mb"] = await self._crowd(work.actors)
        target = Path(self.host.paths.data_dir) / "result.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(result))
        partial.rename(target)

    # -- messages

    async def _trips(self, count: int) -> list[float]:
        samples = []
        for n in range(1, count + 1):
            started = time.perf_counter()
            await self.call("echo", Ping(n))
            samples.append(time.perf_counter() - started)
        return samples

    async def _pipelined(self, count: int) -> float:
        started = time.perf_counter()
        pending = [self.call("echo", Ping(n)) for n in range(1, IN_FLIGHT + 1)]
        for n in range(count - IN_FLIGHT):
            await pending[n % IN_FLIGHT]
            pending[n % IN_FLIGHT] = self.call("echo", Ping(n + 1))
        for waiter in pending:
            await waiter
        return count / (time.perf_counter() - started)

    async def _casts(self, count: int, data: bytes) -> float:
        sent, self.acknowledged, load = 0, 0, Load(data)
        started = time.perf_counter()
        while self.acknowledged < count:
            while sent < count and sent - self.acknowledged < AHEAD:
                assert self.cast("echo", load), "a cast within the window was refused"
                sent += 1
            self.more = Waiter()
            await self.more
        return count / (time.perf_counter() - started)

    @handles(Acknowledged)
    def _more(self, message: Acknowledged) -> None:
        self.acknowledged += message.count
        more, self.more = self.more, None
        if more is not None:
            more.set(None)

    async def _sizes(self, count: int, data: bytes) -> float:
        started = time.perf_counter()
        for _ in range(count):
            assert await self.call("echo", Size(data), ANSWER_S) == len(data), "not all of it arrived"
        return count / (time.perf_counter() - started)

    # -- time

    async def _timers(self, count: int) -> tuple[list[float], list[float]]:
        ours, bare = [], []
        for _ in range(count):  # in turn, so that both meet the same machine
            started = time.perf_counter()
            await self.sleep(TIMER_S)
            ours.append(time.perf_counter() - started - TIMER_S)
            started = time.perf_counter()
            time.sleep(TIMER_S)
            bare.append(time.perf_counter() - started - TIMER_S)
        return ours, bare

    # -- death

    async def _deaths(self, count: int) -> tuple[list[float], list[float], list[float]]:
        killed, downs, restarts = [], [], []
        pid = await self.call("victim", Ping(0))
        for _ in range(count):
            self.down = Waiter()
            self.monitor("victim")
            killed.append(time.perf_counter())
            os.kill(pid, signal.SIGKILL)
            await self.down
            downs.append(time.perf_counter() - killed[-1])
            pid = await self._successor(pid)
            restarts.append(time.perf_counter() - killed[-1])
        noticed = await self.call("wards", GetNoticed())
        return [at - kill for at, kill in zip(noticed, killed, strict=True)], downs, restarts

    @handles(Down)
    def _is_down(self, _message: Down) -> None:
        assert self.down is not None, "a death that nobody caused"
        self.down.set(None)

    async def _successor(self, dead_pid: int) -> int:
        while True:
            try:
                pid: int = await self.call("victim", Ping(0))
            except (NoSuchActor, ActorDown):
                await self.sleep(RETRY_S)
                continue
            assert pid != dead_pid, "the dead one answered"
            return pid

    # -- many

    async def _crowd(self, count: int) -> tuple[float, float]:
        started = time.perf_counter()
        pending: list[Waiter] = [self.call("crowd", StartChild(), ANSWER_S) for _ in range(count)]
        children: list[ChildInfo] = [await answer for answer in pending]
        took = time.perf_counter() - started
        await self.sleep(SETTLE_S)
        return took, sum(map(_pss_mb, [child.pid for child in children])) / count


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(f"no Pss of {pid}")


if __name__ == "__main__":
    children = [
        ChildSpec("echo", "tests.bench.actor_pair:Echo"),
        ChildSpec("wards", "tests.bench.actor_pair:Wards", type="supervisor"),
        ChildSpec("crowd", "tests.bench.actor_pair:Crowd", type="supervisor"),
        ChildSpec("gateway", "tests.bench.actor_pair:Caller", arguments=(Work(**json.loads(sys.argv[2])),)),
    ]
    run_host(Settings(), Path(sys.argv[1]), None, children)
