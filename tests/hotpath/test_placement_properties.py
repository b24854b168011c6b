"""Random histories: the twins agree, nothing is ever overcommitted, release restores."""

from __future__ import annotations

import gc
import random
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.errors import ActorGridError
from actorgrid.hotpath.closeness import CLOSENESS
from actorgrid.hotpath.records import POLICIES, NodeView, TypicalTask
from actorgrid.hotpath.reference.placement import PlacementEngine as ReferenceEngine

MODELS = ("H100", "A100", "MI300X")
RACKS = ("r1", "r2", None)
NAMES = tuple(f"n{number}" for number in range(6))

node_names = st.sampled_from(NAMES)
devices = st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from((0, 40, 80))), max_size=5)
shares = st.lists(
    st.tuples(node_names, st.lists(st.integers(-1, 5), max_size=3).map(tuple)), min_size=1, max_size=2
).map(tuple)
amounts = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from((0, 100, 1000, 4000)),
        "memory_mib": st.sampled_from((0, 64, 512)),
        "gpu_milli": st.sampled_from((1, 250, 333, 500, 1000)),
        "gpu_memory_mib": st.sampled_from((0, 10, 40, 80)),
    }
)
requests = st.builds(
    lambda amount, more: {**amount, **more},
    amounts,
    st.fixed_dictionaries(
        {"gpu_count": st.integers(0, 4)},
        optional={
            "gpu_models": st.sets(st.sampled_from(MODELS)).map(sorted),
            "gpu_topology": st.sampled_from(CLOSENESS),
            "gang": st.integers(1, 4),
            "exclude": st.sets(node_names, max_size=2).map(sorted),
            "prefer_racks": st.sets(st.sampled_from(("r1", "r2", "r9"))).map(sorted),
            "within": shares,
        },
    ),
)
mixes = st.lists(
    st.builds(
        TypicalTask,
        st.sampled_from((0, 100, 1000, 4000)),
        st.integers(0, 4),
        st.sampled_from((250, 333, 500, 1000)),
        st.sampled_from((0.0, 0.5, 1.0, 30.0)),
        st.sets(st.sampled_from(MODELS), max_size=1).map(tuple),
    ),
    max_size=6,
)
operations = st.one_of(
    st.tuples(
        st.just("add_node"),
        node_names,
        st.fixed_dictionaries(
            {
                "cpu_milli": st.sampled_from((0, 2000, 8000)),
                "memory_mib": st.sampled_from((0, 1024)),
                "devices": devices,
                "rack": st.sampled_from(RACKS),
                "nvlink": st.sampled_from((None, (0, 0, 1, 1, 2), (3, 7, 3, 7, 3))),
                "near": st.sampled_from((None, ("01551", "10551", "55015", "55105", "11550")))
                | st.lists(st.text("012345", max_size=5), min_size=5, max_size=5).map(tuple),
            }
        ),
    ),
    st.tuples(st.just("resize_node"), node_names, st.sampled_from((0, 1500, 9000)), st.sampled_from((100, 2000))),
    st.tuples(st.just("set_device_score"), node_names, st.integers(0, 3), st.sampled_from((0, 500, 1000, 1001))),
    st.tuples(st.just("set_typical_tasks"), mixes),
    st.tuples(st.just("place"), requests),
    st.tuples(st.just("place"), requests),
    st.tuples(st.just("place"), requests),
    st.tuples(st.just("explain"), requests),
    st.tuples(st.just("release"), st.integers(1, 12)),
    st.tuples(st.just("remove_node"), node_names),
    st.tuples(st.just("drain"), node_names, st.booleans()),
    st.tuples(st.just("adopt"), st.integers(1, 12), shares, amounts),
    st.tuples(st.just("reserve"), node_names, st.lists(st.integers(0, 4), max_size=2).map(tuple), amounts),
)


def carry_out(engine: Any, operation: tuple[Any, ...]) -> Any:
    """The operation's answer, or the name and text of the error it raised."""
    kind, *given_arguments = operation
    try:
        if kind == "add_node":
            node = dict(given_arguments[1])
            for told in ("nvlink", "near"):
                if node[told] is not None:
                    node[told] = node[told][: len(node["devices"])]
            return engine.add_node(given_arguments[0], **node)
        if kind == "resize_node":
            name, cpu_milli, memory_mib = given_arguments
            return engine.resize_node(name, cpu_milli=cpu_milli, memory_mib=memory_mib)
        if kind in ("place", "explain"):
            return getattr(engine, kind)(**given_arguments[0])
        if kind == "adopt":
            return engine.adopt(given_arguments[0], given_arguments[1], **given_arguments[2])
        if kind == "reserve":
            return engine.reserve(given_arguments[0], gpu_indexes=given_arguments[1], **given_arguments[2])
        return getattr(engine, kind)(*given_arguments)
    except ActorGridError as error:
        return error.to_dict()


def check_nothing_overcommitted(nodes: list[NodeView]) -> None:
    for node in nodes:
        assert 0 <= node.cpu_milli_free <= node.cpu_milli
        assert 0 <= node.memory_mib_free <= node.memory_mib
        for gpu in node.gpus:
            assert 0 <= gpu.milli_free <= 1000
            assert 0 <= gpu.memory_mib_free <= gpu.memory_mib


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the compiled engine was not built here")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(POLICIES), seed=st.integers(0, 9), history=st.lists(operations, max_size=40))
def test_both_engines_take_the_same_decisions(policy: str, seed: int, history: list[tuple[Any, ...]]) -> None:
    engines = []
    for kind in (ReferenceEngine, actorgrid.hotpath.PlacementEngine):
        engines.append(kind(policy, random.Random(seed).randrange if seed else None))
    for operation in history:
        reference, compiled = (carry_out(engine, operation) for engine in engines)
        assert reference == compiled, operation
    assert engines[0].nodes() == engines[1].nodes()
    assert engines[0].placements() == engines[1].placements()
    assert engines[0].allocated_gpu_milli == engines[1].allocated_gpu_milli
    assert engines[0].capacity_gpu_milli == engines[1].capacity_gpu_milli


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the compiled engine was not built here")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["completion", "fgd"])
def test_both_engines_fill_many_nodes_alike(policy: str, seed: int) -> None:
    """More nodes than a block of the table has, models in runs and mixed, memory short, a mix that names models."""
    dice = random.Random(f"{policy} {seed}")
    engines = [kind(policy) for kind in (ReferenceEngine, actorgrid.hotpath.PlacementEngine)]
    mix = [
        TypicalTask(
            dice.choice((500, 4000, 9000)),
            dice.choice((1, 1, 1, 2, 4)),
            dice.choice((1000, 1000, 500, 330, 100)),
            dice.random(),
            tuple(dice.sample(MODELS, dice.choice((0, 0, 1, 2)))),
        )
        for _ in range(12)
    ]
    nodes = [
        {
            "name": f"n{number}",
            "cpu_milli": dice.choice((8000, 64_000)),
            "memory_mib": dice.choice((64, 512, 8192)),
            "gpu_count": dice.choice((0, 1, 2, 4, 8)),
            "gpu_model": MODELS[number // 70] if number < 140 else dice.choice((*MODELS, "other")),
        }
        for number in range(170)
    ]
    held: list[int] = []
    placed = 0
    for engine in engines:
        engine.set_typical_tasks(mix)
        for node in nodes:
            engine.add_node(**node)
    for _ in range(500):
        if held and dice.random() < 0.2:
            id = held.pop(dice.randrange(len(held)))
            for engine in engines:
                engine.release(id)
            continue
        task = dice.choice(mix)
        asked = {
            "cpu_milli": task.cpu_milli,
            "memory_mib": dice.choice((0, 64, 300, 2048)),
            "gpu_count": dice.choice((task.gpu_count, task.gpu_count, 0)),
            "gpu_milli": task.gpu_milli,
            "gpu_models": task.gpu_models,
            "gang": dice.choice((1, 1, 1, 1, 5)),
        }
        reference, compiled = (engine.place(**asked) for engine in engines)
        assert reference == compiled, asked
        if compiled is not None:
            placed += 1
            held.append(int(compiled.id))
    assert placed > 200
    assert engines[0].nodes() == engines[1].nodes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(POLICIES), history=st.lists(operations, max_size=40))
def test_nothing_is_ever_overcommitted_and_release_restores(policy: str, history: list[tuple[Any, ...]]) -> None:
    engine = actorgrid.hotpath.PlacementEngine(policy)
    for operation in history:
        carry_out(engine, operation)
        check_nothing_overcommitted(engine.nodes())
        used = sum(1000 - gpu.milli_free for node in engine.nodes() for gpu in node.gpus)
        assert engine.allocated_gpu_milli == used
    for id in engine.placements():
        engine.release(id)
    for node in engine.nodes():
        assert (node.cpu_milli_free, node.memory_mib_free) == (node.cpu_milli, node.memory_mib)
        assert all(gpu.milli_free == 1000 and gpu.memory_mib_free == gpu.memory_mib for gpu in node.gpus)
    assert engine.allocated_gpu_milli == 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(POLICIES), history=st.lists(operations, max_size=20), request=requests)
def test_explain_foretells_place(policy: str, history: list[tuple[Any, ...]], request: dict[str, Any]) -> None:
    engine = actorgrid.hotpath.PlacementEngine(policy if policy != "random" else "best_fit")
    for operation in history:
        carry_out(engine, operation)
    foretold = engine.explain(**request)
    before = engine.nodes()
    placed = engine.place(**request)
    assert (placed is not None) == foretold["fits"]
    if placed is None:
        assert engine.nodes() == before
    else:
        assert len(placed.shares) == request.get("gang", 1)
        assert all(len(set(indexes)) == request["gpu_count"] for _, indexes in placed.shares)


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the compiled engine was not built here")
def test_a_dropped_engine_gives_its_memory_back() -> None:
    def build() -> None:
        engine = actorgrid.hotpath.PlacementEngine()
        for number in range(2000):
            engine.add_node(
                f"n{number}", cpu_milli=1, memory_mib=1, gpu_count=64, gpu_model=f"m{number}", rack=f"{number}"
            )
        for number in range(0, 2000, 2):
            engine.remove_node(f"n{number}")

    for _ in range(3):
        build()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(10):  # an engine of this size holds over 4 MB
        build()
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 20 * 2**20
