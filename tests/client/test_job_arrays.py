"""Arrays of jobs: how their indexes are written, and the graph that each of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.client.options import TaskOptions
from actorgrid.dag.requests import GraphRequest
from actorgrid.errors import BadRequest
from actorgrid.job_arrays import INDEXES_MAX, JobArray, array_request, step_of_index


@pytest.mark.parametrize(
    ("text", "indexes", "at_once"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("1,3,5-7", (1, 3, 5, 6, 7), 0),
        ("0-9:3%2", (0, 3, 6, 9), 2),
        ("4", (4,), 0),
        ("3,1-3", (3, 1, 2), 0),
    ],
)
def test_indexes_are_written_as_slurm_writes_them(text: str, indexes: tuple[int, ...], at_once: int) -> None:
    array = JobArray.parse(text)
    assert (array.indexes, array.at_once) == (indexes, at_once)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-5:0", "1,,2", "0-3%0", "0-3%", "0-3%x", "-1", "0-99999999999", "1 2", "0-9:3:2", "²"]
)
def test_what_are_no_indexes_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        JobArray.parse(text)


def test_there_are_at_most_so_many() -> None:
    assert len(JobArray.parse(f"1-{INDEXES_MAX}").indexes) == INDEXES_MAX
    for text in (f"0-{INDEXES_MAX}", f"0-{INDEXES_MAX // 2},{INDEXES_MAX}-{2 * INDEXES_MAX}"):
        with pytest.raises(BadRequest, match="too large"):
            JobArray.parse(text)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True))
def test_numbers_are_what_their_text_says(numbers: list[int]) -> None:
    assert JobArray.of(numbers).indexes == tuple(numbers)
    step = max(1, numbers[0] % 7)
    assert JobArray.of(range(3, 50, step), 4) == JobArray.parse(JobArray.of(range(3, 50, step)).text + "%4")


def test_an_array_is_a_graph_without_arrows() -> None:
    options = TaskOptions(gpus=0.5, retries=2, labels={"team": "vision"}, timeout=60, priority=70, durable=True)
    job = options.job_request(kind="command", command=["./work", "x"], cwd="/tmp")
    request = GraphRequest.model_validate(array_request(job, JobArray.parse("0-99%8"), lambda n: {"N": str(n)}))
    assert len(request.to_graph().steps) == 100 and request.in_parallel == 8 and request.labels == {"team": "vision"}
    step = request.steps[7]
    assert (step.id, step.gpus, step.retries, step.max_execution_time_s, step.cwd) == ("7", 0.5, 2, 60, "/tmp")
    assert step.env == {"ACTORGRID_ARRAY_INDEX": "7", "N": "7"} and step.command == ["./work", "x"]
    assert request.env == {"ACTORGRID_ARRAY_ID": request.graph_id, "ACTORGRID_ARRAY_COUNT": "100"}
    assert request.on_failure.value == "continue" and request.priority == 70


def test_each_index_has_a_checkpoint_of_its_own() -> None:
    job = TaskOptions(durable=True).job_request(kind="command", command=["x"])
    array = array_request({**job, "checkpoint": {"path": "ckpt", "every_s": 60.0}}, JobArray.parse("3,7"))
    steps = GraphRequest.model_validate(array).steps
    assert [(step.checkpoint.path, step.checkpoint.every_s) for step in steps if step.checkpoint] == [
        ("ckpt/3", 60.0),
        ("ckpt/7", 60.0),
    ]


@pytest.mark.parametrize("more", [{"depends_on": ["a"]}, {"outputs": ["x"]}, {"deadline": 60}])
def test_what_an_array_cannot_have_is_refused_by_name(more: dict[str, object]) -> None:
    job = TaskOptions(**more, durable=True).job_request(kind="command", command=["x"])  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="an array has no"):
        array_request(job, JobArray.parse("0-1"))


def test_an_index_is_found_among_the_steps() -> None:
    array = {"kind": "graph", "annotations": {"array": "10-30:10"}}
    assert [step_of_index(array, index) for index in (10, 30, 11)] == [0, 2, None]
    assert step_of_index({"kind": "command", "annotations": {"array": "0-3"}}, 1) is None
    assert step_of_index({"kind": "graph", "annotations": {"array": "nonsense"}}, 1) is None
