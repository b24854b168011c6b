"""Batches of deltas: one contract for the compiled kernel and its twin, which asks the types themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.actors.replication.types import TYPES, CausalContext, ORMap, ORSet, decode, decode_foreign, mutate, new
from actorgrid.errors import MalformedBody
from actorgrid.hotpath.reference.delta_merge import DeltaMerge as Reference
from actorgrid.hotpath.reference.delta_merge import checked_pairs as reference_pairs
from tests.hostile.mutations import ODD, ROUNDS, mutated

KINDS: dict[str, Any] = {"reference": Reference}
PAIRS: dict[str, Any] = {"reference": reference_pairs}
if actorgrid.hotpath.COMPILED:
    KINDS["compiled"] = actorgrid.hotpath.DeltaMerge
    PAIRS["compiled"] = actorgrid.hotpath.checked_pairs
REPLICAS = [("host-a", 1), ("host-a", 2**61), ("host-b", 3), ("höst-c", 7)]
VALUES: list[Any] = [
    None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1, -1, -32, -33, -128,
    -129, -(2**31), -(2**63), 0.0, -0.0, 1.5, 1e300, "", "a" * 31, "a" * 32, "a" * 255, "a" * 256, "é", "a" * 70_000,
    b"", b"x" * 255, b"x" * 256, b"x" * 70_000, [1, [2, "x"]],
]  # fmt: skip
STEPS: dict[str, Callable[[Any, Random, Any], Any]] = {
    "lww_register": lambda state, dice, me: state.put(me, dice.choice(VALUES), dice.randrange(2**40)),
    "mv_register": lambda state, dice, me: state.put(me, dice.choice(VALUES)),
    "g_counter": lambda state, dice, me: state.increment(me, dice.choice([1, 200, 2**33])),
    "pn_counter": lambda state, dice, me: mutate(
        state, me, dice.choice(["increment", "decrement"]), dice.choice([1, 9, 2**33])
    ),
    "or_set": lambda state, dice, me: mutate(state, me, dice.choice(["add", "add", "remove"]), dice.choice(VALUES)),
    "or_map": lambda state, dice, me: _map_step(state, dice, me),
    "ew_flag": lambda state, dice, me: mutate(state, me, dice.choice(["enable", "enable", "disable"])),
}


def _map_step(state: ORMap, dice: Random, me: Any) -> ORMap:
    chance = dice.randrange(6)
    if chance == 0:
        return state.remove(me, dice.choice(["f", "g", "n", "tags", "ü"]))
    if chance == 1:
        return state.increment(me, "n", dice.choice([1, 300]))
    if chance == 2:
        return state.update(me, "tags", ORSet, "add", dice.randrange(3))
    return state.put(me, dice.choice(["f", "g", "ü"]), dice.choice(VALUES), dice.randrange(2**40))


def history(kind: str, dice: Random, steps: int) -> list[tuple[str, bytes]]:
    """Deltas and states of several replicas that hear of each other now and then; some lost, doubled, out of order."""
    states = [new(kind) for _ in REPLICAS]
    pairs: list[tuple[str, bytes]] = []
    for _ in range(steps):
        who = dice.randrange(len(REPLICAS))
        pairs.append(("k", STEPS[kind](states[who], dice, REPLICAS[who]).to_bytes()))
        if dice.random() < 0.3:
            other = dice.randrange(len(REPLICAS))
            states[other].join(decode(states[who].to_bytes()))
            pairs.append(("k", states[other].to_bytes()))
    for _ in range(steps // 4):
        place = dice.randrange(len(pairs))
        pairs.insert(dice.randrange(len(pairs)), pairs.pop(place) if dice.random() < 0.7 else pairs[place])
    return pairs[: -max(1, steps // 10)]


@pytest.fixture(params=sorted(KINDS))
def merge_kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


@pytest.fixture(params=sorted(PAIRS))
def pairs_of(request: pytest.FixtureRequest) -> Any:
    return PAIRS[request.param]


def merge(kind: Any, general: Callable[[bytes], Any] = decode_foreign) -> Any:
    return kind(TYPES, CausalContext, general)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_come_to_what_the_types_say(kind: str, seed: int, merge_kind: Any) -> None:
    dice = random.Random(f"{kind} {seed}")
    made = merge(merge_kind)
    for _ in range(12):
        pairs = history(kind, dice, 40)
        states: dict[str, Any] = {}
        oracle = new(kind)
        at = 0
        while at < len(pairs):
            run = pairs[at : at + dice.randrange(1, 9)]
            at += len(run)
            deltas = made.decode(run, 0)
            assert [delta.to_bytes() for delta in deltas] == [data for _, data in run]
            for delta, (_, data) in zip(deltas, run, strict=True):
                assert delta == decode(data) and type(delta) is TYPES[kind]
                assert delta.plain == decode(data).plain
                oracle.join(decode(data))
            # Read anew: what was looked at has parts, and is joined otherwise than what was only read.
            made.join(states, [key for key, _ in run], deltas if dice.random() < 0.3 else made.decode(run, 0))
            found = states["k"][kind]
            if at < len(pairs) and dice.random() < 0.5:
                continue
            assert found == oracle
            assert found.to_bytes() == oracle.to_bytes()
        assert found.plain == oracle.plain
        if hasattr(found, "_index"):
            assert {
                head: {rest: set(dots) for rest, dots in rests.items()} for head, rests in found._index.items()
            } == {head: {rest: set(dots) for rest, dots in rests.items()} for head, rests in oracle._index.items()}


def test_what_was_read_shares_nothing_that_changes_with_the_states(merge_kind: Any) -> None:
    made = merge(merge_kind)
    for kind, step in STEPS.items():
        dice = random.Random(kind)
        state = new(kind)
        pairs = [("k", step(state, dice, REPLICAS[0]).to_bytes()) for _ in range(30)]
        deltas = made.decode(pairs, 0)
        states: dict[str, Any] = {"k": {kind: new(kind)}}
        made.join(states, ["k"] * len(pairs), deltas)
        made.join(states, ["k"] * len(pairs), deltas)
        assert [delta.to_bytes() for delta in deltas] == [data for _, data in pairs]
        assert states["k"][kind] == state


@pytest.mark.parametrize("part", ["_entries", "_index", "_context"])
def test_a_delta_that_was_read_has_its_parts_whichever_is_asked_for_first(part: str, merge_kind: Any) -> None:
    made = merge(merge_kind)
    for kind in ("or_set", "or_map", "mv_register", "ew_flag"):
        for _key, data in history(kind, random.Random(kind), 30):
            [delta], twin = made.decode([("k", data)], 0), decode(data)
            assert getattr(delta, part) == getattr(twin, part)
            assert delta == twin and delta.copy() == twin and delta.value == twin.value
    [delta] = made.decode([("k", mutate(new("or_set"), REPLICAS[0], "add", 1).to_bytes())], 0)
    delta.add(REPLICAS[1], 2)
    delta.remove(REPLICAS[1], 1)
    assert delta.plain == [2] and delta.context.size == 2


def test_of_deltas_the_first_with_a_later_write_is_found(merge_kind: Any) -> None:
    made, twin = merge(merge_kind), merge(Reference)
    for seed in range(40):
        dice = random.Random(seed)
        pairs = [pair for kind in TYPES for pair in history(kind, dice, 8)]
        dice.shuffle(pairs)
        bound_us = dice.choice([0, 2**39, 2**40 - 2**37, 2**40])
        expected = twin.first_later(twin.decode(pairs, 0), bound_us)
        assert made.first_later(made.decode(pairs, 0), bound_us) == expected
        looked_at = made.decode(pairs, 0)
        assert [one.to_bytes() for one in looked_at] == [data for _, data in pairs]
        assert made.first_later(looked_at, bound_us) == expected


def test_one_key_may_become_several_types(merge_kind: Any) -> None:
    made = merge(merge_kind)
    pairs = [("k", mutate(new("g_counter"), REPLICAS[0], "increment", 2).to_bytes())]
    pairs += [("k", mutate(new("or_set"), REPLICAS[0], "add", 2).to_bytes()), ("l", pairs[0][1])]
    states: dict[str, Any] = {}
    made.join(states, [key for key, _ in pairs], made.decode(pairs, 0))
    assert {key: sorted(kinds) for key, kinds in states.items()} == {"k": ["g_counter", "or_set"], "l": ["g_counter"]}
    assert [one.plain for one in made.decode(pairs, 2)] == [2]


def test_who_joins_less_deltas_than_keys_is_told(merge_kind: Any) -> None:
    with pytest.raises(ValueError):
        merge(merge_kind).join({}, ["k", "l"], [new("or_set")])


def packs(value: Any) -> bool:
    try:
        msgpack.packb(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


ODD_PLAIN = tuple(value for value in ODD if packs(value))


def outcome(made: Any, data: bytes) -> Any:
    try:
        [found] = made.decode([("k", data)], 0)
    except MalformedBody:
        return "malformed"
    return found.kind, found.to_bytes(), found


def test_hostile_bytes_are_taken_and_refused_alike(merge_kind: Any) -> None:
    made, reference = merge(merge_kind), merge(Reference)
    dice = random.Random(7)
    taken = refused = 0
    for number in range(6_000 * ROUNDS):
        kind = dice.choice(list(TYPES))
        data = dice.choice(history(kind, dice, 6))[1] if number % 50 == 0 else data_of(kind, dice)
        chance = dice.random()
        if chance < 0.6:
            data = msgpack.packb(mutated(msgpack.unpackb(data), dice, ODD_PLAIN))
        elif chance < 0.8:
            raw = bytearray(data)
            raw[dice.randrange(len(raw))] = dice.randrange(256)
            data = bytes(raw)
        elif chance < 0.9:
            data = data[: dice.randrange(len(data))]
        else:
            data += dice.randbytes(1)
        one, other = outcome(made, data), outcome(reference, data)
        assert one == other, data
        taken += one != "malformed"
        refused += one == "malformed"
    assert taken > 100 and refused > 1000, (taken, refused)


def data_of(kind: str, dice: Random) -> bytes:
    state = new(kind)
    for _ in range(dice.randrange(1, 4)):
        delta = STEPS[kind](state, dice, dice.choice(REPLICAS))
    data: bytes = dice.choice([state, delta]).to_bytes()
    return data


@pytest.mark.parametrize("value", [value for value in ODD_PLAIN if not isinstance(value, dict)], ids=repr)
def test_values_that_are_odd_are_taken_and_refused_alike(value: Any, merge_kind: Any) -> None:
    made, reference = merge(merge_kind), merge(Reference)
    for packed in (msgpack.packb(value), b"\xca\x3f\x80\x00\x00", b"\xd9\x01a", b"\xcd\x00\x01"):
        for body in ([1, 0, ["h", 1], packed], [[["h", 1]], [[[0, 1]], []], [[0, 1, packed, [], None]]]):
            kind = "lww_register" if len(body) == 4 else "or_set"
            data = msgpack.packb([1, kind, body])
            assert outcome(made, data) == outcome(reference, data)


plain_pairs = st.lists(
    st.one_of(
        st.tuples(st.text(max_size=12), st.binary(max_size=4)).map(list),
        st.lists(st.one_of(st.text(max_size=3), st.binary(max_size=3), st.none(), st.integers()), max_size=3),
        st.integers(),
    ),
    max_size=4,
)


def test_pairs_are_keys_with_bytes_and_nothing_else(pairs_of: Any) -> None:
    assert pairs_of([["key", b"data"], ("k" * 8, b"")], 8) == (("key", b"data"), ("k" * 8, b""))
    assert pairs_of([], 8) == ()
    wrong: list[Any] = [
        [["", b""]], [["k" * 9, b""]], [["é" * 5, b""]], [[b"k", b""]], [["k", "text"]], [["k"]], ["kd"], None, 7,
        [["k", b"", b""]], [["\ud800", b""]], {"k": b""},
    ]  # fmt: skip
    for plain in wrong:
        assert pairs_of(plain, 8) is None, plain


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plain_pairs)
def test_pairs_are_the_same_for_both(pairs_of: Any, plain: Any) -> None:
    assert pairs_of(plain, 8) == reference_pairs(plain, 8)
