"""The host itself: how fast it comes up, what it costs while nothing happens, what the command line costs."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import actorgrid

from .figures import Figure, registry
from .machine import agent_processes, pss_mb

SETTLE_S = 5.0


@registry.add("cold_start")
def cold_start(runs: int) -> Iterator[Figure]:
    """From nothing to the first value of a function, and back to nothing."""
    first, job, stop = [], [], []
    for _ in range(runs):
        started = time.perf_counter()
        cluster = actorgrid.LocalCluster(gpus=8)
        try:
            client = cluster.client()
            assert client.submit(abs, -1).result(60) == 1
            first.append(time.perf_counter() - started)
            before = time.perf_counter()
            client.run(["true"], check=True)
            job.append(time.perf_counter() - before)
        finally:
            ending = time.perf_counter()
            cluster.close()
            stop.append(time.perf_counter() - ending)
    yield Figure("cold up to first result", "s", first, False, must=2.0, stretch=1.0)
    yield Figure("command job, submit to end", "s", job, False)
    yield Figure("orderly stop", "s", stop, False)


@registry.add("idle")
def idle(runs: int) -> Iterator[Figure]:
    """Memory and CPU of an idle agent without its workers."""
    with actorgrid.LocalCluster(gpus=8) as cluster:
        threading.Event().wait(SETTLE_S)
        sizes = []
        for _ in range(runs):
            total, parts = pss_mb(cluster.pid)
            sizes.append(total)
        largest = max(parts, key=lambda title: parts[title])
        note = f"{len(parts)} processes, largest {largest}: {parts[largest]:.0f} MB"
        yield Figure("idle agent, PSS without workers", "MB", sizes, False, must=120, stretch=70, note=note)


PSS_MB_MUST = {"consensus": 15.0, "gateway": 16.0, "gpu_coordinator": 13.5, "worker_manager": 13.5, "up": 12.0}
OTHER_PSS_MB_MUST = 11.5
START_CPU_S_MUST = {"up": 1.0, "host": 0.15}
OTHER_START_CPU_S_MUST = 0.1
"""Measured plus about a tenth of memory and a third of CPU: what comes on top is a library that came along."""


@registry.add("processes")
def processes(runs: int) -> Iterator[Figure]:
    """Each process of a host: its memory when it idles, and the CPU it took to come up."""
    memory: dict[str, list[float]] = {}
    start_s: dict[str, list[float]] = {}
    for _ in range(runs):
        with actorgrid.LocalCluster(gpus=8) as cluster:
            for name, process in agent_processes(cluster.pid):
                times = process.cpu_times()
                start_s.setdefault(name, []).append(times.user + times.system)
            threading.Event().wait(SETTLE_S)
            for name, process in agent_processes(cluster.pid):
                memory.setdefault(name, []).append(process.memory_full_info().pss / 1e6)
    for name, sizes in memory.items():
        must = PSS_MB_MUST.get(name, OTHER_PSS_MB_MUST)
        yield Figure(f"idle {name}, PSS", "MB", sizes, False, must=must)
    for name, seconds in start_s.items():
        must = START_CPU_S_MUST.get(name, OTHER_START_CPU_S_MUST)
        yield Figure(f"start of {name}, CPU", "s", seconds, False, must=must)
    totals = [sum(each) for each in zip(*start_s.values(), strict=True)]
    yield Figure("start of an agent, CPU without workers", "s", totals, False, must=1.5, stretch=0.8)


def _cpu_ms(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "actorgrid", *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _import_ms(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


@registry.add("imports")
def imports(runs: int) -> Iterator[Figure]:
    """CPU time of ``import actorgrid`` beyond that of a bare interpreter."""
    _import_ms("import actorgrid")
    times = []
    for _ in range(runs):
        bare = min(_import_ms("pass") for _ in range(10))
        times.append(min(_import_ms("import actorgrid") for _ in range(10)) - bare)
    yield Figure("import actorgrid, CPU", "ms", times, False, must=20, note="each run is the least of 10")


@registry.add("cli")
def cli(runs: int) -> Iterator[Figure]:
    """CPU time of the command line: of ``--help``, and of ``status`` against a running host."""
    _cpu_ms(["--help"])
    helps = [min(_cpu_ms(["--help"]) for _ in range(5)) for _ in range(runs)]
    yield Figure("actorgrid --help, CPU", "ms", helps, False, must=80, note="each run is the least of 5")
    with actorgrid.LocalCluster(gpus=8) as cluster:
        arguments = ["status", "--data-dir", str(cluster.data_dir)]
        times = [min(_cpu_ms(arguments) for _ in range(5)) for _ in range(runs)]
        yield Figure("actorgrid status, CPU", "ms", times, False, must=200, note="each run is the least of 5")
