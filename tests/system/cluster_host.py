"""A real agent that is a host of a cluster, on ports of its own."""

from __future__ import annotations

import fcntl
import json
import random
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from tests.processes import until
from tests.system.agent import Agent

ADDRESS = "127.0.0.1"
PORTS = 5


_reserved: set[int] = set()


@cache
def _reservations() -> BinaryIO:
    """A file whose bytes are locked, one for each five ports that some test process on this machine counts on."""
    return open(Path(tempfile.gettempdir()) / "actorgrid-test-ports", "ab")


def own_address() -> str:
    """This machine's address on its network, where hosts speak TLS to everybody; empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return ""
        address = str(asking.getsockname()[0])
    return "" if address.startswith("127.") else address


def free_base_port(address: str = ADDRESS) -> int:
    """A port with four free ones behind it, below those that the kernel gives to connections that go out.

    They stay this process's own as long as it lives: a host that is stopped, or not yet started, finds them free.
    """
    for _ in range(100):
        base = random.randrange(10_000, 32_000, PORTS)
        if base in _reserved:
            continue  # a process may take its own lock again
        with ExitStack() as held:
            try:
                fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, base)
                for offset in range(PORTS):
                    held.enter_context(socket.create_server((address, base + offset)))
                    datagrams = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    datagrams.bind((address, base + offset))
            except OSError:
                continue
            _reserved.add(base)
            return base
    raise AssertionError("no five free ports in a row")


class ClusterHost(Agent):
    """An agent with fixed ports, so that others find it again."""

    def __init__(self, data_dir: Path, gpus: str, *settings: str, address: str = ADDRESS) -> None:
        super().__init__(data_dir, *settings, gpus=gpus)
        self.address = address
        self.base_port = free_base_port(address)
        self.first: list[str] = []

    @property
    def door(self) -> str:
        """Where it lets hosts in."""
        return f"{self.address}:{self.base_port + 3}"

    def command(self, *extra: str) -> list[str]:
        where = ["--data-dir", str(self.data_dir), "--port", str(self.base_port), "--gpus", self.gpus]
        first, self.first = self.first, []
        flags = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "actorgrid", "up", "--json", *where, *flags, *first, *extra]

    def found(self) -> ClusterHost:
        self.first = ["--listen", self.address]
        self.start()
        return self

    def join(self, member: ClusterHost, token: str) -> ClusterHost:
        self.first = ["--join", member.door, "--token", token]
        if member.address != self.address:  # else it takes the one that it comes from
            self.first += ["--listen", self.address]
        self.start()
        return self

    def refused(self, member: str, token: str) -> dict[str, Any]:
        """The error that a join ends with."""
        self.first = ["--join", member, "--token", token]
        return self.refused_up()

    def refused_up(self) -> dict[str, Any]:
        """The error that a start ends with."""
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=60, env=self.environment())
        assert done.returncode, done.stdout
        error: dict[str, Any] = json.loads(done.stdout)["error"]
        return error

    def token(self, *options: str) -> dict[str, Any]:
        made: dict[str, Any] = self.cli_json("token", "create", *options)
        return made

    def hosts(self) -> dict[int, dict[str, Any]]:
        return {host["node"]: host for host in self.cli_json("hosts")["hosts"]}

    def roles(self) -> dict[int, str]:
        return {node: host["raft_role"] for node, host in self.hosts().items()}

    def submit(self, *command: str) -> str:
        return str(json.loads(self.cli("run", "--detach", "--json", *command).stdout)["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        with closing(AdminHttp(*locate(self.data_dir))) as http:
            found: dict[str, Any] = http.get(f"/api/jobs/{job_id}")
        return found

    def ended(self, *command: str) -> dict[str, Any]:
        """A job of these options and command, once it has ended."""
        job_id = self.submit(*command)

        def final() -> dict[str, Any] | None:
            found = self.job(job_id)
            return found if found["state"] in ("succeeded", "failed", "cancelled", "lost") else None

        job: dict[str, Any] = until(final, f"the end of {job_id}")
        return job


def ran_on(job: dict[str, Any]) -> str:
    """The host of its last attempt."""
    return str(job["attempts"][-1]["host"])


Two = tuple[ClusterHost, ClusterHost]
"""A cluster of two hosts: the first leads."""
