"""One agent per data directory at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from actorgrid.errors import AlreadyRunning, DataDirUnusable

HANDED_DOWN = "_ACTORGRID_LOCK_FD"
"""Names the descriptor of a lock that an agent leaves to the program that takes its place."""
_DYING_S = 10.0


class AgentLock:
    """The lock on a data directory, held by all processes of its agent together.

    The lock is the open file, which forked processes share: a killed agent gives it up only when the last process
    of its actor system is gone, so no two agents ever work on one directory. Raises AlreadyRunning (``pid`` in its
    details), or DataDirUnusable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.handed_down = False
        """Whether it was an agent that we take the place of who held it, without a moment in between."""

    def hand_down(self) -> None:
        """Keep the lock held over ``exec``, for the program that takes this one's place."""
        os.set_inheritable(self._fd, True)
        os.environ[HANDED_DOWN] = str(self._fd)

    def _inherited(self) -> int:
        """The descriptor that was handed down, if it is one of this very file; else -1."""
        # Neither the name nor, below, the descriptor goes on to programs that are started from here: the directory
        # would stay locked for as long as those run.
        text = os.environ.pop(HANDED_DOWN, "")
        if not text.isdecimal():
            return -1
        try:
            found, wanted = os.fstat(int(text)), os.stat(self._path)
        except OSError:
            return -1
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            return -1
        os.set_inheritable(int(text), False)
        return int(text)

    def __enter__(self) -> AgentLock:
        self._fd = self._inherited()
        if self._fd >= 0:
            self.handed_down = True
            return self
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirUnusable(f"cannot open {self._path}: {error.strerror}", asked=str(self._path)) from error
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise
        # Not before the lock is ours: until then the file says who has it.
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def _take(self) -> None:
        deadline = monotonic() + _DYING_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pid = self._holder()
            except OSError as error:
                raise DataDirUnusable(f"cannot lock {self._path}: {error.strerror}", asked=str(self._path)) from error
            # A holder that is dead was killed a moment ago: the kernel is still ending its processes.
            if (pid is not None and is_alive(pid)) or monotonic() > deadline:
                who = f"process {pid}" if pid is not None else "another process"
                raise AlreadyRunning(
                    f"an agent runs on this data directory already, {who}",
                    asked=str(self._path.parent),
                    found=who,
                    hint="use that one, stop it, or give another directory with --data-dir",
                    pid=pid or 0,
                )
            sleep(0.01)

    def _holder(self) -> int | None:
        text = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        self._fd = -1


def handed_down() -> bool:
    """Whether the agent whose place this process takes left it the lock."""
    return HANDED_DOWN in os.environ


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])
