"""A day with jobs on a real host: waited for, read by time and pattern, begun again, found by labels."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import BadRequest, WrongState
from tests.processes import until
from tests.system.agent import Agent


def test_a_failed_job_is_read_and_begun_again_and_waited_for(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent(gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    ready, go, last = tmp_path / "ready", tmp_path / "go", tmp_path / "last"
    steps = ((go, "new"), (last, "last"))
    line = f"seq 1 20000; echo loss 0.5 >&2; test -e {ready}"
    job_id = str(client.submit_job(command=["sh", "-c", line], cpus=0.1)["job_id"])
    slow = "echo old; " + "".join(f"until test -e {file}; do sleep 0.02; done; echo {word}; " for file, word in steps)
    slow_id = str(client.submit_job(command=["sh", "-c", slow], cpus=0.1)["job_id"])
    until(lambda: b"old" in b"".join(client.logs(slow_id)), "the slow one has begun")
    noted = time.time()
    assert client.wait_any([job_id, slow_id], timeout=60)[job_id] == "failed"
    with pytest.raises(TimeoutError):
        client.wait_all([job_id, slow_id], timeout=0.1)
    assert b"".join(client.logs(job_id, grep="^1999[0-9]$", tail=2)) == b"19998\n19999\n"
    assert b"".join(client.logs(job_id, tail=1)) == b"20000\n"
    for choice in ({"tail": 1}, {"since_s": 5.0}):
        with pytest.raises(BadRequest, match="where to begin"):
            next(client.logs(job_id, offset=5, **choice))
    assert b"".join(client.logs(job_id, "stderr", since_s=600, grep="loss")) == b"loss 0.5\n"
    with pytest.raises(BadRequest, match="no regular expression"):
        next(client.logs(job_id, grep="("), b"")

    ready.touch()
    assert client.retry(job_id) == {"job_id": job_id, "attempts": 1}
    job = client.wait(job_id, 60)
    assert (job["state"], [each["state"] for each in job["attempts"]]) == ("succeeded", ["failed", "succeeded"])
    with pytest.raises(WrongState, match="has succeeded"):
        client.retry(job_id)

    until(lambda: time.time() > noted + 1.1, "what comes now has a time of its own")
    go.touch()
    until(lambda: b"new" in b"".join(client.logs(slow_id)), "the slow one has gone on")
    assert b"".join(client.logs(slow_id, since_s=time.time() - noted - 1.0)) == b"new\n"
    followed = client.logs(slow_id, follow=True, tail=1, grep="new|last")
    assert next(followed) == b"new\n"
    last.touch()
    assert b"".join(followed) == b"last\n"
    assert client.wait_all([job_id, slow_id], timeout=60) == {job_id: "succeeded", slow_id: "succeeded"}


def test_jobs_are_found_and_cancelled_by_their_labels(make_agent: Callable[..., Agent]) -> None:
    client = make_agent(gpus="simulated:1xH100-80GB").start().client()
    vision, nlp = {"team": "vision", "stage": "train"}, {"team": "nlp"}
    first = client.submit_job(command=["sleep", "600"], gpus=1, labels=vision, name="train-resnet")["job_id"]
    ids = [
        client.submit_job(command=["true"], gpus=1, labels=labels, name=name)["job_id"]
        for labels, name in ((vision, "train-vit"), (nlp, "train-bert"), (nlp, "eval"))
    ]
    until(lambda: client.job(first)["state"] == "running", "the first runs")
    host = client.hosts()[0]["node_id"]

    def listed(**chosen: Any) -> list[str]:
        return [job["job_id"] for job in client.jobs(**chosen)]

    assert listed(labels={"team": "vision"}) == [ids[0], first]
    assert listed(labels={"team": "vision", "stage": "eval"}) == []
    assert listed(name="train-", labels=nlp) == [ids[1]]
    assert listed(host=host) == [first] and listed(since_s=3600, state="queued") == ids[::-1]
    assert listed(user="nobody") == []
    assert client.jobs(labels=nlp, limit=1)[0]["labels"] == nlp
    assert set(client.cancel_labelled(team="vision")) == {first, ids[0]}
    states = client.wait_all([first, *ids], timeout=60)
    assert [states[each] for each in (first, *ids)] == ["cancelled", "cancelled", "succeeded", "succeeded"]
    assert client.cancel_labelled(team="vision") == [] and listed(host=host, labels=vision) == [first]


def test_an_array_is_one_job_with_a_limit_of_how_many_run(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent(gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    begun, ready = tmp_path / "begun", tmp_path / "ready"
    begun.mkdir()
    line = (
        "echo index $ACTORGRID_ARRAY_INDEX of $ACTORGRID_ARRAY_COUNT in $ACTORGRID_ARRAY_ID;"
        f"mkdir {begun}/$ACTORGRID_ARRAY_INDEX; ls {begun} | wc -l; sleep 0.1; rmdir {begun}/$ACTORGRID_ARRAY_INDEX;"
        f"test $ACTORGRID_ARRAY_INDEX != 4 -o -e {ready}"
    )
    array = client.submit_array(["sh", "-c", line], "0-10:2%2", cpus=0.1, labels={"team": "vision"}, name="sweep")
    assert client.wait(array.id, 60)["state"] == "failed"
    assert [(job["job_id"], job["name"]) for job in client.jobs(labels={"team": "vision"})] == [(array.id, "sweep")]
    states = {step["id"]: step["state"] for step in array.steps()}
    assert states == {str(index): "failed" if index == 4 else "succeeded" for index in range(0, 11, 2)}
    output = {step["id"]: b"".join(client.logs(step["job_id"])).decode().splitlines() for step in array.steps()}
    assert output["6"][0] == f"index 6 of 6 in {array.id}"
    assert max(int(lines[1]) for lines in output.values()) <= 2

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        found = {**agent.environment(), "ACTORGRID_DATA_DIR": str(agent.data_dir)}
        line = [sys.executable, "-m", "actorgrid", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, env=found)

    assert call("logs", f"{array.id}_8", "--tail", "2", "--grep", "index").stdout == f"index 8 of 6 in {array.id}\n"
    assert call("logs", f"{array.id}_3").returncode == 4
    ready.touch()
    assert "1 step begin again" in call("retry", array.id).stdout
    assert call("wait", array.id, "--timeout", "60").stdout == f"{array.id} succeeded\n"
    made = call("submit", "--array", "1-3", "--cpus", "0.1", "--json", "--", "sh", "-c", "exit $ACTORGRID_ARRAY_INDEX")
    assert made.returncode == 0, made.stderr
    assert call("wait", json.loads(made.stdout)["job_id"]).returncode == 1
    stuck = client.submit_array(["sleep", "600"], range(5), at_once=1, cpus=0.1)

    def runs(number: int) -> bool:
        job_id = stuck.steps()[number]["job_id"]
        return bool(job_id) and client.job(job_id)["state"] == "running"

    until(lambda: runs(0), "the first index runs")
    assert call("cancel", f"{stuck.id}[0,3-4]").stdout == f"{stuck.id}[0,3-4]: 2 cancelled, 1 stopping, 0 had ended\n"
    until(lambda: runs(1), "the next one runs")
    assert [step["state"] for step in stuck.steps()][:1] == ["failed"]
    assert "has no index 7" in call("cancel", f"{stuck.id}_7").stderr
    assert call("retry", f"{stuck.id}_4").stdout == f"{stuck.id}_4: 1 of its indexes begin again\n"
    assert "has not begun" in call("logs", f"{stuck.id}_4").stderr
    stuck.cancel()
    assert client.wait(stuck.id, 60)["state"] == "cancelled"


def test_a_slurm_script_runs_unchanged(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent(gpus="simulated:2xH100-80GB").start()
    script = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --output=%x-%A_%a.out
#SBATCH --array=1-3%2
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100M --time=00:05:00
#SBATCH --account=vision --mail-type=END
set -e
echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $1, $SLURM_CPUS_PER_TASK cpu
echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | grep -c GPU
srun sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS'
"""
    (tmp_path / "train.sbatch").write_text(script)
    sent = agent.cli("slurm", "sbatch", "--wait", "train.sbatch", "hello", cwd=tmp_path)
    assert "--mail-type has no meaning here" in sent.stderr
    array_id = sent.stdout.split()[-1]
    for index in (1, 2, 3):
        written = (tmp_path / f"train-{array_id}_{index}.out").read_text().splitlines()
        assert written == [f"task {index} of 3, hello, 1 cpu", "1", "rank 0 of 1"]
    later = agent.cli("slurm", "sbatch", "--parsable", "-t", "5", "--wrap", "sleep 600").stdout.strip()
    assert agent.client().job(later)["max_execution_time_s"] == 300
    until(lambda: agent.cli("slurm", "squeue", "-h", "-j", later, "-o", "%T").stdout == "RUNNING\n", "it runs")
    assert "mix" in agent.cli("slurm", "sinfo").stdout
    agent.cli("slurm", "scancel", later)
    assert agent.client().wait(later, 60)["state"] == "cancelled"
    listed = agent.cli("slurm", "sacct", "-n", "-P", "-a", "-o", "jobid,state,exitcode").stdout.splitlines()
    assert f"{array_id}|COMPLETED|0:0" in listed and any(line.startswith(f"{later}|CANCELLED") for line in listed)
    assert agent.cli("slurm", "srun", "-c", "1", "sh", "-c", "echo hi; exit 3", check=False).returncode == 3


def test_a_job_that_leaves_its_gpu_idle_is_ended_by_name(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    percent = tmp_path / "percent"
    percent.write_text("90, 0")
    settings = ("gpus.probe_interval_s=0.5", f"gpus.simulated_busy={percent}")
    client = make_agent(*settings, gpus="simulated:2xH100-80GB").start().client()
    asked = {"command": ["sleep", "600"], "cpus": 0.1, "stop_when_idle_s": 1, "retries": 3}
    ids = [client.submit_job(**asked, gpus=1)["job_id"] for _ in range(2)]
    both = client.wait_any(ids, timeout=60)
    (idle,) = [job_id for job_id, state in both.items() if state == "cancelled"]
    job = client.job(idle)
    assert (job["error"]["code"], len(job["attempts"])) == ("GpuIdle", 1)
    assert "its GPUs were idle for" in job["error"]["message"] and job["attempts"][0]["gpu_indexes"] == [1]
    (busy,) = set(ids) - {idle}
    assert client.job(busy)["state"] == "running"
    percent.write_text("0")
    assert client.wait(busy, 60)["error"]["code"] == "GpuIdle"
    with pytest.raises(BadRequest, match="without gpus"):
        client.submit_job(**asked)


GOES_ON = """
cd $ACTORGRID_CHECKPOINT_DIR
if test -e n; then echo "$NAME$ACTORGRID_ARRAY_INDEX from $ACTORGRID_CHECKPOINT_FROM" >> $SAID; exit 0; fi
echo 1 > n; touch .checkpoint-ready; exit 3
"""


def test_indexes_of_arrays_and_steps_of_graphs_go_on_from_their_checkpoints(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    client = make_agent().start().client()
    work = tmp_path / "work"
    work.mkdir()
    line = ["sh", "-c", GOES_ON]
    said = {"SAID": str(work / "said")}
    array = client.submit_array(line, "1-2", cwd=work, checkpoint="ckpt", retries=1, cpus=0.1, env=said)
    assert array.wait(60)["state"] == "succeeded"
    assert sorted((work / "said").read_text().split("\n")) == ["", "1 from 1", "2 from 1"]
    (work / "said").unlink()
    dag = actorgrid.Dag("goes on")
    step = dag.run(line, cwd=work, checkpoint={"path": "own"}, retries=1, cpus=0.1, env={**said, "NAME": "step"})
    run = client.dag(dag)
    assert run.wait(60)["state"] == "succeeded"
    assert (work / "said").read_text() == "step from 1\n"
    job = client.job(run[step].look()["job_id"])
    assert (len(job["attempts"]), job["last_checkpoint"]["attempt"]) == (2, 1)
