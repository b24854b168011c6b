"""Real agents on hosts of their own: each in a network namespace, with a disk, a cable and a power switch."""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.agent import Agent
from tests.system.net_wires import Wires, enter, missing

T = TypeVar("T")
BASE_PORT = 7400
ANSWER_S = 60.0
SMALL_DISK = "64m"


@dataclass
class Standstill:
    """A time in which no process of a host ran; ``ended`` is infinite for as long as it lasts. Seconds of the epoch."""

    attempts: Path
    """The host's folder with one folder for each attempt that it began."""
    began: float
    ended: float = math.inf


class NetHost(Agent):
    """One host. It has a simulated GPU or some, and answers those who ask from inside its own namespace."""

    def __init__(self, wires: Wires, number: int, data_dir: Path, settings: Sequence[str], gpus: int) -> None:
        super().__init__(data_dir, *settings, gpus=f"simulated:{gpus}xH100-80GB")
        self.wires = wires
        self.number = number
        self.namespace = wires.namespace(number)
        self.running = False
        self.standstills: list[Standstill] = []
        self.disk: Path | None = None
        self._clock: Path | None = None
        self._first: list[str] = []
        self._inside = ThreadPoolExecutor(4, f"in-{self.namespace}", enter, (self.namespace,))

    def command(self, *extra: str) -> list[str]:
        flags = [part for setting in self.settings for part in ("--set", setting)]
        where = ["--data-dir", str(self.data_dir), "--port", str(BASE_PORT), "--gpus", self.gpus]
        first, self._first = self._first, []
        agent = [sys.executable, "-m", "actorgrid", "up", "--json", *where, *flags, *first, *extra]
        return ["ip", "netns", "exec", self.namespace, *self._clock_to_step(), *agent]

    # -- what it stands on

    def give_disk(self, size: str) -> None:
        """A file system of its own, of that size, for all that it keeps."""
        self.disk = self.data_dir.parent / f"{self.data_dir.name}-disk"
        self.disk.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.disk)], capture_output=True, text=True
        )
        assert done.returncode == 0, f"no tmpfs can be mounted: {done.stderr}"
        self.data_dir = self.disk / self.data_dir.name

    def give_clock(self, library: Path) -> None:
        """A wall clock that ``step_clock`` moves; *library* is what ``stepped_clock`` made."""
        self._library = library
        self._clock = self.data_dir.parent / f"{self.namespace}.clock"
        self._clock.write_bytes(struct.pack("q", 0))

    def _clock_to_step(self) -> list[str]:
        if self._clock is None:
            return []
        return ["env", f"LD_PRELOAD={self._library}", f"STEPPED_CLOCK={self._clock}"]

    def step_clock(self, by_s: float) -> None:
        """Put the wall clock of all its processes so far from the true time, at once."""
        assert self._clock is not None, "it has no clock of its own"
        with self._clock.open("r+b") as file:
            file.write(struct.pack("q", int(by_s * 1e9)))

    # -- life

    def found(self) -> None:
        """Begin the cluster."""
        self._first = ["--listen", self.wires.address(self.number)]
        self.up()

    def join(self, member: NetHost, token: str) -> None:
        """Come into the cluster of *member*."""
        self._first = ["--join", f"{self.wires.address(member.number)}:{BASE_PORT + 3}", "--token", token]
        self.up()

    def up(self) -> None:
        """Start it and wait until it takes work."""
        self.wires.plug(self.number, there=True)
        self.start()
        self.running = True

    def crash(self) -> None:
        """Its power goes: the cable is dead first, so that no kernel says goodbye for it."""
        self.running = False
        self.wires.plug(self.number, there=False)
        self.wires.kill(self.number)
        self._reap()

    def pause(self) -> None:
        """All of it stands still, as under a hypervisor that has other things to do."""
        self.running = False
        self.standstills.append(Standstill(self.data_dir / "attempts", time.time()))
        self.wires.signal(self.number, signal.SIGSTOP)

    def go_on(self) -> None:
        """The end of a pause."""
        self.wires.signal(self.number, signal.SIGCONT)
        self.standstills[-1].ended = time.time()
        self.running = True

    def close(self) -> None:
        """Take it down, whatever happened to it."""
        if self.process is not None and self.process.poll() is None:
            self.crash()
        self._inside.shutdown(wait=True, cancel_futures=True)
        if self.disk is not None:
            subprocess.run(["umount", "-l", str(self.disk)], check=True)

    # -- asking it

    def inside(self, work: Callable[[], T]) -> T:
        """What *work* returns, done by a thread in the host's namespace."""
        return self._inside.submit(work).result(ANSWER_S)

    def http(self, timeout_s: float = 30.0, retry_s: float = 10.0) -> AdminHttp:
        """A door to it, to be used by a thread that lives in its namespace."""
        url, token = locate(self.data_dir)
        return AdminHttp(url, token, timeout_s=timeout_s, retry_s=retry_s)

    def ask(self, method: str, path: str, body: Any = None, within_s: float = 30.0, **query: Any) -> Any:
        """One request to it."""

        def request() -> Any:
            with closing(self.http(within_s, min(within_s, 10.0))) as door:
                return door.request(method, path, body=body, query=query)

        return self.inside(request)

    def cli(self, *arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "actorgrid", *arguments]
        done = subprocess.run(
            [*command, "--data-dir", str(self.data_dir)], capture_output=True, text=True, timeout=60, **options
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def view(self) -> dict[int, tuple[str, str]]:
        """What each host is to the ledger and how it is, as this one says; nothing when it does not answer."""
        try:
            listed = self.ask("GET", "/api/hosts")["hosts"]
        except ActorGridError:
            return {}
        return {each["node"]: (each["raft_role"], each["health"]) for each in listed}

    def submit(self, task_id: str, *command: str, within_s: float = 30.0, **request: Any) -> None:
        """Have a job accepted here."""
        job = {"task_id": task_id, "command": list(command), "cpus": 0.05, **request}
        self.ask("POST", "/api/jobs", job, within_s)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as this host knows it."""
        found: dict[str, Any] = self.ask("GET", f"/api/jobs/{job_id}")
        return found

    def processes_of(self, job_id: str) -> list[int]:
        """The processes here of that job's attempts, as their environment tells."""
        mark = f"ACTORGRID_JOB_ID={job_id}\0".encode()
        found = []
        for pid in self.wires.pids(self.number):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue  # it has ended
            if mark in environment:
                found.append(pid)
        return found

    def log(self) -> str:
        """All that its agent has logged."""
        older = sorted(self.data_dir.glob("agent.log.*"), reverse=True)
        return "".join(path.read_text() for path in [*older, self.data_dir / "agent.log"] if path.exists())


def stepped_clock(folder: Path) -> Path | None:
    """The library that moves a process's wall clock, made in *folder*; nothing without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "stepped_clock.so"
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(source), "-ldl"], check=True)
    return made


SMALL = ("performance.min_free_bytes=1MiB", "performance.reserve_bytes=1MiB", "work.pools.general.warm=0")
"""Settings of a host that shares its machine with several."""


@contextlib.contextmanager
def formed(folder: Path, hosts: int, settings: Sequence[str], twin: str, gpus: int = 1) -> Iterator[NetCluster]:
    """Such a cluster, up and of one mind, for a fixture; where this machine has no such hosts, *twin* has the same."""
    if reason := missing():
        pytest.skip(f"{reason} ({twin})")
    made = NetCluster(folder, hosts, settings, gpus)
    try:
        yield made.form()
    finally:
        made.close()


class NetCluster:
    """A cluster of such hosts, formed by tokens; hosts are numbered as the cluster numbers them.

    The last has a small disk of its own. All have clocks that can be stepped where there is a compiler (``clocks``).
    """

    def __init__(self, folder: Path, hosts: int, settings: Sequence[str] = (), gpus: int = 1) -> None:
        self.wires = Wires(hosts)
        self.folder = folder
        self.hosts = {n: NetHost(self.wires, n, folder / f"h{n}", settings, gpus) for n in self.wires.hosts}
        library = stepped_clock(folder)
        self.clocks = library is not None
        for host in self.hosts.values():
            if library is not None:
                host.give_clock(library)
        host.give_disk(SMALL_DISK)

    def form(self) -> NetCluster:
        """All of them up and of one mind."""
        first, *others = self.hosts.values()
        first.found()
        token = first.ask("POST", "/api/tokens", {"uses": len(others)})["token"]
        for host in others:  # one by one, so that they are numbered in this order
            host.join(first, token)
        self.whole()
        return self

    def start(self, numbers: Sequence[int]) -> None:
        """Start these at the same time: a majority may be needed before one of them is ready."""
        with ThreadPoolExecutor(len(numbers)) as pool:
            for done in [pool.submit(self.hosts[number].up) for number in numbers]:
                done.result()

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.wires.close()

    def __getitem__(self, number: int) -> NetHost:
        return self.hosts[number]

    def leader(self) -> int:
        """Which of the hosts that run leads, as soon as a majority says so."""

        def agreed() -> int | None:
            views = [host.view() for host in self.hosts.values() if host.running]
            said = [node for view in views for node, (role, _) in view.items() if role == "leader"]
            there = {node for node in said if self.hosts[node].running}
            return next((node for node in there if said.count(node) > len(self.hosts) // 2), None)

        found: int = until(agreed, "a majority knows who leads", within_s=40.0)
        return found

    def whole(self) -> None:
        """Wait until every host says the same of all: one leads, the others follow, none is missed."""
        roles = ["leader"] + ["voter"] * (len(self.hosts) - 1)

        def one_mind() -> bool:
            views = [host.view() for host in self.hosts.values()]
            return all(
                view.keys() == self.hosts.keys()
                and sorted(role for role, _ in view.values()) == roles
                and {node: role for node, (role, _) in view.items()} == {n: role for n, (role, _) in views[0].items()}
                and "unreachable" not in [health for _, health in view.values()]
                and view[number][1] == "healthy"
                for number, view in zip(self.hosts, views, strict=True)
            )

        try:
            until(one_mind, "the cluster is whole", within_s=60.0)
        except AssertionError as error:
            seen = {number: host.view() for number, host in self.hosts.items()}
            raise AssertionError(f"{error}: {seen}") from None


class Clients:
    """Threads that live in hosts' namespaces until ``end``; what one of them raises is raised there."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def begin(self, namespace: str, body: Callable[[], None]) -> None:
        """Run *body* in a thread of *namespace*; it returns soon after ``over`` is set."""

        def run() -> None:
            try:
                enter(namespace)
                body()
            except BaseException as error:  # noqa: BLE001 - raised again by end()
                self._errors.append(error)

        thread = threading.Thread(target=run, name=f"client-{len(self._threads) + 1}")
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Tell them, wait for them."""
        self.over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        assert not left, f"clients do not end: {left}"
        self._threads.clear()
        if self._errors:
            raise self._errors[0]
