"""Run the tests of the compiled kernels with AddressSanitizer and UndefinedBehaviorSanitizer: ``make sanitize``.

The kernels are built anew in a copy of the tree, so that the ones in use stay as they are. Leaks are looked for by
the tests themselves: the interpreter frees little of its own at its end, which would drown ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "sanitize"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g"
GENERATED = ("build", "*.so", "*.c", "__pycache__", "*.egg-info", "bench-results")
LEFT_OUT = shutil.ignore_patterns(".venv*", ".git", *GENERATED)


def library(name: str) -> str:
    """Where the compiler's *name* is. Exits with a message when it has none."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        sys.exit(f"the compiler has no {name} (Debian: apt install libasan8 libubsan1)")
    return str(Path(found).resolve())


def main() -> int:
    """Build, and run; gives the tests' exit status."""
    if shutil.which("gcc") is None:
        sys.exit("make sanitize needs gcc")
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT, COPY, symlinks=True, ignore=LEFT_OUT)
    build = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": FLAGS, "ACTORGRID_REQUIRE_COMPILED": "1"}
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=COPY, env=build, check=True)
    preload = f"{library('libasan.so')} {library('libubsan.so')}"
    run = {
        **os.environ,
        "LD_PRELOAD": preload,
        "PYTHONPATH": str(COPY),
        "PYTHONMALLOC": "malloc",  # each object its own block, so that a stray access is seen
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    tests = sys.argv[1:] or ["tests/hotpath", "--deselect", "tests/hotpath/test_choice.py", "-m", "not soak"]
    check = "import actorgrid.hotpath as h, sys; sys.exit(not (h.COMPILED and h.__file__.startswith(sys.argv[1])))"
    if subprocess.run([sys.executable, "-c", check, str(COPY)], cwd=COPY, env=run, check=False).returncode:
        sys.exit("the kernels built for this are not the ones that would be tested")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "900", *tests],
        cwd=COPY,
        env=run,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
