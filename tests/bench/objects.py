"""Large values: a result of 100 MB to its caller, an argument for eight tasks, puts and gets; and the same in peers."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import actorgrid
from actorgrid.client.client import Client
from tests.processes import until
from tests.system.cluster_host import ClusterHost

from .figures import Figure, Skipped, latency, registry
from .peers import answer_of, python_with
from .sessions import warm_client

LARGE = 100_000_000
READERS = 8
SMALL = 16 * 1024
SMALLS = 300


def ready() -> Any:
    """An array that its worker has already: what is measured is the way to the caller."""
    kept = getattr(os, "bench_array", None)
    if kept is None:
        kept = os.bench_array = np.ones(LARGE, np.uint8)  # type: ignore[attr-defined]
    return kept


def look(array: Any, index: int) -> tuple[int, bool]:
    return int(array[index]), bool(array.flags.owndata)


def _result(client: Client) -> float:
    started = time.perf_counter()
    value = client.submit(ready).result()
    took_s = time.perf_counter() - started
    assert value[-1] == 1 and not value.flags.owndata
    return took_s


def _copy(array: Any, into: Any) -> float:
    started = time.perf_counter()
    into[:] = array
    return time.perf_counter() - started


def _rounds(one: Callable[[], float], runs: int, warm: int = 3) -> list[float]:
    found = []
    for _ in range(warm + runs):
        found.append(one())
        gc.collect()
    return found[warm:]


@registry.add("objects")
def objects(runs: int) -> Iterator[Figure]:
    """The object store of one host, with two warm workers."""
    large, into = np.ones(LARGE, np.uint8), np.zeros(LARGE, np.uint8)
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = warm_client(cluster)
        copies, results = [], []
        _rounds(lambda: _result(client), 0, 6)  # both workers have their array, and the store its memory
        for _ in range(max(runs, 5)):
            # Side by side: a machine that others use makes both slower.
            copies.append(_copy(large, into))
            results.append(_result(client))
        rates = [LARGE / took_s / 1e9 for took_s in results]
        yield Figure("100 MB numpy result to the caller", "GB/s", rates, True, must=3.0, stretch=5.0)
        yield Figure(
            "one copy of 100 MB in this process",
            "GB/s",
            [LARGE / took_s / 1e9 for took_s in copies],
            True,
            note="for comparison, in turn with the row above",
        )
        yield Figure(
            "100 MB result, of the speed of one copy",
            "",
            [copy / result for copy, result in zip(copies, results, strict=True)],
            True,
        )

        def put() -> float:
            started = time.perf_counter()
            ref = client.put(large)
            took_s = time.perf_counter() - started
            del ref
            return took_s

        yield Figure("put of 100 MB", "GB/s", [LARGE / took_s / 1e9 for took_s in _rounds(put, runs)], True)
        ref = client.put(large)

        def fan() -> float:
            started = time.perf_counter()
            found = [future.result() for future in [client.submit(look, ref, index) for index in range(READERS)]]
            assert found == [(1, False)] * READERS, "none of them has a copy"
            return time.perf_counter() - started

        yield Figure(f"one 100 MB argument read by {READERS} tasks", "ms", [s * 1e3 for s in _rounds(fan, runs)], False)
        small = bytes(SMALL)
        puts, gets = [], []
        for _ in range(SMALLS):
            started = time.perf_counter()
            kept = client.put(small)
            puts.append(time.perf_counter() - started)
            started = time.perf_counter()
            kept.result()
            gets.append(time.perf_counter() - started)
        yield latency("put of 16 KiB", [puts], "ms", 1e3)
        yield latency("get of 16 KiB", [gets], "ms", 1e3)
        started = time.perf_counter()
        refs = [client.put(number) for number in range(100_000)]
        assert client.submit(sum, refs).result() == sum(range(100_000))
        yield Figure("100,000 small references put and summed", "s", [time.perf_counter() - started], False)
        client.close()


@registry.add("object_of_4_gib")
def object_of_4_gib(_runs: int) -> Iterator[Figure]:
    """One object of 4 GiB on one host: put, and read by a task without a copy."""
    if psutil.virtual_memory().available < 12 * 2**30:
        raise Skipped("less than 12 GiB of memory are free")
    with actorgrid.LocalCluster(gpus=0) as cluster, cluster.client() as client:
        client.submit(abs, -1).result()
        huge = np.ones(4 * 2**30, np.uint8)
        started = time.perf_counter()
        ref = client.put(huge)
        yield Figure("put of 4 GiB", "s", [time.perf_counter() - started], False)
        started = time.perf_counter()
        assert client.submit(look, ref, len(huge) - 1).result()[0] == 1
        yield Figure("4 GiB read by a task", "s", [time.perf_counter() - started], False)


@registry.add("object_hosts")
def object_hosts(runs: int) -> Iterator[Figure]:
    """Two hosts on one machine: a value goes through both agents and TLS between them, four streams at once."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, ExitStack() as held:
        here, there = (ClusterHost(Path(name) / model, f"simulated:1x{model}-80GB") for model in ("H100", "A100"))
        for host in (here, there):
            held.callback(host.close)
        here.found()
        there.join(here, str(here.token()["token"]))
        until(lambda: len(here.hosts()) == 2, "the cluster has two hosts")
        client = here.client()

        def result() -> float:
            future = client.submit(ready, gpus=1, gpu_models=["A100-80GB"])
            until(future.done, "it has its value")
            started = time.perf_counter()
            value = future.result()
            took_s = time.perf_counter() - started
            assert value[-1] == 1
            return took_s

        def argument() -> float:
            ref = client.put(large)
            started = time.perf_counter()
            assert client.submit(look, ref, 5, gpus=1, gpu_models=["A100-80GB"]).result()[0] == 1
            return time.perf_counter() - started

        large = np.ones(LARGE, np.uint8)
        for name_, one in (("read of a 100 MB result", result), ("100 MB argument", argument)):
            rates = [LARGE / took_s / 1e9 for took_s in _rounds(one, runs)]
            yield Figure(f"{name_} of another host", "GB/s", rates, True)


@registry.add("object_peers")
def object_peers(runs: int) -> Iterator[Figure]:
    """The same in a ProcessPoolExecutor, which pickles through a pipe, and in Ray."""
    with ProcessPoolExecutor(2) as pool:

        def result() -> float:
            started = time.perf_counter()
            value = pool.submit(ready).result()
            took_s = time.perf_counter() - started
            assert value[-1] == 1
            return took_s

        rates = [LARGE / took_s / 1e9 for took_s in _rounds(result, runs)]
        yield Figure("ProcessPoolExecutor: 100 MB result", "GB/s", rates, True)
    python = python_with("ray")
    python_with("numpy")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "PYTHONWARNINGS": "ignore"}
    found = answer_of("Ray", [python, Path(__file__).with_name("peer_ray_objects.py"), runs], environment=quiet)
    version = found["version"]
    for name, unit, key, higher in (
        ("100 MB result", "GB/s", "result", True),
        ("put of 100 MB", "GB/s", "put", True),
        (f"one 100 MB argument read by {READERS} tasks", "ms", "fan", False),
        ("put of 16 KiB", "ms", "put_small", False),
        ("get of 16 KiB", "ms", "get_small", False),
    ):
        yield Figure(f"Ray {version}: {name}", unit, found[key], higher)
