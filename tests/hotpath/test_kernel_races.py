"""Free lists and snapshots between two threads: the kernels' C under ThreadSanitizer, and a Python without a lock."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests import race_kernels

FREE_THREADED = ("python3.13t", "python3.14t", "python3.15t")


def sanitizer() -> str:
    """Why there is no ThreadSanitizer; empty where there is."""
    if not (shutil.which("gcc") and shutil.which("setarch")):
        return "needs gcc and setarch"
    found = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True).stdout
    if "/" not in found:
        return "this gcc has no ThreadSanitizer"
    sources = [race_kernels.ROOT / "hotpath" / f"{name}.c" for names in race_kernels.KERNELS.values() for name in names]
    return "" if all(source.exists() for source in sources) else "the kernels were not built here: their C is not there"


def race(python: str, kernel: str) -> str:
    """What the threads of *kernel* say in that interpreter."""
    command = [python, "-m", "tests.race_kernels", kernel, "--free"]
    done = subprocess.run(
        command, cwd=race_kernels.ROOT, capture_output=True, text=True, check=False, timeout=300, env={"PATH": ""}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("kernel", race_kernels.KERNELS)
def test_what_two_threads_see_adds_up(kernel: str) -> None:
    assert "with the interpreter's lock" in race(sys.executable, kernel)


@pytest.mark.system
@pytest.mark.parametrize("kernel", race_kernels.KERNELS)
def test_it_adds_up_in_a_python_without_a_lock(kernel: str) -> None:
    """There the kernels' twins run: a kernel that was built for another interpreter is not loaded."""
    python = next((found for name in FREE_THREADED if (found := shutil.which(name))), None)
    if python is None:
        pytest.skip(f"no free-threaded Python is here: none of {', '.join(FREE_THREADED)} is on the path")
    if subprocess.run([python, "-c", "import sys; sys.exit(sys._is_gil_enabled())"], check=False).returncode:
        pytest.skip(f"{python} has a lock")
    assert "without the interpreter's lock" in race(python, kernel)


@pytest.mark.system
@pytest.mark.parametrize("kernel", race_kernels.KERNELS)
def test_under_the_interpreters_lock_they_are_no_race(kernel: str) -> None:
    if why := sanitizer():
        pytest.skip(why)
    done = race_kernels.run(kernel, planted=False)
    assert done.returncode == 0, done.stdout + done.stderr[:4000]


@pytest.mark.system
@pytest.mark.parametrize("kernel", race_kernels.KERNELS)
def test_without_it_they_are_found_to_be_one(kernel: str) -> None:
    if why := sanitizer():
        pytest.skip(why)
    assert "data race" in race_kernels.run(kernel, planted=True).stderr
