"""The kernels of free lists and of placement between two threads under ThreadSanitizer; needs gcc.

    python -m tests.race_kernels memory_pool
    python -m tests.race_kernels placement --planted

These are the kernels' own C, built anew for it into a folder of its own, in the interpreter: ThreadSanitizer sees what
the kernels do to memory, and the interpreter's lock, which is of pthread. ``--planted`` has one thread go into the
kernel without that lock, by the kernel's own table of functions, which is found. ``--free`` is without ThreadSanitizer
and for any interpreter: what two threads see has to add up. It says whether the interpreter has its lock.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS = {"memory_pool": ("memory_pool",), "placement": ("score_table", "placement")}
"""What is built for each, those first that others refer to."""
UNLOCKED = {"memory_pool": ("MemoryPool", "largest"), "placement": ("PlacementEngine", "charge")}
"""A function of each that the kernel itself calls with the lock held, and that touches no Python object."""
ROUNDS = 3000
SNAPSHOTS = 30
FLAGS = ["-O1", "-g", "-fPIC", "-shared", "-fsanitize=thread"]


def run(kernel: str, planted: bool) -> subprocess.CompletedProcess[str]:
    """Build *kernel* with ThreadSanitizer, and run its threads. *planted*: one of them without the lock."""
    found = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in KERNELS[kernel]:
            source, made = ROOT / "hotpath" / f"{name}.c", Path(folder, f"{name}.so")
            include = f"-I{sysconfig.get_paths()['include']}"
            subprocess.run(["gcc", *FLAGS, include, str(source), "-o", str(made)], check=True)
        # Where the kernel spreads addresses more than it knows, it cannot start.
        command = ["setarch", "-R", sys.executable, "-m", "tests.race_kernels", kernel, "--built", folder]
        environment = {**os.environ, "LD_PRELOAD": str(Path(found.stdout.strip()).resolve())}
        environment["TSAN_OPTIONS"] = "exitcode=66:report_bugs=1"
        return subprocess.run(
            [*command, *(["--planted"] if planted else [])],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


class BuiltKernels(importlib.abc.MetaPathFinder):
    """Finds the kernels in *folder*, before anybody finds those that are used otherwise."""

    def __init__(self, folder: Path, kernel: str) -> None:
        self.paths = {f"actorgrid.hotpath.{name}": str(folder / f"{name}.so") for name in KERNELS[kernel]}

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Where that module is, if it is one of them."""
        if name not in self.paths:
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, self.paths[name])
        return importlib.util.spec_from_file_location(name, self.paths[name], loader=loader)


def unlocked(kernel: str, kind: Any, *arguments: Any) -> Callable[[Any], int]:
    """A function of *kind*'s table, to be called without the interpreter's lock."""
    names = _table(ROOT / "hotpath" / f"{kernel}.pxd", kind.__name__)
    capsule = kind.__dict__["__pyx_vtable__"]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(
        api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)), ctypes.POINTER(ctypes.c_void_p)
    )
    types = [ctypes.c_longlong if isinstance(each, int) else ctypes.c_void_p for each in arguments]
    found = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p, *types)(table[names.index(UNLOCKED[kernel][1])])
    return lambda owner: int(found(id(owner), *arguments))


def _table(declared: Path, kind: str) -> list[str]:
    """The methods of a class in the order in which its table has them: that of its declaration."""
    lines = declared.read_text().split(f"cdef class {kind}:\n", 1)[1].split("\ncdef class", 1)[0].splitlines()
    return [line.split("(")[0].split()[-1] for line in lines if line.startswith("    cdef ") and "(" in line]


def free_lists(planted: bool, lock: threading.Lock | None) -> list[Callable[[], None]]:
    """Two threads at one pool: what is out at a time never overlaps, and in the end all is back.

    Without a *lock* each call is atomic by the interpreter's, which is what is looked at; then no account is kept, as
    that would need another lock, and this one would put the threads in order.
    """
    from actorgrid.hotpath import MemoryPool

    pool = MemoryPool(1 << 20, 64)
    out: dict[int, int] = {}

    def takes() -> None:
        for at in range(ROUNDS):
            if lock is None:
                pool.free(pool.allocate(64 * (1 + at % 7)))
                continue
            with lock:
                block = pool.allocate(64 * (1 + at % 7))
                begin, size = block.offset, block.size
                assert not any(begin < other + out[other] and other < begin + size for other in out), "given twice"
                out[begin] = size
            with lock:
                del out[begin]
                pool.free(block)

    if not planted:
        return [takes, takes]
    largest = unlocked("memory_pool", MemoryPool)

    def looks() -> None:
        for _ in range(ROUNDS):
            largest(pool)

    return [takes, looks]


def snapshots(planted: bool, _lock: threading.Lock | None) -> list[Callable[[], None]]:
    """One thread places and gives back, as the coordinator's does; the other looks at snapshots, without any lock."""
    from actorgrid.hotpath import PlacementEngine

    engine = PlacementEngine("best_fit")
    for name in ("a", "b", "c"):
        engine.add_node(name, cpu_milli=64_000, memory_mib=2**18, gpu_count=8, gpu_model="H100", gpu_memory_mib=80_000)
    over = threading.Event()

    def places() -> None:
        try:
            for _ in range(ROUNDS):
                placed = engine.place(gpu_count=2, gang=3)
                assert placed is not None
                engine.release(placed.id)
        finally:
            over.set()

    def looks() -> None:
        found = 0
        while found < SNAPSHOTS or not over.is_set():
            snapshot = engine.snapshot()
            used = sum(1000 - gpu.milli_free for node in snapshot.nodes for gpu in node.gpus)
            assert used == snapshot.allocated_gpu_milli and used % 6000 == 0, f"torn: {used}"
            found += 1

    if not planted:
        return [places, looks]
    devices = (ctypes.c_int * 1)(0)
    charge = unlocked("placement", PlacementEngine, 0, devices, 0, 1, 1, 0, 0, 1)
    back = unlocked("placement", PlacementEngine, 0, devices, 0, 1, 1, 0, 0, -1)

    def charges() -> None:
        for _ in range(ROUNDS):
            charge(engine)
            back(engine)
        over.set()

    return [charges, looks]


def race(kernel: str, planted: bool, lock: threading.Lock | None) -> None:
    """Run the threads of *kernel* to their end. Raises what one of them found."""
    made = {"memory_pool": free_lists, "placement": snapshots}[kernel](planted, lock)
    both = threading.Barrier(2)
    sys.setswitchinterval(1e-5)

    def watched(run_it: Callable[[], None]) -> None:
        both.wait()  # one that had ended before the other began would be before it for ThreadSanitizer as well
        run_it()

    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(watched, each) for each in made]:
            running.result()


def main() -> int:
    """Run it; gives the exit status."""
    parser = argparse.ArgumentParser(description="The kernels between two threads.")
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--built")
    asked = parser.parse_args()
    if asked.built is None and not asked.free:
        done = run(asked.kernel, asked.planted)
        print(done.stdout + done.stderr[:4000])
        return done.returncode
    if asked.built is not None:
        finder = BuiltKernels(Path(asked.built), asked.kernel)
        sys.meta_path.insert(0, finder)
    race(asked.kernel, asked.planted, threading.Lock() if asked.free else None)
    if asked.built is not None:
        used = [str(getattr(sys.modules[name], "__file__", "")) for name in finder.paths]
        assert used == list(finder.paths.values()), f"other kernels were used: {used}"
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    print("with the interpreter's lock" if has_lock else "without the interpreter's lock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
