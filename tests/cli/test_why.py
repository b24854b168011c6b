"""How ``why`` shows an answer, for people and in JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from .conftest import Door, Invoke, job

ONE = "abc111"


def answers(door: Door, state: str = "queued", **fields: Any) -> None:
    door.on(f"GET /api/jobs/{ONE}", job(ONE, state))
    basic = {"job_id": ONE, "state": state, "reasons": ["it waits"], "headline": "it waits", "next_step": "wait"}
    door.on(f"GET /api/jobs/{ONE}/why", {**basic, **fields})


def test_json_is_the_answer_itself(call: Invoke, door: Door) -> None:
    answers(door, next_steps=["wait"], held_by=[])
    result = call("why", ONE, "--json")
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) == {
        "job_id": ONE,
        "state": "queued",
        "reasons": ["it waits"],
        "headline": "it waits",
        "next_step": "wait",
        "next_steps": ["wait"],
        "held_by": [],
    }


def test_a_waiting_job_is_shown_with_all_that_is_known(call: Invoke, door: Door) -> None:
    now = time.time()
    held = {
        "job_id": "f00dfeed01",
        "name": "sweep",
        "priority": 20,
        "gpus": 2.0,
        "gpu_indexes": [0, 1],
        "cpu_milli": 500,
        "since": now - 70,
        "ends_by": now + 605,
        "host": "alpha",
    }
    session = {**held, "job_id": None, "session_id": "s1", "name": "a client's session", "priority": None}
    answers(
        door,
        headline="it needs 4 whole GPUs on one host; alpha has 2 free; 1 job is ahead",
        constraints=[
            {"name": "gpu_busy", "text": "not enough of its GPUs free", "hosts": 2},
            {"name": "draining", "text": "takes nothing new (draining, down or not reached)", "hosts": 1},
        ],
        total_hosts=3,
        position=2,
        waiting=5,
        policy="priority",
        priority=50,
        waiting_s=190.0,
        depends_on=[],
        reservation={"starts_at": now + 250.5, "nodes": ["alpha"]},
        estimated_start={"at": now + 250.5, "from": "reservation"},
        held_by=[held, {**session, "ends_by": None}],
        notes=["GPU 3 of alpha takes nothing new: it is at 93 °C"],
        next_steps=["wait about 4 min", "actorgrid cancel f00dfeed01 would make room"],
    )
    shown = call("why", ONE)
    assert shown.exit_code == 0
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    assert lines[0] == f"{ONE} (train) queued: it needs 4 whole GPUs on one host; alpha has 2 free; 1 job is ahead"
    words = [" ".join(line.split()) for line in lines]
    for expected in (
        "WHY NOT HOSTS",
        "not enough of its GPUs free 2 of 3",
        "takes nothing new (draining, down or not reached) 1 of 3",
        "line 2 of 5",
        "waiting for 3m10s",
        "note GPU 3 of alpha takes nothing new: it is at 93 °C",
        "HELD BY NAME PRIORITY GPUS CPUS HOST FOR ENDS AT LATEST",
        "f00dfeed sweep 20 2 0.5 alpha 1m10s in 10m4s",
        "- a client's session - 2 0.5 alpha 1m10s -",
        "next steps, any of",
        "- wait about 4 min",
        "- actorgrid cancel f00dfeed01 would make room",
    ):
        assert expected in words
    assert any(word.startswith("reserved alpha, ") and "(in 4m" in word for word in words)
    assert any(word.startswith("start ") and word.endswith(": its room is reserved") for word in words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "line 1 of 2"),
        ({"priority": 20}, "line 1 of 2 (its priority is 20)"),
        ({"policy": "fifo"}, "line 1 of 2 (the policy is fifo)"),
    ],
)
def test_the_order_of_the_line_is_told_to_those_who_chose_it(
    call: Invoke, door: Door, fields: dict[str, Any], words: str
) -> None:
    answers(door, **{"position": 1, "waiting": 2, "policy": "priority", "priority": 50, **fields})
    assert words in [" ".join(line.split()) for line in call("why", ONE).stdout.splitlines()]


def test_long_lists_are_cut_and_say_so(call: Invoke, door: Door) -> None:
    holder = {"priority": 1, "gpus": 1.0, "cpu_milli": 0, "since": 1.0, "name": "n", "host": "alpha", "ends_by": None}
    answers(door, held_by=[{**holder, "job_id": f"{n}" * 10} for n in range(8)])
    assert "and 3 more" in call("why", ONE).stdout


def test_dependencies_and_pauses_are_lines_of_their_own(call: Invoke, door: Door) -> None:
    later = time.time() + 100_000
    answers(
        door,
        depends_on=[{"job_id": "first", "state": "running"}],
        not_before=later,
        estimated_start={"at": later, "from": "retry"},
        reservation={"starts_at": None, "nodes": []},
    )
    words = [" ".join(line.split()) for line in call("why", ONE).stdout.splitlines()]
    assert "depends on first (running)" in words and "reserved no time yet" in words
    date = time.strftime("%Y-%m-%d", time.localtime(later))
    assert any(word.startswith(f"not before {date}") and "(in 1d3h)" in word for word in words)


def test_every_try_of_a_job_that_was_tried_again_is_listed(call: Invoke, door: Door) -> None:
    tries = [
        {"number": 1, "state": "failed", "host": "alpha", "ran_s": 3.0, "exit_code": 1, "signal": None},
        {"number": 2, "state": "failed", "host": "alpha", "ran_s": None, "exit_code": None, "signal": 9},
        {"number": 3, "state": "lost", "host": None, "ran_s": 61.0, "exit_code": None, "signal": None},
    ]
    answers(door, "failed", attempts=tries)
    words = [" ".join(line.split()) for line in call("why", ONE).stdout.splitlines()]
    assert words[words.index("TRY STATE HOST RAN END") :][1:4] == [
        "1 failed alpha 3s exit 1",
        "2 failed alpha - signal 9",
        "3 lost - 1m1s",
    ]
    answers(door, "failed", attempts=tries[:1])
    assert "TRY" not in call("why", ONE).stdout


def test_last_words_do_not_steer_the_terminal(call: Invoke, door: Door) -> None:
    answers(door, "failed", stderr_tail=["\x1b[31mred\x07", "x" * 500])
    shown = call("why", ONE).stdout
    assert "| \\x1b[31mred\\x07\n" in shown and "x" * 200 in shown and "x" * 201 not in shown


def test_an_answer_without_the_newer_fields_is_shown_as_well(call: Invoke, door: Door) -> None:
    door.on(f"GET /api/jobs/{ONE}", job(ONE, "running"))
    door.on(f"GET /api/jobs/{ONE}/why", {"job_id": ONE, "state": "running", "reasons": ["r"], "next_step": "n"})
    assert call("why", ONE).stdout == f"{ONE} (train) running: r\n\n  next step\n  - n\n"
