"""A real agent for tests: `actorgrid up` in a process of its own, and what can be done to it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import actorgrid
from tests.processes import is_alive, until
from tests.system.programs import installed

SERVERS = (
    "consensus",
    "distributed_state",
    "gpu_coordinator",
    "worker_manager",
    "cluster_manager",
    "load_balancer",
    "fault_detector",
    "gateway",
)
READY_S = 100.0


class Agent:
    """One host's agent over one data directory; may be started again and again."""

    def __init__(self, data_dir: Path, *settings: str, gpus: str = "simulated:4xH100-80GB") -> None:
        self.data_dir = data_dir
        self.gpus = gpus
        self.settings = list(settings)
        self.program: Path | None = None
        """The tree that its processes load, where it is another than the venv's."""
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self._clients: list[Any] = []
        self._is_told_to_stop = False

    def command(self, *extra: str) -> list[str]:
        flags = [part for setting in self.settings for part in ("--set", setting)]
        where = ["--data-dir", str(self.data_dir), "--port", "0", "--gpus", self.gpus]
        return [sys.executable, "-m", "actorgrid", "up", "--json", *where, *flags, *extra]

    def start(self) -> Agent:
        """Start and wait until it is ready."""
        self.process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment()
        )
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], READY_S)[0]:
            raise AssertionError(f"the agent said nothing in {READY_S:g} s")
        line = self.process.stdout.readline()
        self.ready = json.loads(line) if line else {}
        if self.ready.get("event") != "ready":
            assert self.process.stderr is not None
            raise AssertionError(f"the agent did not come up: {line!r} {self.process.stderr.read()!r}")
        return self

    def environment(self) -> dict[str, str]:
        """What its processes and commands are started with."""
        return dict(os.environ) if self.program is None else installed(self.program)

    def client(self) -> actorgrid.Client:
        """A client of the running agent; closed with the agent."""
        client = actorgrid.connect(data_dir=self.data_dir)
        self._clients.append(client)
        return client

    def cli(
        self, *arguments: str, check: bool = True, timeout_s: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the command line against this agent."""
        done = subprocess.run(
            [sys.executable, "-m", "actorgrid", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.environment(), "ACTORGRID_DATA_DIR": str(self.data_dir)},
            **options,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def cli_json(self, *arguments: str) -> Any:
        """The same with --json, parsed."""
        return json.loads(self.cli(*arguments, "--json").stdout)

    def processes(self) -> list[psutil.Process]:
        """The agent's own processes: the tree below `actorgrid up`, workers' zygote included."""
        assert self.process is not None
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def pid_of(self, server: str) -> int | None:
        """The process of one server, found by its title."""
        for process in self.processes():
            try:
                if process.cmdline()[:1] == [f"actorgrid: {server}"]:
                    return process.pid
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return None

    def kill(self) -> None:
        """SIGKILL the agent, every process of its tree at once, as a power cut of the control plane would."""
        assert self.process is not None
        tree = self.processes()
        for process in tree:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        until(lambda: not any(is_alive(process.pid) for process in tree), "the agent's processes are gone")
        self._reap()

    def kill_main(self) -> None:
        """SIGKILL only the process the person started; the rest has to follow by itself."""
        assert self.process is not None
        tree = self.processes()
        self.process.kill()
        until(lambda: not any(is_alive(process.pid) for process in tree), "the agent's processes followed")
        self._reap()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self._close_clients()
        self.process.terminate()
        return self._end()

    def wait_for_end(self) -> int:
        """The exit status, once it has ended by itself."""
        self._close_clients()
        return self._reap()

    def begin_stop(self) -> None:
        """SIGTERM, where it runs; ``close`` waits for its end."""
        self._close_clients()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self._is_told_to_stop = True

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        self._close_clients()
        if self.process is not None and self._is_told_to_stop:
            self._end()
        elif self.process is not None and self.process.poll() is None:
            self.stop()
        for process in psutil.process_iter():
            try:
                if str(self.data_dir) in process.environ().get("ACTORGRID_TEST_MARK", ""):
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def _end(self) -> int:
        assert self.process is not None
        self._is_told_to_stop = False
        try:
            self.process.wait(60)
        finally:
            status = self._reap()
        return status

    def _reap(self) -> int:
        assert self.process is not None
        status = self.process.wait(30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status


@contextmanager
def closing_all(agents: Iterable[Agent]) -> Iterator[None]:
    """Close them all in the end, at the same time: one by one they would choose leaders among fewer and fewer."""
    try:
        yield
    finally:
        made = list(agents)
        for agent in made:
            agent.begin_stop()
        for agent in made:
            agent.close()


def write_when_told(folder: Path, name: str) -> str:
    """A shell line that says it runs, waits for a file, and leaves a mark: work that lasts as long as the test wants.

    It polls, as a shell can do no better; it ends by itself after about a minute.
    """
    started, go, done = folder / f"{name}.started", folder / f"{name}.go", folder / f"{name}.done"
    return (
        f"echo $$ > {started}; i=0; while [ ! -e {go} ] && [ $i -lt 1200 ]; do i=$((i+1)); sleep 0.05; done; "
        f"echo out-{name}; echo err-{name} >&2; echo $$ > {done}"
    )


def is_root() -> bool:
    """Whether we may mount and change users."""
    return os.geteuid() == 0
