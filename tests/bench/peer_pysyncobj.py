"""``python peer_pysyncobj.py BATCHES`` in PySyncObj's environment: its three nodes in one process; prints JSON.

Its nodes speak over loopback sockets and pickle; there is no way to have them without. They are ticked by this
thread, journal and dump are off, and ``appendEntriesUseBatch`` is tried both ways; the better one counts.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from importlib.metadata import version
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated

BATCH = 64
VALUE = b"x" * 100
ELECT_S = 20.0
RUN_S = 60.0


class Counter(SyncObj):  # type: ignore[misc]
    """Counts what is committed."""

    def __init__(self, own: str, others: list[str], batch: bool) -> None:
        conf = SyncObjConf(
            autoTick=False, appendEntriesUseBatch=batch, appendEntriesPeriod=0.02, commandsQueueSize=10**6
        )
        super().__init__(own, others, conf)
        self.total = 0

    @replicated  # type: ignore[misc]
    def add(self, value: bytes) -> None:
        """Apply one command."""
        self.total += 1


def addresses(count: int) -> list[str]:
    """Free loopback ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in held]
    for sock in held:
        sock.close()
    return found


def tick(nodes: list[Counter], until: Any, limit_s: float) -> None:
    """Tick all nodes until *until* is true. Raises TimeoutError."""
    limit = time.monotonic() + limit_s
    while not until():
        if time.monotonic() > limit:
            raise TimeoutError(f"nothing after {limit_s:g} s")
        for node in nodes:
            node.doTick(0.0)


def measure(batches: int, batch: bool) -> float:
    """Committed commands per second, applied on all three nodes, 64 at a time."""
    names = addresses(3)
    nodes = [Counter(name, [other for other in names if other != name], batch) for name in names]
    try:
        tick(nodes, lambda: all(node.isReady() for node in nodes), ELECT_S)
        leader = next(node for node in nodes if node._isLeader())
        started = time.perf_counter()
        for done in range(1, batches + 1):
            for _ in range(BATCH):
                leader.add(VALUE)
            expected = done * BATCH
            tick(nodes, lambda expected=expected: leader.total >= expected, RUN_S)
        tick(nodes, lambda: all(node.total >= batches * BATCH for node in nodes), RUN_S)
        return batches * BATCH / (time.perf_counter() - started)
    finally:
        for node in nodes:
            node.destroy()


def main() -> None:
    """Both settings; the better one."""
    batches = int(sys.argv[1])
    rates = {("batched" if batch else "not batched"): measure(batches, batch) for batch in (True, False)}
    best = max(rates, key=lambda name: rates[name])
    print(json.dumps({"version": version("pysyncobj"), "rate": rates[best], "setting": best}))


if __name__ == "__main__":
    main()
