"""FGD's measure: by hand, and kept current against reckoning it anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.hotpath import TypicalTask
from actorgrid.replay.fragments import Fragments
from actorgrid.replay.workload import TraceNode, TraceTask

NODES = [
    TraceNode("a", cpu_milli=8000, gpu_count=2, gpu_model="T4"),
    TraceNode("b", cpu_milli=4000, gpu_count=1, gpu_model="A10"),
]
MIX = [
    TypicalTask(1000, 1, 500, 0.5),
    TypicalTask(6000, 1, 1000, 0.2),
    TypicalTask(1000, 2, 1000, 0.1),
    TypicalTask(1000, 1, 250, 0.1, ("A10",)),
    TypicalTask(1000, 0, 1000, 0.1),
]


def test_fragments_of_an_empty_cluster_by_hand() -> None:
    found = Fragments(NODES, MIX)
    assert found.free_gpu_milli == 3000
    # Node a, 2000 free: nothing to the task without GPU (0.1) and to the one for A10 (0.1). Node b, 1000 free: nothing
    # to the one of 6 CPUs (0.2), to the pair (0.1) and without GPU (0.1).
    assert round(found.fragment_gpu_milli, 6) == 2000 * 0.2 + 1000 * 0.4
    assert round(found.share, 6) == round(800 / 3000, 6)


def test_fragments_after_a_share_was_taken_by_hand() -> None:
    found = Fragments(NODES, MIX)
    task = TraceTask("x", cpu_milli=3000, gpu_count=1, gpu_milli=600)
    found.placed((("a", (0,)),), task)
    # Node a: devices with 400 and 1000 free, 5 CPUs. Half a GPU (0.5): the 400 are lost. A whole one with 6 CPUs (0.2):
    # all 1400. Two (0.1): all. For A10 (0.1) and without GPU (0.1): all.
    assert round(found.fragment_gpu_milli, 6) == 0.5 * 400 + 0.5 * 1400 + 1000 * 0.4
    found.released((("a", (0,)),), task)
    assert round(found.fragment_gpu_milli, 6) == 800


def test_a_full_cluster_has_no_fragments() -> None:
    found = Fragments(NODES[1:], MIX)
    found.placed((("b", (0,)),), TraceTask("x", gpu_count=1))
    assert found.share == 0.0


def reckoned(free: dict[str, tuple[int, list[int]]]) -> float:
    """The definition, word by word."""
    total = 0.0
    for node in NODES:
        cpu, gpus = free[node.name]
        for task in MIX:
            fits = (
                task.gpu_count > 0
                and cpu >= task.cpu_milli
                and (not task.gpu_models or node.gpu_model in task.gpu_models)
                and sum(milli >= task.gpu_milli for milli in gpus) >= task.gpu_count
            )
            total += task.weight * sum(milli for milli in gpus if not fits or milli < task.gpu_milli)
    return total


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 1000), st.integers(0, 3000)), max_size=20
    )
)
def test_what_is_kept_current_is_what_the_definition_says(steps: list[tuple[str, int, int, int]]) -> None:
    found = Fragments(NODES, MIX)
    free = {node.name: (node.cpu_milli, [1000] * node.gpu_count) for node in NODES}
    for name, index, milli, cpu in steps:
        cpu_free, gpus = free[name]
        if index < len(gpus) and gpus[index] >= milli and cpu_free >= cpu:
            gpus[index] -= milli
            free[name] = (cpu_free - cpu, gpus)
            found.placed(((name, (index,)),), TraceTask("x", cpu_milli=cpu, gpu_count=1, gpu_milli=milli))
        assert abs(found.fragment_gpu_milli - reckoned(free)) < 1e-6
        assert found.free_gpu_milli == sum(sum(gpus) for _, gpus in free.values())
