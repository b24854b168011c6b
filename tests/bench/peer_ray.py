"""Runs in Ray's environment: ``python peer_ray.py RUNS`` prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import ray

TASKS = 5_000
TRIPS = 1_000
GPU_TASKS = 20


def pss_mb() -> float:
    """Of this session's daemons: everything below us and beside us that Ray started, but for its workers."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "ray" not in command or "ray::" in command or "default_worker.py" in command or "peer_ray" in command:
                continue
            if any(
                name in command for name in ("gcs_server", "raylet", "ray/_private", "ray/dashboard", "ray/autoscaler")
            ):
                for line in (folder / "smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024 / 1e6
        except OSError:
            continue
    return total


def main(runs: int) -> dict[str, object]:
    cold, idle = [], []
    for run in range(runs):
        started = time.perf_counter()
        ray.init(num_cpus=2, num_gpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

        @ray.remote
        def noop() -> None:
            return None

        ray.get(noop.remote())
        cold.append(time.perf_counter() - started)
        time.sleep(3.0)
        idle.append(pss_mb())
        if run < runs - 1:
            ray.shutdown()

    @ray.remote(num_gpus=0.25)
    def on_gpu() -> None:
        return None

    @ray.remote
    class Echo:
        def ping(self, n: int) -> int:
            return n

    ray.get([noop.remote() for _ in range(TASKS)])
    rates, trips, gpu_rates, calls, call_rates = [], [], [], [], []
    for _ in range(runs):
        started = time.perf_counter()
        ray.get([noop.remote() for _ in range(TASKS)])
        rates.append(TASKS / (time.perf_counter() - started))
        samples = []
        for _ in range(TRIPS):
            started = time.perf_counter()
            ray.get(noop.remote())
            samples.append(time.perf_counter() - started)
        trips.append(samples)
    for _ in range(runs):
        started = time.perf_counter()
        ray.get([on_gpu.remote() for _ in range(GPU_TASKS)])
        gpu_rates.append(GPU_TASKS / (time.perf_counter() - started))
    echo = Echo.remote()
    ray.get(echo.ping.remote(0))
    for _ in range(runs):
        samples = []
        for n in range(TRIPS):
            started = time.perf_counter()
            ray.get(echo.ping.remote(n))
            samples.append(time.perf_counter() - started)
        calls.append(samples)
        started = time.perf_counter()
        ray.get([echo.ping.remote(n) for n in range(TASKS)])
        call_rates.append(TASKS / (time.perf_counter() - started))
    ray.shutdown()
    return {
        "version": ray.__version__,
        "cold": cold,
        "idle_mb": idle,
        "rates": rates,
        "trips": trips,
        "gpu_rates": gpu_rates,
        "calls": calls,
        "call_rates": call_rates,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
