"""Runs in Ray's environment: ``python peer_ray_objects.py RUNS`` prints one line of JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import ray

LARGE = 100_000_000
READERS = 8
SMALL = 16 * 1024
SMALLS = 300


def rounds(one: Callable[[], float], runs: int) -> list[float]:
    return [one() for _ in range(runs + 6)][6:]


def main(runs: int) -> dict[str, object]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @ray.remote
    def ready() -> np.ndarray:
        kept = getattr(os, "bench_array", None)
        if kept is None:
            kept = os.bench_array = np.ones(LARGE, np.uint8)
        return kept

    @ray.remote
    def look(array: np.ndarray, index: int) -> tuple[int, bool]:
        return int(array[index]), bool(array.flags.owndata)

    def result() -> float:
        started = time.perf_counter()
        value = ray.get(ready.remote())
        took_s = time.perf_counter() - started
        assert value[-1] == 1
        return took_s

    large = np.ones(LARGE, np.uint8)

    def put() -> float:
        started = time.perf_counter()
        ray.put(large)
        return time.perf_counter() - started

    kept = ray.put(large)

    def fan() -> float:
        started = time.perf_counter()
        assert ray.get([look.remote(kept, index) for index in range(READERS)]) == [(1, False)] * READERS
        return time.perf_counter() - started

    puts, gets, small = [], [], bytes(SMALL)
    for _ in range(SMALLS):
        started = time.perf_counter()
        ref = ray.put(small)
        puts.append(time.perf_counter() - started)
        started = time.perf_counter()
        ray.get(ref)
        gets.append(time.perf_counter() - started)
    return {
        "version": ray.__version__,
        "result": [LARGE / took_s / 1e9 for took_s in rounds(result, runs)],
        "put": [LARGE / took_s / 1e9 for took_s in rounds(put, runs)],
        "fan": [took_s * 1e3 for took_s in rounds(fan, runs)],
        "put_small": [statistics.median(puts) * 1e3],
        "get_small": [statistics.median(gets) * 1e3],
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
