"""Which MPS daemons this host has started, and which work goes without one: a file, for the coordinator's next start.

Daemons outlive the agent, as work does. One is known again by its process id and the moment at which it started.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..files.identity import write_atomically
from .mps_shares import DAEMONS_MAX, MpsKey

WITHOUT_MAX = 4096
NO_UIDS: Mapping[str, int] = {}
FILE_BYTES_MAX = 2**20


class DaemonProcess(NamedTuple):
    """A process, told from another of the same id by when it started, in ticks after the machine did."""

    pid: int
    ticks: int


class MpsJournal:
    """``is_on`` (whether shares were put under MPS), ``daemons``, ``without`` and ``uids`` (of work that has a uid of
    its own) are what was written last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_on, self.daemons, self.without, self.uids = _read(path)

    def write(
        self,
        is_on: bool,
        daemons: Mapping[MpsKey, DaemonProcess],
        without: Iterable[str],
        uids: Mapping[str, int] = NO_UIDS,
    ) -> None:
        """Write what is so now, if it is not what is there. Raises DataDirUnusable."""
        listed = frozenset(sorted(without)[:WITHOUT_MAX])
        known = dict(sorted(uids.items())[:WITHOUT_MAX])
        if (is_on, dict(daemons), listed, known) == (self.is_on, self.daemons, self.without, self.uids):
            return
        told = {
            "on": is_on,
            "daemons": [[*key, *process] for key, process in daemons.items()],
            "without": sorted(listed),
            "uids": known,
        }
        write_atomically(self._path, json.dumps(told).encode())
        self.is_on, self.daemons, self.without, self.uids = is_on, dict(daemons), listed, known


def _read(path: Path) -> tuple[bool, dict[MpsKey, DaemonProcess], frozenset[str], dict[str, int]]:
    """What is in the file; nothing of one that is not there, or is broken: it is written whole or not at all."""
    try:
        with open(path, "rb") as file:
            told: Any = json.loads(file.read(FILE_BYTES_MAX))
        daemons = {
            # Without a uid: from before there were any.
            MpsKey(str(uuid), str(tenant), *map(int, uid)): DaemonProcess(int(pid), int(ticks))
            for uuid, tenant, *uid, pid, ticks in told["daemons"][:DAEMONS_MAX]
        }
        uids = {str(id): int(uid) for id, uid in dict(told.get("uids", {})).items()}
        return told["on"] is True, daemons, frozenset(str(id) for id in told["without"][:WITHOUT_MAX]), uids
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False, {}, frozenset(), {}
