"""Which power limits of this host's devices we changed, and what they were: a file, so that each can be put back."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ..files.identity import write_atomically

ENTRIES_MAX = 1024
FILE_BYTES_MAX = 2**20


class LimitJournal:
    """``before`` has the limit, in watts, that each changed device had, by UUID; it is on disk before it is here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before: dict[str, float] = _read(path)

    def keep(self, uuid: str, watts: float) -> None:
        """Note what a device has, before it is changed. Raises DataDirUnusable: then it must not be changed."""
        if uuid not in self.before and len(self.before) < ENTRIES_MAX:
            self._write({**self.before, uuid: watts})

    def forget(self, uuid: str) -> None:
        """Note that a device has again what it had. Raises DataDirUnusable: then it is put back once more, later."""
        if uuid in self.before:
            self._write({known: watts for known, watts in self.before.items() if known != uuid})

    def _write(self, entries: dict[str, float]) -> None:
        write_atomically(self._path, json.dumps(entries).encode())
        self.before = entries


def _read(path: Path) -> dict[str, float]:
    """What is in the file; nothing of one that is not there, or is broken: it is written whole or not at all."""
    try:
        with open(path, "rb") as file:
            told = json.loads(file.read(FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        str(uuid): float(watts)
        for uuid, watts in list(told.items())[:ENTRIES_MAX]
        if isinstance(watts, int | float) and math.isfinite(watts) and watts > 0
    }
