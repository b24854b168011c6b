"""Runs what failed of the second tier once more, one after the other: ``python -m tests.again``.

Hundreds of tests start clusters on a machine that others use too, and one that fails only there says little of what is
about to land. So CI asks once more, with nothing beside it. It asks for few alone, says which they were, and whoever
reads that has a fault to find: of the test, or of the product when processors are scarce.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FEW = 3
"""More than these are no accident."""


LOST = "actorgrid/lost"
"""Under which pytest's cache keeps that a process of tests was lost in the last run."""


def start_anew(session: pytest.Session) -> None:
    """As a session starts: know of no process that was lost. A run without a cache keeps nothing."""
    if not hasattr(session.config, "workerinput") and session.config.pluginmanager.hasplugin("cacheprovider"):
        session.config.cache.set(LOST, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Keep that a process of tests was lost: what it and those after it would have run was not run."""
    if error is not None and node.config.pluginmanager.hasplugin("cacheprovider"):
        node.config.cache.set(LOST, str(error))


def _kept(root: Path, key: str, otherwise: Any) -> Any:
    try:
        return json.loads((root / ".pytest_cache/v" / key).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return otherwise


def failed(root: Path) -> list[str]:
    """What failed in the last run of pytest in *root*."""
    return sorted(_kept(root, "cache/lastfailed", {}))


def again(root: Path, *options: str) -> int:
    """The exit status: 0 where few had failed and each of them passes now; *options* are pytest's."""
    names = failed(root)
    if not 0 < len(names) <= FEW:
        print(f"not once more: {len(names)} failed, and only 1 to {FEW} may be of the machine", file=sys.stderr)
        return 1
    if lost := _kept(root, LOST, ""):
        print(f"not once more: a process of tests was lost, and tests were not run at all: {lost}", file=sys.stderr)
        return 1
    status = subprocess.run([sys.executable, "-m", "pytest", *options, *names], cwd=root, check=False).returncode
    outcome = "passed alone" if status == 0 else "failed alone too"
    print(f"\nfailed with others beside them, {outcome}:", *names, sep="\n  ")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(again(Path.cwd(), "-m", "system and not soak", "--timeout", "600", "-n", "0"))
