"""Two to four hosts that speak to each other, over sockets or through memory: what the conformance tests run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorgrid.errors import ActorGridError, UnknownKey
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import IncomingCall, Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from actorgrid.transports.peer.hosts import PeerHosts
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from tests.transports.peer_certificates import Authority

CLUSTER = "c1"
QUICK = PeerLimits(handshake_s=1.0, ping_s=0.1, idle_s=0.6, tick_s=0.05, backoff_first_s=0.02, backoff_max_s=0.1)


class Host:
    """One host: answers what it is asked, keeps what it is told, echoes streams called "echo"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.net: PeerHosts
        self.asked: list[IncomingCall] = []
        self.told: list[tuple[str, str, bytes]] = []
        self.streams: list[Stream] = []
        self.read: list[bytes] = []
        self.read_end: list[ActorGridError | None] = []
        self.seen: list[tuple[str, bool]] = []
        self.refuses: set[str] = set()
        self.consumes = True

    def on_call(self, call: IncomingCall) -> None:
        self.asked.append(call)
        if call.target == "echo":
            call.reply(call.body)
        elif call.target == "refuse":
            raise UnknownKey("no such key", asked=call.body.decode(), size=3)

    def on_cast(self, host_id: str, target: str, body: bytes) -> None:
        self.told.append((host_id, target, body))

    def on_stream(self, stream: Stream) -> None:
        if stream.target == "refuse":
            raise UnknownKey("no such stream")
        self.streams.append(stream)
        stream.attach(lambda data: self._take(stream, data), self.read_end.append)

    def _take(self, stream: Stream, data: bytes) -> None:
        self.read.append(data)
        if self.consumes:
            stream.consumed(len(data))

    def on_peer(self, host_id: str, up: bool) -> None:
        self.seen.append((host_id, up))

    def admit(self, host_id: str, _fingerprint: str) -> str | None:
        return "it was removed" if host_id in self.refuses else None


class Writer:
    """Writes *data* to a stream as it takes it, then ends it; keeps what comes back."""

    def __init__(self, stream: Stream, data: bytes) -> None:
        self.stream = stream
        self.left = memoryview(data)
        self.read = bytearray()
        self.ends: list[ActorGridError | None] = []
        stream.attach(self._take, self.ends.append, self.write)
        self.write()

    def write(self) -> None:
        while self.left:
            taken = self.stream.write(self.left)
            if taken == 0:
                return
            self.left = self.left[taken:]
        self.stream.end()

    def _take(self, data: bytes) -> None:
        self.read += data
        self.stream.consumed(len(data))


class World:
    """Hosts on one clock. ``cut`` stops all that goes between two of them, until ``mend``."""

    def __init__(self, loop: InlineNode, limits: PeerLimits) -> None:
        self.loop = loop
        self.limits = limits
        self.hosts: dict[str, Host] = {}

    def add(self, name: str) -> Host:
        raise NotImplementedError

    def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        self.loop.run_until(lambda: bool(condition()), timeout_s)

    def ask(self, source: str, to: str, target: str, body: bytes, timeout_s: float = 60.0) -> bytes:
        answer = self.hosts[source].net.call(to, target, body, timeout_s)
        self.until(lambda: answer.done)
        return answer.result()

    def kill(self, name: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for host in self.hosts.values():
            host.net.close()


class SocketWorld(World):
    """Over sockets on loopback, with mutual TLS, on the real clock."""

    def __init__(self, folder: Path, limits: PeerLimits = QUICK) -> None:
        super().__init__(InlineNode(real_time=True), limits)
        self.folder = folder
        self.authority = Authority()
        self.ports: dict[str, int] = {}

    def add(self, name: str) -> Host:
        host = self.hosts[name] = Host(name)
        identity = self.authority.identity(self.folder, CLUSTER, name)
        net = host.net = PeerNet(
            self.loop,
            identity,
            ("127.0.0.1", self.ports.get(name, 0)),
            resolve=lambda other: [("127.0.0.1", self.ports[other])] if other in self.ports else [],
            admit=host.admit,
            on_call=host.on_call,
            on_cast=host.on_cast,
            on_stream=host.on_stream,
            on_peer=host.on_peer,
            software=f"test {name}",
            limits=self.limits,
        )
        self.ports[name] = net.port
        return host

    def kill(self, name: str) -> None:
        self.hosts.pop(name).net.close()


class MemoryWorld(World):
    """Through memory, on a clock of its own."""

    def __init__(self, limits: PeerLimits = QUICK, seed: int = 1) -> None:
        super().__init__(InlineNode(), limits)
        self.network = FaultyNetwork(self.loop, seed, limits=limits)

    def add(self, name: str) -> Host:
        host = self.hosts[name] = Host(name)
        host.net = FaultyNet(
            self.network,
            name,
            on_call=host.on_call,
            on_cast=host.on_cast,
            on_stream=host.on_stream,
            admit=host.admit,
            on_peer=host.on_peer,
        )
        return host

    def kill(self, name: str) -> None:
        del self.hosts[name]
        self.network.crash(name)
