"""What reaches a new process before its first order waits for it."""

from __future__ import annotations

from typing import Any

from actorgrid.supervisors.actor import ServerActor
from actorgrid.supervisors.wire import HostServer
from actorgrid.transports.unix.thespian import Parcel, address_of


class Recorder:
    """Stands where the runtime does."""

    def __init__(self) -> None:
        self.end = None
        self.heartbeat = self
        self.got: list[bytes] = []

    def handler_ended(self) -> None:
        """The pulse of it."""

    def receive(self, data: bytes, _sender: str) -> None:
        self.got.append(data)


class Newborn(ServerActor):
    """An actor that becomes a recorder."""

    def _become(self, order: HostServer, owner: str) -> None:
        self.runtime = Recorder()  # type: ignore[assignment]


def test_messages_faster_than_the_first_order_are_delivered_after_it_in_order() -> None:
    actor: Any = Newborn()
    peer, owner = address_of("admin.2"), address_of("admin.1")
    actor.receiveMessage(Parcel(b"one"), peer)
    actor.receiveMessage(Parcel(b"two"), peer)
    assert actor.runtime is None
    actor.receiveMessage(HostServer("a", "m:A", None), owner)
    actor.receiveMessage(Parcel(b"three"), peer)
    assert actor.runtime.got == [b"one", b"two", b"three"]
