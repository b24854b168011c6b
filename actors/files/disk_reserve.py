"""A file that only takes up space, given back when the disk is full so that accepted work can still be recorded."""

from __future__ import annotations

import os
from pathlib import Path


class DiskReserve:
    """A file at *path* of ``size_bytes`` of allocated blocks, and of as good as none once released."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes

    @property
    def held(self) -> bool:
        """Whether the space is set aside now."""
        try:
            return self.size_bytes > 0 and self.path.stat().st_size >= self.size_bytes
        except FileNotFoundError:
            return False

    def release(self) -> bool:
        """Give the space back; ``False`` when there was none."""
        held = self.held
        self.path.unlink(missing_ok=True)
        return held

    def refill(self, keep_free_bytes: int) -> bool:
        """Set the space aside again when that leaves *keep_free_bytes*; whether it is held afterwards."""
        if self.held or self.size_bytes == 0:
            return self.held
        if free_bytes(self.path.parent) < self.size_bytes + keep_free_bytes:
            return False
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.size_bytes)
            finally:
                os.close(fd)
        except OSError:
            # Someone else took the space between the look and the grab: as before, none is held.
            self.path.unlink(missing_ok=True)
            return False
        return True


def free_bytes(folder: Path) -> int:
    """The bytes that this user may still write on the disk that holds *folder*."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
