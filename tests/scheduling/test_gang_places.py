"""Where the members of a gang go: one rack, few hosts, or a host each; and nobody gets in the way of a kept place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.scheduling.gang_places import choose_places
from actorgrid.actors.scheduling.preemption_view import PreemptionView
from actorgrid.actors.scheduling.request import Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.demand import APART, NEAR, Demand
from actorgrid.hotpath import PlacementEngine
from actorgrid.hotpath.capacity import GangNeeds
from tests.scheduling.cluster import request


def engine_of(*nodes: tuple[int, str | None]) -> PlacementEngine:
    """A node for each (free GPUs, rack), of eight GPUs."""
    engine = PlacementEngine("spread")
    for number, (free, rack) in enumerate(nodes):
        name = f"n{number}"
        engine.add_node(name, cpu_milli=64_000, memory_mib=64_000, gpu_count=8, gpu_model="H100", rack=rack)
        if free < 8:
            engine.reserve(name, gpu_indexes=tuple(range(free, 8)))
    return engine


def hosts(engine: PlacementEngine, size: int, gpus: int = 1, **more: Any) -> list[str] | None:
    ask = GangNeeds({"gpu_count": gpus, "gang": size}, apart=more.pop("apart", False))
    shares = choose_places(PreemptionView(engine, ()).nodes.values(), ask, **more)
    return None if shares is None else [name for name, _ in shares]


def test_a_gang_that_fits_on_one_host_goes_to_the_fullest_that_holds_it() -> None:
    assert hosts(engine_of((8, None), (4, None), (2, None)), 4) == ["n1"] * 4


def test_as_few_hosts_as_can_be_are_used() -> None:
    assert hosts(engine_of((1, None), (3, None), (1, None), (2, None)), 5) == ["n1"] * 3 + ["n3"] * 2


def test_one_rack_that_holds_all_is_taken_before_fewer_hosts() -> None:
    assert hosts(engine_of((3, "a"), (2, "b"), (2, "b"), (2, "a")), 4) == ["n1"] * 2 + ["n2"] * 2
    assert hosts(engine_of((8, "a"), (2, "b"), (2, "b")), 4) == ["n0"] * 4


def test_without_such_a_rack_those_with_most_room_are_taken() -> None:
    found = hosts(engine_of((1, "a"), (3, "b"), (2, "c")), 5)
    assert found is not None
    assert Counter(found) == {"n1": 3, "n2": 2}


def test_apart_means_a_host_for_each() -> None:
    assert hosts(engine_of((8, None), (8, None)), 3, apart=True) is None
    assert sorted(hosts(engine_of((8, None), (1, None), (2, None)), 3, apart=True) or ()) == ["n0", "n1", "n2"]


def test_nodes_that_are_closed_or_draining_hold_none() -> None:
    engine = engine_of((4, None), (4, None), (4, None))
    engine.drain("n2")
    assert hosts(engine, 4, closed={"n0"}) == ["n1"] * 4
    assert hosts(engine, 5, closed={"n0"}) is None


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(st.tuples(st.integers(0, 8), st.sampled_from((None, "a", "b", "c"))), min_size=1, max_size=8),
    size=st.integers(2, 12),
    gpus=st.integers(0, 3),
    apart=st.booleans(),
)
def test_whatever_is_chosen_fits_whole_and_nothing_that_fits_is_missed(
    nodes: list[tuple[int, str | None]], size: int, gpus: int, apart: bool
) -> None:
    engine = engine_of(*nodes)
    ask = GangNeeds({"gpu_count": gpus, "gang": size}, apart=apart)
    shares = choose_places(PreemptionView(engine, ()).nodes.values(), ask)
    if gpus:
        room = sum(min(1, free // gpus) if apart else free // gpus for free, _ in nodes)
    else:
        room = len(nodes) if apart else size
    assert (shares is not None) == (room >= size)
    if shares is not None:
        assert len(shares) == size
        assert all(len(indexes) == gpus for _, indexes in shares)
        assert not apart or len({name for name, _ in shares}) == size
        engine.adopt("gang", shares)


def started(scheduler: Scheduler, now: float) -> dict[str, list[str]]:
    return {
        each.request.id: [name for name, _ in each.placement.shares]
        for each in scheduler.schedule(now, 10)
        if isinstance(each, Start)
    }


@pytest.mark.parametrize("policy", ["fifo", "priority", "easy_backfill", "conservative_backfill"])
def test_a_gang_apart_waits_for_a_host_each_and_others_leave_its_place_alone(policy: str) -> None:
    scheduler = Scheduler(engine_of((8, None), (8, None)), policy)
    scheduler.submit(request("long", gpu_count=8, expected_s=100.0), 0.0)
    assert started(scheduler, 0.0).keys() == {"long"}
    scheduler.submit(request("gang", gpu_count=4, gang=2, layout=APART, expected_s=10.0), 1.0)
    assert started(scheduler, 1.0) == {}, "the free host alone would hold both"
    report = scheduler.explain("gang", 1.0)
    assert (report["fits"], report["members_that_fit"]) == (False, 1)
    lacking = [each for each in report["hosts"] if not each["members"]]
    assert [each["failed"] for each in lacking] == [["gpu_busy"]]
    if policy.endswith("backfill"):
        scheduler.submit(request("short", gpu_count=8, expected_s=50.0), 2.0)
        assert len(started(scheduler, 2.0)) == 1, "it ends before the gang can start"
        scheduler.submit(request("endless", gpu_count=8), 3.0)
        scheduler.finished("short", 52.0)
        assert started(scheduler, 52.0) == {}, "the place is kept"
    scheduler.finished("long", 100.0)
    found = started(scheduler, 100.0)
    assert sorted(found["gang"]) == ["n0", "n1"]


def test_what_would_hold_a_gang_together_does_not_tell_whether_it_fits_apart() -> None:
    def need(**more: Any) -> Demand:
        return request("x", gpu_count=1, **more).demand

    apart, near = need(gang=2, layout=APART), need(gang=2, layout=NEAR)
    assert apart.needs_at_least(near)
    assert not near.needs_at_least(apart)
    assert not need(gang=3, layout=NEAR).needs_at_least(apart)
    assert need(gang=3, layout=APART).needs_at_least(apart)
    assert need(layout=APART).layout == "", "one member is no gang"
