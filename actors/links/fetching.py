"""Files of other hosts brought here: whole, checked and on the disk for good, or not at all.

Each file is fetched once at a time, however many ask for it. Bound: ``FETCHES_MAX`` at once; who is one too many waits.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import ActorGridError, DiskFull, MalformedMessage, NotFound, StorageError
from actorgrid.supervisors.runtime import Waiter

from .pieces import PIECE_BYTES_MAX, Fields, Piece

FETCHES_MAX = 16
FILE_BYTES_MAX = 2**30
"""Of one file; a payload came in one HTTP body (``security.max_body_bytes`` is at most this)."""
FETCHING = ".fetching-"
"""Prefix of what does not have its name yet. Not the gateway's: it clears its own away when it starts, while we write.

What a killed process leaves is swept with the payloads that no job names.
"""

Ask = Callable[[str, str, Fields], Awaitable[object]]
BringWhole = Callable[[str, str, int, int], Awaitable[bool]]
"""(host id, digest, size, descriptor) -> whether all of it was written there, with that digest."""
WHOLE_BYTES_MIN, WHOLE_BYTES_MAX = 8 * 2**20, 256 * 2**20
"""Payloads of such sizes are brought whole: smaller ones are not worth the connections, larger ones not the memory."""


class Fetching:
    """Fetches files. *ask*: (host id, service, fields) gives the host's plain answer. *bring*: a faster way for large
    payloads, after which the rest comes as ever where it gave nothing."""

    def __init__(self, ask: Ask, bring: BringWhole | None = None) -> None:
        self._ask = ask
        self._bring = bring
        self._under_way: dict[Path, list[Waiter]] = {}
        self._line: deque[Waiter] = deque()
        self.fetched_total = 0
        self.fetched_bytes_total = 0

    async def fetch(
        self,
        path: Path,
        hosts: list[str],
        service: str,
        fields: Fields,
        digest: str = "",
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Fetch a file to *path*, from the first of *hosts* that gives it whole and with this SHA-256.

        Raises what the last of them failed with: NotFound, HostUnreachable, ...; DiskFull, StorageError.
        """
        while len(self._under_way) >= FETCHES_MAX and path not in self._under_way:
            turn = Waiter()
            self._line.append(turn)
            await turn
        if path in self._under_way:
            waiter = Waiter()
            self._under_way[path].append(waiter)
            await waiter
            return
        if path.exists():
            self._next()
            return
        self._under_way[path] = []
        error: ActorGridError | None = NotFound("no host is known that could have it", asked=path.name)
        for host_id in hosts:
            try:
                await self._fetch(path, host_id, service, fields, digest, bytes_max)
                error = None
                break
            except ActorGridError as failure:
                error = failure
        for waiter in self._under_way.pop(path):
            if error is None:
                waiter.set(None)
            else:
                waiter.fail(error)
        self._next()
        if error is not None:
            raise error

    def _next(self) -> None:
        if self._line:
            self._line.popleft().set(None)

    async def _fetch(self, path: Path, host_id: str, service: str, fields: Fields, digest: str, bytes_max: int) -> None:
        draft = path.with_name(f"{FETCHING}{secrets.token_hex(8)}")
        found = hashlib.sha256()
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                offset, size, whole = 0, 1, False
                while offset < size:
                    asked = {**fields, "offset": offset, "size": PIECE_BYTES_MAX}
                    piece = Piece.of_plain(await self._ask(host_id, service, asked))
                    if max(piece.size, offset + len(piece.data)) > bytes_max:
                        raise MalformedMessage(
                            f"host {host_id} offers a file that is too large",
                            asked=f"{path.name}, at most {bytes_max} bytes",
                            found=f"{piece.size} bytes",
                        )
                    if await self._brought(host_id, service, digest, piece.size if not offset else 0, file.fileno()):
                        offset, whole = piece.size, True
                        break
                    if not piece.data and offset < piece.size:
                        raise MalformedMessage(f"host {host_id} gives less of a file than it says it has")
                    file.write(piece.data)
                    found.update(piece.data)
                    offset, size = offset + len(piece.data), piece.size
                file.flush()
                os.fsync(file.fileno())
            if digest and not whole and found.hexdigest() != digest:
                raise MalformedMessage(f"host {host_id} has another content under that digest", asked=digest)
            os.replace(draft, path)
            sync_folder(path.parent)
        except OSError as error:
            draft.unlink(missing_ok=True)
            kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
            raise kind(f"cannot keep what host {host_id} gives: {error.strerror}", asked=path.name) from error
        except ActorGridError:
            draft.unlink(missing_ok=True)
            raise
        self.fetched_total += 1
        self.fetched_bytes_total += offset

    async def _brought(self, host_id: str, service: str, digest: str, size: int, fd: int) -> bool:
        """Whether a payload of that size was brought whole, and is what its digest says."""
        if self._bring is None or service != "blob" or not digest or not WHOLE_BYTES_MIN <= size <= WHOLE_BYTES_MAX:
            return False
        return await self._bring(host_id, digest, size, fd)
