"""Hosts that were away, came back with less than they had, or with another time of day: all come to hold the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.actors.replication.types import LWWRegister
from tests.replication.gossip_net import KEPT, LOST, OPERATIONS, TRUNCATED, Town

HOUR_US = 3600 * 10**6
WEEK_US = 7 * 24 * HOUR_US


def busy(town: Town, names: list[str], steps: int) -> None:
    for step in range(steps):
        name = town.dice.choice(names)
        town.mutate(name, *town.dice.choice(OPERATIONS), town.dice.randrange(1, 6))
        if step % 5 == 0:
            town.commit(name)
            town.push(name)
        if step % 40 == 0:
            town.round(name)
        while town.deliver():
            pass
    for name in names:
        town.commit(name)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("disk", [KEPT, LOST, TRUNCATED])
def test_a_host_that_was_away_for_a_week_comes_to_hold_what_the_others_hold(
    disk: str, seed: int, tmp_path: Path
) -> None:
    town = Town(tmp_path, 4, seed, GossipLimits(all_at=0, log_bytes=4096))  # a week's deltas are in no log
    busy(town, town.names, 60)
    town.sides = {"host-3": 1}
    town.mutate("host-3", "hits", "pn_counter", "increment", 5)  # alone, and acknowledged to its caller
    town.mutate("host-3", "tags", "or_set", "add", 9)
    town.commit("host-3")
    if disk != KEPT:
        town.restart("host-3", disk)
        town.mutate("host-3", "hits", "pn_counter", "increment", 2)
        town.commit("host-3")
    town.now_us += WEEK_US
    for number in range(3):
        busy(town, town.names[:3], 80)
        town.restart(town.names[number])
    town.settle()
    town.check_acknowledgements()
    town.check_vectors()
    town.check_end()
    assert sum(host.replica.gossip.counts["walks_ended"] for host in town.hosts.values()), "the log had it all"
    town.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_goes_back_an_hour_loses_no_write(seed: int, tmp_path: Path) -> None:
    town = Town(tmp_path, 3, seed)
    town.mutate("host-0", "name", "lww_register", "put", "before")
    town.settle()
    town.clock_steps_us["host-1"] = -HOUR_US
    town.mutate("host-1", "name", "lww_register", "put", "after")  # an hour behind, and later than what it has seen
    town.commit("host-1")
    town.push("host-1")
    while town.deliver():
        pass
    for name in ("host-0", "host-2"):
        assert town.hosts[name].replica.states["name"]["lww_register"].value == "after"
        assert not town.hosts[name].replica.gossip.refused["future"]
    busy(town, town.names, 60)
    # To it, all others are an hour ahead: it takes in what has no date, and the rest when its clock is right.
    assert town.hosts["host-1"].replica.gossip.refused["future"]
    town.clock_steps_us["host-1"] = 0
    town.settle()
    town.check_end()
    town.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_an_hour_ahead_waits_at_the_door_and_moves_no_other(seed: int, tmp_path: Path) -> None:
    town = Town(tmp_path, 3, seed)
    busy(town, town.names, 40)
    town.settle()
    town.clock_steps_us["host-1"] = HOUR_US
    town.mutate("host-1", "name", "lww_register", "put", "from the future")
    town.mutate("host-1", "hits", "pn_counter", "increment", 3)
    town.commit("host-1")
    for _ in range(6):
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
    for name in ("host-0", "host-2"):
        replica = town.hosts[name].replica
        assert replica.gossip.refused["future"], "it was offered"
        for kinds in replica.states.values():
            for state in kinds.values():
                if isinstance(state, LWWRegister) and state.stamp is not None:
                    assert state.stamp[0] <= town.clock(name) + 60 * 10**6, "no clock is drawn along"
    town.mutate("host-0", "name", "lww_register", "put", "now")
    town.commit("host-0")
    town.clock_steps_us["host-1"] = 0  # set right
    town.now_us += HOUR_US  # and the time comes that it had told
    town.settle()
    assert {host.replica.states["name"]["lww_register"].value for host in town.hosts.values()} == {"from the future"}
    town.mutate("host-2", "name", "lww_register", "put", "later")
    town.settle()
    assert {host.replica.states["name"]["lww_register"].value for host in town.hosts.values()} == {"later"}
    town.check_end()
    town.close()
