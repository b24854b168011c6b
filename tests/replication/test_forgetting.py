"""Who has to have heard of an end before it is forgotten is asked, where hosts are too many to speak by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.replication.changes import ChangeLog
from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.actors.replication.forgetting import ASKED_AT_ONCE, Forgetting
from actorgrid.actors.replication.lifetimes import with_end
from actorgrid.actors.replication.types import mutate, new
from actorgrid.actors.replication.view import StateView
from tests.replication.gossip_net import NOW_US, Town

SPARSE = GossipLimits(all_at=2, trees=1, tree_fan_out=2, rings=1, chance_rounds=2**16)
LATER_US = NOW_US + 3_600_000_000


@pytest.fixture
def town(tmp_path: Path, no_waiting_for_the_disk: None) -> Iterator[Town]:
    """Twelve hosts with few neighbours each, and a register on the first that ended an hour ago."""
    made = Town(tmp_path, 12, 1, SPARSE)
    replica = made.hosts["host-0"].replica
    state = replica.states.setdefault("short", {}).setdefault("lww_register", new("lww_register"))
    delta = mutate(state, replica.me, "put", with_end("x", NOW_US + 1), None, NOW_US).to_bytes()
    replica.store.reserve(len(delta) + 4096)
    replica.stage_local("short", delta)
    made.commit("host-0")
    yield made
    made.close()


def rounds(town: Town, count: int) -> None:
    for _ in range(count):
        for name in town.names:
            town.round(name)
            town.push(name)
        while town.deliver():
            pass


def test_what_ended_is_forgotten_when_all_that_were_asked_hold_it(town: Town) -> None:
    replica, forgetting = town.hosts["host-0"].replica, Forgetting()
    view = StateView(replica.states, ChangeLog("log"), LATER_US)
    rounds(town, 5)
    assert all("short" in host.replica.states for host in town.hosts.values())
    for _ in range(10):
        rounds(town, 3)
        assert forgetting.look(replica, view, LATER_US) == 0, "most of them have not said that they have it"
    asked: list[str] = []
    for _ in range(4):
        names = forgetting.to_ask(replica)
        assert len(names) <= ASKED_AT_ONCE
        asked += names
        for send in replica.ask(names):
            town.wire.append(("host-0", send.peer, send.packet))
        rounds(town, 1)
        forgotten = forgetting.look(replica, view, LATER_US)
        if forgotten:
            break
    assert forgotten == 1 and "short" not in replica.states
    assert set(asked) >= set(town.names) - set(replica.gossip.choice.neighbours) - {"host-0"}
    assert forgetting.to_ask(replica) == []


def test_a_member_that_says_nothing_holds_it_up(town: Town) -> None:
    replica, forgetting = town.hosts["host-0"].replica, Forgetting()
    view = StateView(replica.states, ChangeLog("log"), LATER_US)
    town.sides = {"host-7": 1}
    for _ in range(8):
        rounds(town, 1)
        assert forgetting.look(replica, view, LATER_US) == 0
        for send in replica.ask(forgetting.to_ask(replica)):
            town.wire.append(("host-0", send.peer, send.packet))
    assert forgetting.to_ask(replica) == ["host-7"]
    town.sides = {}
    rounds(town, 1)
    for send in replica.ask(forgetting.to_ask(replica)):
        town.wire.append(("host-0", send.peer, send.packet))
    rounds(town, 3)
    assert forgetting.look(replica, view, LATER_US) == 1
