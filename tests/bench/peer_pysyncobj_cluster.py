"""``python peer_pysyncobj_cluster.py FOLDER COUNT`` in PySyncObj's environment: three processes; prints JSON.

Each node ticks itself in a thread of its own, as PySyncObj does by default, and appends at once
(``appendEntriesUseBatch=False``: with it every command waits for a period of 0.1 s). The journal is a mapped file that
is never synced: what it says is committed may be gone after a loss of power.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import threading
import time
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from peer_pysyncobj import VALUE, addresses
from pysyncobj import SyncObj, SyncObjConf, replicated

LIMIT_S = 60.0
IN_FLIGHT = 64


class Node(SyncObj):  # type: ignore[misc]
    """Counts what is committed."""

    def __init__(self, own: str, others: list[str], journal: str | None) -> None:
        super().__init__(own, others, SyncObjConf(appendEntriesUseBatch=False, journalFile=journal))
        self.total = 0

    @replicated  # type: ignore[misc]
    def add(self, value: bytes) -> int:
        """Apply one command."""
        self.total += 1
        return self.total


def drive(node: Node, count: int, in_flight: int) -> tuple[float, list[float]]:
    """Commit so many from this node; seconds in all, and of each. Raises TimeoutError."""
    over, lock = threading.Event(), threading.Lock()
    samples: list[float] = []
    begun = 0

    def begin() -> None:
        nonlocal begun
        with lock:
            if begun >= count:
                return
            begun += 1
        started = time.perf_counter()

        def done(_result: Any, _error: Any) -> None:
            samples.append(time.perf_counter() - started)
            if len(samples) >= count:
                over.set()
            begin()

        node.add(VALUE, callback=done)

    started = time.perf_counter()
    for _ in range(in_flight):
        begin()
    if not over.wait(LIMIT_S):
        raise TimeoutError(f"{len(samples)} of {count} were committed in {LIMIT_S:g} s")
    return time.perf_counter() - started, samples


def serve(own: str, others: list[str], journal: str | None, count: int, control: Connection) -> None:
    """One node's process: tells that it is ready, and whether it leads; then does what it is told."""
    node = Node(own, others, journal)
    limit = time.monotonic() + LIMIT_S
    while not node.isReady() and time.monotonic() < limit:
        time.sleep(0.01)
    control.send(node._isLeader())
    while control.recv() == "drive":
        seconds, _ = drive(node, count, IN_FLIGHT)
        _, singles = drive(node, count // 10, 1)
        control.send((count / seconds, singles))
    node.destroy()


def measure(folder: Path | None, count: int) -> tuple[float, float, float]:
    """Commits a second with 64 in flight, and the median and 99th percentile of one at a time, in ms."""
    names = addresses(3)
    pipes, processes = [], []
    for number, name in enumerate(names):
        ours, theirs = multiprocessing.Pipe()
        journal = None if folder is None else str(folder / f"journal{number}")
        others = [other for other in names if other != name]
        process = multiprocessing.Process(target=serve, args=(name, others, journal, count, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    leads = [pipe.recv() for pipe in pipes]
    leader = pipes[leads.index(True)]
    leader.send("drive")
    rate, singles = leader.recv()
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join(10)
        process.kill()
    return rate, 1e3 * statistics.median(singles), 1e3 * sorted(singles)[int(0.99 * len(singles))]


def main() -> None:
    """In memory, and with the journal."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    found = {"memory": measure(None, count), "journal": measure(folder, count)}
    print(json.dumps({"version": version("pysyncobj"), **found}))


if __name__ == "__main__":
    main()
