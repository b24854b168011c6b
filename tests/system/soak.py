"""Work, faults and checkers against one real agent; ``test_soak.py`` says for how long.

The seed decides what is submitted and what is killed when. Processes are real, so a replay meets the same faults in
the same order, not at the same instruction.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import actorgrid
from actorgrid.actors.consensus.ledger_check import read_log, replay
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.storage.store import Store
from actorgrid.actors.work.environment import host_tag
from actorgrid.actors.work.process_tree import find_marked, living
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import ActorGridError, HostUnreachable, NotFound
from tests.processes import until
from tests.system import hold
from tests.system.agent import SERVERS, Agent

FINAL = ("succeeded", "failed", "cancelled", "lost")
ISOLATION_S = 3.0
EXPIRE_S = 4.0
OUTSTANDING_MAX = 8
HOLD = Path(hold.__file__)
SETTINGS = (
    f"work.max_isolation_s={ISOLATION_S}",
    "work.kill_grace_s=0.5",
    "scheduling.retry_backoff_s=0.1",
    "sessions.renew_s=1",
    f"sessions.expire_s={EXPIRE_S}",
    "performance.ledger_snapshot_every=300",
    "performance.ledger_segment_bytes=65536",
)
# The supervisor gives up after ten restarts in 30 s, and the agent after three new trees in 60 s, as they should.
KILLS_MAX, KILLS_PERIOD_S = 7, 32.0
TREES_MAX, TREES_PERIOD_S = 2, 62.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SoakAgent(Agent):
    """An agent that keeps its port, so that clients find it again."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, *SETTINGS, gpus="simulated:3xH100-80GB")
        self.port = free_port()
        self.tag = host_tag(data_dir)

    def command(self, *extra: str) -> list[str]:
        return [str(self.port) if part == "0" else part for part in super().command(*extra)]

    def marked(self) -> dict[int, str]:
        """Living processes of users' work, by their mark."""
        found = find_marked(self.tag)
        alive = set(living(list(found)))
        return {pid: name for pid, name in found.items() if pid in alive}

    def titled(self, prefix: str) -> list[int]:
        """Processes of the agent by title."""
        found = []
        for process in self.processes():
            try:
                if (process.cmdline() or [""])[0].startswith(prefix):
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found


@dataclass
class Plan:
    """One job and what it is to come to."""

    job_id: str
    kind: str
    request: dict[str, Any]
    outcomes: tuple[str, ...]
    accepted: bool = False
    cancelled: bool = False


@dataclass
class Soak:
    """One run."""

    agent: SoakAgent
    folder: Path
    seed: int
    lasts_s: float
    plans: list[Plan] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    killed_work: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._kills: deque[float] = deque()
        self._trees: deque[float] = deque()
        self._started_at = time.monotonic()

    # -- the run

    def run(self) -> None:
        """All of it; fails with every problem found."""
        faults = random.Random(f"{self.seed}-faults")
        threads = [
            threading.Thread(target=self._guarded, args=(self._submit_jobs, number), name=f"jobs-{number}")
            for number in range(2)
        ]
        threads += [
            threading.Thread(target=self._guarded, args=(self._run_tasks, number), name=f"tasks-{number}")
            for number in range(2)
        ]
        threads.append(threading.Thread(target=self._guarded, args=(self._watch_ledger, 0), name="watch"))
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() - self._started_at < self.lasts_s and not self.problems:
                self._fault(faults)
                self._pause(faults.uniform(0.3, 2.0))
                self._look()
        finally:
            self._over.set()
            for thread in threads:
                thread.join(120)
        assert not any(thread.is_alive() for thread in threads), [t.name for t in threads if t.is_alive()]
        self._settle()
        assert not self.problems, "\n".join(self.problems[:20]) + f"\n{self.summary()}"

    def summary(self) -> str:
        """What happened, in one line."""
        return f"seed {self.seed}: " + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))

    def _guarded(self, body: Callable[[random.Random], None], number: int) -> None:
        try:
            body(random.Random(f"{self.seed}-{body.__name__}-{number}"))
        except Exception as error:  # told, and the run ends
            self._problem(f"{threading.current_thread().name} failed: {error!r}")
            raise

    def _problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(f"{time.time():.3f} {text}")

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _pause(self, seconds: float) -> None:
        self._over.wait(seconds)

    # -- work

    def _connect(self) -> actorgrid.Client:
        """A client; the agent may be between its death and its next start."""
        token = (self.agent.data_dir / "admin.token").read_text().strip()

        def connected() -> actorgrid.Client | None:
            with suppress(HostUnreachable):
                return actorgrid.connect(f"http://127.0.0.1:{self.agent.port}", token=token)
            return None

        client: actorgrid.Client = until(connected, "an agent that answers", within_s=60.0)
        return client

    def _submit_jobs(self, dice: random.Random) -> None:
        client = self._connect()
        open_ones: list[Plan] = []
        number = 0
        while not self._over.is_set():
            for plan in list(open_ones):
                try:
                    if client.job(plan.job_id)["state"] in FINAL:
                        open_ones.remove(plan)
                except NotFound as error:
                    self._problem(f"accepted job {plan.job_id} is not known: {error}")
                except ActorGridError:
                    break
            if len(open_ones) < OUTSTANDING_MAX:
                number += 1
                plan = self._plan(dice, f"{threading.current_thread().name}-{number}", open_ones)
                with self._lock:
                    self.plans.append(plan)
                try:
                    client.submit_job(**plan.request)
                    plan.accepted = True
                    open_ones.append(plan)
                    self._count(f"jobs {plan.kind}")
                except ActorGridError as error:
                    self._count(f"submit {error.code}")
            if open_ones and dice.random() < 0.1:
                plan = dice.choice(open_ones)
                plan.cancelled = True
                try:
                    client.cancel(plan.job_id)
                    self._count("cancels")
                except ActorGridError as error:
                    self._count(f"cancel {error.code}")
            self._pause(dice.uniform(0.02, 0.3))
        client.close()

    def _plan(self, dice: random.Random, job_id: str, before: list[Plan]) -> Plan:
        kind = dice.choice(["plain", "plain", "retried", "failing", "slow", "escaping", "after"])
        gpus = dice.choice([0, 0.25, 0.25, 0.5, 0.75, 1, 2])
        todo: dict[str, Any] = {
            "milli": int(1000 * gpus) if gpus < 1 else 1000,
            "gpu_count": 0 if not gpus else max(1, int(gpus)),
            "lasts_s": round(dice.choice([0.0, 0.05, 0.3, 1.0, 2.5]), 2),
            "fails": 0,
            "escapes": kind == "escaping",
        }
        request: dict[str, Any] = {"task_id": job_id, "gpus": gpus, "cpus": 0.05, "retries": 3, "cwd": str(self.folder)}
        outcomes: tuple[str, ...] = ("succeeded",)
        if kind == "retried":
            todo["fails"] = dice.randint(1, 2)
        elif kind == "failing":
            todo["fails"], request["retries"], outcomes = 1000, dice.randint(0, 1), ("failed",)
        elif kind == "slow":
            todo["lasts_s"], request["max_execution_time_s"], outcomes = 20.0, 0.6, ("failed",)
            request["retries"] = 0
        elif kind == "after" and before:
            # It shares its fate with what it waits for.
            request["depends_on"] = [each.job_id for each in before[-2:]]
            outcomes = FINAL
        request["command"] = [sys.executable, "-I", "-S", str(HOLD), str(self.folder), json.dumps(todo)]
        return Plan(job_id, kind, request, outcomes)

    def _run_tasks(self, dice: random.Random) -> None:
        client = self._connect()

        def in_worker(path: str, *arguments: Any) -> Any:
            import importlib.util
            import sys

            module: Any = sys.modules.get("soak_hold")
            if module is None:
                spec = importlib.util.spec_from_file_location("soak_hold", path)
                assert spec is not None
                assert spec.loader is not None
                module = sys.modules["soak_hold"] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            return module.task(*arguments)

        value = 0
        while not self._over.is_set():
            gpus = dice.choice([0, 0.25, 0.5, 1])
            milli, count = (int(1000 * gpus), 1) if gpus else (0, 0)
            futures = {}
            for _ in range(dice.randint(1, 4)):
                value += 1
                lasts_s = dice.choice([0.0, 0.05, 0.5])
                futures[value] = client.submit(
                    in_worker, str(HOLD), str(self.folder), count, milli, lasts_s, value,
                    gpus=gpus, cpus=0.05, retries=20,
                )  # fmt: skip
            for wanted, future in futures.items():
                try:
                    found = future.result(90)
                    if found != wanted:
                        self._problem(f"a task gave {found!r} instead of {wanted!r}")
                    self._count("tasks")
                except ActorGridError as error:
                    self._count(f"task {error.code}")
                except TimeoutError:
                    if not self._over.is_set():
                        self._problem(f"a task of {gpus} GPUs has not ended in 90 s")
                    break
            if dice.random() < 0.15:
                client.close()
                client = self._connect()
            self._pause(dice.choice([0.0, 0.1, 2.0]))
        if client._session is not None:
            self._check_returned(client, client._session.figures)
        client.close()

    def _check_returned(self, client: actorgrid.Client, figures: Callable[[], dict[str, Any]]) -> None:
        """An idle client holds nothing, whatever died while it asked and gave back."""

        def held() -> list[dict[str, Any]] | None:
            try:
                allocations = client.allocations()
            except ActorGridError:
                return None
            session_id = figures()["session_id"]
            return [record for record in allocations if record["owner"].get("session_id") == session_id]

        try:
            until(lambda: held() == [], "an idle client's leases are free", within_s=20.0)
        except AssertionError:
            self._problem(f"an idle client still holds {held()}; it knows of {figures()}")

    # -- checkers that run along

    def _watch_ledger(self, _dice: random.Random) -> None:
        client = self._connect()
        while not self._over.is_set():
            try:
                self._check_allocations(client.allocations())
            except ActorGridError:
                self._count("unanswered")
            for line in hold.lines(self.folder, "violations"):
                self._problem(f"seen by the work itself: {line}")
                self._over.wait(0.5)
                return
            self._pause(0.2)
        client.close()

    def _check_allocations(self, allocations: list[dict[str, Any]]) -> None:
        used: Counter[str] = Counter()
        for allocation in allocations:
            for uuid in allocation["gpu_uuids"]:
                used[uuid] += allocation["gpu_milli"]
        over = {uuid: milli for uuid, milli in used.items() if milli > 1000}
        if over:
            self._problem(f"the ledger overcommits {over}: {allocations}")

    def _look(self) -> None:
        process = self.agent.process
        assert process is not None
        if process.poll() is not None:
            self._problem(f"the agent ended by itself with status {process.returncode}: {self._log_tail()}")

    def _log_tail(self) -> str:
        return "\n".join((self.agent.data_dir / "agent.log").read_text().splitlines()[-20:])

    # -- faults

    def _fault(self, dice: random.Random) -> None:
        choice = dice.choices(
            ["server", "zygote", "tree", "shim", "worker", "stop server", "stop shim", "agent", "main", "away"],
            [10, 2, 1, 5, 4, 4, 2, 1.5, 1.5, 1],
        )[0]
        now = time.monotonic()
        while self._kills and self._kills[0] < now - KILLS_PERIOD_S:
            self._kills.popleft()
        while self._trees and self._trees[0] < now - TREES_PERIOD_S:
            self._trees.popleft()
        if choice == "server" and len(self._kills) < KILLS_MAX:
            self._kills.append(now)
            self._signal(self.agent.pid_of(dice.choice(SERVERS)), signal.SIGKILL, "kill server")
        elif choice == "zygote":
            self._signal(next(iter(self.agent.titled("actorgrid: zygote")), None), signal.SIGKILL, "kill zygote")
        elif choice == "tree" and len(self._trees) < TREES_MAX:
            self._trees.append(now)
            title = dice.choice(["actorgrid: host", "actorgrid: admin"])
            self._kills.clear()
            self._signal(next(iter(self.agent.titled(title)), None), signal.SIGKILL, f"kill {title[11:]}")
        elif choice in ("shim", "worker"):
            self._kill_work(dice, choice)
        elif choice == "stop server":
            self._stop(self.agent.pid_of(dice.choice(SERVERS)), dice.choice([0.2, 1.0, 3.0]), "stop server")
        elif choice == "stop shim":
            shims = self._shims()
            self._stop(dice.choice(shims) if shims else None, dice.choice([0.5, 2.5]), "stop shim")
        elif choice in ("agent", "main"):
            self._count(f"kill {choice}")
            self.agent.kill() if choice == "agent" else self.agent.kill_main()
            self._pause(dice.choice([0.0, 0.3, 0.8]))
            self._up()
        elif choice == "away":
            self._count("away past the lease")
            self.agent.kill()
            until(lambda: not self.agent.marked(), "nothing outlives its lease", within_s=ISOLATION_S + 3.0)
            self._up()

    def _up(self) -> None:
        self._kills.clear()
        self._trees.clear()
        self.agent.start()

    def _shims(self) -> list[int]:
        """The shims of this agent's work: parents of what is marked."""
        found = set()
        for pid in self.agent.marked():
            try:
                parent = psutil.Process(pid).parent()
                if parent is not None and parent.cmdline()[0].startswith("actorgrid: shim"):
                    found.add(parent.pid)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
                continue
        return sorted(found)

    def _kill_work(self, dice: random.Random, what: str) -> None:
        marked = self.agent.marked()
        if not marked:
            return
        pid = dice.choice(sorted(marked))
        with self._lock:
            self.killed_work.add(marked[pid].rpartition(".")[0])
        if what == "shim":
            try:
                parent = psutil.Process(pid).parent()
                pid = parent.pid if parent is not None and "shim" in "".join(parent.cmdline()[:1]) else 0
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                return
        self._signal(pid or None, signal.SIGKILL, f"kill {what}")

    def _signal(self, pid: int | None, number: int, name: str) -> bool:
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        self._count(name)
        return True

    def _stop(self, pid: int | None, seconds: float, name: str) -> None:
        if self._signal(pid, signal.SIGSTOP, name):
            self._pause(seconds)
            assert pid is not None
            self._signal(pid, signal.SIGCONT, "continue")

    # -- at the end

    def _settle(self) -> None:
        self._look()
        if self.problems:
            return
        client = self._connect()
        for plan in self.plans:
            self._check_job(client, plan)
        until(lambda: client.allocations() == [], "everything is free", within_s=EXPIRE_S + 20.0)
        self._check_journal()
        for line in hold.lines(self.folder, "violations"):
            self._problem(f"seen by the work itself: {line}")
        self._check_leftovers()
        client.close()
        assert self.agent.stop() == 0
        until(lambda: not self.agent.marked(), "no work outlives an orderly stop")
        self._check_replay()

    def _check_job(self, client: actorgrid.Client, plan: Plan) -> None:
        try:
            job = client.wait(plan.job_id, timeout=90.0)
        except NotFound:
            if plan.accepted:
                self._problem(f"accepted job {plan.job_id} is not known")
            return
        except TimeoutError:
            self._problem(f"job {plan.job_id} does not end: {client.job(plan.job_id)} {client.why(plan.job_id)}")
            return
        self._count(f"ended {job['state']}")
        states = [attempt["state"] for attempt in job["attempts"]]
        numbers = [attempt["number"] for attempt in job["attempts"]]
        allowed = {*plan.outcomes}
        if plan.cancelled:
            allowed.add("cancelled")
        if plan.job_id in self.killed_work:
            allowed |= {"lost", "failed"}
        if job["state"] not in allowed:
            self._problem(f"{plan.kind} job {plan.job_id} is {job['state']}, not {sorted(allowed)}: {job}")
        if any(state not in FINAL for state in states) or numbers != list(range(1, len(numbers) + 1)):
            self._problem(f"job {plan.job_id} ended with attempts {list(zip(numbers, states, strict=True))}")
        if states.count("succeeded") != (job["state"] == "succeeded"):
            self._problem(f"job {plan.job_id} is {job['state']} with attempts {states}")
        self._check_runs(plan, job)

    def _check_runs(self, plan: Plan, job: dict[str, Any]) -> None:
        runs = [line for line in hold.lines(self.folder, "journal") if line.get("job") == plan.job_id]
        known = {attempt["attempt_id"]: attempt["state"] for attempt in job["attempts"]}
        started = Counter(line["attempt"] for line in runs if line["what"] == "start")
        for attempt_id, times in started.items():
            if times != 1 or attempt_id not in known:
                self._problem(f"attempt {attempt_id} ran {times} times; the ledger knows {known}")
        done = {line["attempt"] for line in runs if line["what"] == "done"}
        for attempt_id, state in known.items():
            if state == "succeeded" and attempt_id not in done:
                self._problem(f"attempt {attempt_id} succeeded without having run to its end")

    def _check_journal(self) -> None:
        accepted = {plan.job_id for plan in self.plans}
        for line in hold.lines(self.folder, "journal"):
            if line["what"] == "start" and line["job"] not in accepted:
                self._problem(f"ran a job nobody submitted: {line}")

    def _check_leftovers(self) -> None:
        """Nothing of ended work is left, and the agent is as large as it was."""
        try:
            idle = until(self._idle_workers, "only warm workers are left", within_s=20.0)
        except AssertionError:
            self._problem(f"work is left that nobody asked for: {self.agent.marked()}")
            return
        paths = HostPaths(self.agent.data_dir)
        sockets = list(paths.work_sockets_dir.iterdir())
        if len(sockets) > 4 * len(idle) + 16:
            self._problem(f"{len(sockets)} sockets of work are left, with {len(idle)} workers")
        boots = list(paths.runtime_dir.glob("boot-*"))
        if len(boots) != 1:
            self._problem(f"folders of past boots are left: {boots}")
        names = Counter()
        for process in self.agent.processes():
            title = (process.cmdline() or [""])[0]
            names[title] += 1
            if process.num_fds() > 150:
                self._problem(f"{title} holds {process.num_fds()} descriptors")
            if process.memory_info().rss > 300 * 2**20:
                self._problem(f"{title} holds {process.memory_info().rss >> 20} MiB")
        twice = [name for name, count in names.items() if count > 1]
        if twice or len(names) > len(SERVERS) + 5:
            self._problem(f"the agent's processes: {dict(names)}")

    def _idle_workers(self) -> set[str]:
        names = set(self.agent.marked().values())
        workers = {name for name in names if name.startswith("general-")}
        stores = {name for name in names if name.startswith("objects-")}  # of this host, and at most one
        return workers if names == workers | stores and len(stores) <= 1 and len(workers) <= 6 else set()

    def _check_replay(self) -> None:
        """What the log says again is what the state was."""
        folder = HostPaths(self.agent.data_dir).ledger_dir
        store = Store(folder / "state.db")
        snapshots = store.snapshots()
        store.close()
        if not all(snapshot.intact for snapshot in snapshots):
            self._problem("a snapshot fails its digest")
        newest = snapshots[0]
        ledger = Ledger.restore(snapshots[1].data) if len(snapshots) > 1 else Ledger()

        first = ledger.index
        for entry in read_log(folder / "segments", first, lambda _label, _done, _total: None).entries:
            if entry.index <= newest.index:
                replay(ledger, entry)
        self.counts["entries replayed"] = ledger.index - first
        if ledger.snapshot() != newest.data:
            self._problem(f"the log from {first} to {newest.index} does not give the state it gave before")
