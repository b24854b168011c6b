"""Packages that only some tests need: installed once into a folder beside the checkout's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / f".test-packages-{sys.version_info.major}.{sys.version_info.minor}"
INSTALL_LIMIT_S = 300


@contextmanager
def with_packages(*names: str) -> Iterator[None]:
    """*names* can be imported, here and in what is started meanwhile. Skips, and says why, if they do not install."""
    done = FOLDER / f".has-{'-'.join(names)}"
    if not done.exists():
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / ".gitignore").write_text("*\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER), *names]
        try:
            subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S, capture_output=True, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip()
            pytest.skip(f"{', '.join(names)} do not install here: {said[-200:]}")
        done.touch()
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (before, str(FOLDER)) if part)
    sys.path.append(str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
