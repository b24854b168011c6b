"""Which attempts of this host still have what they gave, and how much is kept that only later graphs may want."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from actorgrid.actors.ledger.attempt_ids import job_of

from .attempt_dir import AttemptDir


def kept_attempts(attempts_dir: Path, names: Iterable[str]) -> list[str]:
    """Those of *names* whose result is there. A name that is no attempt's is none."""
    return [name for name in names if "/" not in name and job_of(name) and _size(attempts_dir / name) is not None]


class CachedResults:
    """What is kept of ended graphs for later ones: up to so many bytes, those that ended longest ago go."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()

    @property
    def bytes(self) -> int:
        """What is known to be kept."""
        return sum(self._sizes.values())

    def too_many(self, folders: Iterable[Path], others: Iterable[Path], bytes_max: int) -> list[Path]:
        """Take note of *folders*, the newest first, that are kept for this alone, and of *others* that are not; gives
        those that are to go."""
        for folder in others:
            self._sizes.pop(folder.name, None)
        attempts_dir = None
        for folder in reversed(list(folders)):
            attempts_dir = folder.parent
            size = _size(folder)
            if size is not None and folder.name not in self._sizes:
                self._sizes[folder.name] = size
        total = self.bytes
        gone = []
        while total > bytes_max and attempts_dir is not None:
            name, size = self._sizes.popitem(last=False)
            total -= size
            gone.append(attempts_dir / name)
        return gone


def _size(folder: Path) -> int | None:
    try:
        return AttemptDir(folder.parent, folder.name).result.stat().st_size
    except OSError:
        return None
