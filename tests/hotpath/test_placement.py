"""One contract, both engines."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from actorgrid.errors import AdoptRefused, BadRequest, DuplicateNode, UnknownNode, UnknownPlacement, UnknownPolicy
from actorgrid.hotpath import Placement, TypicalTask


def add(engine: Any, name: str, gpus: int = 8, **more: Any) -> str:
    fields: dict[str, Any] = {
        "cpu_milli": 64_000,
        "memory_mib": 262_144,
        "gpu_count": gpus,
        "gpu_model": "H100",
        "gpu_memory_mib": 81_920,
    }
    node: str = engine.add_node(name, **(fields | more))
    return node


def picture(engine: Any) -> Any:
    return engine.nodes(), engine.placements(), engine.allocated_gpu_milli


def test_a_placement_names_the_node_that_add_node_gave(engine_kind: Any) -> None:
    engine = engine_kind()
    node = add(engine, "alpha")
    placed = engine.place(cpu_milli=1000, memory_mib=1024, gpu_count=2)
    assert isinstance(placed, Placement)
    assert placed.shares == ((node, (0, 1)),)
    assert engine.allocated_gpu_milli == 2000
    assert engine.capacity_gpu_milli == 8000


def test_release_restores_everything(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    before = picture(engine)
    placed = engine.place(cpu_milli=500, memory_mib=10, gpu_count=1, gpu_milli=300, gpu_memory_mib=100, gang=5)
    assert placed.id in engine
    assert engine.placement(placed.id) == placed
    engine.release(placed.id)
    assert picture(engine) == before


def test_release_of_an_unknown_id_is_refused(engine_kind: Any) -> None:
    with pytest.raises(UnknownPlacement):
        engine_kind().release(7)
    with pytest.raises(UnknownPlacement):
        engine_kind().placement(7)


def test_what_does_not_fit_gives_none_and_changes_nothing(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    before = picture(engine)
    assert engine.place(gpu_count=9) is None
    assert engine.place(cpu_milli=64_001) is None
    assert engine.place(memory_mib=262_145) is None
    assert engine.place(gpu_count=1, gpu_memory_mib=81_921) is None
    assert engine.place(gpu_count=1, gpu_models=("A100",)) is None
    assert picture(engine) == before


def test_a_gang_is_placed_whole_or_not_at_all(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    add(engine, "beta")
    before = picture(engine)
    assert engine.place(gpu_count=4, gang=5) is None
    assert picture(engine) == before
    placed = engine.place(gpu_count=4, gang=4)
    assert len(placed.shares) == 4
    assert engine.allocated_gpu_milli == 16_000


def test_shares_of_one_gpu_are_filled_before_another_is_broken(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    used = [engine.place(gpu_count=1, gpu_milli=250).shares[0][1] for _ in range(5)]
    assert used == [(0,), (0,), (0,), (0,), (1,)]


def test_device_memory_limits_shares_as_well_as_compute(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha", gpus=2)
    used = [engine.place(gpu_count=1, gpu_milli=100, gpu_memory_mib=50_000) for _ in range(3)]
    assert [placed and placed.shares[0][1] for placed in used] == [(0,), (1,), None]


def test_best_fit_leaves_the_large_hole_whole(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "eight", gpus=8)
    add(engine, "two", gpus=2)
    add(engine, "none", gpus=0)
    assert engine.place(gpu_count=2).shares[0][0] == "two"
    assert engine.place(cpu_milli=1000).shares[0][0] == "two"  # least GPU left over: no GPU of it is free any more
    assert engine.place(gpu_count=1).shares[0][0] == "eight"


def test_spread_takes_the_least_loaded_node_and_device(engine_kind: Any) -> None:
    engine = engine_kind(policy="spread")
    add(engine, "alpha", gpus=2)
    add(engine, "beta", gpus=2)
    used = [engine.place(gpu_count=1, gpu_milli=500).shares[0] for _ in range(4)]
    assert used == [("alpha", (0,)), ("beta", (0,)), ("alpha", (1,)), ("beta", (1,))]


def test_packing_prefers_shared_devices_then_nodes_in_use(engine_kind: Any) -> None:
    engine = engine_kind(policy="packing")
    add(engine, "alpha")
    add(engine, "beta")
    engine.adopt("there", (("beta", (3,)),), gpu_milli=500)
    assert engine.place(gpu_count=1, gpu_milli=400).shares == (("beta", (3,)),)
    assert engine.place(gpu_count=1).shares[0][0] == "beta"


def test_random_takes_the_dice_it_is_given(engine_kind: Any) -> None:
    rolls: list[int] = []

    def dice(below: int) -> int:
        rolls.append(below)
        return below - 1

    engine = engine_kind(policy="random", rng=dice)
    for name in ("alpha", "beta", "gamma"):
        add(engine, name)
    assert engine.place(gpu_count=8).shares[0][0] == "gamma"
    assert engine.place(gpu_count=8).shares[0][0] == "beta"
    assert rolls == [3, 2]


def test_an_unknown_policy_lists_those_there_are(engine_kind: Any) -> None:
    with pytest.raises(UnknownPolicy, match=r"best_fit.*random"):
        engine_kind(policy="fdg")


def test_preferred_racks_come_first_and_others_still_serve(engine_kind: Any) -> None:
    engine = engine_kind("best_fit")
    add(engine, "near", rack="r1")
    add(engine, "far", gpus=2, rack="r2")
    assert engine.place(gpu_count=2, prefer_racks=("r1",)).shares[0][0] == "near"
    assert engine.place(gpu_count=2, prefer_racks=("r3",)).shares[0][0] == "far"


def test_excluded_and_draining_nodes_are_left_alone(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    add(engine, "beta")
    assert engine.place(gpu_count=1, exclude=("alpha", "gone")).shares[0][0] == "beta"
    engine.drain("beta")
    assert engine.place(gpu_count=1).shares[0][0] == "alpha"
    assert engine.place(gpu_count=1, exclude=("alpha",)) is None
    engine.drain("beta", False)
    assert engine.place(gpu_count=1, exclude=("alpha",)).shares[0][0] == "beta"


def test_within_limits_the_choice_to_the_devices_listed(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    add(engine, "beta")
    where = (("alpha", (5,)), ("beta", (2, 3)), ("gone", (0,)))
    assert engine.place(gpu_count=2, within=where).shares == (("beta", (2, 3)),)
    assert engine.place(gpu_count=1, within=where).shares == (("alpha", (5,)),)
    assert engine.place(gpu_count=1, within=where) is None
    assert engine.place(gpu_count=1, within=(("gone", (0,)),)) is None


def test_a_node_may_hold_different_devices(engine_kind: Any) -> None:
    engine = engine_kind()
    engine.add_node("mixed", cpu_milli=1000, memory_mib=0, devices=(("A100", 40_960), ("H100", 81_920)))
    assert engine.capacity_gpu_milli == 2000
    assert engine.place(gpu_count=1, gpu_memory_mib=50_000).shares == (("mixed", (1,)),)
    assert engine.place(gpu_count=1, gpu_models=("H100",)) is None
    assert engine.place(gpu_count=1, gpu_models=("H100", "A100")).shares == (("mixed", (0,)),)


def test_an_adopted_placement_counts_and_keeps_its_id(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    placed = engine.adopt("job.1", (("alpha", (2, 4)),), cpu_milli=1000, memory_mib=5)
    assert placed == Placement("job.1", (("alpha", (2, 4)),))
    assert engine.allocated_gpu_milli == 2000
    engine.release("job.1")
    assert engine.allocated_gpu_milli == 0


def test_adopting_what_does_not_fit_is_refused_whole(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    add(engine, "beta", gpus=2)
    engine.adopt("a", (("beta", (0,)),), gpu_milli=600)
    before = picture(engine)
    for shares in (
        (("alpha", (0,)), ("beta", (0,))),  # half of it is taken
        (("alpha", (8,)),),
        (("alpha", (-1,)),),
        (("alpha", (0, 0)),),
    ):
        with pytest.raises(AdoptRefused):
            engine.adopt("b", shares, gpu_milli=600)
    with pytest.raises(AdoptRefused):
        engine.adopt("a", (("alpha", (0,)),))
    with pytest.raises(UnknownNode):
        engine.adopt("b", (("alpha", (0,)), ("gone", (0,))))
    assert picture(engine) == before


def test_an_adopted_number_is_not_given_out_again(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    engine.adopt(1, (("alpha", (0,)),))
    assert engine.place(gpu_count=1).id == 2


def test_a_reservation_holds_exact_devices_until_released(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha", gpus=2)
    engine.drain("alpha")
    held = engine.reserve("alpha", gpu_indexes=(1,), cpu_milli=64_000, id="maintenance")
    assert held.shares == (("alpha", (1,)),)
    assert engine.reserve("alpha", gpu_indexes=(1,)) is None
    engine.drain("alpha", False)
    assert engine.place(cpu_milli=1) is None
    engine.release("maintenance")
    assert engine.place(gpu_count=2) is not None


def test_a_removed_node_takes_its_shares_with_it(engine_kind: Any) -> None:
    engine = engine_kind(policy="spread")
    add(engine, "alpha", gpus=1)
    add(engine, "beta", gpus=1)
    gang = engine.place(gpu_count=1, gang=2)
    assert engine.remove_node("alpha") == (gang.id,)
    assert engine.placements() == {gang.id: (("beta", (0,)),)}
    assert (engine.allocated_gpu_milli, engine.capacity_gpu_milli) == (1000, 1000)
    engine.release(gang.id)
    lone = engine.place(gpu_count=1)
    assert engine.remove_node("beta") == (lone.id,)
    assert len(engine) == 0
    assert (engine.allocated_gpu_milli, engine.capacity_gpu_milli) == (0, 0)
    with pytest.raises(UnknownNode):
        engine.remove_node("beta")
    add(engine, "beta")
    with pytest.raises(DuplicateNode):
        add(engine, "beta")


@pytest.mark.parametrize(
    "wrong", [{"cpu_milli": -1}, {"gpu_count": 1, "gpu_milli": 0}, {"gpu_milli": 1001}, {"gang": 0}, {"gang": 5000}]
)
def test_nonsense_is_a_bad_request(engine_kind: Any, wrong: dict[str, int]) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    with pytest.raises(BadRequest):
        engine.place(**wrong)


def test_explain_says_what_fails_where_and_what_comes_nearest(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "full")
    add(engine, "small", gpus=2)
    add(engine, "old", gpu_model="P100")
    add(engine, "cpu", gpus=0)
    add(engine, "draining")
    engine.drain("draining")
    engine.adopt("x", (("full", (0, 1, 2, 3, 4)),))
    report = engine.explain(gpu_count=4, gpu_models=("H100",))
    assert report["fits"] is False
    assert report["total_nodes"] == 5
    assert report["failed"] == {"gpu_busy": 1, "gpu_count": 2, "gpu_model": 1, "draining": 1}
    assert report["nearest"] == {"node": "full", "missing": {"gpus": 1, "gpu_milli": 1000}}


def test_explain_agrees_with_place_and_changes_nothing(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "alpha")
    before = picture(engine)
    report = engine.explain(gpu_count=3, gang=3)
    assert (report["fits"], report["members_that_fit"]) == (False, 2)
    assert engine.explain(gpu_count=4, gang=2)["fits"] is True
    assert picture(engine) == before


def test_typical_tasks_are_kept(engine_kind: Any) -> None:
    engine = engine_kind()
    task = TypicalTask(cpu_milli=1000, gpu_count=1, gpu_milli=500, weight=0.5)
    engine.set_typical_tasks([task])
    assert engine.typical_tasks == (task,)


def test_a_snapshot_stays_as_it_was_and_says_when_nothing_changed(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "n")
    first = engine.snapshot()
    assert (first.allocated_gpu_milli, first.capacity_gpu_milli) == (0, 8000)
    assert engine.snapshot() == first
    engine.place(gpu_count=1)
    second = engine.snapshot()
    assert second.version > first.version
    assert first.nodes[0].gpus[0].milli_free == 1000
    assert second.allocated_gpu_milli == 1000
    engine.remove_node("n")
    assert engine.snapshot().version > second.version
    assert engine.snapshot().nodes == ()


def test_readers_see_gangs_whole_while_another_thread_places_them(engine_kind: Any) -> None:
    engine = engine_kind("best_fit")
    for name in ("a", "b", "c"):
        add(engine, name)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    done = threading.Event()
    torn: list[int] = []
    seen: set[int] = set()

    def read() -> None:
        while not done.is_set():
            snapshot = engine.snapshot()
            used = sum(1000 - gpu.milli_free for node in snapshot.nodes for gpu in node.gpus)
            seen.add(used)
            if used % 6000 or used != snapshot.allocated_gpu_milli:
                torn.append(used)

    readers = [threading.Thread(target=read) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        end = time.monotonic() + 30
        while len(seen) < 3 and time.monotonic() < end:
            held = [engine.place(gpu_count=2, gang=3) for _ in range(4)]
            assert all(held)
            for placement in held:
                engine.release(placement.id)
    finally:
        done.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(interval)
    assert torn == []
    assert len(seen) >= 3, "the readers saw none of it"
