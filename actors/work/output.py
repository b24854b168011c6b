"""One stream of users' output: from a pipe into a bounded file, with a full disk holding the writer back."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable

from actorgrid.errors import NotARegularFile

from .attempt_dir import AttemptDir
from .output_times import OutputTimes

OpenFile = Callable[[], int]
"""Opens a file to append to, and gives its descriptor. Raises NotARegularFile, OSError."""

READ_BYTES = 64 * 1024
FULL_DISK_RETRY_S = 0.5
DRAIN_PATIENCE_S = 10.0
"""How long output of a dead tree waits for room on a full disk."""


class OutputStream:
    """A pipe and its bounded file, by descriptors that are closed here. ``dropped`` counts what was not kept.

    A *file* may be what opens it, when there is something to write: most calls print nothing. What it cannot open
    (NotARegularFile) drops all. The pipe may be our end of a terminal. *times* notes when what came; ``None``: nobody
    does. *heard* gets all that came, also what is not kept.
    """

    def __init__(
        self,
        pipe: int,
        file: int | OpenFile,
        max_bytes: int,
        times: OutputTimes | None = None,
        heard: Callable[[bytes], None] = lambda _data: None,
    ) -> None:
        self.pipe: int | None = pipe
        self.dropped = 0
        self.blocked_until = 0.0
        self._room = max_bytes
        self._max = max_bytes
        self._pending = b""
        self._written = 0
        self._times = times
        self._file = file
        self._heard = heard
        os.set_blocking(pipe, False)

    @property
    def kept(self) -> int:
        """How much of what came is in the file."""
        return min(self._written, self._max)

    def drain(self, now: float) -> bool:
        """Carry one read into the file; ``False`` when there is nothing to read now (or the disk is full)."""
        if self.pipe is None or not self._write(now):
            return False
        data = self._read(self.pipe)
        if not data:
            return False
        self._heard(data)
        kept = data[: self._room]
        self._room -= len(kept)
        cut = len(data) - len(kept)
        if cut and not self.dropped:
            kept += f"\n[actorgrid: output beyond {self._max} bytes is dropped]\n".encode()
        self.dropped += cut
        self._pending = kept
        return self._write(now)

    def discard(self) -> bool:
        """Read once and throw it away; ``False`` when there is nothing to read now."""
        self.dropped += len(self._pending)
        self._pending, self.blocked_until = b"", 0.0
        if self.pipe is None:
            return False
        data = self._read(self.pipe)
        self.dropped += len(data)
        return bool(data)

    def _read(self, pipe: int) -> bytes:
        """One read of the pipe, which is closed at its end; empty when there is nothing now."""
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # so a terminal ends
                raise
            data = b""
        if not data:
            os.close(pipe)
            self.pipe = None
        return data

    def redirect(self, file: int | OpenFile, max_bytes: int, times: OutputTimes | None = None) -> None:
        """Write to another *file* from here on, with a count and *times* of its own; the one before is closed, and what
        could not be written to it is gone."""
        self._close_files()
        self._file, self._room, self._max, self._times = file, max_bytes, max_bytes, times
        self._pending, self._written, self.dropped, self.blocked_until = b"", 0, 0, 0.0

    def _write(self, now: float) -> bool:
        if self._pending and self._times is not None:
            self._times.note(self._written, time.time())
        while self._pending:
            opens = not isinstance(self._file, int)
            try:
                file = self._file = self._file if isinstance(self._file, int) else self._file()
                written = os.write(file, self._pending)
                self._pending = self._pending[written:]
                self._written += written
            except (OSError, NotARegularFile) as error:
                if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    if not opens:
                        raise
                    # The work itself has put something else there, or moved its folder away.
                    self.dropped += len(self._pending)
                    self._pending, self._room = b"", 0
                    return True
                self.blocked_until = now + FULL_DISK_RETRY_S  # not reading on is the back-pressure
                return False
        self.blocked_until = 0.0
        return True

    def close(self) -> None:
        """Count what could not be kept, and close."""
        self.dropped += len(self._pending)
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None
        self._close_files()

    def _close_files(self) -> None:
        if isinstance(self._file, int):
            os.close(self._file)
        if self._times is not None:
            self._times.close()


def carry_all(streams: Iterable[OutputStream], carry: Callable[[OutputStream], bool]) -> None:
    """Have *carry* pass on what the dead tree has written, for as long as a full disk may take."""
    patience = time.monotonic() + DRAIN_PATIENCE_S
    for stream in streams:
        while carry(stream) or (stream.blocked_until and time.monotonic() < patience):
            if stream.blocked_until:
                time.sleep(0.05)


def times_of(directory: AttemptDir) -> tuple[OutputTimes, OutputTimes]:
    """The times of both streams of an attempt: of its stdout, and of its stderr."""
    return (
        OutputTimes(lambda: directory.open_times("stdout")),
        OutputTimes(lambda: directory.open_times("stderr")),
    )
