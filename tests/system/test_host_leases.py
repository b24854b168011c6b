"""Hosts that are cut off, stopped or killed: what ran there runs elsewhere, and never in two places at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.configs.paths import HostPaths
from tests.processes import is_alive, until
from tests.system.cluster_host import ClusterHost, ran_on

PATIENCE_S = 4
"""Of the work here; with less, a machine under load would end it by being slow."""
ONCE = 'if mkdir "$0.begun"; then until [ -e "$0" ]; do sleep 0.02; done; echo done; else exec sleep 600; fi'
LOST_AFTER_S = PATIENCE_S * 1.01 + 0.5
BEAT = 'while :; do echo "$ACTORGRID_ATTEMPT $(date +%s.%N)" >> "$0"; sleep 0.02; done'


def shims(host: ClusterHost) -> list[psutil.Process]:
    """Of a host's attempts and workers."""
    paths = HostPaths(host.data_dir)
    dirs = [
        AttemptDir(folder, each.name) for folder in (paths.attempts_dir, paths.workers_dir) for each in folder.iterdir()
    ]
    return [psutil.Process(pid) for pid in (each.shim_pid() for each in dirs) if pid is not None]


def everything(host: ClusterHost) -> list[psutil.Process]:
    """All processes of a host: those that order, the shims, and the work below them."""
    above = shims(host)
    return host.processes() + above + [child for shim in above for child in shim.children(recursive=True)]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none for one that ends meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def beats(path: Path) -> list[tuple[str, float]]:
    """Which attempt ran when, by what the job wrote."""
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [line.split() for line in lines if line.count(" ") == 1 and line.count(".") >= 2]
    return [(who, float(at)) for who, at in whole]


class Trio:
    """Three hosts that vote; the first leads and has no GPUs, each of the others has one."""

    def __init__(self, make_host: Callable[..., ClusterHost]) -> None:
        self.first = make_host("a", 0).found()
        self.others = [make_host("b", 1), make_host("c", 1)]
        token = self.first.token("--uses", "2")["token"]
        for host in self.others:
            host.join(self.first, token)
        until(lambda: self.first.roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
        self.names = {self.first.hosts()[node]["node_id"]: host for node, host in enumerate(self.others, 2)}

    def beat(self, path: Path) -> tuple[str, ClusterHost, str]:
        """A job of little patience that writes down when it runs; where it does, and as which attempt."""
        job_id = self.first.submit("--gpus", "1", "--max-isolation", str(PATIENCE_S), "--", "sh", "-c", BEAT, str(path))
        until(lambda: beats(path) and self.first.job(job_id)["state"] == "running", "it runs")
        job = self.first.job(job_id)
        return job_id, self.names[ran_on(job)], f"{job_id}.{job['attempts'][-1]['number']}"

    def health(self, host: ClusterHost) -> str:
        name = next(name for name, each in self.names.items() if each is host)
        return next(str(each["health"]) for each in self.first.hosts().values() if each["node_id"] == name)

    def moved(self, job_id: str) -> dict[str, Any]:
        """The job, once an attempt runs whose predecessor was lost.

        It need not be the second: a host that has just come back may give one back that it has not begun.
        """

        def there() -> dict[str, Any] | None:
            job = self.first.job(job_id)
            return job if [attempt["state"] for attempt in job["attempts"]][-2:] == ["lost", "running"] else None

        try:
            job: dict[str, Any] = until(there, "it runs elsewhere")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.first.job(job_id)['attempts']}; {self.first.hosts()}") from None
        return job


def test_work_of_a_host_that_is_gone_runs_elsewhere_and_never_twice_at_once(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    trio = Trio(make_host)

    # The whole host stands still for long: those that order, shims, work.
    path = tmp_path / "beats"
    job_id, home, old_one = trio.beat(path)
    asleep = everything(home)
    # Some of them are gone by now: what a starting process asked of the system.
    old = [process for process in asleep if "sh" in words_of(process)[:1]]
    signal_all(asleep[::-1], signal.SIGSTOP)
    stopped_at = time.time()
    number = old_one.rpartition(".")[2]
    (lost,) = [each for each in trio.moved(job_id)["attempts"] if str(each["number"]) == number]
    assert lost["error"]["code"] == "HostLost"
    assert f"attempt {number} went with its host" in trio.first.cli("why", job_id).stdout
    assert trio.health(home) == "lost"
    until(lambda: len({who for who, _ in beats(path)}) == 2, "the other writes")
    # Whoever gets the processor first: had the work been first, it would have written once before its shim looked.
    signal_all(asleep, signal.SIGCONT)
    woken_at = time.time()
    until(lambda: not any(is_alive(process.pid) for process in old), "the old one is gone")
    until(lambda: trio.health(home) != "lost", "the host is back, and empty")
    last_of_old = max(at for who, at in beats(path) if who == old_one)
    first_of_new = min(at for who, at in beats(path) if who != old_one)
    assert last_of_old < stopped_at + 0.1 < first_of_new < woken_at
    assert first_of_new > last_of_old + LOST_AFTER_S - 0.5
    assert trio.first.job(job_id)["state"] == "running"
    trio.first.cli("cancel", job_id)

    # Its agent alone is killed, and comes back in time: nothing happens to the work.
    patient = trio.first.submit("--gpus", "1", "--max-isolation", "60", "--", "sleep", "600")
    until(lambda: trio.first.job(patient)["state"] == "running", "a patient one runs")
    home = trio.names[ran_on(trio.first.job(patient))]
    # A host that has just woken may have given it back before it began.
    tries = len(trio.first.job(patient)["attempts"])
    home.kill()
    home.start()
    until(lambda: trio.health(home) not in ("lost", "unreachable"), "the host is back")
    attempts = trio.first.job(patient)["attempts"]
    assert len(attempts) == tries and attempts[-1]["state"] == "running", attempts
    trio.first.cli("cancel", patient)
    until(lambda: trio.first.job(patient)["state"] == "cancelled", "there is room elsewhere")

    # Its agent alone is killed, the work ends well without it, and it comes back when the work was begun elsewhere.
    gate = tmp_path / "gate"
    job_id = trio.first.submit("--gpus", "1", "--max-isolation", str(PATIENCE_S), "--", "sh", "-c", ONCE, str(gate))
    until(lambda: trio.first.job(job_id)["state"] == "running", "it runs")
    home = trio.names[ran_on(trio.first.job(job_id))]
    home.kill()
    gate.touch()
    trio.moved(job_id)
    home.start()
    done = until(lambda: (job := trio.first.job(job_id))["state"] == "succeeded" and job, "its success counts")
    *_, taken, other = done["attempts"]
    assert (done["taken"], taken["state"], other["state"]) == (taken["number"], "succeeded", "cancelled")
    assert trio.first.cli("logs", job_id).stdout == "done\n"
    assert "its result was taken when that came back" in trio.first.cli("why", job_id).stdout
    until(lambda: trio.health(home) not in ("lost", "unreachable"), "the host is back")

    # A host is gone for good.
    path = tmp_path / "more beats"
    job_id, home, old_one = trio.beat(path)
    doomed = everything(home)
    signal_all(doomed, signal.SIGKILL)
    killed_at = time.time()
    trio.moved(job_id)
    news = until(lambda: [at for who, at in beats(path) if who != old_one], "it writes")
    assert news[0] > killed_at + LOST_AFTER_S - 0.5
    home._reap()
