"""Graphs are checked whole when they are made, and what is wrong is named with the way that leads there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.dag.model import ID_CHARS_MAX, Cost, Graph, GraphStep, StepKind, shown_path
from actorgrid.errors import CyclicGraph, InvalidGraph, MissingProducer


def chain(*ids: str) -> list[GraphStep]:
    return [GraphStep(id, inputs=(ids[place - 1],) if place else ()) for place, id in enumerate(ids)]


def test_a_step_may_be_named_before_it_is_added() -> None:
    graph = Graph([GraphStep("b", inputs=("a",)), GraphStep("a")])
    assert [graph.steps[number].id for number in graph.order] == ["a", "b"]
    assert graph.producers == ((1,), ())
    assert graph.consumers == ((), (0,))


def test_a_circle_is_refused_with_its_steps_in_order() -> None:
    steps = [
        GraphStep("in"),
        GraphStep("a", inputs=("in", "c")),
        GraphStep("b", after=("a",)),
        GraphStep("c", inputs=("b",)),
    ]
    with pytest.raises(CyclicGraph) as refused:
        Graph([*steps, GraphStep("out", inputs=("c",))])
    assert refused.value.found == "a -> b -> c -> a"
    assert refused.value.details["circle"] == ["a", "b", "c"]


def test_a_step_that_waits_for_itself_is_a_circle() -> None:
    with pytest.raises(CyclicGraph, match="a -> a"):
        Graph([GraphStep("a", after=("a",))])


def test_a_producer_that_is_not_there_is_named_with_what_was_probably_meant() -> None:
    with pytest.raises(MissingProducer) as refused:
        Graph([GraphStep("fetch"), GraphStep("clean", inputs=("fetsh",))])
    assert "fetsh" in refused.value.message
    assert refused.value.asked == "fetsh -> clean"
    assert "'fetch'" in refused.value.hint


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "no steps"),
        ([GraphStep("a"), GraphStep("a")], "two steps are called 'a'"),
        ([GraphStep("")], "1 to 100 printable"),
        ([GraphStep("x" * (ID_CHARS_MAX + 1))], "1 to 100 printable"),
        ([GraphStep("a\n")], "1 to 100 printable"),
        ([GraphStep("a", retries=101)], "retries"),
        ([GraphStep("a"), GraphStep("b", inputs=("a",), input_bytes=(1, 2))], "says the bytes of 2"),
        ([GraphStep("a", cost=Cost(named={"licence": 1}))], "resource 'licence'"),
        ([GraphStep("a", collocated="a")], "cannot be collocated"),
        ([GraphStep("a"), GraphStep("v", StepKind.VALUE), GraphStep("b", collocated="v")], "cannot be collocated"),
        ([GraphStep("a", node="one"), GraphStep("b", node="two", collocated="a")], "different hosts"),
    ],
)
def test_what_is_wrong_is_named(steps: list[GraphStep], words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        Graph(steps)


@pytest.mark.parametrize(
    "cost", [{"runtime_s": -1.0}, {"runtime_s": float("nan")}, {"output_bytes": -1}, {"named": {"a": -1}}]
)
def test_a_cost_is_not_negative(cost: dict[str, float]) -> None:
    with pytest.raises(InvalidGraph):
        Cost(**cost)  # type: ignore[arg-type]


def test_values_and_inline_steps_are_part_of_what_takes_them() -> None:
    graph = Graph(
        [
            GraphStep("load"),
            GraphStep("two", StepKind.VALUE),
            GraphStep("half", StepKind.INLINE, inputs=("load", "two")),
            GraphStep("wait", after=("half",)),
            GraphStep("use", inputs=("half", "two"), after=("wait",)),
        ]
    )
    assert [graph.steps[number].id for number in graph.running] == ["load", "wait", "use"]
    assert graph.producers[4] == (0, 3)
    assert graph.taken[4] == (0,)
    assert graph.producers[3] == (0,)
    assert graph.taken[3] == ()
    assert graph.consumers[0] == (2, 3, 4)


def test_collocation_joins_whole_groups() -> None:
    steps = [GraphStep("a"), GraphStep("b", collocated="a"), GraphStep("c"), GraphStep("d", collocated="c")]
    graph = Graph([*steps, GraphStep("e", collocated="b"), GraphStep("f", collocated="e"), GraphStep("g")])
    assert [sorted(others) for others in graph.together] == [[1, 4, 5], [0, 4, 5], [3], [2], [0, 1, 5], [0, 1, 4], []]


def test_a_path_leads_from_the_beginning_and_a_long_one_is_cut() -> None:
    graph = Graph(chain(*(f"s{number}" for number in range(40))))
    path = graph.path_to(39)
    assert len(path) == 40
    assert shown_path(path) == (
        "s0 -> s1 -> s2 -> s3 -> s4 -> s5 -> ... 28 more ... -> s34 -> s35 -> s36 -> s37 -> s38 -> s39"
    )


def test_a_fan_in_of_thousands_and_a_chain_of_thousands_are_no_trouble() -> None:
    wide = Graph(
        [
            *(GraphStep(f"s{number}") for number in range(9_998)),
            GraphStep("end", inputs=tuple(f"s{n}" for n in range(9_998))),
        ]
    )
    assert len(wide.producers[9_998]) == 9_998
    deep = Graph(chain(*(f"s{number}" for number in range(10_000))))
    assert deep.order == tuple(range(10_000))


@given(st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=1, max_size=12))
def test_an_order_is_found_or_a_circle_that_is_one(inputs: list[list[int]]) -> None:
    count = len(inputs)
    steps = [
        GraphStep(f"s{number}", inputs=tuple(f"s{producer % count}" for producer in producers))
        for number, producers in enumerate(inputs)
    ]
    try:
        graph = Graph(steps)
    except CyclicGraph as refused:
        circle = refused.details["circle"]
        by_id = {step.id: step for step in steps}
        assert len(set(circle)) == len(circle) > 0
        for place, id in enumerate(circle):
            assert id in by_id[circle[(place + 1) % len(circle)]].inputs
    else:
        assert sorted(graph.order) == list(range(count))
        place = {number: at for at, number in enumerate(graph.order)}
        assert all(place[producer] < place[number] for number in range(count) for producer in graph.producers[number])
