"""Full file systems: under /dev/shm, and under the sockets of a boot. Who runs goes on, whatever the size it sends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.errors import ActorGridError, StartFailed
from actorgrid.supervisors.supervisor import StartChild
from actorgrid.supervisors.tree import Tree
from tests.otp.limits_servers import MIB, Ask, ask, children_of, lives, running, until, worker

PID = Ask("pid")
SIZES = [MIB, 61 * MIB]  # 64 MB; 64 MiB with its envelope would be over the limit of a message


def exchange(tree: Tree, sizes: list[int]) -> None:
    before = lives(tree)
    for size in sizes:
        for here, there in (("left", "right"), ("right", "left")):
            sent, got = ask(tree, here, "exchange", there, size)
            assert sent == got
    assert lives(tree) == before


def may_mount() -> str:
    """Why this process may not make a file system of its own to be filled; empty if it may."""
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() if tried.returncode else ""


@pytest.fixture
def mounts() -> None:
    try:
        why = may_mount()
    except OSError as error:
        why = str(error)
    if why:
        pytest.skip(f"no file system can be mounted here: {why}")


@pytest.mark.root
def test_large_messages_arrive_while_dev_shm_is_full(tmp_path: Path, mounts: None) -> None:
    with running(tmp_path, worker("left"), worker("right"), kind="FullSharedMemory") as tree:
        assert ask(tree, "root", "shared_memory_left") == 0
        exchange(tree, SIZES)
        assert ask(tree, tree.call("root", StartChild(worker("more"))).ref, "pid"), "nor does a start need it"


@pytest.mark.parametrize("who", ["left", "right"])
def test_large_messages_arrive_while_the_kernel_takes_no_memory_file(tmp_path: Path, who: str) -> None:
    with running(tmp_path, worker("left"), worker("right")) as tree:
        ask(tree, who, "limit_file_size", MIB // 2)
        exchange(tree, SIZES)


@pytest.fixture
def tiny(tmp_path: Path, mounts: None) -> Iterator[Path]:
    """A file system of its own with room for 100 names."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=100", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> list[Path]:
    """Leave no room for a name; gives the files that it took."""
    files: list[Path] = []
    try:
        while True:
            files.append(folder / f"full-{len(files)}")
            files[-1].touch()
    except OSError:
        return files[:-1]


@pytest.mark.root
def test_a_start_on_a_full_disk_is_refused_by_name_and_who_runs_goes_on(tmp_path: Path, tiny: Path) -> None:
    children = [worker(name) for name in ("left", "right", "other")]
    with running(tmp_path, *children, boot=tiny / "boot") as tree:
        before, pid = lives(tree), ask(tree, "root", "pid")
        files = fill(tiny)
        for spec in (worker("more"), worker("nameless", register=False)):
            with pytest.raises(ActorGridError) as refused:
                tree.call("root", StartChild(spec))
            assert refused.value.hint and isinstance(refused.value, StartFailed)
        exchange(tree, [MIB, 8 * MIB])
        assert ask(tree, "left", "forward", "other", PID) == before["other"][0], "who never met meet now"
        assert lives(tree) == before and ask(tree, "root", "pid") == pid
        for file in files:
            file.unlink()
        assert ask(tree, tree.call("root", StartChild(worker("more"))).ref, "pid")


@pytest.mark.root
def test_an_actor_that_dies_on_a_full_disk_is_back_with_its_name(tmp_path: Path, tiny: Path) -> None:
    with running(tmp_path, worker("left"), worker("victim"), boot=tiny / "boot") as tree:
        before = lives(tree)
        files = fill(tiny)
        os.kill(before["victim"][0], signal.SIGKILL)
        until(lambda: children_of(tree)["victim"]["restarts"] >= 1, "it is buried")
        for file in files:
            file.unlink()
        until(lambda: children_of(tree)["victim"]["state"] == "up", "it is back")
        assert ask(tree, "left", "forward", "victim", PID) == lives(tree)["victim"][0] != before["victim"][0]
        assert lives(tree)["left"] == before["left"]
