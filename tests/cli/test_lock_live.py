"""``actorgrid lock`` on a real host: commands that run under a lock, and how they end when it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from tests.processes import is_alive

from .conftest import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.system]


@pytest.fixture(scope="module")
def local() -> Iterator[actorgrid.LocalCluster]:
    with actorgrid.LocalCluster(gpus=1) as local:
        yield local


@pytest.fixture(scope="module")
def client(local: actorgrid.LocalCluster) -> Iterator[actorgrid.Client]:
    with local.client() as client:
        yield client


def begin(local: actorgrid.LocalCluster, *words: str, **more: Any) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    return subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "lock", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, "ACTORGRID_DATA_DIR": str(local.data_dir), **more},
    )


def call(local: actorgrid.LocalCluster, *words: str, **more: Any) -> tuple[int, str, str]:
    process = begin(local, *words, **more)
    stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


@contextmanager
def running(local: actorgrid.LocalCluster, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """One that has said something on its standard output, or waits for the lock."""
    process = begin(local, *words, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def holders(client: actorgrid.Client, name: str) -> list[dict[str, Any]]:
    return [holder for lock in client.locks(name) for holder in lock["holders"]]


def test_a_command_runs_under_the_lock_with_its_token_and_leaves_its_exit_status(
    local: actorgrid.LocalCluster, client: actorgrid.Client
) -> None:
    said = 'echo "$ACTORGRID_LOCK_NAME $ACTORGRID_LOCK_TOKEN"; exit 3'
    code, stdout, _ = call(local, "run", "nightly", "--", "sh", "-c", said)
    name, token = stdout.split()
    assert (code, name) == (3, "nightly") and int(token) > 2**48
    assert holders(client, "nightly") == []
    code, stdout, stderr = call(local, "run", "nightly", "--json", "--", "sh", "-c", "echo out; kill -9 $$")
    document = json.loads(stdout)
    assert (code, document["exit_code"], document["lost"]) == (137, 137, None) and document["fence"] > int(token)
    assert stderr == "out\n"


@pytest.mark.parametrize(("command", "code"), [("/no/such/command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_run_leaves_as_a_shell_says(
    local: actorgrid.LocalCluster, command: str, code: int
) -> None:
    found, _, stderr = call(local, "run", "typo", "--", command)
    assert found == code and command in stderr


def test_a_lock_that_is_held_is_not_waited_for_longer_than_asked(
    local: actorgrid.LocalCluster, client: actorgrid.Client
) -> None:
    with client.lock("busy"):
        for wait, error in (("0", "LockHeld"), ("0.1", "LockTimeout")):
            code, stdout, _ = call(local, "run", "busy", "--json", "--wait", wait, "--", "echo", "never")
            assert code == 7 and json.loads(stdout)["error"]["code"] == error
        code, _, stderr = call(local, "run", "busy", "--wait", "0", "--", "echo", "never")
        assert code == 7 and "is held" in stderr


def test_commands_of_a_semaphore_run_side_by_side_and_are_listed(
    local: actorgrid.LocalCluster, client: actorgrid.Client
) -> None:
    words = ("run", "pair", "--slots", "2", "--", "sleep", "60")
    with running(local, *words), running(local, *words):
        until(lambda: len(holders(client, "pair")) == 2)
        code, stdout, _ = call(local, "list", "pair")
        assert code == 0 and "2/2" in stdout and stdout.count(holders(client, "pair")[0]["user_id"]) >= 2
        assert json.loads(call(local, "list", "--json")[1])["total"] >= 1
    assert call(local, "list", "no such")[1] == "nobody holds a lock under no such\n"


def test_a_signal_is_passed_on_to_the_command(local: actorgrid.LocalCluster, client: actorgrid.Client) -> None:
    script = "trap 'echo stopped; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with running(local, "run", "signalled", "--", "sh", "-c", script) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 5
    assert holders(client, "signalled") == []


def test_a_killed_lock_run_takes_its_command_along(local: actorgrid.LocalCluster, client: actorgrid.Client) -> None:
    with running(local, "run", "killed", "--ttl", "0.6", "--", "sh", "-c", "echo $$; exec sleep 60") as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        process.kill()
        until(lambda: not is_alive(command))
    until(lambda: holders(client, "killed") == [])


def test_a_broken_lock_ends_the_command_and_what_it_started(
    local: actorgrid.LocalCluster, client: actorgrid.Client, tmp_path: Path
) -> None:
    script = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; echo ready; wait; sleep 60"
    options = ("--ttl", "3", "--grace", "0.2")
    with running(local, "run", "broken", *options, "--", "sh", "-c", script) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (holder,) = holders(client, "broken")
        code, stdout, _ = call(local, "release", "broken", "--owner", holder["owner"], "--force")
        assert code == 0 and holder["owner"] in stdout
        assert process.wait(30) == 8
        assert process.stderr is not None and "lock broken" in process.stderr.read()
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_alive(child))


def test_a_command_whose_host_is_gone_is_ended_before_the_lease_is_over(local: actorgrid.LocalCluster) -> None:
    with actorgrid.LocalCluster(gpus=1) as going:
        with running(going, "run", "cut off", "--ttl", "1", "--", "sh", "-c", "echo ready; exec sleep 60") as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            going.close()
            assert process.wait(60) == 8


def test_a_lock_is_released_by_its_token_or_not_at_all(local: actorgrid.LocalCluster, client: actorgrid.Client) -> None:
    lock = client.lock("by token")
    token = lock.acquire()
    wrong = call(local, "release", "by token", "--owner", lock.owner, "--token", "1", "--json")
    assert (wrong[0], json.loads(wrong[1])["error"]["code"]) == (1, "StaleToken")
    assert call(local, "release", "by token", "--owner", lock.owner)[0] == 2
    assert call(local, "release", "by token", "--owner", lock.owner, "--token", str(int(token)))[0] == 0
    again = call(local, "release", "by token", "--owner", lock.owner, "--force", "--json")
    assert (again[0], json.loads(again[1])["error"]["code"]) == (4, "NotFound")


def test_interrupted_while_it_waits_it_leaves_the_line(local: actorgrid.LocalCluster, client: actorgrid.Client) -> None:
    with client.lock("waited for"), running(local, "run", "waited for", "--", "true") as process:
        until(lambda: client.locks("waited for")[0]["waiters"])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        until(lambda: not client.locks("waited for")[0]["waiters"])
