"""Payloads by content: on the disk for good before the job that names them is submitted."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import BadRequest, DiskFull, StorageError

INCOMING = ".incoming-"
"""Prefix of blobs that do not have their name yet."""
PIECE_BYTES = 1 << 20


class BlobStore:
    """Files named by the SHA-256 of their bytes, 0600. Methods block: call them from a thread pool.

    What holds the same bytes is kept once. Nothing is removed here but drafts of a process that died.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clear_drafts(self) -> int:
        """Remove what a killed predecessor left half written; only while nobody writes."""
        count = 0
        for path in self._folder.glob(f"{INCOMING}*"):
            path.unlink(missing_ok=True)
            count += 1
        return count

    def check_room(self, wanted_bytes: int, min_free_bytes: int) -> None:
        """Raises DiskFull when the disk would hold less than *min_free_bytes* afterwards."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise self._failed(error) from error
        if free - wanted_bytes < min_free_bytes:
            raise DiskFull(
                "the disk is too full to accept new work; what was accepted goes on",
                asked=f"{wanted_bytes} bytes",
                found=f"{free} bytes free, {min_free_bytes} of them kept for accepted work",
                hint="free some room on the data directory's disk, or lower performance.min_free_bytes",
            )

    def put_all(self, contents: Iterable[bytes]) -> list[str]:
        """Store each blob durably before this returns; gives the digests. Raises DiskFull, StorageError."""
        digests = [self._put(content) for content in contents]
        if digests:
            try:
                sync_folder(self._folder)
            except OSError as error:
                raise self._failed(error) from error
        return digests

    def put_file(self, source: BinaryIO, head: bytes, size_bytes: int) -> str:
        """Store *head* and behind it so many bytes of *source*, durably; gives the digest.

        Raises StorageError also when there are fewer, DiskFull.
        """
        found = hashlib.sha256(head)
        # Not the prefix of the others: the gateway clears those away when it starts, while another server writes this.
        draft = self._folder / f".copying-{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(head)
                left = size_bytes
                while left and (piece := source.read(min(left, PIECE_BYTES))):
                    file.write(piece)
                    found.update(piece)
                    left -= len(piece)
                if left:
                    raise OSError(errno.EIO, "it became shorter while it was read")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._folder / found.hexdigest())
            sync_folder(self._folder)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._failed(error) from error
        return found.hexdigest()

    def keep(self, digest: str, content: bytes, min_free_bytes: int) -> None:
        """Keep the *content* that was sent under its *digest*.

        Raises BadRequest for content that is not of that digest, DiskFull, StorageError.
        """
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadRequest("what was sent is not of that digest", asked=digest, hint="send it again")
        self.check_room(len(content), min_free_bytes)
        self.put_all([content])

    def has(self, digest: str) -> bool:
        """Whether a blob is here; if so, it is young again, so that no sweep takes it before a job names it."""
        try:
            os.utime(self._folder / digest)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failed(error) from error
        return True

    def _put(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._folder / digest
        try:
            if path.stat().st_size == len(content):
                # A fresh time, so that a sweep for old blobs does not take it before the job is committed.
                os.utime(path)
                return digest
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failed(error) from error
        draft = self._folder / f"{INCOMING}{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._failed(error) from error
        return digest

    def _failed(self, error: OSError) -> StorageError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(
                "the disk is full: the job was not accepted; what was accepted goes on",
                found=str(error.strerror),
                hint="free some room on the data directory's disk, then submit again",
            )
        return StorageError(
            f"cannot keep the payload: {error.strerror}", asked=str(self._folder), hint="check the data directory"
        )
