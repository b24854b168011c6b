"""Memory that an idle host's processes share, and what the front process gives back."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import json, sqlite3, ssl, psutil
before = psutil.Process().memory_info()
from actorgrid.actors.host.idle_memory import give_back_file_pages
dropped = give_back_file_pages()
after = psutil.Process().memory_info()
# Everything mapped still works: it is read again where it is touched.
ssl.create_default_context(); sqlite3.connect(":memory:").close(); json.dumps({})
print(dropped > 0, after.shared < before.shared)
"""


def test_pages_of_files_go_and_come_back_when_they_are_needed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


GAPS = """
import os, sys
from actorgrid.actors.host.idle_memory import fill_gaps

def private_kib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:"))

held = [bytes(size) for size in (31, 95, 223) for _ in range(20_000)]
del held[::16]  # a gap in every page, and everywhere the neighbours stay
filled = fill_gaps() if sys.argv[1] == "filled" else 0
pid = os.fork()
if pid == 0:
    before = private_kib()
    made = [bytes(size) for size in (31, 95, 223) for _ in range(1_000)]
    print(private_kib() - before, filled, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def copied_kib(how: str) -> tuple[int, int]:
    """What a forked process pays for 0.45 MB of small objects, and how much was filled before."""
    done = subprocess.run([sys.executable, "-c", GAPS, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    copied, filled = done.stdout.split()
    return int(copied), int(filled)


def test_objects_of_a_forked_process_lie_side_by_side_once_the_gaps_are_filled() -> None:
    scattered, _ = copied_kib("as it is")
    dense, filled = copied_kib("filled")
    assert filled > 20_000 // 16 * (64 + 128 + 256)
    assert dense < 1_000
    assert scattered > 3 * dense
