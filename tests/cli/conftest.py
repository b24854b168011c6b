from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from actorgrid.cli.main import cli
from tests.patience import Patience

Answer = tuple[int, Any]


@dataclass
class Door:
    """A real HTTP server that answers what a test tells it to: by method and path, plain values or a function."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""

    def on(self, request: str, answer: Any, status: int = 200) -> None:
        """Answer ``"GET /path"`` with JSON (or bytes, or what a function of query and body gives)."""
        self.answers[request] = (status, answer)

    def fail(self, request: str, error: Any) -> None:
        self.answers[request] = (error.http_status, {"error": error.to_dict()})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    door: Door

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw and "json" in self.headers.get("Content-Type", "") else raw
        request = f"{self.command} {parts.path}"
        self.door.asked.append((request, query, body))
        missing = {"error": {"code": "UnknownJob", "message": f"nothing at {request}", "hint": ""}}
        status, answer = self.door.answers.get(request, (404, missing))
        if callable(answer):
            answer = answer(query, body)
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
        if answer is not None and isinstance(answer, bytes) and answer.startswith(b"data:"):
            kind = "text/event-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    handler = type("OneHandler", (Handler,), {"door": door})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    door.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield door
    server.shutdown()
    thread.join()
    server.server_close()


Invoke = Callable[..., Result]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Calls the command line with no agent anywhere."""
    for name in [name for name in os.environ if name.startswith("ACTORGRID_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACTORGRID_DATA_DIR", str(tmp_path / "data"))

    def invoke(*arguments: str, **extra: Any) -> Result:
        return CliRunner().invoke(cli, list(arguments), **extra)

    return invoke


@pytest.fixture
def call(alone: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Calls the command line with ``door`` for an agent."""
    monkeypatch.setenv("ACTORGRID_URL", door.url)
    monkeypatch.setenv("ACTORGRID_TOKEN", "token")
    return alone


def job(job_id: str, state: str = "running", **more: Any) -> dict[str, Any]:
    """A job as the door gives it."""
    attempt = {"number": 1, "attempt_id": f"{job_id}.1", "gpu_indexes": [2], "started_at": time.time() - 5}
    given = {
        "job_id": job_id,
        "name": "train",
        "user_id": "local",
        "kind": "command",
        "state": state,
        "priority": 50,
        "resources": {"gpus": 0.25, "gpu_memory_mib": 2048},
        "submitted_at": time.time() - 10,
        "retries_left": 0,
        "cancel_requested": False,
        "error": None,
        "attempts": [] if state == "queued" else [attempt],
    }
    return {**given, **more}


@dataclass
class Host:
    """A running ``actorgrid up``, and a way to call the command line against it."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    data_dir: Path

    def call(
        self, *arguments: str, timeout_s: float = 60.0, variables: dict[str, str] | None = None, **extra: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "actorgrid", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.environment(), **(variables or {})},
            **extra,
        )

    def json(self, *arguments: str) -> Any:
        done = self.call(*arguments)
        assert done.stdout.count("\n") == 1, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def environment(self) -> dict[str, str]:
        return environment_of(self.data_dir)


def environment_of(data_dir: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    return {**kept, "ACTORGRID_DATA_DIR": str(data_dir)}


def start_host(data_dir: Path, *options: str) -> Host:
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "up", "--port", "0", "--gpus", "2xA100-40GB", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of(data_dir),
    )
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        process.kill()
        raise AssertionError(f"up printed nothing and left: {process.communicate()[1]}")
    return Host(process, json.loads(line), data_dir)


def stop_host(host: Host) -> int:
    host.process.terminate()
    host.process.communicate(timeout=60)
    return host.process.returncode


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host for all live tests of a module."""
    running = start_host(tmp_path_factory.mktemp("host"))
    yield running
    stop_host(running)


Starting = Callable[..., Host]


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    """Starts hosts, one after another, on one data directory; stops at the end what still runs."""
    started: list[Host] = []

    def start(*options: str) -> Host:
        started.append(start_host(tmp_path / "host", *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            stop_host(running)


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """What *condition* gives, once that is something."""
    patience = Patience(timeout_s)
    while not (found := condition()):
        assert not patience.is_over, "it did not come to that in time"
        patience.pause()
    return found
