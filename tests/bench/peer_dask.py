"""Runs in Dask's environment: ``python peer_dask.py RUNS`` prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import distributed

FAN = 998
CHAIN = 200
TASKS = 2_000


def increment(number: int) -> int:
    return number + 1


def total(numbers: list[int]) -> int:
    return sum(numbers)


def noop(_: int) -> None:
    return None


def seconds(graph: Callable[[], int], expected: int, runs: int) -> list[float]:
    found = []
    for _ in range(runs + 2):
        started = time.perf_counter()
        value = graph()
        found.append(time.perf_counter() - started)
        assert value == expected, value
    return found[2:]


def main(runs: int) -> dict[str, object]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def fan() -> int:
            root = client.submit(increment, 0, pure=False)
            middle = [client.submit(increment, root, pure=False) for _ in range(FAN)]
            value: int = client.submit(total, middle, pure=False).result()
            return value

        def chain() -> int:
            link = client.submit(increment, 0, pure=False)
            for _ in range(CHAIN - 1):
                link = client.submit(increment, link, pure=False)
            value: int = link.result()
            return value

        fans, chains = seconds(fan, 2 * FAN, runs), seconds(chain, CHAIN, runs)
        rates = []
        for _ in range(runs):
            started = time.perf_counter()
            client.gather(client.map(noop, range(TASKS), pure=False))
            rates.append(TASKS / (time.perf_counter() - started))
    return {"version": distributed.__version__, "fan": fans, "chain": chains, "rates": rates}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
