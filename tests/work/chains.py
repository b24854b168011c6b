"""Work that is never where one looks: each process forks, leaves its session and lets its parent exit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOP_S = 0.002

# Run as `python -S -c CHAINS NAME COUNT FLAG HOP_S`: the name is in every process's command line.
CHAINS = """
import os, sys, time
for number in range(int(sys.argv[2])):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(float(sys.argv[4]))
open(sys.argv[3], "w").close()
time.sleep(3600)
"""


def command(name: str, count: int, flag: Path, hop_s: float = HOP_S) -> list[str]:
    """To run as a job; makes *flag* once all chains are under way."""
    return [sys.executable, "-S", "-c", CHAINS, name, str(count), str(flag), str(hop_s)]


def found(name: str) -> list[int]:
    """Processes of those chains that one look through /proc catches."""
    caught = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if name.encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            caught.append(int(pid))
    return caught


def gone(name: str, looks: int = 20) -> bool:
    """Whether many looks in a row catch nothing: one can miss a whole chain between two of its processes."""
    return not any(found(name) for _ in range(looks))
