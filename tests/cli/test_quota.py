"""``quota``: the table, what is sent, what is refused before anything is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorgrid.errors import NotFound

from .conftest import Door, Invoke

NONE: dict[str, Any] = dict.fromkeys(("gpus", "gpu_memory_bytes", "cpus", "memory_bytes", "jobs_waiting"))
USED = {"gpus": 3.25, "gpu_memory_bytes": 20 * 2**30, "cpus": 4.0, "memory_bytes": 0, "jobs_waiting": 12}
ROWS = [
    {"user": "ann", "limits": {**NONE, "gpus": 4.0, "jobs_waiting": 1000}, "default": False, "used": USED},
    {"user": "bob", "limits": {**NONE, "gpu_memory_bytes": 160 * 2**30}, "default": True, "used": USED},
    {"user": "carl", "limits": None, "default": False, "used": USED},
]


def test_the_table_sets_what_is_held_against_what_may_be(call: Invoke, door: Door) -> None:
    door.on("GET /api/quotas", {"quotas": ROWS})
    lines = [line.split("  ") for line in call("quota").stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["USER", "QUOTA", "GPUS", "GPU MEMORY", "CPUS", "MEMORY", "WAITING"]
    assert cells[1] == ["ann", "own", "3.25 / 4", "20 GiB / -", "4 / -", "0 / -", "12 / 1000"]
    assert cells[2][:4] == ["bob", "of *", "3.25 / -", "20 GiB / 160 GiB"]
    assert cells[3][:3] == ["carl", "none", "3.25 / -"]
    assert json.loads(call("quota", "--json").stdout) == {"quotas": ROWS}


def test_without_any_it_says_so(call: Invoke, door: Door) -> None:
    door.on("GET /api/quotas", {"quotas": []})
    assert call("quota").stdout == "no quotas, and nobody holds anything\n"


def test_set_sends_the_whole_quota_and_shows_what_it_was(call: Invoke, door: Door) -> None:
    limits = {**NONE, "gpus": 4.0, "gpu_memory_bytes": 160 * 2**30, "cpus": 32.0, "jobs_waiting": 1000}
    door.on("PUT /api/quotas/ann", {"user": "ann", "limits": limits, "previous": None})
    words = ("--gpus", "4", "--gpu-memory", "160GiB", "--cpus", "32", "--waiting", "1000")
    done = call("quota", "set", "ann", *words)
    assert done.exit_code == 0
    assert done.stdout == ("ann: GPUs 4, GPU memory 160 GiB, CPUs 32, waiting jobs 1000 (was no quota of one's own)\n")
    sent = {"gpus": 4.0, "gpu_memory": "160GiB", "cpus": 32.0, "memory": None, "jobs_waiting": 1000}
    assert door.asked[-1][2] == sent
    assert json.loads(call("quota", "set", "ann", *words, "--json").stdout)["limits"] == limits


def test_to_hold_someone_to_nothing_has_to_be_said(call: Invoke, door: Door) -> None:
    for words in ([], ["--unlimited", "--gpus", "1"]):
        refused = call("quota", "set", "ann", *words)
        assert refused.exit_code == 2 and "--unlimited alone" in refused.stderr
    assert door.asked == []
    door.on("PUT /api/quotas/ann", {"user": "ann", "limits": NONE, "previous": {**NONE, "gpus": 1.0}})
    assert call("quota", "set", "ann", "--unlimited").stdout == "ann: not limited (was GPUs 1)\n"


def test_remove_names_the_user_in_full_and_a_misspelt_one_is_guessed(call: Invoke, door: Door) -> None:
    door.on("DELETE /api/quotas/%2A", {"user": "*", "limits": None, "previous": {**NONE, "cpus": 2.0}})
    assert call("quota", "remove", "*").stdout == "*: no quota of one's own (was CPUs 2)\n"
    door.fail("DELETE /api/quotas/anm", NotFound("user anm has no quota of one's own", hint="did you mean ann?"))
    lost = call("quota", "remove", "anm")
    assert lost.exit_code == 4 and "did you mean ann?" in lost.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sett", "ann"], "Did you mean 'set'?"),
        (["set", "ann", "--gpu", "1"], "--gpus"),
        (["set", "ann", "--gpus", "-1"], "-1"),
        (["set", "ann", "--gpu-memory", "2 apples"], "not a size"),
        (["set", "ann", "--memory", "64"], "64GiB"),
    ],
)
def test_wrong_use_is_refused_here(call: Invoke, door: Door, words: list[str], says: str) -> None:
    refused = call("quota", *words)
    assert refused.exit_code == 2 and says in refused.stderr
    assert door.asked == []
