"""What is left of a local cluster that nobody closed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actorgrid.client import local_dirs
from tests.processes import is_alive, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
OPENS = """
import actorgrid, os, sys
cluster = actorgrid.LocalCluster(gpus=1)
print(cluster.pid, cluster.data_dir, flush=True)
{end}
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def opened(end: str) -> tuple[subprocess.Popen[str], int, Path]:
    owner = subprocess.Popen([sys.executable, "-c", OPENS.format(end=end)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, _, folder = owner.stdout.readline().strip().partition(" ")
    return owner, int(pid), Path(folder)


@pytest.mark.parametrize("end", ["pass", "raise RuntimeError('forgotten')", "sys.exit(3)"])
def test_a_program_that_ends_without_closing_leaves_nothing(temporary: Path, end: str) -> None:
    owner, agent, folder = opened(end)
    owner.communicate(timeout=60)
    assert not is_alive(agent) and not folder.exists()
    assert list(temporary.glob("actorgrid-*")) == []


def test_a_program_that_is_killed_leaves_nothing(temporary: Path) -> None:
    owner, agent, folder = opened("import time; time.sleep(600)")
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate(timeout=60)
    until(lambda: not is_alive(agent) and not folder.exists(), "the agent is gone, and its directory")
    assert list(temporary.glob("actorgrid-*")) == []


def test_a_fork_of_the_owner_does_not_close_its_cluster(temporary: Path) -> None:
    owner, agent, folder = opened("pid = os.fork()\nif pid: os.waitpid(pid, 0); print('parent', flush=True); input()")
    assert owner.stdout is not None and owner.stdout.readline() == "parent\n"
    assert is_alive(agent) and folder.exists()
    owner.kill()
    owner.communicate(timeout=60)
    until(lambda: not folder.exists(), "the directory is gone")


def left_behind(pid: int, started: int | None, boot_id: str | None = None) -> Path:
    made = local_dirs.make_own()
    owner = json.loads((made / local_dirs.OWNER_FILE).read_text())
    owner |= {"pid": pid, "started": started, "boot_id": boot_id or owner["boot_id"]}
    (made / local_dirs.OWNER_FILE).write_text(json.dumps(owner))
    return made


def test_directories_of_owners_that_are_gone_are_swept_and_no_others(temporary: Path) -> None:
    mine = local_dirs.make_own()
    gone = left_behind(2**22 + 1, 5)
    reused = left_behind(os.getpid(), 5)
    before_boot = left_behind(os.getpid(), local_dirs._started(os.getpid()), "another")
    young = Path(tempfile.mkdtemp(prefix=local_dirs.PREFIX))
    link = temporary / f"{local_dirs.PREFIX}link"
    link.symlink_to(mine)
    in_use = left_behind(2**22 + 1, 5)
    with (in_use / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert local_dirs.sweep() == 3
    assert mine.exists() and young.exists() and link.is_symlink() and in_use.exists()
    assert not gone.exists() and not reused.exists() and not before_boot.exists()
    assert local_dirs.sweep() == 1 and not in_use.exists()
    local_dirs.remove(mine)


def test_one_start_sweeps_a_bounded_number(temporary: Path) -> None:
    for _ in range(local_dirs.SWEPT_MAX + 2):
        left_behind(2**22 + 1, 5)
    assert local_dirs.sweep() == local_dirs.SWEPT_MAX and local_dirs.sweep() == 2
