"""Light processes in an asyncio program, both ways: a process is awaited, and a process awaits.

    async with serving(shard):
        answer = await ask(shard, counter, "next")

While a shard is served, its processes have their turns in the loop's thread between all else, and may await what
asyncio awaits: futures, tasks, ``asyncio.sleep``. What asks for the current task (``asyncio.timeout``, ``TaskGroup``)
is wrapped in a task of its own: ``await asyncio.ensure_future(work())``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic_ns
from typing import Any

from actorgrid.errors import BadRequest
from actorgrid.hotpath.light import LightProcess, Pid, ProcessCall

from .shard import Shard

TURN_NS = 5_000_000
"""How long a shard goes on before the loop has its turn."""


async def serve(shard: Shard) -> None:
    """Give the shard's processes their turns, until this is cancelled or the shard is closed. One at a time."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(woken.set)

    if shard.on_wake is not None:
        raise BadRequest("the shard is served already", hint="cancel the other serve() first")
    await_usual, shard.foreign_await = shard.foreign_await, LoopAwaiting(shard)  # type: ignore[method-assign]
    shard.on_wake = wake
    try:
        while not shard.closed:
            woken.clear()
            until = monotonic_ns() + TURN_NS
            while shard.run() and monotonic_ns() < until:
                pass
            due_ns = shard.core.due_in_ns()
            if due_ns == 0:
                await asyncio.sleep(0)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), None if due_ns < 0 else due_ns / 1e9)
    finally:
        shard.on_wake = None
        shard.foreign_await = await_usual  # type: ignore[method-assign]


@asynccontextmanager
async def serving(shard: Shard) -> AsyncIterator[Shard]:
    """``serve`` in the background of a block."""
    task = asyncio.ensure_future(serve(shard))
    try:
        yield shard
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def ask(shard: Shard, to: Pid | str, request: Any, timeout_s: float | None = 5.0) -> asyncio.Future[Any]:
    """Await this: ``call`` to a process of a shard that is served in this loop."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(call: ProcessCall) -> None:
        value, error = call.outcome
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    shard.call_soon(to, request, timeout_s, answer)
    shard.wake()
    return future


class LoopAwaiting:
    """What a served shard does with a process that awaits something of asyncio's."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def __call__(self, process: LightProcess, awaited: Any) -> None:
        """Let the process go on when what it awaits is done."""
        shard = self.shard
        if awaited is None:  # ``asyncio.sleep(0)``: others first
            shard.core.wake(process, awaited)
        elif getattr(awaited, "_asyncio_future_blocking", False):
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(lambda future: self._done(process, future))
        else:
            said = f"{process.pid} awaits {awaited!r:.100}"
            error = BadRequest(said, hint="await what is of light processes or of asyncio")
            shard.process_ended(process, error)

    def _done(self, process: LightProcess, future: Any) -> None:
        self.shard.core.wake(process, future)
        self.shard.wake()
