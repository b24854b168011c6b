"""A set of shards of light processes, for asyncio: the same verbs, awaited."""

from __future__ import annotations

import asyncio

from .awaited import Awaiting, awaited
from .light_shards import LightShards, ProcessRef


class AsyncLightShards(Awaiting[LightShards]):
    """Every verb of LightShards, awaited. Each wait holds one thread of the loop's default executor."""

    def __init__(self, shards: LightShards) -> None:
        self.sync = shards
        self.group = shards.group
        self.count = shards.count

    start = awaited(LightShards.start)
    call = awaited(LightShards.call)
    cast = awaited(LightShards.cast)
    send = awaited(LightShards.send)
    exit = awaited(LightShards.exit)
    members = awaited(LightShards.members)
    top = awaited(LightShards.top)
    layout = awaited(LightShards.layout)
    deploy = awaited(LightShards.deploy)
    widen_deploy = awaited(LightShards.widen_deploy)
    take_back_deploy = awaited(LightShards.take_back_deploy)
    stop = awaited(LightShards.stop)

    async def whereis(self, name: str, timeout_s: float = 5.0) -> AsyncProcessRef | None:
        """Who has the name of the set."""
        found = await asyncio.to_thread(self.sync.whereis, name, timeout_s)
        return None if found is None else AsyncProcessRef(found)

    async def wait_for(self, name: str, timeout_s: float = 60.0) -> AsyncProcessRef:
        """Who has the name of the set, once somebody has. Raises NoSuchActor when nobody has in time."""
        return AsyncProcessRef(await asyncio.to_thread(self.sync.wait_for, name, timeout_s))


class AsyncProcessRef(Awaiting[ProcessRef]):
    """A light process of a set, as ``await shards.whereis(name)`` finds it."""

    def __init__(self, process: ProcessRef) -> None:
        self.sync = process
        self.pid = process.pid

    call = awaited(ProcessRef.call)
    cast = awaited(ProcessRef.cast)
    send = awaited(ProcessRef.send)
