"""Which engine is taken: compiled, or its twin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import actorgrid.hotpath

ROOT = Path(__file__).resolve().parent.parent.parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_the_environment_can_ask_for_plain_python() -> None:
    done = run(
        "import actorgrid.hotpath as h; print(h.COMPILED, h.PlacementEngine.__module__)", ACTORGRID_PURE_PYTHON="1"
    )
    assert done.stdout.split() == ["False", "actorgrid.hotpath.reference.placement"]


HIDE = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "actorgrid.hotpath.placement":
            raise {error}
sys.meta_path.insert(0, Finder())
import actorgrid.hotpath as h
print(h.COMPILED)
"""


def test_the_twin_stands_in_where_the_kernel_was_not_built() -> None:
    done = run(HIDE.format(error="ModuleNotFoundError(name)"), ACTORGRID_PURE_PYTHON="0")
    assert done.stdout.split() == ["False"]


def test_a_kernel_that_does_not_load_is_an_error() -> None:
    done = run(HIDE.format(error="ImportError('undefined symbol')"), ACTORGRID_PURE_PYTHON="0")
    assert done.returncode != 0
    assert "undefined symbol" in done.stderr


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the compiled engine was not built here")
def test_both_engines_have_the_same_surface() -> None:
    from actorgrid.hotpath.placement import PlacementEngine as Compiled
    from actorgrid.hotpath.reference.placement import PlacementEngine as Reference

    def surface(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert surface(Compiled) == surface(Reference)
