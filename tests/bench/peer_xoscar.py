"""``python peer_xoscar.py WORK`` in xoscar's environment: two actors in two processes; prints one line of JSON.

WORK is ``actor_work.Work`` as JSON. xoscar's actors are many to a process, so there is no process per actor to weigh.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import xoscar


class Echo(xoscar.Actor):  # type: ignore[misc]
    """Answers numbers, tells the length of bytes, counts casts and acknowledges them."""

    def __init__(self) -> None:
        self.taken = 0

    def echo(self, n: int) -> int:
        return n

    def pid(self) -> int:
        return os.getpid()

    def size(self, data: bytes) -> int:
        return len(data)

    async def cast(self, sender: Any, _data: bytes) -> None:
        self.taken += 1
        if self.taken % 20 == 0:
            await sender.ack.tell(20)


class Caller(xoscar.Actor):  # type: ignore[misc]
    """One measurement at a time."""

    def __init__(self, echo: Any) -> None:
        self.echo = echo
        self.acknowledged = 0
        self.more = asyncio.Event()

    def pid(self) -> int:
        return os.getpid()

    @xoscar.no_lock
    def ack(self, count: int) -> None:
        self.acknowledged += count
        self.more.set()

    @xoscar.no_lock
    async def trips(self, total: int) -> list[float]:
        samples = []
        for n in range(total):
            started = time.perf_counter()
            await self.echo.echo(n)
            samples.append(time.perf_counter() - started)
        return samples

    @xoscar.no_lock
    async def calls(self, total: int) -> float:
        async def caller() -> None:
            for n in range(total // 64):
                await self.echo.echo(n)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(64)))
        return total // 64 * 64 / (time.perf_counter() - started)

    @xoscar.no_lock
    async def casts(self, total: int, size: int) -> float:
        data, me, sent, self.acknowledged = bytes(size), self.ref(), 0, 0
        started = time.perf_counter()
        while self.acknowledged < total:
            while sent < total and sent - self.acknowledged < 40:
                sent += 1
                await self.echo.cast.tell(me, data)
            self.more.clear()
            if self.acknowledged < total and (sent == total or sent - self.acknowledged >= 40):
                await self.more.wait()
        return total / (time.perf_counter() - started)

    @xoscar.no_lock
    async def sizes(self, total: int, size: int) -> float:
        data = bytes(size)
        started = time.perf_counter()
        for _ in range(total):
            assert await self.echo.size(data) == size, "not all of it arrived"
        return total / (time.perf_counter() - started)


async def main(work: dict[str, Any]) -> dict[str, Any]:
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=2)
    async with pool:
        config = await xoscar.get_pool_config(pool.external_address)
        places = config.get_external_addresses()[1:]  # the first is the main pool's: this process
        echo = await xoscar.create_actor(Echo, address=places[0])
        caller = await xoscar.create_actor(Caller, echo, address=places[1])
        assert await echo.pid() != await caller.pid(), "both in one process"
        await caller.trips(100)
        result: dict[str, Any] = {"version": version("xoscar")}
        result["trips"] = await caller.trips(work["calls"])
        result["calls"] = await caller.calls(work["pipelined"])
        result["casts"] = await caller.casts(work["casts"], 0)
        result["mb1"] = await caller.casts(work["mb1"], 1_000_000)
        result["mb64"] = await caller.sizes(work["mb64"], 64_000_000)
        started = time.perf_counter()
        for n in range(work["actors"]):
            actor = await xoscar.create_actor(Echo, address=places[n % 2])
            await actor.echo(n)
        result["start_s"] = time.perf_counter() - started
        return result


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
