"""A store of images for a real Podman, in a folder of its own; skips where this machine cannot run it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE = "localhost/actorgrid-tests:1"
LIMITS = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
ENGINES = (LIMITS, LIMITS + '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n')
PROGRAMS = (
    "sh",
    "cat",
    "sleep",
    "env",
    "id",
    "pwd",
    "trap",
    "ls",
    "kill",
    "mount",
    "unshare",
    "mknod",
    "chown",
    "grep",
)


def podman(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["podman", *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=100, check=False
    )


def make_image(folder: Path, env: dict[str, str], name: str, files: Mapping[str, str], *, setuid: bool = False) -> None:
    """An image of busybox, with these files; *setuid*: its program is root's and setuid."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    with tarfile.open(folder / "root.tar", "w") as archive:

        def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.mode = 0o4755 if setuid else 0o755
            return member

        archive.add(busybox, "bin/busybox", filter=as_root)
        for program in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{program}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    podman(env, "import", str(folder / "root.tar"), name)


@contextmanager
def podman_store(folder: Path) -> Iterator[dict[str, str]]:
    """The variables by which Podman finds a store in *folder* with a small image, and runs it."""
    if shutil.which("podman") is None or shutil.which("busybox") is None:
        pytest.skip("needs podman and a static busybox (Debian: podman crun runc busybox-static)")
    store = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(store)
    found = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    said = ""
    for engine in ENGINES:
        (folder / "containers.conf").write_text(engine)
        make_image(folder, found, IMAGE, {})
        tried = podman(found, "run", "--rm", "--network", "host", IMAGE, "sh", "-c", "echo ran")
        if tried.stdout == "ran\n":
            break
        said = tried.stderr.strip()[-300:]
    else:
        pytest.skip(f"podman cannot run a container here: {said}")
    yield found
    # What was killed leaves its memory mounted, and folders with mounts in them cannot be removed.
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
