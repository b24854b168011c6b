"""Limits on what an attempt may take of its host."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def limit_process() -> None:
    """Limits set in the child before any of the user's code: no core files in the user's folders."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def writable_cgroup(proc: Path = Path("/proc/self")) -> Path | None:
    """The cgroup v2 folder under which we may make groups with a memory limit, or None.

    That is the parent of our own group (or our own, when it is the root), if it hands the memory controller
    down and we may write there: what a service manager's delegation or root gives.
    """
    try:
        mounts = (proc / "mounts").read_text().splitlines()
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    points = [fields[1] for fields in (line.split() for line in mounts) if len(fields) > 2 and fields[2] == "cgroup2"]
    own = [line[3:] for line in groups if line.startswith("0::")]
    if not points or not own:
        return None
    mine = Path(points[0] + own[0].rstrip("/"))
    folder = mine if own[0] == "/" else mine.parent
    try:
        controllers = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return None
    return folder if "memory" in controllers and os.access(folder, os.W_OK) else None


class MemoryGroup:
    """A cgroup with a hard memory limit, for one attempt."""

    def __init__(self, folder: Path, name: str, limit_bytes: int) -> None:
        """Raises OSError when the kernel does not allow it after all."""
        self.path = folder / f"actorgrid-{name}"
        self.path.mkdir(exist_ok=True)
        try:
            (self.path / "memory.max").write_text(str(limit_bytes))
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        except OSError:
            self.remove()
            raise

    def enter(self) -> None:
        """Move this process in; its children follow."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def was_exceeded(self) -> bool:
        """Whether the kernel killed anything here for its memory."""
        try:
            events = (self.path / "memory.events").read_text().split()
        except OSError:
            return False
        counts = dict(zip(events[::2], events[1::2], strict=False))
        return int(counts.get("oom_kill", "0")) > 0

    def kill(self) -> None:
        """SIGKILL everything inside, where the kernel offers it."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:
            return

    def remove(self) -> None:
        """Take the empty group away; a busy one stays for the next start to find."""
        try:
            self.path.rmdir()
        except OSError:
            return
