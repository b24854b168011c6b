"""``why`` through the real command, against a real host: a job in every state, for each cause."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid

from .conftest import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.system]


class Cluster:
    """A LocalCluster and the command line that finds it."""

    def __init__(self, local: actorgrid.LocalCluster) -> None:
        self.local = local

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
        return subprocess.run(
            [sys.executable, "-m", "actorgrid", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**kept, "ACTORGRID_DATA_DIR": str(self.local.data_dir)},
        )

    def run(self, *words: str) -> str:
        done = self.call("run", "--detach", "--json", "--cpus", "0.01", *words)
        assert done.returncode == 0, done.stdout
        return str(json.loads(done.stdout)["job_id"])

    def state(self, job_id: str) -> str:
        return str(self.local.client().job(job_id)["state"])

    def until_state(self, job_id: str, *states: str) -> None:
        client = self.local.client()
        until(lambda: client.job(job_id)["state"] in states)

    def why(self, job_id: str) -> tuple[str, dict[str, Any]]:
        """The text and the JSON."""
        text, document = self.call("why", job_id), self.call("why", job_id, "--json")
        assert (text.returncode, document.returncode) == (0, 0), (text.stderr, document.stdout)
        assert document.stdout.count("\n") == 1
        return text.stdout, json.loads(document.stdout)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with actorgrid.LocalCluster(gpus=4, gpu_model="A100-40GB") as local:
        yield Cluster(local)


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The cluster of this module, emptied after each test."""
    yield running
    client = running.local.client()
    for job in client.jobs():
        if job["state"] in ("queued", "placed", "running"):
            client.cancel(job["job_id"])
    until(lambda: not any(job["state"] in ("queued", "placed", "running") for job in client.jobs()))


def test_a_job_without_room_hears_what_it_lacks_who_holds_it_and_what_would_help(cluster: Cluster) -> None:
    low = cluster.run("--name", "low", "--priority", "10", "--gpus", "2", "--timeout", "10m", "--", "sleep", "60")
    cluster.until_state(low, "running")
    part = cluster.run("--name", "part", "--gpus", "0.75", "--", "sleep", "60")
    cluster.until_state(part, "running")
    big = cluster.run("--gpus", "3", "--gpu-model", "A100", "--", "true")
    other = cluster.run("--gpus", "4", "--", "true")
    text, answer = cluster.why(big)
    assert re.search(r"queued: it needs 3 whole A100s on one host; \S+ has 1 free$", text, re.MULTILINE)
    assert re.search(r"not enough of its GPUs free +1 of 1", text)
    assert re.search(r"line +1 of 2$", text, re.MULTILINE)
    assert re.search(rf"{low[:8]} +low +10 +2 ", text) and "its room is reserved" in text, text
    assert "ask for less: with --gpus 1 it would fit now" in text
    assert f"actorgrid cancel {low} would make room" in text and part not in text
    assert answer["explain"]["failed"] == {"gpu_busy": 1} and answer["openings"] == ["--gpus 1"]
    assert answer["estimated_start"]["from"] == "reservation" and answer["reservation"]["nodes"]
    text, answer = cluster.why(other)
    assert "; 1 job is ahead" in text and (answer["position"], answer["waiting"]) == (2, 2)
    assert f"actorgrid cancel {low} {part} would make room" in text
    # What it says does help.
    assert cluster.call("cancel", low).returncode == 0
    cluster.until_state(big, "succeeded")


def test_a_share_that_does_not_fit_hears_how_much_would(cluster: Cluster) -> None:
    held = [cluster.run("--gpus", "0.8", "--gpu-memory", "30GiB", "--", "sleep", "60") for _ in range(4)]
    for job_id in held:
        cluster.until_state(job_id, "running")
    text, _ = cluster.why(cluster.run("--gpus", "0.5", "--", "true"))
    assert "needs 0.5 of a GPU;" in text and "has 0.2 of one free" in text and "with --gpus 0.2 it would" in text
    text, _ = cluster.why(cluster.run("--gpus", "0.1", "--gpu-memory", "20GiB", "--", "true"))
    assert "lacks 10 GiB of GPU memory" in text and "--gpu-memory 10240MiB" in text


def test_a_job_without_cpus_hears_so(cluster: Cluster) -> None:
    cpus = cluster.local.client().hosts()[0]["cpu_milli"] / 1000
    holder = cluster.run("--cpus", f"{cpus}", "--", "sleep", "60")
    cluster.until_state(holder, "running")
    text, answer = cluster.why(cluster.run("--cpus", "1", "--", "true"))
    assert re.search(r"needs 1 CPU; \S+ lacks 1 CPU", text) and "not enough CPU free" in text
    assert [one["job_id"] for one in answer["held_by"]] == [holder]
    assert f"actorgrid cancel {holder} would make room" in text


def test_a_job_that_waits_for_another_hears_which(cluster: Cluster) -> None:
    first = cluster.run("--", "sleep", "60")
    cluster.until_state(first, "running")
    text, answer = cluster.why(cluster.run("--after", first, "--", "true"))
    assert f"queued: it depends on {first} (running)" in text and f"- actorgrid why {first}" in text
    assert answer["depends_on"] == [{"job_id": first, "state": "running"}]


def test_a_job_between_attempts_hears_when_the_next_one_starts(cluster: Cluster) -> None:
    assert cluster.call("config", "set", "scheduling.retry_backoff_s", "30").returncode == 0
    job_id = cluster.run("--retries", "2", "--", "false")
    client = cluster.local.client()
    until(lambda: client.job(job_id)["state"] == "queued" and client.job(job_id)["attempts"])
    text, answer = cluster.why(job_id)
    assert "attempt 1 ended (the command left with status 1); the next one starts in" in text
    assert "after that, 1 further retry would be left" in text
    assert answer["estimated_start"]["from"] == "retry" and answer["not_before"]
    cluster.call("config", "set", "scheduling.retry_backoff_s", "1")


def test_a_running_job_hears_where_and_how_long_it_may(cluster: Cluster) -> None:
    job_id = cluster.run("--gpus", "1", "--timeout", "1h", "--", "sleep", "60")
    cluster.until_state(job_id, "running")
    text, answer = cluster.why(job_id)
    assert re.search(r"running: attempt 1 has been running for [\d.]+ s on GPU \d of ", text)
    assert "it is stopped at its time limit, in 59 min" in text
    assert answer["next_step"] == f"actorgrid logs -f {job_id}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--", "sh", "-c", "echo boom >&2; exit 3"],
            ["failed: the command left with status 3", "| boom", "--retries N"],
        ),
        (["--", "sh", "-c", "kill -9 $$"], ["killed by SIGKILL (signal 9)", "ran out of memory (dmesg tells)"]),
        (["--", "sh", "-c", "kill -11 $$"], ["killed by SIGSEGV (signal 11)", "PYTHONFAULTHANDLER=1"]),
        (["--timeout", "0.3", "--", "sleep", "60"], ["ran past 0.3 s", "give it longer than 0.3 s with --timeout"]),
        (["--", "no-such-program"], ["cannot run no-such-program", "check the spelling"]),
        (["--cwd", "/no/such/folder", "--", "true"], ["/no/such/folder", "give a cwd that exists"]),
        (
            [
                "--memory",
                "64MiB",
                "--",
                sys.executable,
                "-c",
                "import time; x = bytearray(b'1') * 300_000_000; time.sleep(60)",
            ],
            ["used more host memory than it asked for", "ask for more than 64 MiB with --memory"],
        ),
    ],
    ids=["status", "killed", "crashed", "too-long", "no-program", "no-folder", "memory"],
)
def test_a_failed_job_hears_how_it_failed_and_what_may_help(
    cluster: Cluster, words: list[str], says: list[str]
) -> None:
    job_id = cluster.run(*words)
    cluster.until_state(job_id, "failed", "lost", "succeeded")
    text, answer = cluster.why(job_id)
    assert answer["state"] == "failed", text
    for expected in says:
        assert expected in text


def test_a_job_that_went_down_with_others_hears_the_first_cause(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.run("--name", "fetch", "--", "sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5")
    second = cluster.run("--after", first, "--", "true")
    third = cluster.run("--after", second, "--", "true")
    (tmp_path / "go").touch()
    cluster.until_state(third, "failed")
    text, answer = cluster.why(third)
    assert f"failed: job {first} (fetch), which it waited for, failed: the command left with status 5" in text
    assert answer["next_step"] == f"actorgrid why {first}" and "it never started" in text


def test_a_job_that_succeeded_was_cancelled_or_never_was(cluster: Cluster) -> None:
    done = cluster.run("--", "true")
    cluster.until_state(done, "succeeded")
    text, answer = cluster.why(done)
    assert re.search(r"succeeded: it ran for [\d.]+ s, [\d.]+ s ago", text)
    assert answer["next_step"] == f"actorgrid logs {done}"
    stopped = cluster.run("--", "sleep", "60")
    cluster.until_state(stopped, "running")
    cluster.call("cancel", stopped)
    cluster.until_state(stopped, "cancelled")
    assert "was cancelled while it ran" in cluster.why(stopped)[0]
    misspelt = done[:5] + ("0" if done[5] != "0" else "1") + done[6:]
    lost = cluster.call("why", misspelt)
    assert lost.returncode == 4 and f"did you mean {done}" in lost.stderr
    document = json.loads(cluster.call("why", misspelt, "--json").stdout)
    assert document["error"]["code"] == "UnknownJob" and done in document["error"]["hint"]


def test_every_answer_has_the_keys_of_the_interface(cluster: Cluster) -> None:
    job_id = cluster.run("--", "true")
    _, answer = cluster.why(job_id)
    schema = cluster.local.client().http.get("/openapi.json")["components"]["schemas"]["WhyAnswer"]
    assert set(schema["properties"]) <= set(answer)
