"""Memory that an idle host's processes share, and what the front process gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def forked_kib(script: str, how: str) -> tuple[int, int]:
    """What a forked process copied, and what the script counted beside it."""
    done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    copied, counted = done.stdout.split()
    return int(copied), int(counted)


def test_objects_of_a_forked_process_lie_side_by_side_once_the_gaps_are_filled() -> None:
    scattered, _ = forked_kib(GAPS, "as it is")
    dense, filled = forked_kib(GAPS, "filled")
    assert filled > 20_000 // 16 * (64 + 128 + 256)
    assert dense < 1_000
    assert scattered > 3 * dense


ALLOCATOR_GAPS = """
import os, sys
from actorgrid.actors.host.idle_memory import fill_allocator_gaps

def private_kib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:"))

held = [bytes(size) for size in (700, 1_500) for _ in range(5_000)]
del held[::8]  # a gap in nearly every page, and between two that stay
filled = fill_allocator_gaps() if sys.argv[1] == "filled" else 0
pid = os.fork()
if pid == 0:
    made = [bytes(size) for size in (700, 1_500) for _ in range(300)]
    print(private_kib(), filled, flush=True)  # all of it: the first large object sorts the gaps, and writes into each
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_larger_objects_of_a_forked_process_lie_side_by_side_too() -> None:
    scattered, _ = forked_kib(ALLOCATOR_GAPS, "as it is")
    dense, filled = forked_kib(ALLOCATOR_GAPS, "filled")
    assert filled > 5_000 // 8 * (700 + 1_500) * 0.9
    assert scattered > 2 * dense


LOOKUPS = """
import os, sys
from actorgrid.actors.host.idle_memory import forget_lookups

def private_kib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:"))

class Before: pass
class After: pass
texts = [f"{number:090}" for number in range(40_000)]
before = [sys.intern(text) for text in texts[::19]]  # hardly two on one page
after = [sys.intern(f"after_{number}") for number in range(2_000)]
hasattr(After, after[0])  # gives the class its version
for each in before:
    hasattr(Before, each)
if sys.argv[1] == "forgotten":
    forget_lookups()
pid = os.fork()
if pid == 0:
    start = private_kib()
    for each in after:
        hasattr(After, each)
    print(private_kib() - start, len(after), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12 counts no references to interned names")
def test_what_a_forked_process_looks_up_drives_out_no_name_that_it_shares() -> None:
    scattered, _ = forked_kib(LOOKUPS, "as it is")
    dense, _ = forked_kib(LOOKUPS, "forgotten")
    assert scattered > 2 * dense


MAPPINGS = """
import os, sys
from collections.abc import Mapping
from actorgrid.actors.host.idle_memory import know_what_is_no_mapping

def private_kib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:"))

kinds = [type(f"Kind{number}", (Mapping,), {}) for number in range(500)]
if sys.argv[1] == "known":
    know_what_is_no_mapping()
pid = os.fork()
if pid == 0:
    start = private_kib()
    found = sum(isinstance(each, Mapping) for each in ("text", 1, (), None))
    print(private_kib() - start, found, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_forked_process_asks_no_hundred_classes_whether_a_text_is_a_mapping() -> None:
    asked, none = forked_kib(MAPPINGS, "as it is")
    known, none_either = forked_kib(MAPPINGS, "known")
    assert (none, none_either) == (0, 0)
    assert asked > 3 * known
