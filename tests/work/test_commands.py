from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.work.rig import Rig


def test_output_and_exit_status_are_kept(rig: Rig) -> None:
    job = rig.run("a", command=["sh", "-c", "echo out; echo err >&2"])
    assert job["state"] == "succeeded"
    attempt = job["attempts"][0]
    assert (attempt["state"], attempt["exit_code"], attempt["signal"]) == ("succeeded", 0, None)
    assert attempt["started_at"] is not None
    assert attempt["max_rss_bytes"] > 0
    assert (rig.output("a.1"), rig.output("a.1", "stderr")) == ("out\n", "err\n")


def test_a_failing_command_fails_its_job_with_its_last_words(rig: Rig) -> None:
    job = rig.run("a", command=["sh", "-c", "echo sorry >&2; exit 3"])
    assert job["state"] == "failed"
    assert job["attempts"][0]["exit_code"] == 3
    error = job["error"]
    assert (error["code"], error["details"]["exit_code"], error["details"]["stderr"]) == ("TaskFailed", 3, "sorry\n")


def test_the_signal_that_ended_a_command_is_kept(rig: Rig) -> None:
    job = rig.run("a", command=["sh", "-c", "kill -SEGV $$"])
    assert job["attempts"][0]["signal"] == signal.SIGSEGV
    assert job["state"] == "failed"


def test_a_command_that_does_not_exist_fails_with_a_hint(rig: Rig) -> None:
    job = rig.run("a", command=["no-such-program"])
    assert job["state"] == "failed"
    assert "cannot run no-such-program" in job["error"]["message"]
    assert "spelling" in job["error"]["hint"]


def test_a_missing_folder_fails_with_a_hint(rig: Rig) -> None:
    job = rig.run("a", command=["true"], cwd="/no/such/folder")
    assert "cannot enter /no/such/folder" in job["error"]["message"]
    assert "cwd" in job["error"]["hint"]


def test_a_command_sees_its_environment_and_folder_and_input(rig: Rig, tmp_path: Path) -> None:
    rig.submit(
        "a",
        command=["sh", "-c", "echo $COLOUR; pwd; cat"],
        env={"COLOUR": "red"},
        cwd=str(tmp_path),
        stdin_digest=rig.blob(b"input"),
    )
    assert rig.run("a")["state"] == "succeeded"
    assert rig.output("a.1") == f"red\n{tmp_path}\ninput"


PEEK = (
    "import json, os, sys; json.dump({'env': dict(os.environ), "
    "'fds': {n: os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if int(n) < 100 "
    "and os.path.exists('/proc/self/fd/' + n)}}, sys.stdout)"
)


def test_a_command_gets_nothing_of_the_agent(make_rig, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("ACTORGRID_TOKEN", "secret-of-the-agent")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    rig = make_rig()
    rig.start_manager()
    assert rig.run("a", command=["python3", "-c", PEEK])["state"] == "succeeded"
    seen = json.loads(rig.output("a.1"))
    assert "secret-of-the-agent" not in json.dumps(seen)
    assert "AWS_SECRET_ACCESS_KEY" not in seen["env"]
    assert {fd for fd in seen["fds"] if int(fd) > 2} <= {"3"}  # 3 is the listing itself
    assert seen["fds"]["0"] == "/dev/null"


def test_gpu_work_sees_exactly_its_devices_and_other_work_none(rig: Rig) -> None:
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES/$ROCR_VISIBLE_DEVICES/$ZE_AFFINITY_MASK/$ACTORGRID_DEVICES"]
    whole = {"gpus": 2.0, "gpu_count": 2, "gpu_milli": 1000}
    rig.run("nv", [1, 3], command=command, resources=whole, env={"CUDA_VISIBLE_DEVICES": "all"})
    rig.run("amd", [4], command=command, resources={"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500})
    rig.run("intel", [7], command=command, resources={"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000})
    rig.run("cpu", command=command)
    assert rig.output("nv.1") == "GPU-sim-1,GPU-sim-3///GPU-sim-1,GPU-sim-3\n"
    assert rig.output("amd.1") == "/GPU-sim-4//GPU-sim-4\n"
    assert rig.output("intel.1") == "//1/GPU-sim-7\n"
    assert rig.output("cpu.1") == "///\n"


def test_output_is_bounded_and_says_so(make_rig) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__max_output_bytes=1000)
    rig.start_manager()
    assert rig.run("a", command=["sh", "-c", "head -c 500000 /dev/zero | tr '\\0' x"])["state"] == "succeeded"
    text = rig.output("a.1")
    assert text.startswith("x" * 1000 + "\n[actorgrid: output beyond 1000 bytes is dropped]")
    status = rig.dir("a.1").read_status()
    assert status is not None
    assert status["dropped"]["stdout"] == 499_000


def test_a_failed_attempt_is_retried_as_often_as_the_job_allows(rig: Rig, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    rig.submit("a", command=["sh", "-c", f"test -e {flag} || {{ touch {flag}; exit 1; }}"], retries_left=1)
    assert rig.run("a")["state"] == "queued"
    job = rig.run("a")
    assert job["state"] == "succeeded"
    assert [attempt["state"] for attempt in job["attempts"]] == ["failed", "succeeded"]


def test_attempt_folders_are_private(rig: Rig) -> None:
    rig.run("a", command=["true"])
    assert os.stat(rig.dir("a.1").path).st_mode & 0o777 == 0o700
    assert os.stat(rig.dir("a.1").path / "spec.msgpack").st_mode & 0o777 == 0o600
