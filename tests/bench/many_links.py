"""One host linked to many, as a leader is: two processes over loopback, mutual TLS, one with all the other hosts.

What it costs the one: to be linked to all, memory a link, time at rest, and a message to each with an answer.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity
from tests.transports.peer_certificates import Authority

from .figures import Figure, registry

HOSTS = 1_000
ROUNDS = 10
REST_S = 5.0
BODY = b"x" * 60
"""A heartbeat of Raft."""
LIMITS = PeerLimits(connects_per_s=1e6, connects_burst=10**6, half_open_per_address_max=10**6)
"""Only because all hosts have one address here."""


class One:
    """The host that is measured, in this process. ``hosts`` are the others, by their ports."""

    def __init__(self, identity: PeerIdentity, hosts: dict[str, int]) -> None:
        self.loop = InlineNode(real_time=True)
        self.hosts = hosts
        self.heard = 0
        self.net = _net(self.loop, identity, hosts, self._hear, listens=False)

    def _hear(self, _source: str, _target: str, _body: bytes) -> None:
        self.heard += 1

    def link(self) -> None:
        """Until all are linked."""
        self.net.keep(self.hosts)
        self.loop.run_until(lambda: all(map(self.net.reachable, self.hosts)), 300.0)

    def rest(self) -> float:
        """CPU seconds a second."""
        began, end = time.process_time(), time.monotonic() + REST_S
        self.loop.run_until(lambda: time.monotonic() >= end, 2 * REST_S)
        return (time.process_time() - began) / REST_S

    def rounds(self) -> float:
        """CPU seconds of a message to a host and its answer."""
        began, self.heard = time.process_time(), 0
        for number in range(1, ROUNDS + 1):
            for host in self.hosts:
                self.net.cast(host, "raft", BODY)
            self.loop.run_until(lambda number=number: self.heard == number * len(self.hosts), 60.0)  # type: ignore[misc]
        return (time.process_time() - began) / ROUNDS / len(self.hosts)


@registry.add("many_links")
def many_links(runs: int) -> Iterator[Figure]:
    """Links to 1,000 hosts."""
    took, cpu, memory, rest, pairs = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority()
        here = authority.identity(Path(folder), "bench", "here")
        there = [authority.identity(Path(folder), "bench", f"h{number}") for number in range(HOSTS)]
        for _ in range(runs):
            with _others(there) as ports:
                gc.collect()
                before, began, wall = _memory_bytes(), time.process_time(), time.perf_counter()
                one = One(here, ports)
                one.link()
                took.append(time.perf_counter() - wall)
                cpu.append(1e3 * (time.process_time() - began) / HOSTS)
                pairs.append(1e6 * one.rounds())
                gc.collect()
                memory.append((_memory_bytes() - before) / 1e3 / HOSTS)
                rest.append(1e6 * one.rest() / HOSTS)
                one.net.close()
    note = f"{HOSTS:,} hosts; CPU of the one"
    yield Figure(f"{HOSTS:,} hosts linked", "s", took, False, note="both sides on one machine")
    yield Figure("a link made", "ms CPU", cpu, False, note=note)
    yield Figure("a link's memory", "kB", memory, False, note=note)
    yield Figure("a link at rest, a second", "µs CPU", rest, False, note=note)
    yield Figure("a message and its answer", "µs CPU", pairs, False, note=note)


def _net(loop: InlineNode, identity: PeerIdentity, hosts: dict[str, int], on_cast: object, listens: bool) -> PeerNet:
    return PeerNet(
        loop,
        identity,
        ("127.0.0.1", 0) if listens else None,
        resolve=lambda host: [("127.0.0.1", hosts[host])],
        admit=lambda _host, _fingerprint: None,
        on_call=_refuse,
        on_cast=on_cast,  # type: ignore[arg-type]
        on_stream=_refuse,
        limits=LIMITS,
    )


def _refuse(what: object) -> None:
    raise AssertionError(f"nobody calls or opens streams here: {what}")


def _serve(identities: list[PeerIdentity], ours: Connection, theirs: Connection) -> None:
    """The other process: says back what it hears, until its end of the pipe is closed."""
    ours.close()
    loop = InlineNode(real_time=True)
    nets: list[PeerNet] = []

    def add(identity: PeerIdentity) -> None:
        net = _net(loop, identity, {}, lambda source, target, body: net.cast(source, target, body), listens=True)
        nets.append(net)

    for identity in identities:
        add(identity)
    theirs.send({net.host_id: net.port for net in nets})
    over: list[bool] = []
    loop.watch(theirs.fileno(), lambda: over.append(True))
    loop.run_until(lambda: bool(over), timeout_s=3600)
    for net in nets:
        net.close()


@contextmanager
def _others(identities: list[PeerIdentity]) -> Iterator[dict[str, int]]:
    """Their ports by host."""
    forking = multiprocessing.get_context("fork")  # TLS contexts cannot be pickled
    ours, theirs = forking.Pipe()
    process = forking.Process(target=_serve, args=(identities, ours, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def _memory_bytes() -> int:
    return int(psutil.Process().memory_full_info().uss)
