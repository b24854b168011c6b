"""Served classes as processes of their own: how they start, end, and what their exit codes say."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from tests.system.agent import Agent

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
CLASSES = """
import os
import threading
import time

import actorgrid


@actorgrid.service(drain_s=20)
class Slow:
    def __init__(self):
        self.gate = threading.Event()

    @actorgrid.batch
    def hold(self, items: list[int]) -> list[int]:
        open(f"began-{items[0]}", "w").close()
        while not os.path.exists("go"):
            self.gate.wait(0.01)
        return items

    def die(self) -> None:
        os._exit(9)

    def close(self):
        open("closed", "w").close()


@actorgrid.service(drain_s=0.2)
class Hasty(Slow):
    pass


class Broken:
    def __init__(self):
        raise OSError("no weights")

    def call(self): ...
"""


@contextmanager
def replica(directory: Path, target: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves, and its port."""
    (directory / "classes.py").write_text(CLASSES)
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid.serving", target, "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if found := re.search(r"serving at http://127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
                break
        assert port, "it did not come to serve"
        yield process, port
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def began(directory: Path, number: int) -> None:
    while not (directory / f"began-{number}").exists():
        os.sched_yield()


def test_sigterm_lets_what_was_begun_end_and_takes_nothing_new(tmp_path: Path) -> None:
    with replica(tmp_path, "classes:Slow") as (process, port), ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, port, "/hold", 1)
        began(tmp_path, 1)
        process.send_signal(signal.SIGTERM)
        while ask(port, "/health", method="GET")[1]["status"] != "ending":
            pass
        assert ask(port, "/hold", 2)[1]["error"]["code"] == "ServiceEnding"
        (tmp_path / "go").touch()
        assert first.result() == (200, 1)
        assert process.wait(30) == 0
        assert (tmp_path / "closed").exists()


def test_what_does_not_end_in_time_is_cut_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with replica(tmp_path, "classes:Hasty") as (process, port), ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, port, "/hold", 1)
        began(tmp_path, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        assert first.exception(30) is not None


@pytest.mark.parametrize("target, code, told", [("classes:Broken", 1, "no weights"), ("classes:Nothing", 2, "Nothing")])
def test_a_class_that_cannot_be_served_ends_the_process_with_the_reason(
    tmp_path: Path, target: str, code: int, told: str
) -> None:
    (tmp_path / "classes.py").write_text(CLASSES)
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid.serving", target, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("port", ["99999", "-1", "http", "\u0661"])
def test_what_is_no_port_is_refused(port: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid.serving", "json:JSONEncoder", "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2 and "--port" in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with replica(tmp_path, "classes:Slow") as (_, port):
        done = subprocess.run(
            [sys.executable, "-m", "actorgrid.serving", "classes:Slow", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 5 and f"127.0.0.1:{port}" in done.stderr


def test_a_class_is_kept_running_as_a_service(
    shared_agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_class.py").write_text(
        "class Adder:\n    def add(self, a: int, b: int) -> int:\n        return a + b\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from kept_class import Adder  # type: ignore[import-not-found]

    client = shared_agent.client()
    service = client.serve("adder", Adder, cwd=str(tmp_path), cpus=0.1)
    (replica,) = service.wait_ready(60)["replicas"]
    assert ask(replica["port"], "/add", {"a": 2, "b": 3}) == (200, 5)
    assert service.look()["revisions"][-1]["serving"]["live_path"] == "/health"
    service.remove()


@pytest.mark.timeout(300)
def test_typed_work_runs_through_a_service(shared_agent: Agent) -> None:
    pytest.importorskip("numpy", reason="the model in the house computes with it")
    from actorgrid.demo.house_model.service import HouseModel

    client = shared_agent.client()
    service = client.serve("house", HouseModel, cpus=0.1)
    service.wait_ready(90)
    until(lambda: client.http.get("/api/services")["url"], "the model gateway serves", 60)
    arguments = {"service": "house", "inputs": ["one", "two", "three"], "max_tokens": 8, "seed": 1}
    texts = client.submit_work("machine_learning_inference", arguments).result()
    assert [len(text.encode()) for text in texts] == [8, 8, 8] and len(set(texts)) == 3
    arguments = {"service": "house", "inputs": ["one", "two"], "ask": "embed"}
    vectors = client.submit_work("machine_learning_inference", arguments).result()
    assert [len(vector) for vector in vectors] == [160, 160]
    service.remove()


def test_a_class_is_served_from_the_command_line(shared_agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "worded.py").write_text(
        "class Shout:\n    def shout(self, word: str) -> str:\n        return word.upper()\n"
    )
    shared_agent.cli("serve", "shout", "--class", "worded:Shout", "--cpus", "0.1", cwd=tmp_path)
    service = shared_agent.client().find_service("shout")
    (replica,) = service.wait_ready(60)["replicas"]
    assert ask(replica["port"], "/shout", {"word": "hey"}) == (200, "HEY")
    service.remove()
    wrong = shared_agent.cli("serve", "shout", "--class", "nowhere:Shout", check=False)
    assert wrong.returncode == 2 and "--protocol" in wrong.stderr
