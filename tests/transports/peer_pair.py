"""Two ends of one link with the test as the wire: bytes move when it says so, and time is what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.link import LinkEvent, LinkUp, PeerLink
from actorgrid.transports.peer.tls import PeerIdentity

Spoil = Callable[[bytes], bytes]


class Pair:
    """``a`` dialled ``b``. ``events`` keeps what each side was told."""

    def __init__(self, a: PeerIdentity, b: PeerIdentity, of_a: PeerLimits | None = None, **of_b: Any) -> None:
        self.now_s = 100.0
        self.a = PeerLink(a, self._admit, self.now_s, dialled=True, expected_host="b", software="1", limits=of_a)
        self.b = PeerLink(b, self._admit, self.now_s, dialled=False, **{"limits": of_a, **of_b})
        self.events: dict[PeerLink, list[LinkEvent]] = {self.a: [], self.b: []}
        self.moved: dict[PeerLink, int] = {self.a: 0, self.b: 0}

    def _admit(self, _host_id: str, _fingerprint: str) -> str | None:
        return None

    def move(self, source: PeerLink, spoil: Spoil | None = None) -> int:
        """Carry what *source* has to send; gives how many bytes it was."""
        to = self.b if source is self.a else self.a
        data = source.bytes_to_send()
        self.moved[source] += len(data)
        self.drain(source)
        if spoil is not None and data:
            data = spoil(data)
        to.receive(data, self.now_s)
        self.drain(to)
        return len(data)

    def drain(self, link: PeerLink) -> None:
        while (event := link.next_event()) is not None:
            self.events[link].append(event)

    def settle(self) -> None:
        """Carry everything, both ways, until nothing moves."""
        while self.move(self.a) + self.move(self.b):
            pass

    def up(self) -> Pair:
        self.settle()
        assert isinstance(self.events[self.a].pop(), LinkUp)
        assert isinstance(self.events[self.b].pop(), LinkUp)
        return self

    def take(self, link: PeerLink) -> list[LinkEvent]:
        """What it was told since the last time."""
        found, self.events[link] = self.events[link], []
        return found

    def tick(self, seconds: float, *links: PeerLink) -> None:
        self.now_s += seconds
        for link in links or (self.a, self.b):
            link.tick(self.now_s)
            self.drain(link)
