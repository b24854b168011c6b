"""One uid for each user whose work is kept apart on this host, written down before it is used and never given twice.

A uid is of the user's full name, and so of one tenant. The numbers are this data directory's: a block of 65,536 above
all that login, subordinate and container uids are taken from, which no other data directory of this machine has
(``uid_blocks.py``). What a user's work leaves behind belongs to nobody else, however long it stays.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from actorgrid.configs.fsync import sync_folder
from actorgrid.configs.work_uids import BLOCK, BLOCKS, FIRST_UID
from actorgrid.errors import DiskFull, IsolationNotGiven

from .uid_blocks import REGISTRY, claim_block

TABLE_BYTES_MAX = 16 * 2**20


class WorkUids:
    """The table of a data directory. Bound: 65,536 users; nobody is ever taken out.

    *registry*: where the machine's data directories say which blocks are theirs.
    """

    def __init__(self, data_dir: Path, registry: Path = REGISTRY) -> None:
        self._data_dir, self._registry = data_dir, registry
        self._path = data_dir / "uids.json"
        self._first = 0
        self._uids: dict[str, int] | None = None

    def uid_of(self, user: str) -> int:
        """The uid of *user*, given now if there is none. Raises IsolationNotGiven, DiskFull."""
        if self._uids is None:
            table = self._read()
            held = {(uid - FIRST_UID) // BLOCK for uid in table.values()}
            self._first = FIRST_UID + claim_block(self._data_dir, held, self._registry) * BLOCK
            self._uids = table
        found = self._uids.get(user)
        if found is None:
            found = max(self._uids.values(), default=self._first - 1) + 1
            if found >= self._first + BLOCK:
                raise IsolationNotGiven("every uid of this host has been given to a user", asked=user)
            self._write({**self._uids, user: found})
            self._uids[user] = found
        return found

    def _read(self) -> dict[str, int]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            table = json.loads(data)
        except ValueError:
            table = None
        fits = isinstance(table, dict) and all(
            type(uid) is int and FIRST_UID <= uid < FIRST_UID + BLOCKS * BLOCK for uid in table.values()
        )
        if not isinstance(table, dict) or not fits or len(set(table.values())) != len(table):
            # A guess would give one user's uid to another.
            raise IsolationNotGiven(
                "the table of the uids that work has here cannot be read",
                asked=str(self._path),
                hint="put back a copy; without one, remove it once nothing that users left on this host is wanted",
            )
        return table

    def _write(self, table: dict[str, int]) -> None:
        draft = self._path.with_name(f"{self._path.name}.tmp")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(table).encode())
                file.flush()
                os.fsync(fd)
            os.replace(draft, self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise DiskFull(f"cannot write down a uid: {error.strerror}", asked=str(self._path)) from error
