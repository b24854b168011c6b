"""``dag plan``: graphs are checked and planned, and no host is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Invoke

MONTAGE = Path(__file__).resolve().parents[1] / "dag/workflows/montage-chameleon-2mass-01d-001.json"
TEXT = """
steps:
  - {id: fetch, command: x, runtime_s: 3}
  - {id: left, command: x, inputs: [fetch], runtime_s: 2}
  - {id: right, command: x, inputs: [fetch], runtime_s: 4}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(TEXT)
    return path


def test_a_plan_says_how_long_it_takes_and_what_it_hangs_on(alone: Invoke, graph: Path) -> None:
    done = alone("dag", "plan", str(graph), "--processors", "1,2")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["PROCESSORS", "STRATEGY"]
    assert lines[1][:4] == ["1", "time_optimized", "9.0", "s"]
    assert lines[2][:6] == ["2", "time_optimized", "7.0", "s", "7.0", "s"]
    assert done.stdout.splitlines()[-1] == "hangs on: fetch -> right"


def test_all_strategies_side_by_side_and_every_step(alone: Invoke, graph: Path) -> None:
    done = alone("dag", "plan", str(graph), "--strategy", "all", "--steps", "--json")
    document = json.loads(done.stdout)
    assert document["steps"] == 3
    assert len(document["plans"]) == 6
    assert {run["step"] for run in document["plans"][0]["runs"]} == {"fetch", "left", "right"}
    assert "right" in alone("dag", "plan", str(graph), "--steps").stdout


def test_a_workflow_of_wfcommons_is_planned(alone: Invoke) -> None:
    done = alone("dag", "plan", str(MONTAGE), "--processors", "16", "--json")
    (plan,) = json.loads(done.stdout)["plans"]
    assert plan["makespan_s"] < 35.5


def test_a_file_is_drawn_as_it_is_and_as_it_is_planned(alone: Invoke, graph: Path, tmp_path: Path) -> None:
    done = alone("dag", "picture", str(graph), "-o", str(tmp_path / "g.svg"))
    assert done.exit_code == 0, done.output
    assert "g.svg: 3 planned" in done.stdout
    assert "about 4 s" in (tmp_path / "g.svg").read_text()
    words = ("-o", "-", "--processors", "2", "--perfetto", str(tmp_path / "trace.json"))
    done = alone("dag", "timeline", str(graph), *words)
    assert done.stdout.startswith("<svg")
    assert "takes 7 s" in done.stdout
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 3
    refused = alone("dag", "picture", "no/such.yaml")
    assert refused.exit_code == 2
    assert "there is no file no/such.yaml" in refused.stderr
    refused = alone("dag", "picture", str(graph), "-o", str(tmp_path / "no" / "g.svg"))
    assert refused.exit_code != 0
    assert "No such file" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processors", "0"], "write 4 or 4,16"),
        (["--processors", "x"], "write 4 or 4,16"),
        (["--bandwidth", "fast"], "--bandwidth"),
        (["--strategy", "time_optimised"], "did you mean time_optimized"),
    ],
)
def test_wrong_words_are_refused_with_what_to_write(alone: Invoke, graph: Path, words: list[str], said: str) -> None:
    done = alone("dag", "plan", str(graph), *words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_what_is_wrong_with_a_graph_is_a_document_too(alone: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(
        json.dumps(
            {"steps": [{"id": "a", "command": "x", "after": ["b"]}, {"id": "b", "command": "x", "after": ["a"]}]}
        )
    )
    done = alone("dag", "plan", str(path), "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["found"]) == ("CyclicGraph", "a -> b -> a")


def test_gpus_are_there_where_they_are_asked_for(alone: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("steps:\n  - {id: a, command: x, gpus: 1, runtime_s: 1}\n")
    assert "UnsatisfiableCost" in alone("dag", "plan", str(path), "--json").stdout
    (plan,) = json.loads(alone("dag", "plan", str(path), "--gpus", "2", "--json").stdout)["plans"]
    assert plan["fragmented"] == 0.0
