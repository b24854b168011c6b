"""A host for work at full, under both kinds of agent: where tests run as root, once more as a user that is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation.probes import SHUT_IN_NEEDS, try_out
from tests.work.rig import Rig

ANN, BOB = "ann@lab", "bob@works"
SECRET = "known to the agent alone"


def check_as_nobody(file: str) -> None:
    """Run the tests of *file* as a user that is not root; they have to pass."""
    missing = [name for name in SHUT_IN_NEEDS if not try_out().has(name)]
    if missing:
        pytest.skip(f"this kernel has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "system", file]
        launcher = [sys.executable, "-m", "tests.unprivileged", *command, f"--basetemp={folder}/tests"]
        environment = {**os.environ, "TMPDIR": folder}
        root = Path(__file__).resolve().parents[2]
        run = subprocess.run(launcher, env=environment, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


def rig_that_keeps_apart() -> Iterator[Rig]:
    """A host in a directory around which others may come; skips where it cannot keep work apart."""
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    made = Rig(around / "data")
    made.context.paths.token_file.write_text(SECRET)
    made.start_manager()
    yield made
    made.close()
    subprocess.run(["chmod", "-R", "u+w", str(around)], check=True)  # packages that nobody is to write
    shutil.rmtree(around)


def level_of(rig: Rig, attempt_id: str) -> str:
    """The level that the attempt has."""
    spec = rig.dir(attempt_id).read_spec()
    assert spec is not None
    return spec.get("apart", {}).get("level", "off")


def said(rig: Rig, attempt_id: str) -> str:
    """All that it printed."""
    return rig.output(attempt_id) + rig.output(attempt_id, "stderr")
