"""``python -m tests.bench.peer_light_asyncio``: tasks of asyncio with queues, given light processes' work; in JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from .stopwatch import Stopwatch, resident_bytes

MESSAGES = 200_000
RING = 1_000
CALLS = 100_000
PROCESSES = 100_000


async def node(inbox: asyncio.Queue[int], following: asyncio.Queue[int], done: asyncio.Event) -> None:
    while True:
        message = await inbox.get()
        if message:
            following.put_nowait(message - 1)
        else:
            done.set()


async def echo(inbox: asyncio.Queue[Any]) -> None:
    while True:
        request, answer = await inbox.get()
        answer.set_result(request)


async def call(to: asyncio.Queue[Any], request: Any) -> Any:
    answer = asyncio.get_running_loop().create_future()
    to.put_nowait((request, answer))
    return await answer


async def passed_round(size: int, found: dict[str, Any], name: str) -> None:
    queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(size)]
    done = asyncio.Event()
    pairs = zip(queues, [*queues[1:], queues[0]], strict=True)
    tasks = [asyncio.ensure_future(node(inbox, following, done)) for inbox, following in pairs]
    await asyncio.sleep(0)
    watch = Stopwatch()
    queues[0].put_nowait(MESSAGES)
    await done.wait()
    watch.note(found, name, lambda took: MESSAGES / took)
    for task in tasks:
        task.cancel()


async def main() -> dict[str, Any]:
    found: dict[str, Any] = {"version": sys.version.split()[0]}
    await passed_round(2, found, "ping_pong")
    await passed_round(RING, found, "ring")
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    server = asyncio.ensure_future(echo(inbox))
    watch = Stopwatch()
    for number in range(CALLS):
        await call(inbox, number)
    watch.note(found, "calls", lambda took: CALLS / took)
    before = resident_bytes()
    watch = Stopwatch()
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(PROCESSES)]
    tasks = [asyncio.ensure_future(echo(queue)) for queue in queues]
    watch.note(found, "spawn_s", lambda took: took / PROCESSES)
    for number, queue in enumerate(queues):
        await call(queue, number)
    watch.note(found, "million_s", lambda took: took * 1_000_000 / PROCESSES)
    found["bytes"] = (resident_bytes() - before) / PROCESSES
    for task in (server, *tasks):
        task.cancel()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
