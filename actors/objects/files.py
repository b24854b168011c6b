"""The files that objects lie in: for each space one in memory, and one on the disk. Neither has a name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from actorgrid.transports.object_frames import MEMORY

from .block_allocator import FileOf, StoreLimits

KEEP_FREE_BYTES = 2**30
"""So much of the file system is left to others."""
COPY_BYTES = 16 * 2**20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class SpaceFiles:
    """The files of all spaces, made when something is to lie there. Those on the disk lie in *folder*."""

    def __init__(self, folder: Path, limits: StoreLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._files: dict[FileOf, int] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fd(self, file: FileOf) -> int:
        """The descriptor of a file. Raises OSError."""
        found = self._files.get(file)
        if found is None:
            found = self._files[file] = self._memory() if file.kind == MEMORY else self._on_disk()
        return found

    def _memory(self) -> int:
        fd = os.memfd_create("actorgrid-objects", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self._limits.memory_bytes)
        # Whoever shortened it would kill those that read there.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd

    def _on_disk(self) -> int:
        try:
            fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # a file system that has no files without a name
            fd, name = tempfile.mkstemp(dir=self._folder)
            os.unlink(name)
        try:
            os.ftruncate(fd, self._limits.disk_bytes)
        except OSError:
            os.close(fd)
            raise
        return fd

    def to_send(self, file: FileOf, writable: bool) -> int:
        """A descriptor for a process: one to read can not be written to by mistake. Raises OSError."""
        fd = self.fd(file)
        if not writable:
            with suppress(OSError):
                return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        return os.dup(fd)

    def reserve(self, file: FileOf, offset: int, size: int) -> bool:
        """Take room on the disk; ``False`` when it has none."""
        try:
            if self._is_short(size):
                return False
            os.posix_fallocate(self.fd(file), offset, size)
        except OSError:
            return False
        return True

    def _is_short(self, size: int) -> bool:
        there = os.statvfs(self._folder)
        return there.f_bavail * there.f_frsize < size + KEEP_FREE_BYTES

    def punch(self, file: FileOf, offset: int, size: int) -> None:
        """Give a range back to the system."""
        fd = self._files.get(file)
        if fd is not None:
            # Where a file system cannot, it stays taken until the file goes.
            _libc.fallocate64(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(size))

    def read(self, file: FileOf, offset: int, size: int) -> bytes:
        """The bytes there. Raises OSError."""
        return os.pread(self.fd(file), size, offset)

    def write(self, file: FileOf, offset: int, data: bytes) -> None:
        """Write there. Raises OSError."""
        if os.pwrite(self.fd(file), data, offset) < len(data):
            raise OSError("the disk is full")

    def copier(self, source: FileOf, source_offset: int, target: FileOf, target_offset: int, size: int) -> Copier:
        """What copies between two files. Raises OSError where there is no room for it."""
        if self._is_short(size):
            raise OSError("the disk is full")
        return Copier(os.dup(self.fd(source)), source_offset, os.dup(self.fd(target)), target_offset, size)

    def close(self, space: int) -> None:
        """Close the files of a space; what processes have mapped of them stays readable there."""
        for file in [file for file in self._files if file.space == space]:
            os.close(self._files.pop(file))


class Copier:
    """One copy, for another thread: it has descriptors of its own."""

    def __init__(self, source: int, source_offset: int, target: int, target_offset: int, size: int) -> None:
        self._source = source
        self._at = source_offset
        self._end = source_offset + size
        self._target = target
        self._target_offset = target_offset

    def run(self) -> bool:
        """Copy; whether all of it was."""
        try:
            os.lseek(self._target, self._target_offset, os.SEEK_SET)
            while self._at < self._end:
                copied = os.sendfile(self._target, self._source, self._at, min(COPY_BYTES, self._end - self._at))
                if not copied:
                    return False
                self._at += copied
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(self._source)
            os.close(self._target)
