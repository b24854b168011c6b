"""Packets with something wrong somewhere, also deep inside of values: nothing is raised, and what was there goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from actorgrid.actors.replication.packets import decode_message, encode
from actorgrid.actors.replication.types import TYPES, ORMap, ORSet, mutate, new
from tests.hostile.mutations import ODD, ROUNDS, mutated
from tests.replication.gossip_net import NOW_US, Town
from tests.replication.test_anti_entropy import MESSAGES, OTHER

PACKETS = 4_000


def packs(value: Any) -> bool:
    try:
        msgpack.packb(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


ODD_PLAIN = tuple(value for value in ODD if packs(value))


def examples() -> list[Any]:
    """A delta of each type, as plain lists."""
    made: list[Any] = []
    steps: dict[str, Callable[[Any], Any]] = {
        "lww_register": lambda state: mutate(state, OTHER, "put", {"a": [1, None]}, None, NOW_US),
        "mv_register": lambda state: mutate(state, OTHER, "put", "text"),
        "g_counter": lambda state: mutate(state, OTHER, "increment", 3),
        "pn_counter": lambda state: mutate(state, OTHER, "decrement", 3),
        "or_set": lambda state: mutate(state, OTHER, "add", [1, "x"]),
        "or_map": lambda state: mutate(state, OTHER, "put_field", 7, "field", NOW_US),
        "ew_flag": lambda state: mutate(state, OTHER, "enable"),
    }
    assert steps.keys() == TYPES.keys()
    for kind, step in steps.items():
        made.append(msgpack.unpackb(step(new(kind)).to_bytes()))
    nested = ORMap()
    nested.update(OTHER, "tags", ORSet, "add", "x")
    nested.update(OTHER, "inner", ORMap, "increment", "n", 2)
    made.append(msgpack.unpackb(nested.to_bytes()))
    return made


def packet(dice: Random, sequence: int, origin: tuple[str, int] = OTHER) -> bytes:
    """A delta of *origin*, odd inside most times; or another message that is odd."""
    if dice.random() < 0.3:
        plain = msgpack.unpackb(encode(dice.choice(MESSAGES)))
        whole: bytes = msgpack.packb(mutated(plain, dice, ODD_PLAIN))
        return whole
    delta = dice.choice(examples())
    if dice.random() < 0.9:
        delta = mutated(delta, dice, ODD_PLAIN)
    key = dice.choice(["a", "b", "c"])
    pairs = [[key, msgpack.packb(delta)]]
    found: bytes = msgpack.packb([1, 3, [[*origin, sequence, pairs]]])
    return found


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_member_sends_what_was_there_goes_on(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    town = Town(tmp_path, 3, seed)
    town.mutate("host-0", "good", "g_counter", "increment", 5)
    town.settle()
    replica = town.hosts["host-0"].replica
    dice = random.Random(seed)
    taken = 0
    for _ in range(PACKETS * ROUNDS):
        data = packet(dice, replica.gossip.vector.get(OTHER, 0) + 1)
        replica.receive("host-1", data, NOW_US)
        replica.commit()
        taken = replica.gossip.counts["deltas_taken"]
        for key in replica.changed:
            for state in replica.states[key].values():
                msgpack.packb(state.plain)  # what readers and watchers are shown
                assert type(state).from_bytes(state.to_bytes()) == state
        replica.changed.clear()
        if dice.random() < 0.02:
            replica.round()
    refused = sum(replica.gossip.refused.values())
    assert taken > 50 and refused > PACKETS // 2, (taken, replica.gossip.refused)
    assert replica.states["good"]["g_counter"].value == 5
    town.restart("host-0")
    town.settle()
    assert {host.replica.states["good"]["g_counter"].value for host in town.hosts.values()} == {5}
    town.close()


def test_messages_that_are_odd_somewhere_are_refused_by_name() -> None:
    dice = random.Random(1)
    for _ in range(PACKETS * ROUNDS):
        plain = msgpack.unpackb(encode(dice.choice(MESSAGES)))
        try:
            decode_message(msgpack.packb(mutated(plain, dice, ODD_PLAIN)))
        except Exception as error:  # noqa: BLE001 - any other is what is looked for
            assert type(error).__name__ in ("MalformedBody", "NotSupported"), repr(error)
