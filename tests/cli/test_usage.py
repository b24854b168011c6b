"""usage: a table, CSV, JSON; what is not known and who did not answer."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from pydantic import BaseModel

from actorgrid.actors.gateway.routes.usage import ModelUsageView, WorkUsageRow
from actorgrid.cli.used import used_by

from .conftest import Door, Invoke

ROW: dict[str, Any] = {
    "key": "ann",
    "works": 3,
    "running": 1,
    "held_s": 50.0,
    "gpu_s": 7200.0,
    "simulated_gpu_s": 0.0,
    "models": {"H100": 7200.0},
    "memory_mib_s": 1024 * 3600.0,
    "memory_of_gpu_s": 3600.0,
    "memory_high_mib": 2048,
    "energy_j": None,
    "energy_of_gpu_s": 0.0,
    "energy_estimated_s": 0.0,
    "unsampled_s": 0.0,
    "core_s": 20.0,
    "cpu_s": 12.5,
    "max_rss_bytes": 5,
    "incomplete": 0,
}
ANSWER: dict[str, Any] = {"by": "user", "since": None, "rows": [ROW], "missing_hosts": [], "kept_since": None}


def test_a_row_says_what_is_known_and_for_how_much_of_it(call: Invoke, door: Door) -> None:
    door.on("GET /api/usage", ANSWER)
    header, line = call("usage", "--since", "7d").stdout.splitlines()
    assert header.split()[:3] == ["USER", "GPU", "TIME"]
    words = "ann 2.00 h 1 GiB·h (50 %) 2 GiB - 20.0 s 12.5 s 3 (1 running)"
    assert " ".join(line.split()) == words
    assert json.loads(call("usage", "--json").stdout) == ANSWER


def test_csv_has_plain_figures_and_no_formulas(call: Invoke, door: Door) -> None:
    door.on("GET /api/usage", {**ANSWER, "rows": [{**ROW, "key": "=1+1"}]})
    header, line = csv.reader(io.StringIO(call("usage", "--by", "label:team", "--csv").stdout))
    told = dict(zip(header, line, strict=True))
    assert (told["label:team"], told["gpu_s"], told["energy_j"]) == ("'=1+1", "7200.0", "")
    assert call("usage", "--csv", "--json").exit_code == 2


def test_csv_of_nothing_has_all_columns(call: Invoke, door: Door) -> None:
    columns: list[tuple[type[BaseModel], str, list[str]]] = [
        (WorkUsageRow, "GET /api/usage", ["usage", "--by", "job", "--csv"]),
        (ModelUsageView, "GET /api/usage/models", ["usage", "--by", "key", "--csv"]),
    ]
    for row, route, words in columns:
        door.on(route, {**ANSWER, "rows": []})
        (header,) = csv.reader(io.StringIO(call(*words).stdout))
        assert header == [words[2], *(name for name in row.model_fields if name not in ("key", "models"))]


def test_csv_takes_rows_of_earlier_and_later_hosts(call: Invoke, door: Door) -> None:
    row = {name: value for name, value in ROW.items() if name != "cpu_s"}
    door.on("GET /api/usage", {**ANSWER, "rows": [{**row, "later": 7}]})
    header, line = csv.reader(io.StringIO(call("usage", "--csv").stdout))
    told = dict(zip(header, line, strict=True))
    assert (told["cpu_s"], told["later"], told["core_s"]) == ("", "7", "20.0")


def test_what_is_missing_is_said(call: Invoke, door: Door) -> None:
    door.on("GET /api/usage", {**ANSWER, "missing_hosts": ["h2"], "kept_since": 1.7e9, "by": "job"})
    told = call("usage", "--by", "job").stderr
    assert "did not answer: h2" in told and "only known by user" in told
    door.on("GET /api/usage", {**ANSWER, "rows": []})
    assert "nothing was used" in call("usage").stdout


def test_a_line_on_a_job_adds_up_its_attempts_and_members() -> None:
    usage = {"gpu_s": 5.0, "memory_high_mib": 7, "energy_j": 10.0, "unsupported": {}, "simulated": True}
    members = [{"usage": usage}, {"usage": {**usage, "gpu_s": 6.0}}]
    job = {"attempts": [{"usage": usage}, {"members": members}, {"usage": None}]}
    assert used_by(job) == "used: 16.0 s of GPU, at most 7 MiB of one, 30 J (simulated)"
    assert used_by({"attempts": [{}]}) == ""
    unknown = {**usage, "energy_j": None, "memory_high_mib": None, "unsupported": {"energy": "no counter"}}
    assert used_by({"attempts": [{"usage": unknown}]}) == "used: 5.0 s of GPU, energy unknown (no counter) (simulated)"


MODEL_ROW: dict[str, Any] = {
    "key": "k1",
    "name": "bot",
    "user": "=ann",
    "requests": 1200,
    "aborted": 3,
    "prompt_tokens": 50_000,
    "cached_tokens": 40_000,
    "completion_tokens": 9_000,
    "estimated_tokens": 12,
}
OF_MODELS: dict[str, Any] = {"by": "key", "since": None, "rows": [MODEL_ROW], "missing_hosts": [], "kept_since": None}


@pytest.mark.parametrize("words", [("--by", "key"), ("--models", "--by", "tenant"), ("--models",)])
def test_what_models_used_is_a_table_of_its_own(call: Invoke, door: Door, words: tuple[str, ...]) -> None:
    door.on("GET /api/usage/models", {**OF_MODELS, "missing_hosts": ["h2"], "kept_since": 1.7e9})
    told = call("usage", *words)
    header, line = told.stdout.splitlines()
    assert header.split()[0] == (words[-1].upper() if len(words) > 1 else "MODEL")
    assert " ".join(line.split()) == "k1 (bot) =ann 1,200 3 50,000 40,000 9,000 12"
    assert "did not answer: h2" in told.stderr and "not known any more" in told.stderr
    assert json.loads(call("usage", *words, "--json").stdout)["rows"] == [MODEL_ROW]
    header, line = call("usage", *words, "--csv").stdout.splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["user"] == "'=ann"
