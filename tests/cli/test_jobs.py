"""Listing, finding, explaining and cancelling jobs; what run and submit ask for."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gateway.schemas.jobs import EditRequest
from actorgrid.cli.lookup import short_ids
from actorgrid.cli.run import ending, exit_code
from actorgrid.demand import DemandEdit
from actorgrid.errors import UnknownJob
from actorgrid.models import TaskRequest

from .conftest import Door, Invoke, job

ONE, TWO = "abc111", "abd222"


def with_jobs(door: Door, *jobs: dict[str, Any]) -> None:
    for record in jobs:
        door.on(f"GET /api/jobs/{record['job_id']}", record)
    door.on("GET /api/jobs", lambda query, _body: listed(jobs, **query))
    door.on("GET /api/hosts", {"hosts": [{"node_id": "h1", "hostname": "alpha", "node": None}]})


def listed(
    jobs: tuple[dict[str, Any], ...], limit: str = "100", prefix: str = "", cursor: str = "", **_: str
) -> dict[str, Any]:
    """As a host lists jobs."""
    names = [record["job_id"] for record in jobs]
    found = [each for each in jobs[names.index(cursor) + 1 if cursor else 0 :] if each["job_id"].startswith(prefix)]
    page = found[: int(limit)]
    total = len(found) if prefix else len(jobs)
    return {"jobs": page, "total": total, "next": page[-1]["job_id"] if len(found) > len(page) else None}


def test_ps_shows_what_waits_and_runs(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE), job(TWO, "queued"))
    result = call("ps")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["JOB", "NAME", "STATE", "GPUS", "ON", "AGE", "RAN", "TRY", "NOTE"]
    assert "abc111  train  running  0.25 (2 GiB)  gpu 2" in lines[1]
    assert door.asked[0][1] == {"state": "queued,placed,running", "limit": "100"}


def test_ps_names_the_host_where_there_are_several(call: Invoke, door: Door) -> None:
    attempt = {"number": 1, "started_at": 1.0, "gpu_indexes": [2]}
    with_jobs(door, job(ONE, attempts=[attempt | {"host": "h1"}]), job(TWO, attempts=[attempt | {"host": "h3"}]))
    names = {"h1": "alpha", "h2": "beta", "h3": "beta"}
    hosts = [{"node_id": id, "hostname": name, "node": n} for n, (id, name) in enumerate(names.items(), 1)]
    door.on("GET /api/hosts", {"hosts": hosts})
    lines = call("ps").stdout.splitlines()
    assert "alpha gpu 2" in lines[1] and "beta:3 gpu 2" in lines[2]


def test_ps_all_asks_for_every_state(call: Invoke, door: Door) -> None:
    with_jobs(door)
    assert call("ps", "--all").stdout == "no jobs\n"
    assert door.asked[-1][1] == {"limit": "100"}
    call("ps", "--state", "failed", "--state", "lost", "--limit", "5")
    assert door.asked[-1][1] == {"state": "failed,lost", "limit": "5"}


def test_ps_lists_the_newest_and_says_how_to_go_on(call: Invoke, door: Door) -> None:
    with_jobs(door, *(job(f"{number:04x}", "queued") for number in range(250)))
    lines = call("ps", "--state", "queued").stdout.splitlines()
    assert len(lines) == 1 + 100 + 1
    again = "actorgrid ps --state queued --after 0063"
    assert lines[-1] == f"(the newest 100 of 250; {again} goes on; --limit lists more)"
    lines = call(*again.split()[1:], "--limit", "149").stdout.splitlines()
    assert lines[1].split()[0] == "0064" and lines[-1].startswith("(149 of 250; actorgrid ps --state queued --after ")
    lines = call("ps", "--after", "00f8").stdout.splitlines()
    assert lines[1].split()[0] == "00f9" and lines[-1] == "(1 of 250; there are none after these)"
    assert json.loads(call("ps", "--json", "--limit", "2").stdout)["next"] == "0001"


def test_ps_lists_more_than_a_host_gives_at_once(call: Invoke, door: Door) -> None:
    with_jobs(door, *(job(f"{number:04x}", "queued") for number in range(2_500)))
    answer = json.loads(call("ps", "--json", "--limit", "2200").stdout)
    assert [each["job_id"] for each in answer["jobs"]] == [f"{number:04x}" for number in range(2_200)]
    assert [query["limit"] for request, query, _ in door.asked if request == "GET /api/jobs"] == ["1000", "1000", "200"]
    assert answer["next"] == f"{2_199:04x}" and answer["total"] == 2_500


def test_ps_has_the_host_choose(call: Invoke, door: Door) -> None:
    with_jobs(door, *(job(f"{number:04x}", "queued") for number in range(3)))
    door.on(
        "GET /api/hosts", {"hosts": [{"node_id": "h1", "hostname": "alpha", "node": 1, "ip_address": "::1", "port": 1}]}
    )
    chosen = ["--label", "team=vision", "--label", "stage=train", "--name", "a b", "--user", "ann", "--host", "alpha"]
    lines = call("ps", *chosen, "--since", "2h", "--limit", "2").stdout.splitlines()
    asked = {"label": "team=vision,stage=train", "name": "a b", "user": "ann", "since_s": "7200.0", "host": "h1"}
    assert next(query for request, query, _ in door.asked if request == "GET /api/jobs") == {
        "state": "queued,placed,running",
        "limit": "2",
        **asked,
    }
    again = "ps --label team=vision --label stage=train --name 'a b' --user ann --host alpha --after 0001"
    assert f"actorgrid {again} goes on" in lines[-1]
    assert call("ps", "--label", "team vision=1").exit_code == 2


def test_cancel_takes_all_with_a_label(call: Invoke, door: Door) -> None:
    pages = [{"jobs": [{"job_id": ONE, "state": "queued"}], "more": True}]
    pages += [{"jobs": [{"job_id": TWO, "state": "running"}], "more": False}]
    door.on("POST /api/jobs/cancel", lambda _, _body: pages.pop(0))
    result = call("cancel", "--label", "team=vision")
    assert result.stdout == f"{ONE} cancelled\n{TWO} stopping\n"
    assert door.asked[0][2] == {"labels": {"team": "vision"}}
    assert call("cancel").exit_code == 2 and call("cancel", ONE, "--label", "a=b").exit_code == 2


def test_ps_says_how_a_job_failed(call: Invoke, door: Door) -> None:
    ended = {"number": 1, "started_at": 1.0, "ended_at": 2.0, "exit_code": 3}
    killed = {"number": 1, "started_at": 1.0, "ended_at": 2.0, "signal": 9}
    with_jobs(door, job(ONE, "failed", attempts=[ended]), job(TWO, "failed", attempts=[killed]))
    result = call("ps", "--all")
    assert "exit 3" in result.stdout and "signal 9" in result.stdout


def test_ps_says_who_is_stopped_for_whom_and_how_often_one_was(call: Invoke, door: Door) -> None:
    asked = {"asked_at": 1.0, "grace_s": 5.0, "for_job": TWO}
    going = {"number": 1, "state": "running", "started_at": 1.0, "preemption": asked}
    gone = {"number": 2, "state": "preempted", "started_at": 1.0, "ended_at": 2.0, "exit_code": 0, "preemption": asked}
    with_jobs(door, job(ONE, attempts=[going]), job(TWO, "queued", attempts=[gone], preemptions=2))
    lines = call("ps").stdout.splitlines()
    assert lines[1].endswith(f"stopping for {TWO[:8]}") and lines[2].endswith("preempted (2)")


def test_ps_in_json_is_the_answer_itself(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE))
    assert json.loads(call("ps", "--json").stdout)["jobs"][0]["job_id"] == ONE


def test_a_job_is_found_by_the_beginning_of_its_id(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE), job(TWO))
    door.on(f"GET /api/jobs/{ONE}/why", {"job_id": ONE, "state": "running", "reasons": ["r"], "next_step": "n"})
    result = call("why", "abc")
    assert result.stdout == "abc111 (train) running: r\n\n  next step\n  - n\n"


def test_an_ambiguous_beginning_lists_what_begins_so(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE), job(TWO))
    result = call("why", "ab")
    assert result.exit_code == 2
    assert "2 jobs begin with 'ab'" in result.stderr and ONE in result.stderr and TWO in result.stderr


def test_a_misspelt_id_is_guessed(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE), job(TWO))
    for text in ("abc112", "abx1"):
        result = call("why", text)
        assert result.exit_code == 4
        assert f"did you mean {ONE}" in result.stderr


def test_cancel_looks_up_all_before_it_cancels_any(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE))
    door.on(f"POST /api/jobs/{ONE}/cancel", job(ONE, cancel_requested=True))
    assert call("cancel", ONE, "nope").exit_code == 4
    assert not [request for request, _, _ in door.asked if "cancel" in request]
    result = call("cancel", ONE, "abc")
    assert result.stdout == f"{ONE} stopping\n"
    assert [request for request, _, _ in door.asked].count(f"POST /api/jobs/{ONE}/cancel") == 1


def test_logs_keep_stdout_and_stderr_apart(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE))
    door.on(f"GET /api/jobs/{ONE}/logs", lambda query, _: b"1\n2\n3\n" if query["stream"] == "stdout" else b"bad\xff\n")
    result = call("logs", ONE)
    assert result.stdout == "1\n2\n3\n" and result.stderr_bytes == b"bad\xff\n"
    assert json.loads(call("logs", ONE, "--json").stdout) == {
        "job_id": ONE,
        "state": "running",
        "attempt": 1,
        "stdout": "1\n2\n3\n",
        "stderr": "bad\ufffd\n",
    }


def test_logs_have_the_host_choose(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE))
    door.on(f"GET /api/jobs/{ONE}/logs", b"3\n")
    assert call("logs", ONE, "--tail", "2", "--since", "10m", "--grep", "loss|lr", "--stdout").stdout == "3\n"
    assert door.asked[-1][1] == {"stream": "stdout", "since_s": "600.0", "tail": "2", "grep": "loss|lr"}


def test_wait_tells_how_they_ended(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE), job(TWO))
    states = {ONE: "succeeded", TWO: "running"}

    def answer(_query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        jobs = [{"job_id": name, "state": states[name]} for name in body["job_ids"]]
        ended = [each for each in jobs if each["state"] != "running"]
        return {"jobs": jobs, "done": len(ended) == len(jobs) or (body["any"] and bool(ended))}

    door.on("POST /api/jobs/wait", answer)
    result = call("wait", ONE, TWO, "--any")
    assert (result.exit_code, result.stdout) == (0, f"{ONE} succeeded\n")
    result = call("wait", ONE, "abd", "--timeout", "0")
    assert result.exit_code == 124 and f"{TWO} is still running" in result.stderr
    states[TWO] = "failed"
    assert call("wait", ONE, TWO).exit_code == 1
    assert json.loads(call("wait", ONE, TWO, "--json").stdout)["exit_code"] == 1


def test_retry_begins_jobs_and_graphs_again(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE, "failed"), job(TWO, "failed", kind="graph"))
    door.on(f"POST /api/jobs/{ONE}/retry", {"job_id": ONE, "attempts": 2})
    door.on(f"POST /api/graphs/{TWO}/retry", {"state": "running", "again": 1})
    result = call("retry", ONE, TWO)
    assert result.stdout == f"{ONE} waits again, after 2 attempts\n{TWO} goes on: 1 step begin again\n"
    assert json.loads(call("retry", ONE, "--json").stdout) == {"job_id": ONE, "attempts": 2}


def test_edit_changes_a_deadline(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE, "queued"))
    answer = {"job_id": ONE, "priority": 50, "max_execution_time_s": None, "deadline": 1e9}
    door.on(f"POST /api/jobs/{ONE}/edit", answer)
    assert "to be done by 2001-09-0" in call("edit", ONE, "--deadline", "2h").stdout
    assert door.asked[-1][2] == {"deadline_s": 7200.0}
    call("edit", ONE, "--no-deadline")
    assert door.asked[-1][2] == {"deadline": None}
    assert call("edit", ONE, "--no-deadline", "--deadline", "2h").exit_code == 2


def test_edit_changes_what_a_job_asks_for_and_its_labels(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE, "queued"))
    resources = {"gpus": 0.5, "gpu_models": ["A100"], "gpu_memory_mib": 1024, "cpu_milli": 2000, "memory_mib": 512}
    answer = {"job_id": ONE, "priority": 50, "max_execution_time_s": None}
    door.on(f"POST /api/jobs/{ONE}/edit", {**answer, "resources": resources, "labels": {"team": "x"}})
    words = ["--gpus", "0.5", "--gpu-model", "A100", "--gpu-memory", "1GiB", "--cpus", "2", "--memory", "512MiB"]
    said = call("edit", ONE, *words, "--label", "team=x", "--no-label", "old").stdout
    assert "asks for 0.5 GPUs (A100), 1 GiB of GPU memory, 2 CPUs, 512 MiB of memory, labels: team=x" in said
    assert EditRequest(**door.asked[-1][2]).demand() == DemandEdit(0.5, 2**30, ("A100",), 2.0, 512 * 2**20)
    assert door.asked[-1][2]["labels"] == {"team": "x", "old": None}
    call("edit", ONE, "--gpus", "0")
    assert door.asked[-1][2] == {"gpus": 0.0}
    for wrong in (["--label", "team"], ["--label", "team=x", "--no-label", "team"], ["--gpus", "two"], []):
        assert call("edit", ONE, *wrong).exit_code == 2


def test_logs_of_a_job_that_has_not_started_say_so(call: Invoke, door: Door) -> None:
    with_jobs(door, job(ONE, "queued"))
    door.on(f"GET /api/jobs/{ONE}/logs", b"")
    result = call("logs", ONE)
    assert result.stdout == "" and "has not started" in result.stderr


@pytest.mark.parametrize("options", [["-f", "--json"], ["--stdout", "--stderr"]])
def test_logs_refuse_what_makes_no_sense(call: Invoke, door: Door, options: list[str]) -> None:
    assert call("logs", ONE, *options).exit_code == 2
    assert door.asked == []


def test_run_asks_for_what_was_said(call: Invoke, door: Door, tmp_path: Path) -> None:
    with_jobs(door, job(ONE))
    door.on("POST /api/jobs", lambda _, body: {"job_id": body["task_id"], "duplicate": False}, 201)
    words = ["--gpus", "0.25", "--gpu-memory", "2GiB", "--gpu-model", "H100", "--gpu-model", "A100", "--cpus", "2"]
    words += ["--memory", "512MiB", "--priority", "70", "--timeout", "10m", "--retries", "3", "--env", "A=b=c"]
    words += ["--annotation", "sweep=3", "--annotation", "why=a = b", "--label", "team=vision"]
    words += ["--env", "HOME", "--cwd", str(tmp_path), "--name", "n", "--after", "abc", "--detach", "--json"]
    result = call("run", *words, "--", "python", "-c", "pass", "--json")
    body = door.asked[-1][2]
    assert json.loads(result.stdout) == {"job_id": body["task_id"], "duplicate": False}
    request = TaskRequest(**body)
    assert request.command == ["python", "-c", "pass", "--json"]
    assert (request.gpus, request.gpu_memory_bytes, request.gpu_models) == (0.25, 2 * 2**30, ["H100", "A100"])
    assert (request.cpus, request.memory_bytes, request.priority, request.retries) == (2, 512 * 2**20, 70, 3)
    assert (request.max_execution_time_s, request.cwd, request.name) == (600, str(tmp_path), "n")
    assert request.env == {"A": "b=c", "HOME": os.environ["HOME"]} and request.depends_on == [ONE]
    assert request.annotations == {"sweep": "3", "why": "a = b"} and request.labels == {"team": "vision"}


def test_a_deadline_is_a_length_of_time_or_a_time_of_here(call: Invoke, door: Door) -> None:
    door.on("POST /api/jobs", {"job_id": ONE, "duplicate": False}, 201)
    call("run", "--detach", "--deadline", "2h", "--grace", "0", "--no-preempt", "--", "true")
    request = TaskRequest(**door.asked[-1][2])
    assert (request.deadline_s, request.deadline) == (7200, None)
    assert (request.grace_s, request.preemptible) == (0, False)
    call("run", "--detach", "--deadline", "2030-01-31T18:00", "--grace", "1m", "--", "true")
    request = TaskRequest(**door.asked[-1][2])
    assert request.deadline == datetime(2030, 1, 31, 18).astimezone()
    assert (request.deadline_s, request.grace_s, request.preemptible) == (None, 60, True)
    call("run", "--detach", "--", "true")
    assert not {"deadline", "deadline_s", "grace_s", "preemptible", "annotations"} & set(door.asked[-1][2])


def test_a_directory_that_follows_the_job_is_asked_for(call: Invoke, door: Door) -> None:
    door.on("POST /api/jobs", {"job_id": ONE, "duplicate": False}, 201)
    call("run", "--detach", "--checkpoint", "./ckpt/", "--checkpoint-every", "2m", "--", "true")
    asked = TaskRequest(**door.asked[-1][2]).checkpoint
    assert asked is not None and (asked.path, asked.every_s) == ("ckpt", 120)
    call("run", "--detach", "--", "true")
    assert "checkpoint" not in door.asked[-1][2]


def test_run_works_in_the_callers_directory(call: Invoke, door: Door) -> None:
    door.on("POST /api/jobs", {"job_id": ONE, "duplicate": False}, 201)
    assert call("run", "--detach", "ls", "-l").stdout == f"{ONE}\n"
    assert door.asked[-1][2]["cwd"] == os.getcwd() and door.asked[-1][2]["command"] == ["ls", "-l"]


def test_run_sends_standard_input_when_asked(call: Invoke, door: Door) -> None:
    import msgpack

    door.on("POST /api/jobs", {"job_id": ONE, "duplicate": False}, 201)
    call("run", "--stdin", "--detach", "--", "cat", input="hello")
    assert msgpack.unpackb(door.asked[-1][2])["stdin"] == b"hello"
    call("run", "--detach", "--", "cat", input="hello")
    assert "stdin" not in door.asked[-1][2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpu-memory", "lots"], "2GiB"),
        (["--gpus", "1", "--gpu-memory", "10"], "write 10GiB or 10MiB"),
        (["--memory", "64"], "write 64GiB or 64MiB"),
        (["--gpu-model", "H100"], "without --gpus"),
        (["--gpu-memory", "10GiB"], "without --gpus"),
        (["--timeout", "soon"], "90s"),
        (["--timeout", "0"], "90s"),
        (["--deadline", "tomorrow"], "2030-01-31T18:00"),
        (["--deadline", "0"], "length of time"),
        (["--grace", "2h"], "more than an hour"),
        (["--env", "=x"], "NAME=VALUE"),
        (["--annotation", "x"], "KEY=VALUE"),
        (["--annotation", "=x"], "KEY=VALUE"),
        (["--env", "SURELY_NOT_SET_HERE"], "is not set here"),
        (["--priority", "101"], "101"),
        (["--gpus", "many"], "many"),
        (["--checkpoint-every", "60s"], "say --checkpoint DIR"),
        (["--checkpoint", "/var/ckpt"], "--checkpoint ckpt"),
        (["--checkpoint", "../ckpt"], "--checkpoint ckpt"),
    ],
)
def test_run_refuses_a_wrong_value_before_it_asks_anyone(
    call: Invoke, door: Door, options: list[str], says: str
) -> None:
    result = call("run", *options, "--", "true")
    assert result.exit_code == 2 and says in result.stderr
    assert door.asked == []


def test_run_without_a_command_is_refused(call: Invoke) -> None:
    assert call("run", "--gpus", "1").exit_code == 2


def test_run_refuses_to_wait_for_a_job_nobody_knows(call: Invoke, door: Door) -> None:
    with_jobs(door)
    assert call("run", "--after", "zz", "--", "true").exit_code == 4
    assert not [request for request, _, _ in door.asked if request.startswith("POST")]


def test_run_carries_output_and_leaves_as_the_command_did(call: Invoke, door: Door) -> None:
    ended = {"number": 1, "started_at": 1.0, "ended_at": 2.0, "exit_code": 7}
    record = job("", "failed", attempts=[ended], error={"code": "TaskFailed", "message": "status 7", "hint": "h"})

    def accept(_: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        path = f"GET /api/jobs/{body['task_id']}"
        door.on(path, {**record, "job_id": body["task_id"]})
        door.on(f"{path}/logs", lambda query, _: f"{query['stream']}\n".encode()[int(query["offset"]) :])
        return {"job_id": body["task_id"], "duplicate": False}

    door.on("POST /api/jobs", accept, 201)
    result = call("run", "--", "x")
    assert result.exit_code == 7
    assert result.stdout == "stdout\n"
    assert result.stderr.startswith("stderr\n") and "failed: status 7 (h)" in result.stderr
    result = call("run", "--json", "--", "x")
    assert result.exit_code == 7 and json.loads(result.stdout)["exit_code"] == 7
    assert sorted(result.stderr.splitlines()) == ["stderr", "stdout"]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (job(ONE, "succeeded"), 0),
        (job(ONE, "failed", attempts=[{"exit_code": 42}]), 42),
        (job(ONE, "failed", attempts=[{"signal": 9}]), 137),
        (job(ONE, "failed", attempts=[{"signal": 15}], error={"code": "TaskTimedOut"}), 124),
        (job(ONE, "cancelled", attempts=[{"signal": 15}]), 130),
        (job(ONE, "failed", attempts=[], error={"code": "DependencyFailed", "message": "no"}), 1),
        (job(ONE, "lost", attempts=[{}]), 1),
    ],
)
def test_an_ended_job_gives_its_exit_status(record: dict[str, Any], code: int) -> None:
    assert exit_code(record) == code
    assert ending(record).startswith(f"{ONE} {record['state']}")


def test_submit_runs_the_file_with_this_python(call: Invoke, door: Door, tmp_path: Path) -> None:
    door.on("POST /api/jobs", {"job_id": ONE, "duplicate": False}, 201)
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    result = call("submit", "--gpus", "1", str(script), "--epochs", "3")
    assert result.stdout == f"{ONE}\n"
    body = door.asked[-1][2]
    assert body["command"] == [sys.executable, str(script), "--epochs", "3"]
    assert (body["name"], body["gpus"]) == ("train.py", 1)


def test_submit_refuses_a_file_that_is_not_there(call: Invoke, door: Door) -> None:
    assert call("submit", "no_such.py").exit_code == 2
    assert door.asked == []


def test_an_error_of_the_host_is_shown_as_it_is(call: Invoke, door: Door) -> None:
    door.fail("POST /api/jobs", UnknownJob("m", hint="h"))
    assert "try: h" in call("run", "--detach", "--", "x").stderr


@given(st.lists(st.text("ab", min_size=1, max_size=20), max_size=30))
def test_short_ids_are_beginnings_no_other_shares(ids: list[str]) -> None:
    shown = short_ids(ids, least=2)
    for identity, short in shown.items():
        assert identity.startswith(short)
        others = [other for other in shown if other != identity and other.startswith(short)]
        assert others == [] or short == identity
