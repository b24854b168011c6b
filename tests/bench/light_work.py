"""``python -m tests.bench.light_work``: light processes are measured as BEAM's are (``peer_light.erl``), in JSON.

All in one thread, but for what crosses between two shards. A ping-pong passes a number to and fro, a ring passes it
round 1,000 processes; calls are made one at a time by a coroutine and answered by a handler. ``cpu`` has the same by
the CPU's time instead of the clock's, which a busy machine changes less.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from actorgrid.hotpath.light import LIGHT_COMPILED
from actorgrid.supervisors.process import NO_REPLY, GenServer, Pid, Process, Shard, ShardHost

from .stopwatch import Stopwatch, resident_bytes

MESSAGES = 2_000_000
RING = 1_000
CALLS = 500_000
PROCESSES = 1_000_000
CROSSING = 500_000
TIMERS = 100_000
CROSSINGS_PER_BURST = 1_000


class Node(GenServer):
    """Passes a number on, less one."""

    def init(self, following: Pid | None = None) -> None:
        self.following = following

    def handle_info(self, message: int) -> None:
        if message:
            self.send(self.following, message - 1)


class Echo(GenServer):
    """Answers with what it is asked; as small as one with a state can be."""

    def init(self) -> None:
        self.asked = 0

    def handle_call(self, request: Any, caller: Any) -> Any:
        return request


class Sink(GenServer):
    """Counts what comes from another shard."""

    mailbox_limit = 1 << 30

    def init(self) -> None:
        self.count, self.began, self.caller = 0, 0.0, None

    def handle_call(self, request: int, caller: Any) -> Any:
        self.caller = caller
        return NO_REPLY

    def handle_info(self, message: int) -> None:
        if not self.count:
            self.began = time.monotonic()
        self.count += 1
        if self.caller is not None and self.count == self.caller.request:
            self.caller.reply(self.count / (time.monotonic() - self.began))


async def flood(me: Process, to: Pid, count: int) -> None:
    """Send numbers to another shard, a burst a turn."""
    sent = 0
    while sent < count:
        for _ in range(CROSSINGS_PER_BURST):
            sent += me.send(to, sent)
        await me.sleep(0)


async def ask(me: Process, to: Pid, count: int) -> None:
    """Call one at a time."""
    for number in range(count):
        await me.call(to, number)


async def make_and_ask(me: Process, count: int, found: dict[str, Any]) -> None:
    """Begin so many, then call each once."""
    before, began = resident_bytes(), Stopwatch()
    pids = [me.spawn(Echo) for _ in range(count)]
    began.note(found, "spawn_s", lambda took: took / count)
    for number, pid in enumerate(pids):
        if await me.call(pid, number) != number:
            raise AssertionError("a wrong answer")
    began.note(found, "million_s", lambda took: took)
    found["bytes"] = (resident_bytes() - before) / count


class Late(GenServer):
    """How late each of its timers is."""

    def init(self, count: int) -> None:
        self.left, self.late = count, []
        for number in range(count):
            delay_s = 0.2 + (number * 7919 % 20_000) / 10_000
            self.send_after(delay_s, self.pid, time.monotonic() + delay_s)

    def handle_info(self, due: float) -> None:
        self.late.append(time.monotonic() - due)
        self.left -= 1


def idle(shard: Shard, found: dict[str, Any], name: str, count: int) -> None:
    """Run until nobody is ready, and note how many that were in a second."""
    watch = Stopwatch()
    shard.run_until_idle()
    watch.note(found, name, lambda took: count / took)


def inside() -> dict[str, Any]:
    """What one shard does."""
    found: dict[str, Any] = {"compiled": LIGHT_COMPILED}
    with Shard() as shard:
        first, second = shard.start(Node), shard.start(Node)
        shard.info(first).following, shard.info(second).following = second, first  # type: ignore[union-attr]
        shard.send(first, MESSAGES)
        idle(shard, found, "ping_pong", MESSAGES)
        ring = [shard.start(Node) for _ in range(RING)]
        for pid, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            shard.info(pid).following = following  # type: ignore[union-attr]
        shard.send(ring[0], MESSAGES)
        idle(shard, found, "ring", MESSAGES)
        shard.spawn(ask, shard.start(Echo), CALLS)
        idle(shard, found, "calls", CALLS)
        gc.collect()
        shard.spawn(make_and_ask, PROCESSES, found)
        shard.run_until_idle()
        if shard.core.living < PROCESSES:
            raise AssertionError("some ended")
    with Shard() as shard:
        late = shard.start(Late, TIMERS)
        shard.wait_until(lambda: shard.info(late).left == 0, 60)  # type: ignore[union-attr]
        found["timers"] = shard.info(late).late  # type: ignore[union-attr]
    return found


def across() -> dict[str, Any]:
    """From one shard to another."""
    with ShardHost(2) as host:
        sink = host.start(Sink, shard=1)
        host.start(flood, sink, CROSSING, shard=0)
        crossing = host.call(sink, CROSSING, timeout_s=120)
        first, second = host.start(Asker, shard=0), host.start(Echo, shard=1)
        return {"crossing": crossing, "trips": host.call(first, (second, 2_000), timeout_s=60)}


class Asker(GenServer):
    """Calls over shards, one at a time."""

    async def handle_call(self, request: Any, caller: Any) -> list[float]:
        to, count = request
        took = []
        for number in range(count):
            began = time.perf_counter()
            await self.call(to, number)
            took.append(time.perf_counter() - began)
        return took


if __name__ == "__main__":
    print(json.dumps(across() if sys.argv[1:] == ["across"] else inside()))
