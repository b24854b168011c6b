"""How often the kernel has killed for want of memory, as far as it tells whoever asks."""

from __future__ import annotations

from pathlib import Path

from .linux import read_kernel_file

VMSTAT = Path("/proc/vmstat")


def oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """How many processes the kernel has killed on this machine for want of memory, of the machine or of a cgroup.

    ``None`` where it does not say (before Linux 4.13, or without /proc).
    """
    try:
        # Some 180 lines, of which one is wanted.
        _, found, rest = (b"\n" + read_kernel_file(str(vmstat))).partition(b"\noom_kill ")
        return int(rest.partition(b"\n")[0]) if found else None
    except (OSError, ValueError):
        return None


class OomKillsSince:
    """What the kernel has killed for want of memory since some work began."""

    def __init__(self, vmstat: Path = VMSTAT) -> None:
        self._vmstat = vmstat
        self.begin()

    def begin(self) -> None:
        """Begin to count anew: other work begins."""
        self._before = oom_kills(self._vmstat)

    @property
    def count(self) -> int:
        """How many since; 0 where the kernel does not say."""
        now = oom_kills(self._vmstat)
        return 0 if now is None or self._before is None else max(0, now - self._before)
