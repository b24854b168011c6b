"""Writes a little to the disk of the data directory, now and then, and says how long that takes.

In a thread of its own: a disk that hangs keeps whoever writes to it, and the server has to go on to say so. The file of
the host's failure history is written there, too. One write is under way at a time; one that does not come back is told
by how long it has been waited for.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from actorgrid.errors import DataDirUnusable

from ...files.identity import write_atomically

KEPT = 5
PROBE = bytes(4096)


class DiskProbe:
    """Probes the disk of *folder*. Every method but the thread's is called by the server."""

    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path = folder / ".disk_probe"
        self._clock = clock
        self._began_s: float | None = None
        self._latencies: deque[float] = deque(maxlen=KEPT)
        self._error = ""
        self._lock = threading.Lock()
        self.probes_total = 0

    def begin(self, files: dict[Path, bytes] | None = None) -> bool:
        """Begin a probe, and then write *files*; ``False``: the last one is not back yet."""
        with self._lock:
            if self._began_s is not None:
                return False
            self._began_s = self._clock()
        threading.Thread(target=self._run, args=(files or {},), name="disk-probe", daemon=True).start()
        return True

    def reading(self) -> tuple[tuple[float, ...], float, str, int]:
        """The last latencies in seconds, for how long one is waited for now, the last error, how many there were."""
        with self._lock:
            waits_s = 0.0 if self._began_s is None else max(0.0, self._clock() - self._began_s)
            return tuple(self._latencies), waits_s, self._error, self.probes_total

    def _run(self, files: dict[Path, bytes]) -> None:
        error, took_s = "", None
        try:
            took_s = self._write()
            for path, data in files.items():
                write_atomically(path, data)
        except OSError as failed:
            # A full disk is judged by the room on it, and has a message of its own.
            full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
            error = "" if full else f"{errno.errorcode.get(failed.errno or 0, '?')}: {failed.strerror}"
        except DataDirUnusable as failed:
            error = str(failed)
        with self._lock:
            self._began_s, self._error = None, error
            self.probes_total += 1
            if took_s is not None:
                self._latencies.append(took_s)

    def _write(self) -> float:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            began = monotonic()
            os.pwrite(descriptor, PROBE, 0)
            os.fdatasync(descriptor)
            return monotonic() - began
        finally:
            os.close(descriptor)
