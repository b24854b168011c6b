"""Which tenants' users have sent which files to this host: to know a file's digest is not to have the file.

Blobs are kept once for all, by the SHA-256 of their bytes (``blob_store.py``). If any digest that is here could be
named in a job, whoever comes to know one would get the file; and whoever is told that one is here would know that
somebody has sent just that. So a blob is there for a tenant once one of its users has sent all of it:

    DATA_DIR/sent/TENANT.DIGEST      empty; TENANT: of the SHA-256 of its name; its time: when it was asked for last

Bounds: MARKS_MAX marks, of which those that were asked for longest ago go; none is kept longer than MARK_S without a
question. Who comes later sends again. Methods block.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from actorgrid.errors import StorageError

MARKS_MAX = 100_000
MARK_S = 30 * 86_400.0
SWEEP_EVERY = 1_000
"""New marks between two looks at how many there are."""
_TENANT_CHARACTERS = 32


class SentFiles:
    """The marks of one host. Raises StorageError where they cannot be written or read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._until_sweep = 0  # at first too: an agent that starts often may never come to as many

    def note(self, tenant: str, digest: str) -> None:
        """From here on the blob is there for *tenant*."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self._mark(tenant, digest), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            if self._until_sweep <= 0:
                self._until_sweep = SWEEP_EVERY
                self.sweep(time.time())
            self._until_sweep -= 1
        except OSError as error:
            raise _failed(error) from error

    def has(self, tenant: str, digest: str) -> bool:
        """Whether *tenant* has sent it, as far as is known."""
        try:
            os.utime(self._mark(tenant, digest))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(error) from error
        return True

    def sweep(self, now: float) -> None:
        """Forget what nobody asked for in MARK_S, and of more than MARKS_MAX a quarter, those of longest ago."""
        marks: list[tuple[float, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    marks.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        marks.sort()
        too_many = len(marks) - MARKS_MAX * 3 // 4 if len(marks) > MARKS_MAX else 0
        for number, (asked_at, path) in enumerate(marks):
            if number >= too_many and asked_at >= now - MARK_S:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _mark(self, tenant: str, digest: str) -> Path:
        return self._folder / f"{hashlib.sha256(tenant.encode()).hexdigest()[:_TENANT_CHARACTERS]}.{digest}"


def _failed(error: OSError) -> StorageError:
    return StorageError(
        f"cannot keep who has sent a file: {error.strerror}", asked=str(error.filename), hint="check the data directory"
    )
