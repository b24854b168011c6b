"""Which GPUs this host has cut for work, and how they were before: a file, so that each can be put together again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files.identity import write_atomically

ENTRIES_MAX = 128
KEPT_MAX = 64
FILE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class MigBefore:
    """How a GPU was before it was first cut: whether MIG was on, and the instances that are somebody else's."""

    enabled: bool
    kept: tuple[str, ...] = ()


class MigJournal:
    """``before`` has each GPU that is cut for work, by UUID; it is on disk before it is here, and before the cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before: dict[str, MigBefore] = _read(path)

    def keep(self, uuid: str, before: MigBefore) -> bool:
        """Note how a GPU is, before it is cut, or who made what in it since; ``False``: there is no room for it.

        Raises DataDirUnusable: then it must not be cut.
        """
        if uuid not in self.before and len(self.before) >= ENTRIES_MAX:
            return False
        self._write({**self.before, uuid: before})
        return True

    def forget(self, uuid: str) -> None:
        """Note that a GPU is as it was. Raises DataDirUnusable."""
        if uuid in self.before:
            self._write({known: before for known, before in self.before.items() if known != uuid})

    def _write(self, entries: dict[str, MigBefore]) -> None:
        text = json.dumps({uuid: asdict(before) for uuid, before in entries.items()})
        write_atomically(self._path, text.encode())
        self.before = entries


def _read(path: Path) -> dict[str, MigBefore]:
    """What is in the file; nothing of one that is not there, or is broken: it is written whole or not at all."""
    try:
        with open(path, "rb") as file:
            told: Any = json.loads(file.read(FILE_BYTES_MAX))
        return {
            str(uuid): MigBefore(one["enabled"] is True, tuple(str(each) for each in one["kept"][:KEPT_MAX]))
            for uuid, one in list(told.items())[:ENTRIES_MAX]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
