"""The bridge between the gateway's threads: events in order, and a gap where some are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from actorgrid.actors.gateway.server import bridge as bridge_module
from actorgrid.actors.gateway.server.bridge import Bridge
from actorgrid.actors.host.context import HostContext
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server


class Loop:
    """An event loop's queue of calls."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Listener:
    """Notes what it hears; ``meanwhile`` is what the other thread does while an event is delivered."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.meanwhile: dict[Any, Callable[[], None]] = {}

    def receive(self, event: Any) -> None:
        self.heard.append(event)
        self.meanwhile.pop(event, lambda: None)()

    def events_dropped(self) -> None:
        self.heard.append("gap")


class Idle(Server):
    """A server that only is there."""

    name = "idle"


@pytest.fixture
def bridge(host: HostContext) -> Iterator[Bridge]:
    node = InlineNode(real_time=True)
    made = Bridge(node.add(Idle, host))
    yield made
    made.close()
    node._selector.close()


def test_a_gap_is_told_where_the_events_are_missing(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "MAX_TOLD", 3)
    loop, listener = Loop(), Listener()
    bridge.open(cast(Any, loop), listener)
    for event in range(1, 6):
        bridge.tell(event)
    listener.meanwhile[2] = lambda: bridge.tell(6)
    loop.turn()
    assert listener.heard == [1, 2, 3, "gap", 6]
    bridge.tell(7)
    loop.turn()
    assert listener.heard[5:] == [7]


def test_each_gap_is_told_once(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "MAX_TOLD", 2)
    loop, listener = Loop(), Listener()
    bridge.open(cast(Any, loop), listener)
    for _ in range(2):
        for event in range(4):
            bridge.tell(event)
        loop.turn()
    assert listener.heard == [0, 1, "gap", 0, 1, "gap"]
