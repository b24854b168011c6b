"""The ledger's log against a bare file: appends of 64 entries, each made durable by one fdatasync."""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from actorgrid.actors.files.disk_reserve import DiskReserve
from actorgrid.actors.raft.messages import ConfState, Entry, HardState, Ready
from actorgrid.actors.raft.storage.disk import RaftStorage
from actorgrid.actors.raft.storage.failure_marker import FailureMarker
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.raft.storage.store import Store
from actorgrid.actors.raft.storage.writer import LogWriter

from .figures import Figure, latency, registry

BATCH = 64
ENTRY_BYTES = 200
BATCHES = 1_500
SLICE = 25
"""Batches by one, then by the other: the machine's moods meet both."""
SEGMENT_BYTES = 16 * 2**20

Append = Callable[[], None]


@registry.add("ledger_log")
def ledger_log(runs: int) -> Iterator[Figure]:
    """Durable appends: what a bare file reaches, the log's share of it, the same through the log's thread."""
    bare: list[list[float]] = []
    ours: list[list[float]] = []
    threaded: list[list[float]] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # not on a memory file system
            sides = (Bare(Path(folder)), Log(Path(folder)), Threaded(Path(folder)))
            samples: tuple[list[float], ...] = ([], [], [])
            for turn in range(BATCHES // SLICE):
                for number in range(3):
                    side = (turn + number) % 3  # nobody always comes after the same one
                    samples[side].extend(_timed(sides[side].append, SLICE))
            for each in sides:
                each.close()
        for kept, found in zip((bare, ours, threaded), samples, strict=True):
            kept.append(found)
    entries = f"{BATCH} entries of {ENTRY_BYTES} bytes"
    yield latency(f"bare file, {entries} + fdatasync", bare, "ms", 1e3)
    yield latency(f"log, {entries} + fdatasync", ours, "ms", 1e3)
    yield latency(f"log's thread, {entries} + fdatasync", threaded, "ms", 1e3)
    shares = [100 * sum(a) / sum(b) for a, b in zip(bare, ours, strict=True)]
    yield Figure("log, share of a bare file's rate", "%", shares, True, must=80.0, note="same bytes of data, one run")
    shares = [100 * sum(a) / sum(b) for a, b in zip(bare, threaded, strict=True)]
    yield Figure("log's thread, share of a bare file's rate", "%", shares, True, note="one Ready under way")
    rates = [BATCH * len(each) / sum(each) for each in ours]
    yield Figure("log, durable entries, batches of 64", "entries/s", rates, True)


def _timed(append: Append, count: int) -> list[float]:
    found = []
    for _ in range(count):
        started = time.perf_counter()
        append()
        found.append(time.perf_counter() - started)
    return found


class Bare:
    """A file and nothing else: the same data, one write, one fdatasync; a new file as often as the log begins one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = bytes(ENTRY_BYTES) * BATCH
        self._files = 0
        self._fd = -1
        self._offset = SEGMENT_BYTES

    def append(self) -> None:
        if self._offset >= SEGMENT_BYTES:
            self.close()
            self._fd = os.open(self._folder / f"bare{self._files}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._offset, self._files = 0, self._files + 1
        self._offset += os.pwrite(self._fd, self._data, self._offset)
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _batch(after: int, term: int) -> tuple[Entry, ...]:
    return tuple(Entry(after + number, term, "command", bytes(ENTRY_BYTES)) for number in range(1, BATCH + 1))


class Log:
    """The log, appended to."""

    def __init__(self, folder: Path) -> None:
        self._log = SegmentLog.open(folder / "log", SEGMENT_BYTES)
        self._next = [_batch(BATCH * number, 1) for number in range(BATCHES)]
        self._next.reverse()

    def append(self) -> None:
        self._log.append(self._next.pop())

    def close(self) -> None:
        self._log.close()


class Threaded:
    """One Ready (entries and hard state) under way at a time, as the core gives them out."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder / "state.db")
        self._log = SegmentLog.open(folder / "threaded", SEGMENT_BYTES)
        storage = RaftStorage(self._log, self._store, ConfState(voters=(1,)))
        self._writer = LogWriter(storage, FailureMarker(folder / "failed"), "bench", DiskReserve(folder / "reserve", 0))
        self._next = [
            Ready(HardState(1, 1, BATCH * number), None, _batch(BATCH * number, 1), None, (), (), (), (), True)
            for number in range(BATCHES)
        ]
        self._next.reverse()
        self._poll = select.epoll()
        self._poll.register(self._writer.fileno(), select.EPOLLIN)

    def append(self) -> None:
        self._writer.submit(self._next.pop())
        while not self._writer.durable():
            self._poll.poll()

    def close(self) -> None:
        self._poll.close()
        self._writer.close()
        self._log.close()
        self._store.close()
