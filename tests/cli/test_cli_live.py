"""The command line against a real host: real processes, real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terminals import seen_on_terminal

from .conftest import Host, Starting, stop_host, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.system]


def detach(host: Host, *words: str) -> str:
    return str(host.json("run", "--detach", "--json", *words)["job_id"])


def state_of(host: Host, job_id: str) -> str:
    jobs = host.json("ps", "--all", "--json")["jobs"]
    return str(next(job["state"] for job in jobs if job["job_id"] == job_id))


def test_up_tells_where_it_is(host: Host) -> None:
    assert host.ready["event"] == "ready" and host.ready["pid"] == host.process.pid
    assert host.ready["url"].startswith("http://127.0.0.1:")
    assert host.ready["data_dir"] == str(host.data_dir)


def test_a_second_up_is_refused_with_the_pid_of_the_first(host: Host) -> None:
    done = host.call("up", "--port", "0", "--json")
    assert done.returncode == 5
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "AlreadyRunning" and str(host.process.pid) in error["message"]


def test_status_becomes_ready(host: Host) -> None:
    summary = until(lambda: (found := host.json("status", "--json"))["ready"] and found)
    assert summary["gpus"] == 2 and summary["gpu_sources"] == ["simulated"]
    done = host.call("status")
    assert done.returncode == 0 and "2 x A100" in done.stdout and "simulated" in done.stdout


def test_run_gives_output_and_exit_status(host: Host) -> None:
    done = host.call("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.startswith("err\n") and "status 3" in done.stderr


def test_what_is_noted_about_a_job_is_shown_wherever_the_job_is(host: Host) -> None:
    done = host.call("run", "--detach", "--annotation", "sweep=3", "--annotation", "by=a b", "--", "sleep", "60")
    job_id, noted = done.stdout.strip(), {"sweep": "3", "by": "a b"}
    try:
        assert host.json("why", job_id, "--json")["annotations"] == noted
        (listed,) = [job for job in host.json("ps", "--all", "--json")["jobs"] if job["job_id"] == job_id]
        assert listed["annotations"] == noted
        assert "annotations: sweep=3, by=a b" in host.call("why", job_id).stdout
    finally:
        host.call("cancel", job_id)
    long = ["--annotation", "a=" + "x" * 4000, "--annotation", "b=" + "x" * 4000]
    refused = host.call("run", *long, "--", "true")
    assert refused.returncode == 2 and "too long" in refused.stderr and "4096" in refused.stderr


def test_run_is_given_its_share_of_a_gpu(host: Host) -> None:
    done = host.call("run", "--gpus", "0.5", "--", "sh", "-c", "echo $ACTORGRID_DEVICES")
    assert done.returncode == 0
    uuids = {gpu["device_id"] for gpu in host.json("gpus", "--json")["gpus"]}
    assert done.stdout.strip() in uuids


def test_run_leaves_as_a_killed_command_does(host: Host) -> None:
    assert host.call("run", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_run_leaves_with_124_at_the_time_limit(host: Host) -> None:
    assert host.call("run", "--timeout", "0.3", "--", "sleep", "60").returncode == 124


def test_run_carries_every_attempt(host: Host) -> None:
    done = host.call("run", "--retries", "1", "--", "sh", "-c", "echo try; exit 1")
    assert (done.returncode, done.stdout) == (1, "try\ntry\n")


def test_run_works_where_it_was_called_with_what_it_was_given(host: Host, tmp_path: Path) -> None:
    done = host.call("run", "--stdin", "--env", "A=1", "--", "sh", "-c", "pwd; echo $A; cat", input="in", cwd=tmp_path)
    assert done.stdout == f"{tmp_path}\n1\nin"


def test_run_carries_large_output_whole(host: Host) -> None:
    done = host.call("run", "--", sys.executable, "-c", "print('x' * 5_000_000)")
    assert len(done.stdout) == 5_000_001


def test_an_interrupted_run_cancels_its_job(host: Host) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "run", "--name", "interrupted", "--", "sh", "-c", "echo on; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=host.environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    job_id = re.search(r"cancelling (\w+)", said)
    assert job_id and state_of(host, job_id[1]) == "cancelled"


def test_a_job_is_followed_listed_explained_and_cancelled(host: Host) -> None:
    job_id = detach(host, "--name", "long", "--", "sh", "-c", "echo begun; exec sleep 60")
    until(lambda: state_of(host, job_id) == "running")
    assert "long" in host.call("ps").stdout
    until(lambda: host.call("logs", job_id[:12]).stdout == "begun\n")
    assert host.json("why", job_id, "--json")["state"] == "running"
    assert host.call("cancel", job_id[:12]).returncode == 0
    until(lambda: state_of(host, job_id) == "cancelled")
    assert host.json("logs", job_id, "--json")["stdout"] == "begun\n"


def test_ps_watch_tells_a_job_to_its_end_even_if_it_is_short(host: Host) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "ps", "--watch"], stdout=subprocess.PIPE, text=True, env=host.environment()
    )
    try:
        assert watcher.stdout is not None
        marker = detach(host, "--", "sleep", "60")
        for line in watcher.stdout:
            if line.startswith(marker):
                break  # it watches now
        short = detach(host, "--", "true")
        assert next(line for line in watcher.stdout if line.startswith(short) and "succeeded" in line)
        host.call("cancel", marker)
        assert next(line for line in watcher.stdout if line.startswith(marker) and "cancelled" in line)
    finally:
        watcher.kill()
        watcher.communicate()


def test_events_tell_what_the_ledger_did(host: Host) -> None:
    job_id = detach(host, "--", "true")
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "events", "--from", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=host.environment(),
    )
    try:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        told = (change for event in events for change in event["changes"] if change["id"] == job_id)
        assert next(change for change in told if change["state"] == "succeeded")
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_leaves_is_told_that_the_job_runs_on(host: Host) -> None:
    script = f"{sys.executable} -m actorgrid run -- sh -c 'yes | head -c 3000000; exec sleep 60' | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, env=host.environment(), timeout=60
    )
    assert (done.returncode, done.stdout) == (141, "y\n")
    job_id = re.search(r"actorgrid cancel (\w+)", done.stderr)
    assert job_id and host.call("cancel", job_id[1]).returncode == 0


def test_logs_follow_to_the_end(host: Host) -> None:
    job_id = detach(host, "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done")
    assert host.call("logs", "-f", job_id).stdout == "1\n2\n3\n"


def test_a_job_waits_for_those_it_comes_after(host: Host, tmp_path: Path) -> None:
    first = detach(host, "--", "sh", "-c", f"sleep 0.3; echo one >> {tmp_path}/order")
    done = host.call("run", "--after", first, "--", "sh", "-c", f"echo two >> {tmp_path}/order")
    assert done.returncode == 0
    assert (tmp_path / "order").read_text() == "one\ntwo\n"


def test_submit_runs_a_file(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print('ran', sys.argv[1:])")
    job_id = host.call("submit", str(script), "--flag", "1").stdout.strip()
    assert host.call("logs", "-f", job_id).stdout == "ran ['--flag', '1']\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "--gpus", "3", "--", "true"], 2, "2 x A100"),
        (["run", "--gpus", "1", "--gpu-model", "H900", "--", "true"], 2, "A100"),
        (["run", "--gpus", "1.5", "--", "true"], 2, "1.5"),
        (["run", "--cpus", "4000", "--", "true"], 2, "try:"),
        (["run", "--", "no-such-program"], 127, "no-such-program"),
        (["why", "nope"], 4, "nope"),
        (["state", "get", "no/key"], 4, "no/key"),
        (["config", "set", "cluster.name", "x"], 2, "cluster.yaml"),
        (["config", "set", "work.kill_grace", "1"], 2, "work.kill_grace_s"),
        (["config", "set", "work.kill_grace_s", "soon"], 2, "number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_refusal_says_what_there_is(host: Host, words: list[str], code: int, says: str) -> None:
    done = host.call(*words)
    assert done.returncode == code and says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_token_is_refused(host: Host) -> None:
    environment = {**host.environment(), "ACTORGRID_URL": host.ready["url"], "ACTORGRID_TOKEN": "wrong"}
    done = subprocess.run([sys.executable, "-m", "actorgrid", "ps"], capture_output=True, text=True, env=environment)
    assert done.returncode == 3 and "token" in done.stderr


def test_shared_state_from_a_shell(host: Host) -> None:
    assert host.call("state", "put", "cfg/lr", "0.1").stdout == "0.1\n"
    assert host.call("state", "incr", "cfg/steps", "5").stdout == "5\n"
    assert host.call("state", "incr", "cfg/steps", "-2").stdout == "3\n"
    host.call("state", "add", "cfg/tags", "a")
    host.call("state", "add", "cfg/tags", "b")
    assert host.call("state", "remove", "cfg/tags", "a").stdout == '["b"]\n'
    listed = host.json("state", "list", "cfg/", "--json")["entries"]
    assert {entry["key"]: entry["value"] for entry in listed} == {"cfg/lr": 0.1, "cfg/steps": 3, "cfg/tags": ["b"]}
    assert host.call("state", "incr", "cfg/lr").returncode == 2


def test_a_live_setting_changes_and_says_so(host: Host) -> None:
    assert host.call("config", "set", "work.keep_finished_jobs", "500").stdout.startswith(
        "work.keep_finished_jobs = 500"
    )

    def live() -> bool:
        found = host.json("config", "get", "work.keep_finished_jobs", "--json")
        return bool(found["value"] == 500 and found["origin"] == "live")

    until(live)


def test_doctor_shows_the_running_agent_and_its_origins(host: Host) -> None:
    report = until(lambda: (found := host.json("doctor", "--json"))["ok"] and found)
    assert report["running"]
    origins = {entry["key"]: entry["origin"] for entry in report["settings"]}
    assert origins["cluster.base_port"] == "--port" and origins["gpus.source"] == "--gpus"


def test_inspect_and_hosts_answer(host: Host) -> None:
    assert "gateway" in host.json("inspect", "--json")["servers"]
    assert len(host.json("hosts", "--json")["hosts"]) == 1


def on_terminal(host: Host, *words: str, heard: Callable[[str], object] = lambda _seen: None, **environ: str) -> str:
    """What a person sees who calls the command line on a terminal."""
    environment = {**host.environment(), "TERM": "xterm", "COLUMNS": "120", **environ}
    return seen_on_terminal([sys.executable, "-m", "actorgrid", *words], environment, heard)


def test_a_waiting_run_shows_its_state_on_a_terminal_and_leaves_no_trace(host: Host, tmp_path: Path) -> None:
    holder = detach(host, "--gpus", "2", "--", "sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")

    def let_go(seen: str) -> None:
        if "queued" in seen:
            (tmp_path / "go").touch()

    seen = on_terminal(host, "run", "--gpus", "2", "--", "sh", "-c", "echo hi", heard=let_go)
    assert "queued; actorgrid why" in seen
    assert re.sub(r"\r\x1b\[K[^\r\n]*?(?=\r\x1b)", "", seen).replace("\r\x1b[K", "") == "hi\n"
    until(lambda: state_of(host, holder) == "succeeded")


def test_tables_have_colours_on_a_terminal_unless_told_otherwise(host: Host) -> None:
    assert "\x1b[32mavailable" in on_terminal(host, "gpus")
    assert "\x1b[32m" not in on_terminal(host, "gpus", NO_COLOR="1")


def test_run_goes_on_through_the_death_of_the_agent(starting: Starting, tmp_path: Path) -> None:
    host = starting()
    script = f"echo a; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo b"
    follower = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "run", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=host.environment(),
    )
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "a\n"
        os.kill(host.process.pid, signal.SIGKILL)
        host.process.communicate(timeout=60)
        starting()
        (tmp_path / "go").touch()
        rest, said = follower.communicate(timeout=60)
        assert (follower.returncode, rest) == (0, "b\n"), said
    finally:
        follower.kill()
        follower.communicate()


def test_up_stops_in_order_at_sigterm(starting: Starting) -> None:
    host = starting("--set", "work.kill_grace_s=0.2")
    job_id = detach(host, "--", "sleep", "60")
    until(lambda: state_of(host, job_id) == "running")
    assert stop_host(host) == 0
    assert not (host.data_dir / "agent.json").exists()
    done = host.call("ps")
    assert done.returncode == 5 and "actorgrid up" in done.stderr


def test_up_prints_a_banner_for_people(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "up", "--port", "0", "--gpus", "4", "--data-dir", str(tmp_path / "host")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    text = "".join(lines)
    assert process.returncode == 0, said
    assert "is up at http://127.0.0.1:" in text and "4 x H100 (simulated)" in text
    assert f"actorgrid status --data-dir {tmp_path / 'host'}" in text
