"""Hosts with RDMA between them in one process: the stub of the verbs, and links through memory as their TLS."""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.rdma.limits import RdmaLimits
from actorgrid.transports.rdma.net import TARGET
from tests.transports.rdma.messages import RdmaMessages

LINKS = PeerLimits(ping_s=0.3, idle_s=1.0, tick_s=0.1, backoff_first_s=0.02, backoff_max_s=0.1)
QUICK = RdmaLimits(again_first_s=0.05, again_max_s=0.2, resume_s=3.0)


class MessageHost:
    """One host: its links, and its RDMA for messages."""

    def __init__(self, world: MessageWorld, name: str, limits: RdmaLimits) -> None:
        self.name = name
        self.got: list[bytes] = []
        self.ended: list[ActorGridError] = []
        self.takes = True
        self.links = FaultyNet(
            world.network, name, on_call=lambda _call: None, on_cast=lambda *_cast: None, on_stream=self._stream
        )
        self.rdma = RdmaMessages(world.loop, name, self.links.open_stream, limits=limits)
        self._watched: set[str] = set()

    def _stream(self, stream: Stream) -> None:
        assert stream.target == TARGET
        self.rdma.take(stream)
        self.watch(stream.host_id)

    def watch(self, other: str) -> None:
        """Keep what comes from *other*."""
        path = self.rdma.peer(other)
        if path is not None and other not in self._watched:
            self._watched.add(other)
            path.on_message, path.on_end = self.take, self.ended.append

    def take(self) -> None:
        """Take what came."""
        for other in self._watched if self.takes else ():
            path = self.rdma.peer(other)
            while path is not None and not path.ended and (message := path.take()) is not None:
                self.got.append(message)


class MessageWorld:
    """Hosts on the real clock; ``until`` makes things happen."""

    def __init__(self, limits: RdmaLimits = QUICK) -> None:
        self.loop = InlineNode(real_time=True)
        self.network = FaultyNetwork(self.loop, 1, limits=LINKS)
        self.limits = limits
        self.hosts: dict[str, MessageHost] = {}

    def add(self, name: str, limits: RdmaLimits | None = None) -> MessageHost:
        """One more host."""
        host = self.hosts[name] = MessageHost(self, name, limits or self.limits)
        return host

    def pair(self, limits: RdmaLimits | None = None) -> tuple[MessageHost, MessageHost]:
        """Two hosts whose pair is up, with a first message each way."""
        a, b = self.add("a", limits), self.add("b", limits)
        a.rdma.want("b")
        a.watch("b")
        self.until(lambda: self.carrier(a) == self.carrier(b) == "rdma")
        return a, b

    def carrier(self, host: MessageHost) -> str:
        """What carries the messages of a host to the other."""
        paths = host.rdma.status()[1]
        return paths[0].carrier if paths else "none"

    def send(self, host: MessageHost, *messages: bytes) -> None:
        """Send messages to the other host, as it takes them."""
        path = next(found for other in self.hosts if (found := host.rdma.peer(other)) is not None)
        for message in messages:
            if not path.send(message):
                self.until(lambda: path.path.has_room)
                assert path.send(message)

    def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Run until *condition* holds."""
        self.loop.run_until(lambda: bool(condition()), timeout_s)

    def close(self) -> None:
        """End all hosts."""
        for host in self.hosts.values():
            host.rdma.close()
            host.links.close()
