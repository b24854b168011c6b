"""Two versions of the program side by side: the one of this tree, and the one before it, from the history."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

BEFORE = "4f70b8ad0d9de7a66c9cb0ef6befc17905fef076"
"""The last commit whose ledger knew version 1 only."""
PRESENT = Path(__file__).parents[2]


def program_before(into: Path) -> Path:
    """The tree of the version before, written to *into*; skips the test where the history does not reach so far.

    It has no compiled kernels and needs none: their twins in Python give the same answers.
    """
    found = subprocess.run(["git", "-C", str(PRESENT), "archive", BEFORE], capture_output=True)
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip()
        pytest.skip(f"no history here with the version before ({said}); test_data_of_the_version_before.py runs anyway")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(into, filter="tar")
    return into


def installed(program: Path) -> dict[str, str]:
    """An environment in which ``actorgrid`` is the one of that tree, whatever the venv has."""
    return {**os.environ, "PYTHONPATH": str(program), "PYTHONSAFEPATH": "1"}


def install(program: Path, at: Path) -> None:
    """Put *program* in the place of what is installed *at*, in one step."""
    new = at.with_name(f"{at.name}.new")
    new.symlink_to(program)
    new.replace(at)
