"""Calls between two servers of a host, each a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .figures import Figure, Skipped, latency, registry

DEADLINE_S = 60.0


@registry.add("actors")
def actors(runs: int) -> Iterator[Figure]:
    """Round trip and pipelined rate."""
    trips, rates = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.actor_pair", f"{folder}/host"], stderr=subprocess.PIPE
            )
            result = Path(folder) / "host" / "result.json"
            until = time.monotonic() + DEADLINE_S
            while not result.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if not result.exists():
                process.kill()
                said = process.communicate()[1].decode(errors="replace")[-500:]
                raise Skipped(f"the pair of servers gave nothing: {said}")
            measured = json.loads(result.read_text())
            process.terminate()
            process.communicate()
        trips.append(measured["samples"])
        rates.append(measured["rate"])
    yield latency("actor call between processes", trips, "µs", 1e6, must=150, stretch=100)
    yield Figure("actor calls, 64 in flight", "calls/s", rates, True, must=12_000, stretch=20_000)
