"""What the ledger still takes when the disk runs full: first nothing new, and at the very end nothing at all.

What is about accepted work goes on in the space that is kept for it (``files/disk_reserve.py``).
"""

from __future__ import annotations

from actorgrid.actors.files.disk_reserve import free_bytes
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import SubmitJobs
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import DiskFull

from .replica import Replica


class DiskSpace:
    """What one host's ledger, written by *replica*, takes at the present free space. Keeps nothing itself."""

    def __init__(self, replica: Replica, paths: HostPaths, settings: Settings) -> None:
        self._replica = replica
        self._paths = paths
        self._settings = settings

    @property
    def free_bytes(self) -> int:
        """Free bytes on the ledger's disk."""
        return free_bytes(self._paths.ledger_dir)

    def refuse(self, command: type[Command]) -> None:
        """Raises DiskFull for a command that there is no space for."""
        if self._replica.full is not None:
            raise self._replica.full  # not even what was accepted can be recorded
        if not command.new_work:
            return
        if self._replica.tight is not None:
            raise self._replica.tight
        free, wanted = self.free_bytes, self._settings.performance.min_free_bytes
        if free < wanted:
            raise DiskFull(
                "the disk is nearly full, so no new work is accepted",
                asked=f"{wanted} bytes free (performance.min_free_bytes)",
                found=f"{free} bytes free under {self._paths.data_dir}",
                hint="free some space; everything accepted is kept and goes on",
                free_bytes=free,
                min_free_bytes=wanted,
            )

    def accepts_new_work(self) -> bool:
        """Whether there is space for new work."""
        try:
            self.refuse(SubmitJobs)
        except DiskFull:
            return False
        return True

    def look(self) -> bool:
        """Set the space for accepted work aside again where there is some; true when new work is accepted again."""
        least = self._settings.performance.min_free_bytes
        reserve = self._replica.reserve
        held = reserve.refill(least)
        tight = self._replica.tight is not None or self._replica.full is not None
        if tight and (held or reserve.size_bytes == 0) and self.free_bytes >= least:
            self._replica.retry()
            return True
        return False
