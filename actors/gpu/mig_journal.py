"""Which GPUs this host has cut for work, and how they were before: a file, so that each can be put together again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files.identity import write_atomically
from .mig_report import MigInstance

ENTRIES_MAX = 128
KEPT_MAX = 64
FILE_BYTES_MAX = 2**20
_FIRST = ("enabled", "kept")


@dataclass(frozen=True, slots=True)
class MigBefore:
    """How a GPU was before it was first cut: whether MIG was on, and the instances that are somebody else's."""

    enabled: bool
    kept: tuple[str, ...] = ()
    making: str = ""
    """The profile of an instance that is being made: what a crash left of it is the agent's."""
    made: tuple[str, ...] | None = None
    """The instances that the agent made; ``None``: an earlier version wrote it, and took all but ``kept``."""

    def own(self, instances: Iterable[MigInstance]) -> frozenset[str]:
        """Those of a GPU's *instances* that the agent made; nobody else's are ever touched."""
        there = {each.uuid: each.profile for each in instances}
        if self.made is None:
            return frozenset(there) - set(self.kept)
        own = set(self.made) & there.keys()
        # One that was being made when the agent ended: by its profile, and only the one.
        others = [uuid for uuid in there if uuid not in own and uuid not in self.kept and there[uuid] == self.making]
        return frozenset(own | set(others[:1] if self.making else ()))


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
        text = json.dumps({uuid: _plain(before) for uuid, before in entries.items()})
        write_atomically(self._path, text.encode())
        self.before = entries


def _plain(before: MigBefore) -> dict[str, Any]:
    return {name: value for name, value in asdict(before).items() if before.made is not None or name in _FIRST}


def _read(path: Path) -> dict[str, MigBefore]:
    """What is in the file; nothing of one that is not there, or is broken: it is written whole or not at all."""
    try:
        with open(path, "rb") as file:
            told: Any = json.loads(file.read(FILE_BYTES_MAX))
        return {str(uuid): _entry(one) for uuid, one in list(told.items())[:ENTRIES_MAX]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _entry(one: Any) -> MigBefore:
    kept = tuple(str(each) for each in one["kept"][:KEPT_MAX])
    if "made" not in one:
        return MigBefore(one["enabled"] is True, kept)
    return MigBefore(
        one["enabled"] is True, kept, str(one["making"])[:64], tuple(str(each) for each in one["made"][:KEPT_MAX])
    )
