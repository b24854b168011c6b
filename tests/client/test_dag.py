"""Graphs of steps as they are gathered in Python, up to the body and the file that are sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import actorgrid
from actorgrid import Dag, Function, errors, task
from actorgrid.client.graph_submit import submit
from actorgrid.dag.bundle import read_part
from actorgrid.dag.requests import GraphRequest


def inc(x: int, by: int = 1) -> int:
    return x + by


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def sent(dag: Dag) -> tuple[GraphRequest, bytes]:
    """The request as the door reads it, and the file."""
    body, bundle = dag.request(python="3.11")
    request = GraphRequest.model_validate(body)
    request.to_graph()
    return request, bundle


def step(request: GraphRequest, id: str) -> Any:
    return next(each for each in request.steps if each.id == id)


def test_values_of_steps_at_any_depth_become_inputs() -> None:
    dag = Dag("depth")
    one, two = dag.add(inc, 1), dag.add(inc, 2)
    dag.add(both, {"deep": [(one,)]}, [two, one], id="both")
    request, _ = sent(dag)
    assert [each.step for each in step(request, "both").inputs] == [one.id, two.id]


def test_ids_are_those_of_the_functions_and_numbered_when_they_repeat() -> None:
    dag = Dag()
    made = dag.map(inc, range(3))
    assert len({each.id for each in made}) == 3
    assert made[0].id == "inc"
    with pytest.raises(errors.InvalidGraph, match="two steps are called 'inc'"):
        dag.add(inc, 1, id="inc")


def test_keywords_are_divided_between_step_and_function() -> None:
    dag = Dag()
    dag.add(inc, 1, by=5, retries=3, memory="1GiB", id="a")
    request, _ = sent(dag)
    assert step(request, "a").retries == 3
    assert step(request, "a").memory_bytes == 2**30
    with pytest.raises(errors.BadRequest, match="retires"):
        dag.options(retires=1)


def test_a_keyword_that_both_know_is_refused() -> None:
    def odd(memory: int) -> int:
        return memory

    dag = Dag()
    with pytest.raises(errors.AmbiguousKeyword):
        dag.add(odd, memory=1)
    dag.options(id="odd").add(odd, memory=1)
    assert step(sent(dag)[0], "odd").memory_bytes == 0


def test_a_function_that_many_steps_call_is_sent_once() -> None:
    def many(count: int) -> int:
        dag = Dag()
        dag.map(lambda x, text="y" * 10_000: x, range(count))
        return len(sent(dag)[1])

    assert many(100) - many(1) < 100 * 600

    shared = "z" * 10_000

    def first(x: int) -> str:
        return shared[x]

    def of_one_function(count: int) -> int:
        dag = Dag()
        dag.map(first, range(count))
        return len(sent(dag)[1])

    assert of_one_function(100) - of_one_function(1) < 99 * 200


def test_a_value_is_sent_once_and_inlined_calls_are_no_steps_that_run() -> None:
    dag = Dag()
    value = dag.value("v" * 100_000)
    for _ in range(10):
        dag.add(len, value)
    inline = dag.inline(inc, 1)
    dag.add(inc, inline, id="user")
    request, bundle = sent(dag)
    assert len(bundle) < 150_000
    graph = request.to_graph()
    assert len(graph.running) == 11
    assert step(request, "user").inputs[0].step == inline.id


def test_a_part_that_is_cut_or_changed_is_refused() -> None:
    dag = Dag()
    made = dag.add(inc, 1)
    request, bundle = sent(dag)
    place = step(request, made.id).call
    assert read_part(bundle, place.offset, place.size)
    broken = bytearray(bundle)
    broken[place.offset + place.size - 1] ^= 1
    for data in (bytes(broken), bundle[: place.offset + place.size - 1], b""):
        with pytest.raises(errors.TaskFailed):
            read_part(data, place.offset, place.size)


def test_steps_are_no_values() -> None:
    dag = Dag()
    made = dag.add(inc, 1)
    with pytest.raises(TypeError, match="when"):
        bool(made)
    with pytest.raises(TypeError, match="has no value yet"):
        list(made)
    with pytest.raises(errors.BadRequest):
        pickle.dumps(made)
    other = Dag()
    other.add(inc, made)
    with pytest.raises(errors.ActorGridError):
        other.request(python="3.11")


def test_conditions_hold_for_what_is_added_inside() -> None:
    dag = Dag()
    even = dag.add(inc, 1, id="even")
    with dag.when(even, True):
        yes = dag.add(inc, 2, id="yes")
    with dag.when(even, False):
        no = dag.add(inc, 3, id="no")
    dag.merge(yes, no, id="either")
    request, _ = sent(dag)
    assert [(each.step, each.word) for each in step(request, "yes").when] == [("even", True)]
    assert [(each.step, each.word) for each in step(request, "no").when] == [("even", False)]
    assert step(request, "either").when == []


def test_a_loop_has_a_bound_and_a_step_for_each_round() -> None:
    dag = Dag()
    dag.loop(inc, 0, until=lambda value: value > 2, rounds=4, id="count")
    request, _ = sent(dag)
    assert [each.id for each in request.steps] == ["count[1]", "count[2]", "count[3]", "count[4]", "count"]
    assert step(request, "count").last
    with pytest.raises(errors.BadRequest, match="bound"):
        dag.loop(inc, 0, until=bool, rounds=0)


def test_functions_in_the_words_of_the_design() -> None:
    def add(left: int, right: int) -> int:
        return left + right

    dag = Dag()
    for each in (
        Function("a", [], lambda: 1),
        Function("b", ["a", "a"], add, cost={"cpus": 2, "memory": "1GiB", "licence": 3, "runtime_s": 7}),
        Function("c", [("b", 0)], str, collocated="b", inline=False, retries=2),
    ):
        dag.add_function(each)
    body, _ = dag.request(python="3.11")
    request = GraphRequest.model_validate({**body, "resources": {"licence": 3}})
    assert step(request, "b").cpus == 2
    assert step(request, "b").needs == {"licence": 3}
    assert step(request, "c").collocated == "b"
    assert [each.step for each in step(request, "b").inputs] == ["a"]
    with pytest.raises(errors.InvalidGraph, match="nobody"):
        dag.add_function(Function("d", ["nobody"], str))


@task(retries=2, cpus=0.5)
def doubled(x: int) -> int:
    return 2 * x


def test_in_a_block_calls_of_tasks_become_steps_with_their_options() -> None:
    with Dag() as dag:
        first = doubled(1)
        doubled(first)
    request, _ = sent(dag)
    assert [each.retries for each in request.steps] == [2, 2]
    assert request.steps[0].cpus == 0.5
    assert request.steps[1].inputs[0].step == request.steps[0].id
    assert doubled(4) == 8, "outside of the block it is the function"


def test_the_environment_is_one_of_the_whole_graph() -> None:
    dag = Dag(env={"NAME": "value"})
    dag.add(inc, 1)
    assert sent(dag)[0].env == {"NAME": "value"}
    asked = Dag(env=["numpy>=2"])
    assert asked.environment == actorgrid.Environment(["numpy>=2"])
    for wrong in (["numpy"], "requirements.txt", actorgrid.Environment(["numpy"])):
        with pytest.raises(errors.BadRequest, match="the whole graph"):
            dag.add(inc, 1, env=wrong)


def test_a_step_that_cannot_be_sent_is_named_with_the_part_of_it() -> None:
    dag = Dag()
    dag.add(inc, {"deep": [__import__("threading").Lock()]}, id="locked")
    with pytest.raises(errors.UnpicklableFunction, match="locked"):
        dag.request(python="3.11")


def test_a_sweep_has_a_trial_for_each_point() -> None:
    def train(lr: float, seed: int) -> float:
        return lr * seed

    dag = Dag()
    found = dag.sweep(train, lr=[0.1, 0.2], seed=range(3))
    assert len(found) == 6
    assert (("lr", 0.1), ("seed", 2)) in found
    assert len(sent(dag)[0].steps) == 6


class Door:
    """What a door answers: it has files that were sent, and nothing else."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    def post(self, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.asked.append(path)
        if path == "/api/graph-files":
            if "content" in body:
                self.files[body["digest"]] = body["content"]
            return {"here": body["digest"] in self.files}
        assert path == "/api/graphs"
        assert body["bundle"] in self.files
        return {"job_id": body["graph_id"]}


def test_the_file_is_sent_before_the_graph_and_only_where_it_is_not_yet() -> None:
    door = Door()
    dag = Dag()
    dag.add(inc, 1)
    assert submit(door, dag) == dag.id  # type: ignore[arg-type]
    assert door.asked == ["/api/graph-files", "/api/graph-files", "/api/graphs"]
    assert submit(door, dag) == dag.id  # type: ignore[arg-type]
    assert door.asked[3:] == ["/api/graph-files", "/api/graphs"]
