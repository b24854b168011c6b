"""Slurm's commands, said of a cluster: what directives come to, what has no meaning, how listings look."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from actorgrid.cli.slurm.directives import directives, read_options, seconds_of
from actorgrid.cli.slurm.request import Translation
from actorgrid.cli.slurm.table import clock
from actorgrid.dag.requests import GraphRequest
from actorgrid.errors import TargetNotAllowed
from actorgrid.models import TaskRequest
from actorgrid.notification_words import EVENTS

from .conftest import Door, Invoke, job

ONE, TWO = "abc111", "abd222"
SCRIPT = """#!/bin/bash
#SBATCH --job-name=train --time=1-02:00:00
#SBATCH -c 4
#SBATCH --mem=16G        # a comment
#SBATCH --gres=gpu:a100:2
#SBATCH --output=out/%x-%j.log
#SBATCH --mail-type=END
# words
#SBATCH --account=vision --partition=short --nice
module load cuda
#SBATCH --ntasks=99
srun python train.py "$@"
"""


def translated(*words: str, script: str | None = None) -> Translation:
    return Translation(read_options(words, script))


def test_directives_are_read_up_to_the_first_command() -> None:
    assert [number for number, _ in directives(SCRIPT)] == [2, 3, 4, 5, 6, 7, 9]
    made = translated("script.sh", "arg", script=SCRIPT)
    options = made.options
    asked = {name: options[name] for name in ("gpus", "gpu_models", "cpus", "memory", "timeout", "gang", "name")}
    assert asked == {
        "gpus": 2.0,
        "gpu_models": ("a100",),
        "cpus": 4.0,
        "memory": "16384MiB",
        "timeout": 93_600.0,
        "gang": 1,
        "name": "train",
    }
    assert options["labels"] == {"account": "vision", "partition": "short"} and options["priority"] == 0
    assert made.asked.words == ["script.sh", "arg"]
    assert [note.split()[0] for note in made.notes] == ["--mail-type", "--partition=short:"]
    assert (options["notify"], options["notify_on"]) == ((), [])
    assert translated("-c", "8", "--time=30", "x", script=SCRIPT).options["cpus"] == 8.0


@pytest.mark.parametrize(
    ("words", "members", "spread", "gpus", "memory"),
    [
        (["-N2", "--ntasks-per-node=1", "--gres=gpu:8", "--mem=8G"], 2, True, 8.0, "8192MiB"),
        (["-N2", "--ntasks-per-node=4", "--gpus-per-node=a100:4", "--mem=8G"], 8, False, 1.0, "2048MiB"),
        (["-n4", "--gpus=1"], 4, False, 0.25, None),
        (["-n2", "--gpus-per-task=2", "--mem-per-cpu=500", "-c2"], 2, False, 2.0, "1000MiB"),
        (["-N1", "--gres=gpu"], 1, False, 1.0, None),
        (["-N2-4"], 2, True, 0.0, None),
    ],
)
def test_tasks_and_nodes_are_members_of_a_gang(
    words: list[str], members: int, spread: bool, gpus: float, memory: str | None
) -> None:
    options = translated(*words, "x").options
    assert (options["gang"], options["spread"], options["gpus"], options["memory"]) == (members, spread, gpus, memory)


def test_what_stands_behind_an_option_that_may_have_a_value_is_the_script() -> None:
    for before in (["--exclusive"], ["-c", "2", "--nice"], ["--exclusive=user"], ["--nice=5", "--get-user-env"]):
        assert read_options([*before, "s", "--nice"]).words == ["s", "--nice"]
    assert translated("--nice", "s").options["priority"] == 0 and translated("--nice=20", "s").options["priority"] == 40
    assert translated("--exclusive", "s").notes == ["--exclusive has no meaning here"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("2:00:01", 7201), ("1-12", 129_600), ("1-02:03", 93_780), ("1-02:03:04", 93_784)],
)
def test_times_are_slurms(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert [clock(each) for each in (5, 90, 3723, 93_784, None)] == [
        "0:05",
        "1:30",
        "1:02:03",
        "1-02:03:04",
        "UNLIMITED",
    ]


@pytest.mark.parametrize(
    ("words", "notify", "events", "notes"),
    [
        (["--mail-user=a@b.c", "--mail-type=END"], ("mail:a@b.c",), ["succeeded", "failed", "cancelled", "lost"], 0),
        (["--mail-user=a@b.c,ops", "--mail-type=fail,BEGIN"], ("mail:a@b.c", "ops"), ["failed", "lost", "started"], 0),
        (["--mail-user=a@b.c", "--mail-type=ALL"], ("mail:a@b.c",), list(EVENTS), 0),
        (["--mail-user=a@b.c", "--mail-type=REQUEUE,TIME_LIMIT_90"], ("mail:a@b.c",), ["requeued"], 1),
        (["--mail-user=a@b.c", "--mail-type=ARRAY_TASKS"], (), [], 1),
        (["--mail-user=a@b.c", "--mail-type=NONE"], (), [], 0),
        (["--mail-user=a@b.c"], (), [], 1),
        (["--mail-type=END"], (), [], 1),
        (["--mail-user=-oQ@b.c", "--mail-type=END"], (), [], 1),
        (["--mail-user=webhook:https://x.org", "--mail-type=END"], (), [], 1),
        (["--mail-user=a@b.c,b@b.c,c@b.c,d@b.c,e@b.c", "--mail-type=END"], (), [], 1),
    ],
)
def test_mail_is_a_notification(words: list[str], notify: tuple[str, ...], events: list[str], notes: int) -> None:
    made = translated(*words, "x")
    assert (made.options["notify"], made.options["notify_on"], len(made.notes)) == (notify, events, notes), made.notes


def test_where_no_mail_is_sent_the_job_is_queued_and_that_is_said(call: Invoke, door: Door) -> None:
    def refuse(_: dict[str, str], _body: dict[str, Any]) -> dict[str, Any]:
        door.on("POST /api/jobs", lambda _, body: {"job_id": body["task_id"], "duplicate": False}, 201)
        return {"error": TargetNotAllowed("no mail is sent here").to_dict()}

    door.on("POST /api/jobs", refuse, TargetNotAllowed.http_status)
    result = call("slurm", "sbatch", "--mail-user=a@b.c", "--mail-type=END", "--wrap", "true")
    assert result.exit_code == 0, result.output
    assert "--mail-user=a@b.c has no meaning here: no mail is sent here" in result.stderr
    first, second = (body for request, _, body in door.asked if request == "POST /api/jobs")
    assert (first["notify"], second.get("notify", [])) == (["mail:a@b.c"], [])


@pytest.mark.parametrize(
    "words",
    [
        ["--time=soon", "x"],
        ["--mem=much", "x"],
        ["-n0", "x"],
        ["--no-such-option", "x"],
        ["-n3", "--gpus=4", "x"],
        ["-n300", "x"],
        ["--dependency=afterany:1", "x"],
        ["--gres=gpu:a:b:2", "x"],
        ["--nice=x", "x"],
    ],
)
def test_what_cannot_be_done_is_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        translated(*words)


def test_a_wrong_directive_is_named_with_its_line() -> None:
    with pytest.raises(click.UsageError, match=r"line 2: .*--nodse"):
        read_options(["x"], "#!/bin/sh\n#SBATCH --nodse=2\n")


def submitted(door: Door) -> dict[str, Any]:
    return next(body for request, _, body in door.asked if request == "POST /api/jobs")


def test_sbatch_queues_the_script(call: Invoke, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT)
    door.on("POST /api/jobs", lambda _, body: {"job_id": body["task_id"], "duplicate": False}, 201)
    door.on(f"GET /api/jobs/{ONE}", job(ONE))
    result = call("slurm", "sbatch", "--dependency", f"afterok:{ONE}", "--signal=B:TERM@90", "train.sh", "--lr", "1")
    body = submitted(door)
    assert result.stdout == f"Submitted batch job {body['task_id']}\n"
    assert "--mail-type has no meaning here without --mail-user" in result.stderr
    request = TaskRequest(**body)
    assert (request.cpus, request.gpus, request.depends_on, request.grace_s) == (4, 2, [ONE], 90)
    assert request.env["ACTORGRID_BATCH_OUTPUT"] == f"{tmp_path}/out/train-%j.log"
    assert request.env["SLURM_CPUS_PER_TASK"] == "4" and request.env["SLURM_SUBMIT_DIR"] == str(tmp_path)
    assert request.command[-3:] == ["train", "--lr", "1"] and request.labels["account"] == "vision"
    assert call("slurm", "sbatch", "--parsable", "--wrap", "echo hi").stdout.strip().isalnum()


def run_here(body: dict[str, Any], **more: str) -> subprocess.CompletedProcess[str]:
    """Run what was submitted as a host would."""
    env = {"PATH": "/usr/bin:/bin", "ACTORGRID_JOB_ID": "j1", **body["env"], **more}
    return subprocess.run(body["command"], env=env, cwd=body["cwd"], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "#!/bin/bash\nset -e\necho $0 $1 $SLURM_JOB_ID $SLURM_PROCID $LINENO\n"
            "env | grep -c BATCH_SCRIPT || exit 3\n",
            3,
        ),
        ("#!/usr/bin/env python3\nimport os, sys\nprint(sys.argv[1], os.environ['SLURM_JOB_ID'])\nsys.exit(4)\n", 4),
    ],
)
def test_a_script_runs_in_its_interpreter(
    call: Invoke, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s").write_text(script)
    door.on("POST /api/jobs", lambda _, body: {"job_id": body["task_id"], "duplicate": False}, 201)
    assert call("slurm", "sbatch", "--export=NONE", "s", "a b").exit_code == 0
    done = run_here(submitted(door))
    assert done.returncode == said, done.stderr
    assert done.stdout == ("s a b j1 0 3\n0\n" if said == 3 else "a b j1\n")


def test_output_goes_where_the_script_says(
    call: Invoke, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s").write_text(
        "#!/bin/sh\n#SBATCH -J n -o %x-%A_%a-%t.out -a 3-9:3%2\necho out $SLURM_ARRAY_TASK_ID; echo err >&2\n"
    )
    door.on("POST /api/graphs", lambda _, body: {"job_id": body["graph_id"], "duplicate": False}, 201)
    result = call("slurm", "sbatch", "--export=NONE", "s")
    assert result.exit_code == 0, result.output
    body = next(body for request, _, body in door.asked if request == "POST /api/graphs")
    request = GraphRequest.model_validate(body)
    assert request.in_parallel == 2 and [step.id for step in request.steps] == ["3", "6", "9"]
    told = {key: request.env[f"SLURM_ARRAY_TASK_{key}"] for key in ("COUNT", "MIN", "MAX", "STEP")}
    assert told == {"COUNT": "3", "MIN": "3", "MAX": "9", "STEP": "3"}
    step = body["steps"][1]
    done = run_here({"command": step["command"], "cwd": step["cwd"], "env": {**body["env"], **step["env"]}})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Path(f"n-{request.graph_id}_6-0.out").read_text() == "out 6\nerr\n"


def test_srun_inside_of_a_job_is_the_command() -> None:

    done = subprocess.run(
        [sys.executable, "-m", "actorgrid", "slurm", "srun", "-n", "2", "--mpi=pmix", "sh", "-c", "echo here; exit 5"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "ACTORGRID_JOB_ID": "j1"},
    )
    assert (done.returncode, done.stdout) == (5, "here\n"), done.stderr


def test_srun_outside_is_run(call: Invoke, door: Door) -> None:
    ended = {"number": 1, "started_at": 1.0, "ended_at": 2.0, "exit_code": 7}

    def accept(_: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        path = f"GET /api/jobs/{body['task_id']}"
        door.on(path, job(body["task_id"], "failed", attempts=[ended]))
        door.on(
            f"{path}/logs", lambda query, _: b"out\n"[int(query["offset"]) :] if query["stream"] == "stdout" else b""
        )
        return {"job_id": body["task_id"], "duplicate": False}

    door.on("POST /api/jobs", accept, 201)
    result = call("slurm", "srun", "-c", "2", "--gres=gpu:1", "-t", "5", "./work", "--flag")
    assert (result.exit_code, result.stdout) == (7, "out\n")
    request = TaskRequest(**submitted(door))
    assert (request.command, request.cpus, request.gpus) == (["./work", "--flag"], 2, 1)
    assert request.max_execution_time_s == 300


def test_squeue_and_sacct_list_as_slurm_does(call: Invoke, door: Door) -> None:
    begun = {"number": 1, "host": "h1", "started_at": time.time() - 3723, "exit_code": None, "signal": None}
    runs = job(ONE, attempts=[begun], labels={"account": "vision"}, resources={"cpu_milli": 4000, "gang": 2})
    over = {**begun, "ended_at": begun["started_at"] + 90, "exit_code": 3, "max_rss_bytes": 2048}
    ended = job(TWO, "failed", attempts=[over], error={"code": "TaskFailed"})
    door.on(
        "GET /api/jobs", lambda query, _: {"jobs": [each for each in (runs, ended) if each["state"] in query["state"]]}
    )
    door.on("GET /api/hosts", {"hosts": [{"node_id": "h1", "hostname": "alpha"}]})
    lines = [line.split() for line in call("slurm", "squeue", "-u", "local").stdout.splitlines()]
    assert lines[0] == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert lines[1][:5] == [ONE, "actorgrid", "train", "local", "R"] and lines[1][6:] == ["2", "alpha"]
    assert lines[1][5].startswith("1:02:0")
    assert call("slurm", "squeue", "-h", "-o", "%.8i|%T|%C|%a").stdout == f"  {ONE}|RUNNING|8|vision\n"
    assert call("slurm", "squeue", "-o", "%Z").exit_code == 2 and call("slurm", "squeue", "-t", "XX").exit_code == 2
    wanted = call("slurm", "sacct", "-n", "-P", "-s", "F", "-o", "jobid,state,exitcode,elapsed,maxrss").stdout
    assert wanted == f"{TWO}|FAILED|3:0|1:30|2K\n"
    assert json.loads(call("slurm", "sacct", "--json", "-S", "now-2hours").stdout)["jobs"][0]["job_id"] == ONE


def test_scancel_and_sinfo(call: Invoke, door: Door) -> None:
    door.on("GET /api/jobs", lambda query, _: {"jobs": [job(ONE), job(TWO, name="other")]})
    door.on(f"POST /api/jobs/{ONE}/cancel", job(ONE, "cancelled"))
    assert call("slurm", "scancel", "-n", "train").exit_code == 0
    assert [request for request, _, _ in door.asked if "cancel" in request] == [f"POST /api/jobs/{ONE}/cancel"]
    assert call("slurm", "scancel").exit_code == 2
    assert call("slurm", "scancel", "-n", "nobody,train").exit_code == 0
    assert [query.get("name") for request, query, _ in door.asked if request == "GET /api/jobs"] == ["train", None]
    assert len([request for request, _, _ in door.asked if "cancel" in request]) == 2
    door.on("GET /api/jobs/a1.0", job("a1.0", step_of={"graph": "a1", "steps": [0]}))
    refused = call("slurm", "scancel", "a1.0")
    assert refused.exit_code == 2 and "scancel a1" in refused.stderr
    assert len([request for request, _, _ in door.asked if "cancel" in request]) == 2
    host = {"cpu_milli": 4000, "cpu_milli_allocated": 0, "memory_mib": 8, "gpus": [], "health": "healthy"}
    busy = {**host, "node_id": "h2", "hostname": "beta", "cpu_milli_allocated": 1000}
    door.on("GET /api/hosts", {"hosts": [{**host, "node_id": "h1", "hostname": "alpha"}, busy]})
    assert [line.split() for line in call("slurm", "sinfo").stdout.splitlines()] == [
        ["PARTITION", "AVAIL", "TIMELIMIT", "NODES", "STATE", "NODELIST"],
        ["actorgrid*", "up", "infinite", "1", "idle", "alpha"],
        ["actorgrid*", "up", "infinite", "1", "mix", "beta"],
    ]


def test_shims_have_slurms_names_and_spare_what_is_there(alone: Invoke, tmp_path: Path) -> None:
    result = alone("slurm", "--print-shims", str(tmp_path / "bin"))
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == [
        "sacct",
        "sbatch",
        "scancel",
        "sinfo",
        "squeue",
        "srun",
    ]
    assert result.exit_code == 0 and alone("slurm", "--print-shims", str(tmp_path / "bin")).exit_code == 0
    done = subprocess.run([tmp_path / "bin" / "squeue", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "List jobs that wait and run." in done.stdout
    (tmp_path / "bin" / "srun").write_text("Slurm's own")
    assert alone("slurm", "--print-shims", str(tmp_path / "bin")).exit_code == 2
    assert (tmp_path / "bin" / "srun").read_text() == "Slurm's own"
