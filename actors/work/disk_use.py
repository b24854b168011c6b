"""What work holds on a disk: in folders that are its own, in files without a name, and in those it writes elsewhere.

The trees are hostile: as deep, as wide and as changing as somebody likes, with links out of them. A walk has one
descriptor open at a time, goes up again by ``..`` and looks whether that is where it came from, follows no link, stays
on its file system, and ends after so many entries. It opens nothing but folders. What the kernel gives is counted in
blocks: a sparse file costs what it has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .disk_limits import DiskRoom, DiskUse

BLOCK_BYTES = 512
"""Of ``st_blocks``, whatever the file system's are."""
OPEN_FILES_MAX = 100_000
"""Open files and mappings of one piece of work that are looked at in one look."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def room_of(folder: Path) -> DiskRoom:
    """The room on the file system of *folder*. Raises OSError."""
    found = os.statvfs(folder)
    size = found.f_frsize
    return DiskRoom(found.f_bavail * size, found.f_blocks * size, found.f_favail, found.f_files)


class DiskCount:
    """Counts what one piece of work holds on the file system *device*, each file once.

    *uid*: its own, where that is nobody else's; 0: it has the agent's. *entries_max*: of all its trees together.
    """

    def __init__(self, device: int, uid: int, entries_max: int) -> None:
        self._device, self._uid = device, uid
        self._left = entries_max
        self._open_left = OPEN_FILES_MAX
        self._bytes = self._files = 0
        self._is_whole = True
        self._seen: set[int] = set()  # inodes with another name, or an open descriptor
        self._linked: dict[int, int] = {}  # of files with several names: how many of them were met

    @property
    def use(self) -> DiskUse:
        """What was counted."""
        return DiskUse(self._bytes, self._files, self._is_whole)

    # -- trees

    def add_tree(self, top: str) -> None:
        """Count what lies in the folder *top*, itself included; nothing where there is none."""
        try:
            at = os.open(top, _FOLDER)
        except OSError:
            return
        try:
            # Of each folder above the one that is open: which it is, and those in it that are still to be entered.
            above: list[tuple[int, list[str]]] = []
            inode = self._add(os.fstat(at))
            inner = self._look_into(at)
            while True:
                if inner and self._left > 0:
                    below = self._entered(at, inner.pop())
                    if below < 0:
                        continue
                    above.append((inode, inner))
                    os.close(at)
                    at = below
                    inode, inner = os.fstat(at).st_ino, self._look_into(at)
                elif above:
                    inode, inner = above.pop()
                    back = os.open("..", _FOLDER, dir_fd=at)
                    os.close(at)
                    at = back
                    if os.fstat(at).st_ino != inode:
                        raise OSError("it was moved while it was looked at")
                else:
                    break
        except OSError:
            self._is_whole = False
        finally:
            os.close(at)
        self._is_whole = self._is_whole and self._left > 0

    def _entered(self, at: int, name: str) -> int:
        try:
            below = os.open(name, _FOLDER, dir_fd=at)
        except PermissionError:  # of an agent that is not root: its work, which has its uid, has shut it out
            below = self._opened_by_its_owner(at, name)
        except OSError:
            return -1  # gone, or another thing by now
        if below >= 0 and os.fstat(below).st_dev == self._device:
            return below
        if below >= 0:
            os.close(below)
        return -1

    def _opened_by_its_owner(self, at: int, name: str) -> int:
        with suppress(OSError):
            held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                os.chmod(f"/proc/self/fd/{held}", os.fstat(held).st_mode & 0o7777 | 0o500)
                return os.open(name, _FOLDER, dir_fd=at)
            finally:
                os.close(held)
        self._is_whole = False
        return -1

    def _look_into(self, at: int) -> list[str]:
        """Count the entries of an open folder; gives the names of those that are folders."""
        folders = []
        with os.scandir(at) as entries:
            for entry in entries:
                self._left -= 1
                if self._left <= 0:
                    break
                with suppress(OSError):
                    self._add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        return folders

    def _add(self, found: os.stat_result) -> int:
        inode = found.st_ino
        if found.st_dev != self._device or inode in self._seen:
            return inode
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode) and (not self._uid or found.st_uid != self._uid):
            # A second name of what others have, as of a directory that was sent along; or all its names are here.
            self._linked[inode] = self._linked.get(inode, 0) + 1
            if self._linked[inode] < found.st_nlink:
                return inode
        if found.st_nlink != 1:
            self._seen.add(inode)
        self._bytes += found.st_blocks * BLOCK_BYTES
        self._files += 1
        return inode

    # -- open files

    def add_open(self, pids: Iterable[int], *, named: bool) -> None:
        """Count the files of *pids* that have no name any more, which no walk finds; those as well that are open to be
        written and have one, wherever that is, with *named*.
        """
        for pid in pids:
            with suppress(OSError):  # gone meanwhile
                self._add_descriptors(f"/proc/{pid}/fd", named)
                self._add_mappings(pid)
            if self._open_left <= 0:
                self._is_whole = False
                return

    def _add_descriptors(self, folder: str, named: bool) -> None:
        for number in os.listdir(folder):
            self._open_left -= 1
            if self._open_left <= 0:
                return
            with suppress(OSError):
                path = f"{folder}/{number}"
                found = os.stat(path)
                # The modes of the link tell how the file is open.
                is_written = named and os.lstat(path).st_mode & stat.S_IWUSR
                if found.st_nlink == 0 or is_written:
                    self._add_open(found)

    def _add_mappings(self, pid: int) -> None:
        """A file that is mapped needs no descriptor."""
        with open(f"/proc/{pid}/maps", "rb") as lines:
            for line in lines:
                self._open_left -= 1
                if self._open_left <= 0:
                    return
                if line.endswith(b" (deleted)\n"):
                    place, _, _, _, inode, _ = line.split(None, 5)
                    if int(inode) in self._seen:
                        continue
                    with suppress(OSError):  # only root is told
                        self._add_open(os.stat(f"/proc/{pid}/map_files/{place.decode()}"))

    def _add_open(self, found: os.stat_result) -> None:
        if found.st_dev == self._device and stat.S_ISREG(found.st_mode) and found.st_ino not in self._seen:
            self._seen.add(found.st_ino)
            self._bytes += found.st_blocks * BLOCK_BYTES
            self._files += 1
