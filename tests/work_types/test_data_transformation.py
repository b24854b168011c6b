"""Tables through steps, against what is plain to see."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.errors import InvalidWork
from actorgrid.work_types.registry import find_work_type


def run(inputs: list[str], output: str, *steps: dict[str, Any]) -> dict[str, Any]:
    kind = find_work_type("data_transformation")
    plan = kind.plan(kind.checked({"inputs": inputs, "output": output, "steps": list(steps)}))
    assert plan.function is not None
    found: dict[str, Any] = plan.function(*plan.arguments)
    return found


@pytest.fixture
def trips(tmp_path: Path) -> Path:
    path = tmp_path / "trips.csv"
    path.write_text("city,km,fare\nRome,2,5.5\nOslo,10,20\nRome,4,\nBonn,1,x\nOslo,3,9\n", encoding="utf-8")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_chain_of_steps(trips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    told = run(
        [str(trips)],
        str(out),
        {"op": "number", "columns": ["km", "fare"]},
        {"op": "where", "column": "km", "is": ">=", "value": 2},
        {"op": "compute", "into": "per_km", "left": "fare", "by": "/", "right": "km"},
        {"op": "rename", "columns": {"city": "place"}},
        {"op": "sort", "by": ["per_km", "place"], "descending": False},
        {"op": "select", "columns": ["place", "per_km"]},
        {"op": "limit", "rows": 3},
    )
    assert told == {"rows_read": 5, "rows_written": 3, "output": str(out)}
    assert lines(out) == [
        {"place": "Oslo", "per_km": 2.0},
        {"place": "Rome", "per_km": 2.75},
        {"place": "Oslo", "per_km": 3.0},
    ]


def test_groups_and_csv(trips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    into = {"trips": ["count", "km"], "km": ["sum", "km"], "dearest": ["max", "fare"], "mean": ["mean", "fare"]}
    run([str(trips), str(trips)], str(out), {"op": "group", "by": ["city"], "into": into})
    with open(out, encoding="utf-8", newline="") as file:
        rows = {row["city"]: row for row in csv.DictReader(file)}
    assert rows["Rome"] == {"city": "Rome", "trips": "4", "km": "12.0", "dearest": "5.5", "mean": "5.5"}
    assert rows["Bonn"]["mean"] == "", "nothing of it is a number"


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"op": "select", "columns": ["kmm"]}, r"steps.0 \(select\): there is no column 'kmm'"),
        ({"op": "compute", "into": "x", "left": "km", "by": "/", "right": 0.0}, "ZeroDivisionError"),
    ],
)
def test_what_fails_names_the_step_and_leaves_no_file(trips: Path, tmp_path: Path, step: Any, says: str) -> None:
    out = tmp_path / "out.csv"
    out.write_text("before")
    with pytest.raises(InvalidWork, match=says):
        run([str(trips)], str(out), step)
    assert out.read_text() == "before" and len(list(tmp_path.iterdir())) == 2


def test_files_that_are_not_there_or_of_another_shape(tmp_path: Path) -> None:
    with pytest.raises(InvalidWork, match="cannot be read"):
        run([str(tmp_path / "none.csv")], str(tmp_path / "o.csv"))
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    with pytest.raises(InvalidWork, match="row 1 has another shape"):
        run([str(tmp_path / "list.jsonl")], str(tmp_path / "o.csv"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1000, 1000)), max_size=30), least=st.integers(-50, 50)
)
def test_it_agrees_with_a_plain_model(tmp_path: Path, rows: list[tuple[str, int]], least: int) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"k": key, "v": value}) + "\n" for key, value in rows), encoding="utf-8")
    run(
        [str(source)],
        str(out),
        {"op": "where", "column": "v", "is": ">", "value": least},
        {"op": "group", "by": ["k"], "into": {"n": ["count", "v"], "sum": ["sum", "v"], "least": ["min", "v"]}},
        {"op": "sort", "by": ["k"]},
    )
    expected: dict[str, list[int]] = defaultdict(list)
    for key, value in rows:
        if value > least:
            expected[key].append(value)
    assert lines(out) == [
        {"k": key, "n": len(values), "sum": sum(values), "least": min(values)}
        for key, values in sorted(expected.items())
    ]
