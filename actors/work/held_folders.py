"""Folders that several processes of users' work share: made once, held by who uses them, removed for room.

    FOLDER/DIGEST/        what was made for that digest
    FOLDER/DIGEST.lock    held (flock, shared) by whoever uses it; holds its size in bytes; its time says when last

What is in them, and how it is made, is for others (working_dirs.py, built_environments.py). Whoever makes one writes
its size at the end. All methods block.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.files.untrusted_files import remove_tree
from actorgrid.digests import is_digest
from actorgrid.errors import DiskFull

DRAFT = ".draft-"
"""What the names begin with of what is being made, or removed."""


class HeldFolder(NamedTuple):
    """One of them, for the order in which they go."""

    used_at: float
    size_bytes: int
    digest: str


class HeldFolders:
    """The folders in *folder*: at most *count_max*, and *bytes_max* bytes in all.

    Beyond that the one that was used longest ago goes, of those that nobody uses. *what* they are is for messages.
    """

    def __init__(self, folder: Path, what: str, count_max: int, bytes_max: int) -> None:
        self._folder = folder
        self._what = what
        self._count_max = count_max
        self._bytes_max = bytes_max

    def path(self, digest: str) -> Path:
        """The place of that folder, whether it is there or not."""
        assert is_digest(digest), "whoever takes a digest from outside checks it"
        return self._folder / digest

    def hold(self, digest: str) -> int:
        """Keep it from being removed until the descriptor that this gives is closed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._lock(digest)
        while True:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            # Whoever removes a folder removes its lock with it: one that we got after that is of no file any more.
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(held).st_ino:
                    os.utime(held)
                    return held
            os.close(held)

    def kept(self) -> list[HeldFolder]:
        """Those that are there, used longest ago first."""
        found: list[HeldFolder] = []
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if is_digest(path.name):
                    lock = self._lock(path.name)
                    with suppress(OSError, ValueError):
                        size = lock.read_text(encoding="ascii")
                        known = int(size) if size.isdigit() else 0
                        found.append(HeldFolder(lock.stat().st_mtime, known, path.name))
        return sorted(found)

    def remove(self, digest: str) -> bool:
        """Remove it, unless somebody holds it or it is not there."""
        try:
            lock = os.open(self._lock(digest), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft = self._folder / f"{DRAFT}{secrets.token_hex(8)}"
            self.path(digest).rename(draft)
            self._lock(digest).unlink(missing_ok=True)
            remove_tree(draft)
            return True
        except (BlockingIOError, FileNotFoundError):
            return False
        finally:
            os.close(lock)

    def _make_room(self, size_bytes: int, but: str = "") -> None:
        """Remove others until one more of that size fits; *but* is not counted. Raises DiskFull when all are in use."""
        kept = [each for each in self.kept() if each.digest != but]
        count, total = len(kept), size_bytes + sum(each.size_bytes for each in kept)
        for each in kept:
            if count < self._count_max and total <= self._bytes_max:
                return
            if self.remove(each.digest):
                count, total = count - 1, total - each.size_bytes
        if count >= self._count_max or total > self._bytes_max:
            raise DiskFull(
                f"there is no room for another {self._what}: all that are kept are in use",
                asked=f"{size_bytes} bytes",
                found=f"{count} of {self._count_max}, {total - size_bytes} of {self._bytes_max} bytes",
                hint=f"wait for work with another {self._what} to end, or make this one smaller",
            )

    def _note_size(self, digest: str, size_bytes: int) -> None:
        self._lock(digest).write_text(str(size_bytes), encoding="ascii")

    def _lock(self, digest: str) -> Path:
        return self._folder / f"{digest}.lock"
