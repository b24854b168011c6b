"""The working directories that came to this host: each unpacked once, and kept while there is room.

    FOLDER/DIGEST/, DIGEST.lock    what the archive of that SHA-256 holds, and its lock (held_folders.py)
    FOLDER/.build                  held while one is unpacked: one at a time

The processes of users' work unpack what their owner sent, contained as all their doings are (archives.py).
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actorgrid.errors import DiskFull
from actorgrid.working_dir import CONTENT_BYTES_MAX, FILES_MAX

from .archives import ArchiveKind, checked_bytes, unpack
from .held_folders import DRAFT, HeldFolders

KEPT_MAX = 64
KEPT_BYTES_MAX = 8 * 2**30
SENT = ArchiveKind("working directory", FILES_MAX, CONTENT_BYTES_MAX)


class WorkingDirs(HeldFolders):
    """The unpacked working directories in *folder*: at most ``KEPT_MAX``, and ``KEPT_BYTES_MAX`` bytes in all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "working directory", KEPT_MAX, KEPT_BYTES_MAX)

    def has(self, digest: str) -> bool:
        """Whether it is there, whole."""
        return self.path(digest).is_dir()

    def add(self, digest: str, archive: Callable[[], bytes]) -> Path:
        """Have it there, unpacked from *archive* if it is not yet. To be held before.

        Raises MalformedBody for an archive that breaks a bound or leads out, DiskFull when there is no room.
        """
        with self._building():
            path = self.path(digest)
            if path.is_dir():
                return path
            self._clear_drafts()
            draft = self._folder / f"{DRAFT}{secrets.token_hex(8)}"
            try:
                data = archive()
                size_bytes = checked_bytes(io.BytesIO(data), SENT)
                self._make_room(size_bytes)
                unpack(io.BytesIO(data), draft, SENT)
                self._note_size(digest, size_bytes)
                draft.rename(path)
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull("the disk is too full for the working directory", found=str(error)) from error
                raise
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            return path

    @contextmanager
    def _building(self) -> Iterator[None]:
        lock = os.open(self._folder / ".build", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _clear_drafts(self) -> None:
        for left in self._folder.glob(f"{DRAFT}*"):  # of who was killed: nobody else builds now
            shutil.rmtree(left, ignore_errors=True)
