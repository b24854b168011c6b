"""Graphs as files: YAML and JSON, and workflows of WfCommons; what is wrong is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorgrid.dag.graph_documents import checked_request, read_graph_file, request_of
from actorgrid.dag.model import StepKind
from actorgrid.dag.requests import GraphRequest
from actorgrid.dag.wfcommons import graph_of, is_wfcommons
from actorgrid.errors import CyclicGraph, InvalidGraph, UnboundedLoop

WORKFLOWS = Path(__file__).parent / "workflows"
TEXT = """
name: report
resources: {licence: 2}
steps:
  - id: fetch
    command: curl -o data.csv https://example.org/data.csv
    runtime_s: 3
    output_bytes: 10MB
  - id: clean
    command: [python, clean.py]
    inputs: [{step: fetch, bytes: 4MB}]
    needs: {licence: 1}
    timeout: 60
  - id: train
    command: python train.py
    after: [clean]
    gpus: 0.5
    memory: 2GiB
    retries: 2
"""


def written(folder: Path, text: str, name: str = "graph.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_graph_is_read_from_yaml(tmp_path: Path) -> None:
    request = request_of(read_graph_file(written(tmp_path, TEXT)))
    graph = request.to_graph()
    assert [step.id for step in graph.steps] == ["fetch", "clean", "train"]
    assert request.steps[0].command == ["sh", "-c", "curl -o data.csv https://example.org/data.csv"]
    assert request.steps[1].max_execution_time_s == 60
    fetch, clean, train = graph.steps
    assert fetch.kind is StepKind.COMMAND
    assert (fetch.cost.runtime_s, fetch.cost.output_bytes) == (3.0, 10_000_000)
    assert graph.arrow_bytes(0, 1) == 4_000_000
    assert clean.cost.named == {"licence": 1}
    assert (train.cost.demand.gpu_milli, train.cost.demand.memory_mib, train.retries) == (500, 2048, 2)
    assert graph.arrow_bytes(1, 2) == 0
    assert graph.producers == ((), (0,), (1,))


def test_a_graph_is_read_from_json(tmp_path: Path) -> None:
    document = {"steps": [{"id": "a", "command": ["true"]}]}
    assert len(request_of(read_graph_file(written(tmp_path, json.dumps(document), "g.json"))).steps) == 1


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"steps": []}, "steps"),
        ({"steps": [{"id": "a"}]}, "step 'a': step a: a command is missing"),
        ({"steps": [{"id": "a", "command": "x", "retires": 2}]}, "step 'a'.retires"),
        ({"steps": [{"id": "a", "command": "x", "gpu_memory": "2GiB"}]}, "gpu_memory without gpus"),
        ({"steps": [{"id": "a", "command": "x"}], "on_failure": "sulk"}, "on_failure"),
        ({"steps": [{"id": "a", "command": "x"}], "graph_id": "a.b"}, "graph_id"),
        ({"steps": [3]}, "step 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        request_of(document)


CALL = {"offset": 0, "size": 9}


@pytest.mark.parametrize(
    ("more", "asks"),
    [
        ({}, False),
        ({"trigger": "none_failed"}, False),
        ({"trigger": "some_succeeded"}, True),
        ({"kind": "function", "call": CALL, "when": {"step": "f", "word": 1}}, False),
        ({"kind": "function", "call": CALL, "when": {"step": "f", "word": 1, "negated": True}}, True),
        ({"when": {"step": "a", "word": "x"}}, True),
    ],
)
def test_what_hosts_of_before_cannot_read_says_so(more: dict[str, Any], asks: bool) -> None:
    steps = [{"id": "a", "command": "x"}, {"id": "f", "kind": "function", "call": CALL}]
    last = {"id": "z", "after": ["a"], **({} if "call" in more else {"command": "x"}), **more}
    assert GraphRequest(steps=[*steps, last], bundle="0" * 64).asks_commands is asks


def test_a_command_may_have_a_checkpoint_which_not_all_hosts_can_read() -> None:
    plain = {"id": "a", "command": "x"}
    assert GraphRequest(steps=[plain]).spec_version == 0
    for wish in ("ckpt", {"path": "ckpt", "every_s": 60}):
        request = GraphRequest(steps=[{**plain, "checkpoint": wish}])
        assert request.spec_version == 10 and request.steps[0].checkpoint.path == "ckpt"
    call = {"id": "a", "kind": "function", "call": CALL, "checkpoint": "ckpt"}
    for wrong in (call, {**plain, "checkpoint": {}}, {**plain, "checkpoint": "../x"}, {**plain, "checkpoint": "/x"}):
        with pytest.raises(ValueError, match=r"checkpoint|path"):
            GraphRequest(steps=[wrong], bundle="0" * 64)


def test_files_that_commands_read_are_part_of_their_key(tmp_path: Path) -> None:
    def key(**more: Any) -> dict[str, Any]:
        step = {"id": "a", "command": "x", "outputs": ["out"], "cache": "inputs", "files": ["in", "dir"], **more}
        made: dict[str, Any] = checked_request({"steps": [step, {"id": "z", "command": "z"}]}, str(tmp_path))
        assert "files" not in made["steps"][0]
        return made["steps"][0]["cache"]

    (tmp_path / "dir" / "deep").mkdir(parents=True)
    (tmp_path / "in").write_text("one")
    (tmp_path / "dir" / "deep" / "file").write_text("two")
    first = key()
    assert first == key() == key(env={"A": "1"}) == key(retries=3), "what is around it is looked at where it is led on"
    found = [first["call"], key(command="y")["call"], key(outputs=["other"])["call"]]
    (tmp_path / "in").write_text("other")
    found.append(key()["call"])
    (tmp_path / "dir" / "deep" / "file").rename(tmp_path / "dir" / "file")
    found.append(key()["call"])
    assert len(set(found)) == len(found)
    assert key(cache="refresh")["refresh"] is True
    for wrong, words in (
        ({"files": ["nowhere"]}, "not there"),
        ({"outputs": []}, "nobody knows what it leaves"),
        ({"cache": "input"}, "no such cache"),
        ({"outputs": ["../x"]}, "no path inside"),
    ):
        with pytest.raises(InvalidGraph, match=words):
            key(**wrong)


def test_cache_of_the_graph_is_of_commands_that_say_what_they_leave() -> None:
    steps = [{"id": "a", "command": "x", "outputs": ["o"]}, {"id": "b", "command": "y"}]
    steps.append({"id": "c", "command": "x", "outputs": ["o"], "cache": "none"})
    made = checked_request({"cache": "inputs", "steps": steps}, "/", refresh=True)
    assert "cache" not in made
    assert [step.get("cache", {}).get("refresh") for step in made["steps"]] == [True, None, None]


@pytest.mark.parametrize(
    ("repeat", "kind", "words"),
    [
        ({"until": "x"}, UnboundedLoop, "no bound"),
        ({"until": "x", "rounds": 0}, UnboundedLoop, "has a bound"),
        ({"until": "x", "rounds": 1001}, UnboundedLoop, "has a bound"),
        ({"until": "x", "rounds": True}, UnboundedLoop, "has a bound"),
        ({"rounds": 3}, InvalidGraph, "the word that ends it"),
        ("x", InvalidGraph, "the word that ends it"),
        ({"until": True, "rounds": 3}, InvalidGraph, "put it in quotes"),
    ],
)
def test_a_loop_without_a_bound_is_refused_by_name(repeat: Any, kind: type[InvalidGraph], words: str) -> None:
    with pytest.raises(kind, match=words) as raised:
        checked_request({"steps": [{"id": "poll", "command": "x", "repeat": repeat}]}, "/")
    assert "poll" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "name"), [("[", "g.yaml"), ("{", "g.json"), ("- a", "g.yaml"), ("[" * 20_000, "g.json")]
)
def test_a_file_that_is_no_graph_is_refused(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(InvalidGraph):
        request_of(read_graph_file(written(tmp_path, text, name)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="cannot be read"):
        read_graph_file(tmp_path / "nothing.yaml")


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="no YAML or JSON"):
        read_graph_file(written(tmp_path, "steps: !!python/object/apply:os.system [true]"))


@pytest.mark.parametrize(
    ("name", "steps", "arrows", "first"),
    [
        ("montage-chameleon-2mass-01d-001.json", 103, 231, 15.712),
        ("epigenomics-chameleon-hep-1seq-100k-001.json", 41, 48, 2.774),
    ],
)
def test_workflows_of_wfcommons_are_read(name: str, steps: int, arrows: int, first: float) -> None:
    document = json.loads((WORKFLOWS / name).read_text())
    assert is_wfcommons(document)
    graph = graph_of(document)
    assert len(graph) == steps
    assert sum(map(len, graph.producers)) == arrows
    assert graph.steps[0].cost.runtime_s == first
    assert sum(graph.arrow_bytes(p, n) for n in range(steps) for p in graph.producers[n]) > 10**8


def test_workflows_of_the_format_before_are_read() -> None:
    files = [{"link": "output", "name": "x", "sizeInBytes": 7}]
    tasks = [
        {"name": "a", "parents": [], "children": ["b"], "runtimeInSeconds": 2, "files": files},
        {
            "name": "b",
            "parents": ["a"],
            "children": [],
            "runtimeInSeconds": 3,
            "files": [{**files[0], "link": "input"}],
        },
    ]
    graph = graph_of({"name": "old", "schemaVersion": "1.3", "workflow": {"tasks": tasks}})
    assert [step.cost.runtime_s for step in graph.steps] == [2.0, 3.0]
    assert graph.arrow_bytes(0, 1) == 7


@pytest.mark.parametrize(
    "workflow",
    [
        {},
        {"specification": {}},
        {"specification": {"tasks": [1]}},
        {"specification": {"tasks": [{}]}},
        {"specification": {"tasks": {}}},
    ],
)
def test_what_is_no_workflow_is_refused(workflow: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph):
        graph_of({"schemaVersion": "1.5", "workflow": workflow})


def test_a_workflow_with_a_circle_is_refused() -> None:
    tasks = [{"id": "a", "parents": ["b"]}, {"id": "b", "parents": ["a"]}]
    with pytest.raises(CyclicGraph):
        graph_of({"schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks}}})
