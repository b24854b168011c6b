"""Output of several members of a gang in one stream, a line at a time, each with its rank in front."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO

RANKS_MAX = 32
"""Members whose output is followed together at most."""
LINE_MAX = 64 * 1024
"""A longer line is cut: what comes after begins another one."""


class Labelled:
    """Writes whole lines of one member to *target*, after its label. Those that share a target share its *lock*."""

    def __init__(self, target: BinaryIO, rank: int, lock: threading.Lock) -> None:
        self._target = target
        self._label = f"[{rank}] ".encode()
        self._lock = lock
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Take a piece; what is no whole line yet is kept for the next one."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) >= LINE_MAX:
            lines.append(self._rest[:LINE_MAX])
            self._rest = self._rest[LINE_MAX:]
        self._put(lines)
        return len(data)

    def flush(self) -> None:
        """Pass on what was written whole."""
        with self._lock:
            self._target.flush()

    def end(self) -> None:
        """Write what is left of a last line that has no end."""
        if self._rest:
            self._put([self._rest])
            self._rest = b""
        self.flush()

    def _put(self, lines: list[bytes]) -> None:
        if lines:
            with self._lock:
                self._target.write(b"".join(self._label + line + b"\n" for line in lines))


class Ranks:
    """The labelled outputs of a gang, by rank and stream."""

    def __init__(self, ranks: int, outputs: dict[str, BinaryIO]) -> None:
        lock = threading.Lock()
        self.labelled = {
            (rank, stream): Labelled(target, rank, lock) for rank in range(ranks) for stream, target in outputs.items()
        }

    def end(self) -> None:
        """End all outputs, as all has come."""
        for each in self.labelled.values():
            each.end()


def members_of(job: dict[str, Any]) -> int:
    """The number of members that a job has."""
    return int(job.get("resources", {}).get("gang", 1))
