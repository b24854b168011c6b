from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consensus.rig import Host


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(folder: Path | None = None, **performance: Any) -> Host:
        host = Host(folder or tmp_path / "data", **performance)
        made.append(host)
        return host

    yield make
    for host in made:
        if host.consensus is not None:
            host.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"this machine lets no one mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Fill the disk, or free it again, as far as the log's own writes see: half of a write fits, then nothing."""
    real = os.pwrite
    full = False

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if full:
            if len(data) > 64:
                return real(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    def fill(now: bool) -> None:
        nonlocal full
        full = now

    monkeypatch.setattr(os, "pwrite", pwrite)
    return fill
