"""The tree of keys: computed in slices or at once, it is the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from actorgrid.actors.replication.key_tree import DEPTH, KeyTree, key_hash, path_of
from tests.replication.gossip_net import Town


class Counted:
    """States by key, and how often they were asked for."""

    def __init__(self, count: int) -> None:
        self.states = {f"key/{number}": b"%d" % number for number in range(count)}
        self.asked = 0

    def canonical(self, key: str) -> bytes:
        self.asked += 1
        return self.states.get(key, b"")


@pytest.mark.parametrize("slice_digests", [1, 7, 500])
def test_a_tree_in_slices_is_the_tree_made_at_once(slice_digests: int) -> None:
    held = Counted(1500)
    whole, sliced = KeyTree(held.canonical), KeyTree(held.canonical)
    dice = random.Random(slice_digests)
    for _ in range(3):
        changed = dice.sample(sorted(held.states), 700)
        for key in changed[:350]:
            held.states[key] = b""  # gone
        for key in changed[350:]:
            held.states[key] += b"+"
        for tree in (whole, sliced):
            tree.touch(held.states)
        while sliced.waiting:
            held.asked = 0
            sliced.work(slice_digests)
            assert held.asked <= slice_digests, "a slice is bounded, however much waits"
            if dice.random() < 0.1:
                sliced.touch(["key/1"])  # something changes meanwhile
        assert sliced.root() == whole.root()
        for key in changed:
            path = path_of(key_hash(key))
            assert sliced.listing(path) == whole.listing(path)
            for depth in range(DEPTH):
                assert sliced.children(path[:depth]) == whole.children(path[:depth])


def test_while_many_digests_wait_no_walk_begins_and_then_it_does(tmp_path: Path) -> None:
    town = Town(tmp_path, 2, 1)
    town.slices_a_round = 0  # as on a host that comes to nothing but its rounds
    for number in range(300):
        town.mutate("host-0", f"key/{number}", "pn_counter", "increment", 1)
    town.commit("host-0")
    town.restart("host-0")
    replica = town.hosts["host-0"].replica
    replica.gossip.log.forget(next(iter(replica.gossip.vector)))  # only a walk brings it now
    for host in town.hosts.values():
        host.replica.gossip.limits = type(host.replica.gossip.limits)(all_at=0, tree_digests_a_round=20)
    walked_at = None
    for count in range(200):
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
        if walked_at is None and town.hosts["host-1"].replica.gossip.counts["states_taken"]:
            walked_at = count
        if town.converged():
            break
    assert town.converged()
    assert walked_at is not None and walked_at >= 300 // 20 - 1, "it waited for the tree, not the tree for it"
    town.close()
