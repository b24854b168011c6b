"""Narrow terminals: columns leave, cells are cut, text is folded; where nobody reads, nothing is."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

import pytest

from actorgrid.cli.show import fitting, folded, lined_up
from tests.terminals import seen_on_terminal

from .conftest import Door

ONE = "0123456789abcdef0123456789abcdef"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
HOST = {
    "node_id": "n1",
    "hostname": "a-machine-with-a-long-name.lab.example",
    "health": "degraded",
    "presence": "present",
    "node": 1,
    "raft_role": "leader",
    "ip_address": "10.0.0.1",
    "port": 7400,
    "gpus": [],
    "cpu_milli": 64000,
    "memory_mib": 262144,
    "incarnation": 3,
    "problems": ["the disk of the ledger takes 4 s for a write: look for what else writes to it"],
}
GPU = {
    "host": "n1",
    "index": 0,
    "model": "H100-80GB-HBM3",
    "status": "allocated",
    "allocated_milli": 250,
    "memory_allocated_bytes": 20 * 2**30,
    "memory_total_bytes": 80 * 2**30,
    "source": "probed",
    "utilization_percent": 55.0,
    "power_usage_watts": 310.0,
    "jobs": [ONE],
}
JOB = {
    "job_id": ONE,
    "name": "train-a-model-with-a-long-name",
    "state": "failed",
    "resources": {"gpus": 2.0},
    "submitted_at": time.time() - 4000,
    "error": {"message": "it asked for more memory than any of the hosts has, in all"},
    "attempts": [{"gpu_indexes": [0, 1], "host": "n1", "started_at": 1.0, "ended_at": 900.0}],
}
SUMMARY: dict[str, Any] = {
    "name": "lab",
    "health": "degraded",
    "ready": True,
    "findings": [{"what": "host two has not been heard of for 4 min, and its GPUs are away", "try": "start it again"}],
    "hosts": 2,
    "gpus": 8,
    "gpu_models": ["H100-80GB-HBM3"],
    "gpu_allocated_milli": 250,
    "gpu_capacity_milli": 8000,
    "jobs": {"queued": 12, "running": 2, "succeeded": 5, "failed": 3, "cancelled": 4},
}
WHY: dict[str, Any] = {
    "job_id": ONE,
    "state": "queued",
    "headline": "it needs 4 whole GPUs on one host; a-machine-with-a-long-name.lab.example has 2 free; 1 job is ahead",
    "reasons": [],
    "total_hosts": 3,
    "constraints": [{"text": "takes nothing new (draining, down or not reached), or is away", "hosts": 1}],
    "position": 1,
    "waiting": 2,
    "notes": ["GPU 3 of a-machine-with-a-long-name.lab.example takes nothing new: it is at 93 °C"],
    "held_by": [
        {"job_id": "f00dfeed" * 4, "name": "a-sweep-over-everything", "host": "alpha", "gpus": 2.0, "cpu_milli": 500}
    ],
    "next_steps": ["ask for less: with --gpus 1 it would fit now", f"actorgrid cancel {ONE} would make room"],
}


@pytest.fixture
def filled(door: Door) -> Door:
    door.on("GET /api/hosts", {"hosts": [HOST, {**HOST, "node_id": "n2"}]})
    door.on("GET /api/gpus", {"gpus": [GPU]})
    door.on("GET /api/jobs", {"jobs": [JOB], "total": 1, "next": None})
    door.on("GET /api/cluster", SUMMARY)
    door.on(f"GET /api/jobs/{ONE}", JOB)
    door.on(f"GET /api/jobs/{ONE}/why", WHY)
    return door


def on_narrow_terminal(door: Door, *words: str) -> list[str]:
    """The lines that somebody sees on a terminal of 50 columns."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "50", "PYTHONIOENCODING": "utf-8"}
    seen = seen_on_terminal([sys.executable, "-m", "actorgrid", *words, "--url", door.url], environment)
    return [_ESCAPES.sub("", line) for line in seen.splitlines()]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["ps", "--all"], ["JOB", "01234567", "failed", "it asked"]),
        (["hosts"], ["HOST", "a-machine", "degraded", "the disk"]),
        (["gpus"], ["HOST", "a-machine", "allocated", "0.25", "01234567"]),
        (["status"], ["lab at", "degraded", "12 queued"]),
        (["why", ONE], ["queued", "f00dfeed", "1 of 2", "1 of 3", ONE]),
    ],
    ids=lambda part: part[0],
)
def test_no_line_is_wider_than_the_terminal(filled: Door, words: list[str], kept: list[str]) -> None:
    lines = on_narrow_terminal(filled, *words)
    assert not [line for line in lines if len(line) > 50], lines
    assert not [word for word in kept if word not in "\n".join(lines)], lines


def test_where_nobody_reads_nothing_is_cut(filled: Door, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert HOST["problems"][0] in call("hosts").stdout  # type: ignore[index]
    assert WHY["notes"][0] in call("why", ONE).stdout and json.loads(call("ps", "--json").stdout)["jobs"] == [JOB]


def test_spare_columns_leave_first_and_in_their_order() -> None:
    columns, rows = ["NAME", "A>", "B", "C"], [["a-name-of-twenty-ch", "1" * 8, "2" * 8, "3" * 8]]
    spare = ["B", "A>"]
    assert fitting(columns, rows, None, spare) == (columns, rows)
    assert fitting(columns, rows, 49, spare) == (columns, rows)
    assert fitting(columns, rows, 42, spare)[0] == columns, "a cell that is cut to 12 is better than no column"
    assert fitting(columns, rows, 35, spare)[0] == ["NAME", "A>", "C"]
    assert fitting(columns, rows, 22, spare)[0] == ["NAME", "C"]
    assert fitting(columns, rows, 22, spare)[1] == [["a-name-of-t…", "33333333"]]
    for width in range(1, 60):
        assert all(len(line) <= width for line in lined_up(columns, rows, width, spare)), width


def test_text_is_folded_between_words_below_itself_and_long_words_stay_whole() -> None:
    assert folded("  note  one two three four", 18) == ["  note  one two", "        three four"]
    assert folded("x " + "y" * 30, 10) == ["x", "y" * 30]
    assert folded("as it is", None) == folded("as it is", 8) == ["as it is"]
