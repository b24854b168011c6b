"""What each policy takes, and what the typical mix is worth."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import BadRequest, UnknownNode
from actorgrid.hotpath.records import TypicalTask
from actorgrid.hotpath.reference import completion as reference
from actorgrid.hotpath.reference.model_price import PRICE_MAX, model_prices
from actorgrid.hotpath.share_packing import share_prices
from actorgrid.hotpath.typical_mix import DEMAND_UNIT, MIX_MAX, MIX_WEIGHT, check_mix, extent, sum_up, whole_weights

ONE = TypicalTask(1000, 1, 1000, 1.0)
HALF = TypicalTask(1000, 1, 500, 1.0)
EIGHT = TypicalTask(8000, 8, 1000, 1.0)


def add(engine: Any, name: str, gpus: int = 8, cpu_milli: int = 64_000, **more: Any) -> None:
    engine.add_node(name, cpu_milli=cpu_milli, memory_mib=1 << 20, gpu_count=gpus, **more)


def node_of(placement: Any) -> str:
    assert placement is not None
    return str(placement.shares[0][0])


# -- fgd and completion


@pytest.mark.parametrize("policy", ["fgd", "completion"])
def test_a_share_goes_where_it_mends_a_fragment(engine_kind: Any, policy: str) -> None:
    engine = engine_kind(policy)
    engine.set_typical_tasks([HALF, ONE])
    add(engine, "whole", gpus=1)
    add(engine, "broken", gpus=1)
    engine.reserve("broken", gpu_indexes=(0,), gpu_milli=600)
    # 400 of it are of no use to anyone who usually comes; of the whole one all are.
    assert node_of(engine.place(gpu_count=1, gpu_milli=400)) == "broken"


@pytest.mark.parametrize("policy", ["fgd", "completion"])
def test_one_gpu_does_not_break_a_node_that_large_tasks_need(engine_kind: Any, policy: str) -> None:
    engine = engine_kind(policy)
    engine.set_typical_tasks([EIGHT, ONE])
    add(engine, "intact")
    add(engine, "in use")
    engine.reserve("in use", gpu_indexes=(0,))
    assert [node_of(engine.place(gpu_count=1)) for _ in range(7)] == ["in use"] * 7
    assert node_of(engine.place(gpu_count=8)) == "intact"


def test_cpu_work_does_not_strand_gpus(engine_kind: Any) -> None:
    engine = engine_kind("completion")
    engine.set_typical_tasks([TypicalTask(8000, 1, 1000, 1.0)])
    add(engine, "with gpus", cpu_milli=64_000)
    add(engine, "without", gpus=0, cpu_milli=64_000)
    assert node_of(engine.place(cpu_milli=32_000)) == "without"


def test_completion_sees_beyond_the_next_task(engine_kind: Any) -> None:
    # After either placement the next task fits as well as before; only one leaves room for all eight to come.
    mix = [TypicalTask(8000, 1, 1000, 1.0)]
    chosen = {}
    for policy in ("fgd", "completion"):
        engine = engine_kind(policy)
        engine.set_typical_tasks(mix)
        add(engine, "scarce", cpu_milli=64_000)
        add(engine, "ample", cpu_milli=128_000)
        chosen[policy] = node_of(engine.place(cpu_milli=32_000))
    assert chosen == {"fgd": "scarce", "completion": "ample"}


@pytest.mark.parametrize("policy", ["fgd", "completion"])
def test_a_mix_that_names_models_keeps_those_models_free(engine_kind: Any, policy: str) -> None:
    engine = engine_kind(policy)
    engine.set_typical_tasks([TypicalTask(1000, 1, 1000, 9.0, ("H100",)), TypicalTask(1000, 1, 500, 1.0)])
    add(engine, "sought", gpus=2, gpu_model="H100")
    add(engine, "plain", gpus=2, gpu_model="T4")
    assert node_of(engine.place(gpu_count=1)) == "plain"


def test_a_band_takes_the_first_of_nodes_that_are_nearly_as_good(engine_kind: Any) -> None:
    engine = engine_kind("completion")
    engine.set_typical_tasks([HALF])
    for name in ("first", "second"):
        add(engine, name, gpus=2)
    engine.reserve("second", gpu_indexes=(0,), gpu_milli=500)
    assert node_of(engine.place(gpu_count=1, gpu_milli=500)) == "first"
    assert engine_kind("best_fit").policy == "best_fit"


# -- the others


def test_affinity_puts_like_with_like(engine_kind: Any) -> None:
    engine = engine_kind("affinity")
    add(engine, "wholes")
    add(engine, "shares")
    add(engine, "no gpus", gpus=0)
    engine.reserve("shares", gpu_indexes=(0,), gpu_milli=100)
    assert node_of(engine.place(cpu_milli=1000)) == "no gpus"
    assert node_of(engine.place(gpu_count=1, gpu_milli=300)) == "shares"
    assert node_of(engine.place(gpu_count=1)) == "wholes"


@pytest.mark.parametrize("told", ["nvlink", "numa"])
@pytest.mark.parametrize("policy", ["completion", "best_fit", "topology", "spread"])
def test_several_whole_devices_come_from_one_domain(engine_kind: Any, policy: str, told: str) -> None:
    engine = engine_kind(policy)
    add(engine, "n", **{told: (4, 4, 7, 7, 7, 7, 4, 4)})
    engine.reserve("n", gpu_indexes=(0,))
    first = engine.place(gpu_count=3)
    assert first.shares[0][1] == (1, 6, 7), "the tightest domain that has three"
    assert engine.place(gpu_count=2).shares[0][1] == (2, 3)


def test_more_devices_than_any_domain_has_come_from_as_few_as_can_be(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "n", nvlink=(0, 0, 1, 1, 1, 2, 2, 2))
    assert engine.place(gpu_count=5).shares[0][1] == (0, 1, 2, 3, 4)


def test_topology_prefers_a_node_with_room_in_one_domain(engine_kind: Any) -> None:
    engine = engine_kind("topology")
    add(engine, "split", nvlink=(0, 0, 0, 0, 1, 1, 1, 1))
    add(engine, "whole", nvlink=(0, 0, 0, 0, 1, 1, 1, 1))
    engine.reserve("split", gpu_indexes=(0, 1, 4, 5))
    assert node_of(engine.place(gpu_count=4)) == "whole"


def test_topology_places_a_gang_in_the_tightest_rack_that_holds_it(engine_kind: Any) -> None:
    engine = engine_kind("topology")
    for rack, count in (("large", 3), ("right", 2), ("small", 1)):
        for number in range(count):
            add(engine, f"{rack}-{number}", rack=rack)
    shares = engine.place(gpu_count=8, gang=2).shares
    assert [name for name, _ in shares] == ["right-0", "right-1"]
    across = engine.place(gpu_count=8, gang=4)
    assert {name.partition("-")[0] for name, _ in across.shares} == {"large", "small"}, "no rack has four left"


def test_device_score_takes_the_devices_that_score_highest(engine_kind: Any) -> None:
    engine = engine_kind("device_score")
    add(engine, "a", gpus=2)
    add(engine, "b", gpus=2)
    for name, index, score in (("a", 0, 300), ("a", 1, 600), ("b", 0, 100), ("b", 1, 900)):
        engine.set_device_score(name, index, score)
    order = [engine.place(gpu_count=1).shares[0] for _ in range(4)]
    assert order == [("b", (1,)), ("a", (1,)), ("a", (0,)), ("b", (0,))]
    with pytest.raises(BadRequest, match="cannot score 1001"):
        engine.set_device_score("a", 0, 1001)
    with pytest.raises(BadRequest, match="GPU 2 of node 'a'"):
        engine.set_device_score("a", 2, 0)
    with pytest.raises(UnknownNode):
        engine.set_device_score("c", 0, 0)


# -- nodes that change


def test_a_node_is_resized_but_not_below_what_is_given_out(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "n", cpu_milli=8000)
    engine.place(cpu_milli=6000)
    assert engine.place(cpu_milli=6000) is None
    engine.resize_node("n", cpu_milli=12_000, memory_mib=1 << 20)
    held = engine.place(cpu_milli=6000)
    before = engine.nodes()
    with pytest.raises(BadRequest, match="more given out"):
        engine.resize_node("n", cpu_milli=11_999, memory_mib=1 << 20)
    assert engine.nodes() == before
    engine.release(held.id)
    engine.resize_node("n", cpu_milli=6000, memory_mib=0)
    assert engine.place(cpu_milli=1) is None


@pytest.mark.parametrize("wrong", [float("nan"), 1.5, "8", None, -1, 2**53, 2**80])
@pytest.mark.parametrize("what", ["cpu_milli", "memory_mib", "gpu_count", "gpu_milli", "gpu_memory_mib", "gang"])
def test_what_is_not_a_whole_number_in_range_is_refused_by_name(engine_kind: Any, what: str, wrong: Any) -> None:
    engine = engine_kind()
    add(engine, "n")
    before = engine.nodes()
    for call in (engine.place, engine.explain):
        with pytest.raises(BadRequest, match=what):
            call(**{"gpu_count": 1, what: wrong})
    assert engine.nodes() == before
    assert engine.placements() == {}


def test_domains_must_fit_the_devices(engine_kind: Any) -> None:
    engine = engine_kind()
    with pytest.raises(BadRequest, match="nvlink of node 'n' does not fit its 8 GPUs"):
        add(engine, "n", nvlink=(0, 1))
    assert len(engine) == 0


# -- more shapes and nodes than the table has room for


def test_more_shapes_than_the_table_remembers_are_placed_all_the_same(engine_kind: Any) -> None:
    engine = engine_kind()
    add(engine, "n", gpus=0, cpu_milli=1_000_000)
    for lap, cpu in itertools.product(range(3), range(1, 600)):
        placed = engine.place(cpu_milli=cpu, memory_mib=lap)
        assert placed is not None
        engine.release(placed.id)
    assert engine.nodes()[0].cpu_milli_free == 1_000_000
    assert engine.place(cpu_milli=1_000_001) is None


def test_the_best_node_is_found_wherever_it_stands(engine_kind: Any) -> None:
    engine = engine_kind("best_fit")
    for number in range(200):
        add(engine, f"n{number}", gpus=2)
    for number in (64, 130, 199, 0, 63, 128):
        engine.reserve(f"n{number}", gpu_indexes=(0,))
        assert engine.place(gpu_count=1).shares == ((f"n{number}", (1,)),)
    engine.remove_node("n130")
    engine.release(1)
    assert node_of(engine.place(gpu_count=1)) == "n64"


# -- the mix


def test_weights_become_whole_numbers_with_nothing_lost() -> None:
    tasks = [TypicalTask(0, 1, 1000, weight) for weight in (1.0, 1.0, 1.0, 0.0, 1e-9)]
    assert sum(whole_weights(tasks)) == MIX_WEIGHT
    assert whole_weights(tasks)[3:] == [0, 0]


def test_only_the_heaviest_tasks_count() -> None:
    tasks = [TypicalTask(number, 1, 1000, 1.0 + number % 7) for number in range(2 * MIX_MAX)]
    kept = check_mix(tasks)
    assert len(kept) == MIX_MAX
    assert min(task.weight for task in kept) >= 4.0
    assert [task.cpu_milli for task in kept] == sorted(task.cpu_milli for task in kept)


@pytest.mark.parametrize(
    "wrong",
    [
        TypicalTask(0, 1, 1000, -1.0),
        TypicalTask(0, 1, 1000, float("nan")),
        TypicalTask(0, 1, 1000, float("inf")),
        TypicalTask(0, 1, 0, 1.0),
        TypicalTask(0, 1, 1001, 1.0),
        TypicalTask(-1, 1, 1000, 1.0),
        TypicalTask(0, -1, 1000, 1.0),
        TypicalTask(0, 1, 1000, 0.0),
    ],
)
def test_a_mix_that_cannot_be_is_refused_and_the_old_one_stays(engine_kind: Any, wrong: TypicalTask) -> None:
    engine = engine_kind()
    engine.set_typical_tasks([ONE])
    with pytest.raises(BadRequest):
        engine.set_typical_tasks([wrong])
    assert engine.typical_tasks == (ONE,)


def test_sums_are_by_cpu_share_and_model() -> None:
    mix = sum_up([TypicalTask(1000, 1, 500, 1.0), TypicalTask(2000, 1, 250, 2.0, ("A",)), TypicalTask(0, 0, 0, 1.0)])
    assert (mix.cpus, mix.thresholds, mix.counts, mix.kinds) == ((1000, 2000), (250, 500), 0, {"A": 1})
    other, named = mix.share_mass[:9], mix.share_mass[9:]
    assert other == (0, 0, 0, 0, 0, 1024, 0, 0, 1024), "by CPU rank, then by share"
    assert named == (0, 0, 0, 0, 0, 1024, 0, 2048, 3072)


def test_a_table_grows_in_steps() -> None:
    assert extent(128_000, 8) == extent(96_000, 5)
    assert extent(128_000, 8) != extent(128_000, 9)
    assert extent(10_000_000, 1000).cpu_buckets <= 128
    assert extent(0, 0).wholes == 1


# -- expected completion


def completion_of(tasks: list[tuple[int, int, int, int]], cpu_buckets: int, wholes: int) -> Any:
    """The worth that streams of tasks give to whole devices, the use that the next one has left out."""
    shares = reference.share_worth(tasks, [])
    table = reference.whole_worth(tasks, shares, cpu_buckets, 10, wholes, 1 << 60)
    return lambda cpu, whole: table[whole * cpu_buckets + cpu] / reference.UNIT


def test_worth_is_what_fits_when_all_tasks_are_alike() -> None:
    worth = completion_of([(2048, 1, 1000, 1)], cpu_buckets=16, wholes=4)
    assert [worth(15, whole) for whole in range(5)] == [0, 1000, 2000, 3000, 4000]
    assert [worth(cpu, 4) for cpu in (0, 1, 2, 3, 4, 6, 8)] == [0, 0, 1000, 1000, 2000, 3000, 4000]


def test_worth_is_the_mean_over_what_may_come() -> None:
    # Of two whole devices, with CPU for one task more of either kind: one device or both, equally likely.
    worth = completion_of([(1024, 1, 1000, 1), (1024, 2, 1000, 1)], cpu_buckets=2, wholes=2)
    assert worth(1, 2) == 1500
    assert worth(1, 1) == 1000
    assert worth(0, 2) == 0


def test_a_partly_free_device_is_worth_what_drawn_shares_fill_and_what_a_packer_would() -> None:
    drawn = reference.share_worth([(0, 1, 400, 1)], []).worth
    assert [drawn[free] * 10 // (4 * reference.UNIT) for free in (0, 399, 400, 799, 800, 999)] == [
        *(0, 0, 400, 400, 800, 800),
    ]
    # Two of 400 are a whole device: each has half its price, and a rest of 400 can still bear one.
    prices = share_prices({400: 1}, 1000)
    assert prices == {400: 500}
    both = reference.share_worth([(0, 1, 400, 1)], [(400, 500 * reference.UNIT)]).worth
    assert both[400] == (4 * 400 + 6 * 500) * reference.UNIT // 10
    assert both[800] == (4 * 800 + 6 * 1000) * reference.UNIT // 10


def test_cpu_is_kept_for_what_partly_free_devices_will_ask_for() -> None:
    shares = reference.share_worth([(1000, 1, 250, 1)], [])
    assert [shares.cpu[free] for free in (0, 249, 250, 500, 999)] == [0, 0, 1000, 2000, 3000]
    assert shares.taken == 4 * reference.COUNT_UNIT
    assert reference.scaled_to_cpu(1000, 800, 800) == 1000
    assert reference.scaled_to_cpu(1000, 400, 800) == 500
    assert [reference.left_by(cpu, 1600) for cpu in (1000, 1100, 2000)] == [0, 0, 900]


def test_both_tables_of_completion_are_the_same() -> None:
    compiled = pytest.importorskip("actorgrid.hotpath.completion", reason="the compiled kernels were not built here")
    dice = random.Random(5)
    for _ in range(20):
        tasks = [
            (
                dice.choice((0, 700, 1500, 4000, 9000, 2**50)),
                dice.choice((1, 1, 2, 5, 64)),
                dice.choice((1, 100, 333, 500, 999, 1000)),
                dice.choice((0, 96, 1500)),
            )
            for _ in range(dice.randrange(8))
        ]
        prices = list(share_prices({milli: 1 for _, _, milli, _ in tasks if milli < 1000}, 16_000).items())
        shares = reference.share_worth(tasks, prices)
        assert compiled.share_worth(tasks, prices) == shares
        for shift in (10, 43):
            table = reference.whole_worth(tasks, shares, 16, shift, 4, MIX_WEIGHT)
            assert compiled.whole_worth(tasks, shares, 16, shift, 4, MIX_WEIGHT) == table


# -- prices of shares


@pytest.mark.parametrize(
    ("demand", "prices"),
    [
        ({500: 1}, {500: 500}),
        ({333: 7}, {333: 333}),
        ({600: 1}, {600: 1000}),  # the rest is of no use to anybody
        ({700: 1, 300: 1}, {700: 1000, 300: 0}),  # as many rests of 300 as shares of 300: they cost nothing
        ({700: 1, 300: 9}, {700: 667, 300: 333}),
        ({600: 5, 400: 1}, {600: 1000, 400: 0}),
    ],
)
def test_a_share_costs_what_it_takes_from_the_best_packing(demand: dict[int, int], prices: dict[int, int]) -> None:
    found = share_prices(demand, 1000)
    assert found.keys() == prices.keys()
    assert sum(found[size] * weight for size, weight in demand.items()) == pytest.approx(
        sum(prices[size] * weight for size, weight in demand.items()), abs=2 * sum(demand.values())
    )


@given(st.dictionaries(st.integers(1, 999), st.integers(1, 4096), max_size=100))
@settings(max_examples=60, deadline=None)
def test_no_way_to_fill_a_device_is_worth_more_than_the_device(demand: dict[int, int]) -> None:
    prices = share_prices(demand, 16_000)
    best = [0] * 101
    for room in range(101):
        for milli, price in prices.items():
            size = max(1, milli // 10)
            if size <= room:
                best[room] = max(best[room], best[room - size] + price)
    assert best[100] <= 16_000
    assert prices == share_prices(demand, 16_000)


# -- prices of models


def test_a_model_costs_nothing_until_those_that_name_it_would_find_too_little() -> None:
    free = {1: 1000, 2: 9000}
    assert model_prices([((1,), DEMAND_UNIT // 10)], free, 10_000) == {1: 0, 2: 0}
    short = model_prices([((1,), DEMAND_UNIT // 5)], free, 10_000)
    assert short == {1: PRICE_MAX, 2: 0}
    either = model_prices([((1, 2), DEMAND_UNIT // 5)], free, 10_000)
    assert either == {1: 0, 2: 0}, "what names both is spread over both"
    assert model_prices([((1,), DEMAND_UNIT)], {1: 0}, 0) == {1: 0}


def test_work_that_runs_anywhere_leaves_a_short_model_to_those_that_name_it(engine_kind: Any) -> None:
    engine = engine_kind("completion")
    engine.set_typical_tasks([TypicalTask(1000, 1, 1000, 3.0), TypicalTask(1000, 1, 1000, 2.0, ("T4",))])
    for number in range(8):
        add(engine, f"n{number}", gpus=2, gpu_model="T4" if number < 2 else "A100")
    models = [
        engine.nodes()[int(node_of(engine.place(cpu_milli=1000, gpu_count=1))[1:])].gpus[0].model for _ in range(12)
    ]
    assert models == ["A100"] * 12
    assert node_of(engine.place(gpu_count=1)) == "n0", "but where nothing else is free it is taken"
    assert node_of(engine.place(gpu_count=1, gpu_models=("T4",))) == "n0"


def test_shapes_that_differ_in_memory_go_where_there_is_memory(engine_kind: Any) -> None:
    engine = engine_kind()
    for number in range(140):
        engine.add_node(f"n{number}", cpu_milli=64_000, memory_mib=100 + 100 * (number % 70), gpu_count=2)
    asked = (50, 7000, 6950, 7000, 6900, 50, 6850, 6850)
    found = [engine.place(memory_mib=memory, gpu_count=1) for memory in asked]
    assert [placed and node_of(placed) for placed in found] == ["n0", "n69", "n139", None, "n68", "n0", "n138", None]
    engine.release(found[1].id)
    assert node_of(engine.place(memory_mib=7000, gpu_count=1)) == "n69"
