from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorgrid.supervisors.supervisor import WhichChildren
from tests.host.echo_servers import Ask
from tests.measure import CARRIER
from tests.patience import Patience
from tests.processes import is_alive

ROOT = Path(__file__).resolve().parents[2]
SERVERS = "tests.host.echo_servers:"
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    patience = Patience(deadline_s)
    while True:
        value = condition()
        if value:
            return value
        if patience.is_over:
            raise AssertionError(f"{what}: not within {deadline_s:g} s")
        patience.pause()


def spec(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "kind": SERVERS + kind, **fields}


ECHO, SECOND, DOOR = spec("echo", "Echo"), spec("second", "Second"), spec("gateway", "Door")


class Host:
    """A host in a process of its own, and what a test does to it."""

    def __init__(self, data_dir: Path, *specs: dict[str, Any]) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.host.host_process", str(data_dir), json.dumps(specs)],
            cwd=ROOT,
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
        )
        self.seen: set[int] = {self.process.pid}

    def first_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, "the host said nothing"
        line = self.process.stdout.readline()
        assert line, f"the host ended with {self.process.wait()}; log: {self.log()}"
        return json.loads(line)

    def ready(self) -> Host:
        line = self.first_line()
        assert "ready" in line, line
        self.tree()
        return self

    def failed(self) -> dict[str, Any]:
        line = self.first_line()
        self.process.wait(DEADLINE_S)
        return line["error"]

    def tree(self) -> dict[str, int]:
        """Process title (without the prefix) -> pid, of everything under the process in front."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                title = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            self.seen.add(process.pid)
            found[title.removeprefix("actorgrid: ").strip()] = process.pid
        return found

    def call(self, to: str, message: Any, timeout_s: float = 60.0) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(DEADLINE_S * 2)
            connection.connect(str(self.data_dir / "door"))
            connection.sendall(pickle.dumps((to, message, timeout_s)))
            connection.shutdown(socket.SHUT_WR)
            data = connection.makefile("rb").read()
        answer = pickle.loads(data)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, to: str, what: str, *args: Any, timeout_s: float = 60.0) -> Any:
        return self.call(to, Ask(what, args), timeout_s)

    def children(self) -> dict[str, dict[str, Any]]:
        return {child["name"]: child for child in self.call("host", WhichChildren())}

    def notes(self) -> list[str]:
        return (self.data_dir / "notes").read_text().splitlines()

    def log(self) -> str:
        path = self.data_dir / "agent.log"
        return path.read_text() if path.exists() else ""

    def agent(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.data_dir / "agent.json").read_text())
        except FileNotFoundError:
            return None

    def stop(self) -> int:
        self.tree()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def all_gone(self) -> bool:
        return not any(is_alive(pid) for pid in self.seen)

    def end(self) -> None:
        if self.process.poll() is None:
            self.tree()
            if CARRIER in os.environ:  # measured: what is killed outright leaves no data
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        wait_for(self.all_gone, f"the end of every process of {self.data_dir}")


@pytest.fixture
def start_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(*specs: dict[str, Any], directory: str = "data") -> Host:
        host = Host(tmp_path / directory, *(specs or (ECHO, SECOND, DOOR)))
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        host.end()


@pytest.fixture(scope="module")
def shared_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host for tests that leave it as they found it."""
    host = Host(tmp_path_factory.mktemp("shared") / "data", ECHO, SECOND, DOOR).ready()
    yield host
    host.end()
