"""Devices that have to be close to each other: the sets are right, and both engines choose the same."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.errors import BadRequest
from actorgrid.hotpath.capacity import GangNeeds
from actorgrid.hotpath.closeness import CLOSENESS, DEVICES_MAX, near_masks, near_set
from actorgrid.hotpath.reference.forecast import Forecast as PlainForecast
from actorgrid.hotpath.reference.placement import PlacementEngine as PlainEngine

HGX = ("1" * 8,) * 8
"""Eight devices, each joined to each by NVLink."""
BOX = tuple("".join("2" if i // 2 == j // 2 else "5" if i // 4 == j // 4 else "0" for j in range(8)) for i in range(8))
"""Eight devices on two sockets, two on each of four switches."""
BRIDGED = tuple("".join("1" if i // 2 == j // 2 else "5" for j in range(4)) for i in range(4))


def engine_with(engine_kind: Any, policy: str = "completion", **nodes: tuple[str, ...] | None) -> Any:
    engine = engine_kind(policy)
    for name, near in nodes.items():
        count = len(near or "8" * 8)
        engine.add_node(name, cpu_milli=64_000, memory_mib=1000, gpu_count=count, gpu_model="L40S", near=near)
    return engine


def is_close(near: tuple[str, ...], indexes: tuple[int, ...], word: str) -> bool:
    allowed = "12345"[: CLOSENESS.index(word) + 1]
    return all(near[one][other] in allowed and near[other][one] in allowed for one, other in combinations(indexes, 2))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[str, ...]:
    count = draw(st.integers(2, 9))
    told = {pair: draw(st.sampled_from("012345")) for pair in combinations(range(count), 2)}
    return tuple("".join("0" if i == j else told[min(i, j), max(i, j)] for j in range(count)) for i in range(count))


@given(near=graphs(), number=st.integers(1, 5), usable=st.integers(0, 511), wanted=st.integers(2, 9))
@settings(max_examples=200, deadline=None)
def test_a_set_is_found_whenever_there_is_one(near: tuple[str, ...], number: int, usable: int, wanted: int) -> None:
    word = CLOSENESS[number - 1]
    among = [index for index in range(len(near)) if usable >> index & 1]
    there_is = any(is_close(near, each, word) for each in combinations(among, wanted))
    found = near_set(near_masks("n", near, len(near)), number, usable, wanted)
    assert (found is not None) == there_is
    if found is not None:
        assert len(set(found)) == wanted and set(found) <= set(among) and is_close(near, found, word)


@pytest.mark.parametrize("parts", range(1, 16))
def test_sixteen_devices_are_searched_to_the_end(parts: int) -> None:
    """Where as many sets as can be are one device short: two of one part are never close."""
    near = tuple("".join("0" if i % parts == j % parts else "1" for j in range(16)) for i in range(16))
    masks = near_masks("n", near, 16)
    assert near_set(masks, 1, 0xFFFF, max(2, parts)) is not None or parts == 1
    assert near_set(masks, 1, 0xFFFF, parts + 1) is None


def test_devices_that_are_close_are_a_demand(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, box=BOX)
    assert engine.place(gpu_count=2, gpu_topology="nvlink") is None
    assert engine.place(gpu_count=3, gpu_topology="phb") is None
    assert engine.place(gpu_count=2, gpu_topology="pix").shares == (("box", (0, 1)),)
    assert engine.place(gpu_count=4, gpu_topology="node").shares == (("box", (4, 5, 6, 7)),)
    assert engine.place(gpu_count=2, gpu_topology="node").shares == (("box", (2, 3)),)


def test_the_set_leaves_larger_groups_whole(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, box=BOX)
    assert engine.place(gpu_count=1, within=(("box", (5,)),)) is not None
    # Of the pairs that will do, those on the socket that is broken already; 4 has no neighbour on its switch left.
    assert engine.place(gpu_count=3, gpu_topology="node").shares == (("box", (4, 6, 7)),)
    assert engine.place(gpu_count=4, gpu_topology="node").shares == (("box", (0, 1, 2, 3)),)


@pytest.mark.parametrize("policy", actorgrid.hotpath.records.POLICIES)
def test_every_policy_goes_by_it(engine_kind: Any, policy: str) -> None:
    engine = engine_with(engine_kind, policy, plain=None, box=BOX, bridged=BRIDGED)
    for _ in range(6):
        placed = engine.place(cpu_milli=100, gpu_count=2, gpu_topology="pix")
        ((name, indexes),) = placed.shares
        assert is_close({"box": BOX, "bridged": BRIDGED}[name], indexes, "pix")
    assert engine.place(gpu_count=2, gpu_topology="pix") is None
    assert engine.place(gpu_count=8) is not None  # who does not ask has the plain one


def test_each_member_of_a_gang_has_devices_that_are_close(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, one=HGX, box=BOX)
    placed = engine.place(gpu_count=4, gpu_topology="nvlink", gang=2)
    assert {name for name, _ in placed.shares} == {"one"}
    assert engine.place(gpu_count=4, gpu_topology="nvlink", gang=1) is None
    report = engine.explain(gpu_count=4, gpu_topology="nvlink", gang=2)
    assert not report["fits"] and report["failed"] == {"gpu_busy": 1, "gpu_topology": 1}


def test_explain_says_which_hosts_have_none_that_close(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, box=BOX)
    report = engine.explain(gpu_count=3, gpu_topology="pix")
    assert report["failed"] == {"gpu_topology": 1} and report["nearest"] is None  # never
    for socket in (0, 4):
        engine.place(gpu_count=1, within=(("box", (socket,)),))
    report = engine.explain(gpu_count=4, gpu_topology="node")
    assert report["failed"] == {"gpu_topology": 1} and report["nearest"]["node"] == "box"  # once others are done


def test_of_one_device_nothing_is_close_and_words_are_checked(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, plain=None)
    assert engine.place(gpu_count=1, gpu_topology="nvlink") is not None
    with pytest.raises(BadRequest, match="no word for how close"):
        engine.place(gpu_count=0, gpu_topology="sys")
    for wrong in (("1",), ("01", "6"), ("01", None), ("0x", "00")):
        with pytest.raises(BadRequest, match="near of node 'bad' does not fit its 2 GPUs"):
            engine.add_node("bad", cpu_milli=1, memory_mib=1, gpu_count=2, near=wrong)
    assert engine.add_node("bad", cpu_milli=1, memory_mib=1, gpu_count=2, near=("01", "00")) == "bad"
    assert engine.place(gpu_count=2, gpu_topology="node") is None  # what one of the two denies is not so


def test_beyond_the_first_devices_none_is_close(engine_kind: Any) -> None:
    count = DEVICES_MAX + 2
    engine = engine_with(engine_kind, large=("1" * count,) * count)
    assert engine.place(gpu_count=DEVICES_MAX + 1, gpu_topology="node") is None
    assert engine.place(gpu_count=DEVICES_MAX, gpu_topology="node").shares == (("large", tuple(range(DEVICES_MAX))),)


def test_a_node_that_is_replaced_is_as_close_as_the_new_one_says(engine_kind: Any) -> None:
    engine = engine_with(engine_kind, box=HGX)
    engine.remove_node("box")
    engine.add_node("box", cpu_milli=1, memory_mib=1, gpu_count=8)
    assert engine.place(gpu_count=2, gpu_topology="node") is None
    assert engine.nodes()[0].near is None


@pytest.mark.parametrize("forecast", [PlainForecast, actorgrid.hotpath.Forecast])
def test_a_forecast_waits_for_devices_that_are_close(forecast: Any) -> None:
    engine = engine_with(PlainEngine, box=BOX)
    ahead = forecast(engine.nodes())
    one = GangNeeds({"gpu_count": 1})
    ahead.begin("a", one, (("box", (0,)),), 0.0, 10.0, 0)
    ahead.begin("b", one, (("box", (4,)),), 0.0, 20.0, 1)
    ask = GangNeeds({"gpu_count": 4, "gpu_topology": "node"})
    assert ahead.earliest("c", ask, 0.0, 5.0)[:2] == (10.0, (("box", (0, 1, 2, 3)),))
    assert ahead.earliest("c", GangNeeds({"gpu_count": 4}), 0.0, 5.0)[0] == 0.0
    assert ahead.earliest("c", GangNeeds({"gpu_count": 2, "gpu_topology": "pix", "gang": 4}), 0.0, 5.0)[0] == 20.0
