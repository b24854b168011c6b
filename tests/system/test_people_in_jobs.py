"""People in running jobs: terminals, further commands and ports, from another host and from afar, whatever breaks."""

from __future__ import annotations

import json
import select
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_examples import ALL, Block
from tests.processes import until
from tests.system.cluster_host import ClusterHost, Two
from tests.terminals import Typist

THERE = ("--gpus", "0.1", "--gpu-model", "A100-40GB", "--cpus", "0.1")
"""What only the second host has."""


@pytest.fixture(scope="module")
def afar(two: Two) -> dict[str, str]:
    """The environment of commands on a machine that is no host, with an API key."""
    made = two[0].cli_json("key", "create", "--user", "ann")
    variables = {"URL": made["url"], "TOKEN": made["key"], "CA_FINGERPRINT": made["ca_fingerprint"]}
    return {**two[0].environment(), **{f"ACTORGRID_{name}": value for name, value in variables.items()}}


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., Typist]]:
    """Has somebody run a command of ours in a terminal."""
    made: list[Typist] = []

    def sit_down(environment: dict[str, str], *arguments: str) -> Typist:
        made.append(Typist([sys.executable, "-m", "actorgrid", *arguments], environment))
        return made[-1]

    yield sit_down
    for typist in made:
        typist.close()


def here(host: ClusterHost) -> dict[str, str]:
    return {**host.environment(), "ACTORGRID_DATA_DIR": str(host.data_dir)}


def ours(environment: dict[str, str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actorgrid", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, **options)


def begun(host: ClusterHost, *arguments: str) -> str:
    job_id: str = json.loads(host.cli("run", "--detach", "--json", *THERE, *arguments).stdout)["job_id"]
    until(lambda: host.client().job(job_id)["state"] == "running", "it runs")
    return job_id


def test_a_command_beside_a_job_of_another_host(two: Two, afar: dict[str, str]) -> None:
    first, second = two
    job = begun(first, "--env", "COLOUR=red", "--", "sleep", "1000")
    for environment in (here(first), here(second), afar):
        line = "read word; echo $word $COLOUR $ACTORGRID_ATTEMPT; echo sad >&2; exit 7"
        done = ours(environment, "exec", job, "--", "sh", "-c", line, input="typed\n")
        assert (done.returncode, done.stdout, done.stderr) == (7, f"typed red {job}.1\n", "sad\n")
    assert ours(afar, "exec", "--no-stdin", job, "--", "no-such-program").returncode == 127
    assert ours(afar, "exec", job, "--", "sh", "-c", "kill -9 $$").returncode == 137
    refused = ours(afar, "attach", "--read-only", job)
    assert (refused.returncode, "started without --pty" in refused.stderr) == (2, True)
    # It ends with the job, whose end is said.
    beside = [sys.executable, "-m", "actorgrid", "exec", job, "--", "sh", "-c", "echo up; exec sleep 1000"]
    with subprocess.Popen(beside, env=afar, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        first.cli("cancel", job)
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, "has ended" in said) == (1, True)
    late = ours(here(first), "exec", "--json", job, "--", "true")
    assert json.loads(late.stdout)["error"]["code"] == "JobNotRunning"


def test_a_terminal_is_left_and_had_again_from_afar(
    two: Two, afar: dict[str, str], at_terminal: Callable[..., Typist]
) -> None:
    first, second = two
    line = 'PS1="at: "; export PS1; exec sh -i'
    # Patience for its host on a busy machine: where it is over, another attempt begins, with a shell of its own.
    typist = at_terminal(here(first), "run", "--pty", *THERE, "--max-isolation", "5m", "--", "sh", "-c", line)
    typist.until("at: ")
    typist.type("stty size; echo $((6*7))-$TERM\n")
    typist.until("30 100")
    typist.until("42-")
    typist.until("at: ")
    typist.resize((40, 120))
    typist.type("while ! stty size | grep '40 120'; do :; done\n")
    typist.until("\n40 120")
    typist.until("at: ")
    # What is interrupted has said that it runs: a shell that has not started it yet may forget the key.
    typist.type("sh -c 'echo it is a''sleep; exec sleep 1000'\n")
    typist.until("it is asleep")
    typist.type("\x03")
    typist.until("at: ")
    typist.type("\x1dd")
    assert typist.end() == 0
    assert typist.is_as_before
    (job,) = [each["job_id"] for each in first.cli_json("ps")["jobs"] if each["state"] == "running"]
    assert job[:8] in typist.seen.decode()
    again = at_terminal(afar, "attach", job)
    assert "42-" in again.until("40 120")
    again.until("at: ")
    second.kill()  # the job goes on, and who is attached as well
    away = ours(here(first), "exec", "--json", job, "--", "true")
    assert (away.returncode, json.loads(away.stdout)["error"]["code"]) == (5, "HostUnreachable")
    second.start()
    again.type("echo still $((7*7))\n")
    again.until("still 49")
    again.until("at: ")
    looks_on = [sys.executable, "-m", "actorgrid", "attach", "--read-only", "--history", "0", job]
    with subprocess.Popen(looks_on, env=here(second), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as other:
        assert other.stdout is not None
        again.type("while :; do echo both; read -t 0.05 x; done\n")
        again.until("both")
        assert select.select([other.stdout], [], [], 60)[0]
        again.type("\x03")
        again.until("at: ")
        again.type("exit 5\n")
        assert again.end() == 5
        assert b"both" in other.stdout.read()
        assert other.wait(60) == 5
    assert again.is_as_before


def test_our_terminal_is_as_before_also_when_we_are_told_to_end(two: Two, at_terminal: Callable[..., Typist]) -> None:
    job = begun(two[0], "--pty", "--", "sh", "-c", "echo up; read x")
    typist = at_terminal(here(two[0]), "attach", job)
    typist.until("up")
    subprocess.run(["kill", str(typist.pid)], check=True)
    assert typist.end() == 143
    assert typist.is_as_before
    beside = at_terminal(here(two[0]), "exec", job, "--", "sh", "-c", "stty size; echo $TERM ready; exec cat")
    assert "30 100" in beside.until("ready")
    beside.type("seen\n")
    beside.until("seen\r\nseen")
    beside.type("\x04")
    assert beside.end() == 0
    assert beside.is_as_before
    assert two[0].cli("run", "--pty", "--", "true", check=False, stdin=subprocess.DEVNULL).returncode == 2
    two[0].cli("cancel", job)


def test_a_port_of_a_job_is_opened_at_home(two: Two, afar: dict[str, str], tmp_path: Any) -> None:
    page = tmp_path / "page"
    page.write_bytes(bytes(range(256)) * 20_000)
    line = "import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler);"
    line += "print(s.server_port, flush=True); s.serve_forever()"
    job = begun(two[0], "--cwd", str(tmp_path), "--", sys.executable, "-c", line)
    port = until(lambda: two[0].cli("logs", "--stdout", job).stdout.strip(), "it says its port")
    for environment in (here(two[1]), afar):
        command = [sys.executable, "-m", "actorgrid", "port", job, f"{port}:0", "--wait", "30s", "--json"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as forward:
            assert forward.stdout is not None
            url = json.loads(forward.stdout.readline())["url"]
            for _ in range(3):
                with urllib.request.urlopen(f"{url}/page", timeout=60) as answer:
                    assert answer.read() == page.read_bytes()
            if environment is afar:
                two[0].cli("cancel", job)
                assert b"not running" in forward.communicate(timeout=60)[1]
            else:
                forward.terminate()
            assert forward.wait(60) == 0
    assert ours(afar, "port", job, "1:0").returncode == 1


def test_work_comes_to_no_job_of_another_user(two: Two) -> None:
    job = begun(two[0], "--", "sleep", "1000")
    own = (
        two[0]
        .client()
        .submit_job(
            command=[sys.executable, "-m", "actorgrid", "exec", "--no-stdin", job, "--", "true"],
            user_id="eve",
            cpus=0.1,
        )["job_id"]
    )
    assert two[0].client().job(own, wait_s=60)["state"] == "failed"
    assert f"there is no job {job}" in two[0].cli("logs", "--stderr", own).stderr
    two[0].cli("cancel", job)


@pytest.mark.parametrize("block", [block for block in ALL if Path(__file__).name in block.skipped], ids=str)
def test_the_examples_of_the_documents_run(
    two: Two, at_terminal: Callable[..., Typist], block: Block, tmp_path: Path
) -> None:
    stand_in = tmp_path / "nvidia-smi"
    stand_in.write_text("#!/bin/sh\necho GPU 0\n")
    stand_in.chmod(0o755)
    job = begun(two[0], "--", "sleep", "1000")
    lasts = f"echo here; while ! test -e {tmp_path}/seen; do sleep 0.05; done"
    with_terminal = begun(two[0], "--pty", "--", "sh", "-c", lasts)
    for line in block.text.splitlines():
        stands_for = {"JOB": job, "PTY_JOB": with_terminal, "nvidia-smi": str(stand_in)}
        words = [stands_for.get(word, word) for word in shlex.split(line, comments=True)[1:]]
        typist = at_terminal(here(two[0]), *words)
        if with_terminal in words:
            typist.until("here")
            (tmp_path / "seen").touch()
        assert typist.end() == 0, (line, typist.seen)
        assert "echo hello" not in line or b"hello" in typist.seen
    two[0].cli("cancel", job)
