"""Cores over real sockets of the loopback and the real clock: a join, a death, a restart, strangers' bytes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.instructions import MemberUnreachable, SendPacket, SendState
from actorgrid.actors.membership.packets import FullState, decode_state, encode_state
from actorgrid.actors.membership.records import ALIVE
from actorgrid.actors.membership.seal import DatagramSeal, Keyring

from .members import LAN

# A cluster in a hurry. Whoever is late on a busy machine is forgiven, and suspected members refute.
QUICK = replace(
    LAN, probe_interval_s=0.1, probe_timeout_s=0.05, probe_timeout_min_s=0.02, gossip_interval_s=0.02, stall_s=0.1,
    reconnect_s=0.2,
)  # fmt: skip
SECRET = os.urandom(32)
PATIENCE_S = 120.0


class UdpHost(asyncio.DatagramProtocol):
    """One host: a socket, a timer at the core's deadline; full states go as bytes, but within the process."""

    def __init__(self, cluster: dict[str, UdpHost], name: str, life: int) -> None:
        self.cluster, self.name, self.life = cluster, name, life
        self.loop = asyncio.get_running_loop()
        self.verdicts: list[MemberUnreachable] = []
        self.timer: asyncio.TimerHandle | None = None
        self.seal = DatagramSeal(name, life, Keyring(1, SECRET))
        self.did = asyncio.Event()
        self.transport: asyncio.DatagramTransport
        self.core: MembershipCore

    async def start(self, join: list[str]) -> None:
        self.transport, _ = await self.loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.transport.get_extra_info('sockname')[1]}"
        self.cluster[self.address] = self
        now = self.loop.time()
        self.core = MembershipCore(self.name, self.address, self.life, QUICK, random.Random(self.name), now)
        self.core.join(join, now)
        self.carry_out()

    def stop(self) -> None:
        del self.cluster[self.address]
        assert self.timer is not None
        self.timer.cancel()
        self.transport.abort()

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        packet = self.seal.open(data, self.loop.time())
        self.did.set()
        if packet is not None:
            self.core.receive(packet, f"{addr[0]}:{addr[1]}", self.loop.time())
            self.carry_out()

    def takes(self, data: bytes, source: str) -> None:
        state = decode_state(data)
        assert isinstance(state, FullState)
        if self.address in self.cluster:
            self.core.receive_state(state, source, self.loop.time())
            self.carry_out()

    def wake(self) -> None:
        self.core.wake(self.loop.time())
        self.carry_out()

    def carry_out(self) -> None:
        for each in self.core.instructions:
            if isinstance(each, SendPacket):
                host, _, port = each.to.partition(":")
                self.transport.sendto(self.seal.seal(each.packet), (host, int(port)))
            elif isinstance(each, SendState) and each.to in self.cluster:
                self.loop.call_soon(self.cluster[each.to].takes, encode_state(each.state), self.address)
            elif isinstance(each, MemberUnreachable):
                self.verdicts.append(each)
        self.core.instructions.clear()
        self.did.set()
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_at(self.core.deadline, self.wake)


def agreed(cluster: dict[str, UdpHost]) -> bool:
    lives = {(host.name, host.life) for host in cluster.values()}
    names = {name for name, _ in lives}
    return all(
        {record.name for record in host.core.members() if record.state == ALIVE} == names
        and all(record.incarnation >= other.life << 24 for record in host.core.members() for other in cluster.values()
                if other.name == record.name)
        for host in cluster.values()
    )  # fmt: skip


async def until(cluster: dict[str, UdpHost], condition: Callable[[], bool]) -> None:
    """Look again whenever some host did something; only a hang reaches the deadline."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            did = asyncio.Event()
            for host in cluster.values():
                host.did = did
            await did.wait()


async def a_cluster_lives() -> None:
    cluster: dict[str, UdpHost] = {}
    hosts = [UdpHost(cluster, f"host-{number}", 1) for number in range(6)]
    await hosts[0].start([])
    for host in hosts[1:]:
        await host.start([hosts[0].address])
    await until(cluster, lambda: agreed(cluster))

    stranger, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )
    for size in (0, 1, 40, 1_400, 9_000):
        stranger.sendto(os.urandom(size), ("127.0.0.1", int(hosts[1].address.partition(":")[2])))
    await until(cluster, lambda: sum(hosts[1].seal.refused.values()) >= 4)  # an empty datagram may not be told of
    stranger.close()

    dead = hosts.pop()
    dead.stop()
    await until(cluster, lambda: all(any(each.record.name == dead.name for each in host.verdicts) for host in hosts))
    assert max(len(each.witnesses) for host in hosts for each in host.verdicts if each.record.name == dead.name) >= 2

    again = UdpHost(cluster, dead.name, 2)
    await again.start([hosts[2].address])
    await until(cluster, lambda: agreed(cluster))
    for host in list(cluster.values()):
        host.stop()


def test_a_cluster_lives_over_real_sockets() -> None:
    asyncio.run(a_cluster_lives())
