"""Graphs of tasks whose arguments are futures: 1-998-1 and a chain of 200, here and in the peers that can do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import actorgrid

from .figures import Figure, registry
from .peers import answer_of, python_with
from .sessions import warm_client

FAN = 998
CHAIN = 200


def increment(number: int) -> int:
    return number + 1


def total(numbers: Iterable[int]) -> int:
    return sum(numbers)


def _seconds(graph: Callable[[], int], expected: int, runs: int) -> list[float]:
    found = []
    for _ in range(runs + 2):  # two to warm up: how long the functions take is learned
        started = time.perf_counter()
        value = graph()
        found.append(time.perf_counter() - started)
        assert value == expected, value
    return found[2:]


@registry.add("graphs")
def graphs(runs: int) -> Iterator[Figure]:
    """Futures as arguments, on two warm workers."""
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = warm_client(cluster)

        def fan() -> int:
            root = client.submit(increment, 0)
            value: int = client.submit(total, [client.submit(increment, root) for _ in range(FAN)]).result()
            return value

        def chain() -> int:
            link: Any = client.submit(increment, 0)
            for _ in range(CHAIN - 1):
                link = client.submit(increment, link)
            value: int = link.result()
            return value

        found = _seconds(fan, 2 * FAN, runs)
        yield Figure("fan 1-998-1, futures as arguments", "s", found, False, must=0.1, stretch=0.05)
        found = _seconds(chain, CHAIN, runs)
        yield Figure("chain of 200, futures as arguments", "s", found, False, must=0.03, stretch=0.015)


@registry.add("graph_peers")
def graph_peers(runs: int) -> Iterator[Figure]:
    """The same graphs: driven by the client of a ProcessPoolExecutor, which takes no futures; and in Dask."""
    with ProcessPoolExecutor(2) as pool:

        def fan() -> int:
            root = pool.submit(increment, 0).result()
            middle = [pool.submit(increment, root) for _ in range(FAN)]
            return pool.submit(total, [future.result() for future in middle]).result()

        def chain() -> int:
            value = 0
            for _ in range(CHAIN):
                value = pool.submit(increment, value).result()
            return value

        note = "its client waits for values and passes them on"
        yield Figure("ProcessPoolExecutor: fan 1-998-1", "s", _seconds(fan, 2 * FAN, runs), False, note=note)
        yield Figure("ProcessPoolExecutor: chain of 200", "s", _seconds(chain, CHAIN, runs), False, note=note)
    python = python_with("distributed")
    found = answer_of("Dask", [python, Path(__file__).with_name("peer_dask.py"), runs])
    version = found["version"]
    note = "two worker processes of one thread"
    yield Figure(f"Dask {version}: fan 1-998-1", "s", found["fan"], False, note=note)
    yield Figure(f"Dask {version}: chain of 200", "s", found["chain"], False, note=note)
    yield Figure(f"Dask {version}: noop tasks", "tasks/s", found["rates"], True, note=note)
