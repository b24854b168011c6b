"""Links between hosts over loopback with mutual TLS 1.3: two processes, one of which answers and reads.

``InlineNode`` is the loop on both sides; a server's loop under the agent has a few microseconds more a turn.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import IncomingCall, Stream
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity
from tests.transports.peer_certificates import Authority

from .figures import Figure, latency, registry

CALLS = 3_000
IN_FLIGHT = 64
PIPELINED = 20_000
STREAM_BYTES = 256 * 2**20
LINKS = 60
STRANGERS = 300
LIMITS = PeerLimits(connects_per_s=1e6, connects_burst=10**6, half_open_per_address_max=10**6)


@registry.add("peer_links")
def peer_links(runs: int) -> Iterator[Figure]:
    """Round trips alone, in flight and beside a stream; a stream; new links; strangers turned away."""
    trips: list[list[float]] = []
    busy_trips: list[list[float]] = []
    links: list[list[float]] = []
    rates, speeds, packed, costs = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority()
        identities = [authority.identity(Path(folder), "bench", name) for name in ("here", "there")]
        for _ in range(runs):
            with far_side(identities[1]) as (port, far_cpu_s):
                loop = InlineNode(real_time=True)
                net = make_net(loop, identities[0], port)
                trips.append(round_trips(loop, net, CALLS))
                rates.append(pipelined(loop, net))
                speeds.append(stream(loop, net, os.urandom(2**20), compress=False))
                packed.append(stream(loop, net, b"2026-01-01 step 17 loss 0.25\n" * 2**15, compress=True))
                busy_trips.append(trips_beside_a_stream(loop, net))
                net.close()
                links.append([link_time(loop, identities[0], port) for _ in range(LINKS)])
                before_s = far_cpu_s()
                for _ in range(STRANGERS):
                    with socket.create_connection(("127.0.0.1", port)) as stranger:
                        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                        stranger.recv(1)
                costs.append(1e6 * (far_cpu_s() - before_s) / STRANGERS)
    yield latency("call and answer, 64 bytes, mutual TLS", trips, "µs", 1e6)
    yield latency("the same beside a stream at full speed", busy_trips, "µs", 1e6)
    yield Figure(f"calls, {IN_FLIGHT} in flight", "calls/s", rates, True)
    yield Figure("stream, bytes that cannot be compressed", "MB/s", speeds, True)
    yield Figure("stream of log lines, compressed", "MB/s", packed, True, note="of what was written")
    yield latency("new link: TCP, TLS, Hello, first call", links, "ms", 1e3)
    yield Figure("a stranger in plain text, refused", "µs CPU", costs, False, note="of the refusing process")


def make_net(loop: InlineNode, identity: PeerIdentity, port: int | None) -> PeerNet:
    def on_stream(stream: Stream) -> None:
        stream.attach(lambda data: stream.consumed(len(data)), lambda _error: stream.end())

    def on_call(call: IncomingCall) -> None:
        call.reply(call.body)

    return PeerNet(
        loop,
        identity,
        ("127.0.0.1", 0) if port is None else None,
        resolve=lambda _host: [("127.0.0.1", port or 0)],
        admit=lambda _host, _fingerprint: None,
        on_call=on_call,
        on_cast=lambda *_: None,
        on_stream=on_stream,
        limits=LIMITS,
    )


def serve(identity: PeerIdentity, control: Connection) -> None:
    """The other process: answers until its end of *control* is closed; each byte asks for its CPU time."""
    loop = InlineNode(real_time=True)
    net = make_net(loop, identity, None)
    control.send(net.port)
    over: list[bool] = []

    def asked() -> None:
        try:
            control.recv()
            control.send(time.process_time())
        except EOFError:
            over.append(True)

    loop.watch(control.fileno(), asked)
    loop.run_until(lambda: bool(over), timeout_s=3600)
    net.close()


@contextmanager
def far_side(identity: PeerIdentity) -> Iterator[tuple[int, Callable[[], float]]]:
    """Its port, and how much CPU time it has used."""
    forking = multiprocessing.get_context("fork")  # TLS contexts cannot be pickled
    ours, theirs = forking.Pipe()
    process = forking.Process(target=_serve_forked, args=(identity, ours, theirs), daemon=True)
    process.start()
    theirs.close()

    def cpu_s() -> float:
        ours.send(None)
        return float(ours.recv())

    try:
        yield ours.recv(), cpu_s
    finally:
        ours.close()
        process.join()


def _serve_forked(identity: PeerIdentity, ours: Connection, theirs: Connection) -> None:
    ours.close()
    serve(identity, theirs)


def ask(loop: InlineNode, net: PeerNet) -> float:
    started = time.perf_counter()
    answer = net.call("there", "echo", b"x" * 64, 10.0)
    while not answer.done:
        loop.step(0.05)
    answer.result()
    return time.perf_counter() - started


def round_trips(loop: InlineNode, net: PeerNet, count: int) -> list[float]:
    for _ in range(100):
        ask(loop, net)
    return [ask(loop, net) for _ in range(count)]


def pipelined(loop: InlineNode, net: PeerNet) -> float:
    """Calls a second with ``IN_FLIGHT`` under way."""
    begun = ended = 0

    def begin() -> None:
        nonlocal begun
        if begun < PIPELINED:
            begun += 1
            net.call("there", "echo", b"x" * 64, 30.0).on_done(done)

    def done() -> None:
        nonlocal ended
        ended += 1
        begin()

    started = time.perf_counter()
    for _ in range(IN_FLIGHT):
        begin()
    loop.run_until(lambda: ended == PIPELINED, 300.0)
    return PIPELINED / (time.perf_counter() - started)


class Writer:
    """Writes *piece* again and again until *total* bytes are read at the other side."""

    def __init__(self, net: PeerNet, piece: bytes, total: int, compress: bool) -> None:
        self.left = total
        self.over: list[ActorGridError | None] = []
        self._piece = memoryview(piece)
        self._at = 0
        self._stream = net.open_stream("there", "bulk", b"", compress)
        self._stream.attach(lambda _data: None, self.over.append, self.write)

    def write(self) -> None:
        while self.left > 0:
            wanted = self._piece[self._at : self._at + self.left]
            taken = self._stream.write(wanted)
            self.left -= taken
            self._at = (self._at + taken) % len(self._piece)
            if taken < len(wanted):
                return
        self._stream.end()


def stream(loop: InlineNode, net: PeerNet, piece: bytes, compress: bool) -> float:
    """Megabytes (10^6) a second, from the first byte to the reader's end of its own side."""
    started = time.perf_counter()
    writer = Writer(net, piece, STREAM_BYTES, compress)
    loop.run_until(lambda: bool(writer.over), 300.0)
    return STREAM_BYTES / (time.perf_counter() - started) / 1e6


def trips_beside_a_stream(loop: InlineNode, net: PeerNet) -> list[float]:
    writer = Writer(net, os.urandom(2**20), 2**62, compress=False)
    loop.run_until(lambda: writer.left < 2**62 - 2**20, 60.0)
    found = [ask(loop, net) for _ in range(500)]
    writer.left = 0
    loop.run_until(lambda: bool(writer.over), 60.0)
    return found


def link_time(loop: InlineNode, identity: PeerIdentity, port: int) -> float:
    net = make_net(loop, identity, port)
    found = ask(loop, net)
    net.close()
    return found
