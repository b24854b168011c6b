"""Light processes in an asyncio program, both ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actorgrid.errors import BadRequest, NotSupported
from actorgrid.supervisors.process import Process, Shard, ask, serve, serving
from tests.light.conftest import Witness


def test_asyncio_asks_a_process_and_a_process_awaits_asyncio() -> None:
    async def work() -> str:
        await asyncio.sleep(0.01)
        return "worked"

    async def mixed(me: Process, log: list[Any]) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        log.append(await asyncio.ensure_future(work()))
        log.append(await me.receive())
        try:
            await asyncio.ensure_future(asyncio.wait_for(asyncio.Event().wait(), 0.01))
        except TimeoutError:
            log.append("late")

    async def main() -> list[Any]:
        log: list[Any] = []
        with Shard() as shard:
            async with serving(shard):
                pid = shard.spawn(Witness)
                assert await ask(shard, pid, ("told",)) == []
                with pytest.raises(NotSupported):
                    await ask(shard, shard.spawn(Process), 1)
                other = shard.spawn(mixed, log)
                assert await asyncio.get_running_loop().run_in_executor(None, shard.post, other, "from a thread")
                async with asyncio.timeout(60):
                    while len(log) < 3:
                        await ask(shard, pid, ("told",))
                        await asyncio.sleep(0)
                with pytest.raises(BadRequest, match="served already"):
                    await serve(shard)
        return log

    assert asyncio.run(main()) == ["worked", "from a thread", "late"]


def test_a_timer_wakes_a_served_shard() -> None:
    async def main() -> None:
        woken = asyncio.Event()

        async def sleeper(me: Process) -> None:
            await me.sleep(0.02)
            woken.set()

        with Shard() as shard:
            async with serving(shard):
                shard.spawn(sleeper)
                shard.wake()
                async with asyncio.timeout(60):
                    await woken.wait()

    asyncio.run(main())


def test_what_nobody_knows_to_wait_for_ends_the_process_that_awaits_it() -> None:
    async def confused(me: Process) -> None:
        await asyncio.get_event_loop().create_future()

    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        with Shard() as shard:
            watcher, pid = shard.spawn(Witness), shard.spawn(confused)
            shard.call(watcher, ("monitor", pid))
            [down] = shard.call(watcher, ("told",))
        assert isinstance(down.reason.error, BadRequest)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
