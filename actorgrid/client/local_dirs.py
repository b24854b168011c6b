"""The temporary directories of local clusters: whose each is, and what happens to those whose owner is gone.

Three ways lead out. ``close()`` removes a directory; ``atexit`` closes what was not closed. An owner that was killed
cannot do either: its agent, told by the kernel, stops and removes the directory itself. What is left then (a machine
that went down, an agent that was killed as well) is removed by the next start of a local cluster.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from actorgrid.configs.paths import HostPaths

PREFIX = "actorgrid-local-"
OWNER_FILE = "owner.json"
SWEPT_MAX = 32
"""Per start: removing much must not hold up the start of anything."""
UNNAMED_AGE_S = 3600.0
"""A directory in which no owner stands yet is being made; one so old never will be."""


def make_own() -> Path:
    """Make a directory of this process's own (0700), marked with its owner."""
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    owner = {"pid": os.getpid(), "started": _started(os.getpid()), "boot_id": _boot_id()}
    (made / OWNER_FILE).write_text(json.dumps(owner), encoding="ascii")
    return made


def sweep() -> int:
    """Remove directories of owners that are gone and in which no agent runs; gives how many. Never raises OSError."""
    removed = 0
    try:
        found = sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*"))
    except OSError:
        return 0
    for folder in found:
        if removed >= SWEPT_MAX:
            break
        if _is_ours(folder) and not _is_owned(folder) and _remove_unlocked(folder):
            removed += 1
    return removed


def remove(folder: Path) -> None:
    """Remove a directory with its sockets."""
    shutil.rmtree(HostPaths(folder).runtime_dir, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether *path* is a directory of this user's and no link: anybody may make names in a temporary directory."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _is_owned(folder: Path) -> bool:
    """Whether the process that made it lives, as far as can be told: the number of a dead one is given to others."""
    try:
        owner = json.loads((folder / OWNER_FILE).read_text(encoding="ascii"))
        pid, started, boot_id = int(owner["pid"]), owner["started"], owner["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        try:
            return time.time() - folder.lstat().st_mtime < UNNAMED_AGE_S
        except OSError:
            return True
    return bool(boot_id == _boot_id() and started is not None and _started(pid) == started)


def _remove_unlocked(folder: Path) -> bool:
    """Remove a directory unless an agent holds its lock, which is kept from it meanwhile."""
    try:
        lock = os.open(HostPaths(folder).lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)
    except OSError:
        return False  # it is in use
    finally:
        os.close(lock)
    return not folder.exists()


def _started(pid: int) -> int | None:
    """When a process began, in the kernel's ticks; ``None`` for one that is not there, or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
