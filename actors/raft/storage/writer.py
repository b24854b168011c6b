"""A thread that makes Readys durable, so that the core's loop never waits for a disk.

Order of each Ready: ``submit`` it; when it is durable ``durable`` gives it back to the loop, which may then send its
``persisted_messages``, apply and ``advance``. All that waits when the disk is free goes into one fdatasync. A Ready
that need not be synced is given back at once: its commit index is written with the next one, or within ``LAZY_S``.

A failed write or fsync ends it: nothing that waits becomes durable, the failure is remembered for this boot, nothing is
tried again. A full disk only makes it wait (``full`` says so) until ``retry`` finds room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque

from actorgrid.actors.files.disk_reserve import DiskReserve
from actorgrid.actors.raft.messages import HardState, RaftSnapshot, Ready
from actorgrid.errors import DiskFull, LogFailed, MailboxFull, StorageError

from .disk import RaftStorage
from .failure_marker import FailureMarker

log = logging.getLogger("actorgrid.consensus")

READYS_MAX = 64
BYTES_MAX = 64 * 2**20
"""Readys that wait, and bytes of data in them; one more is refused."""
LAZY_S = 0.2
"""Seconds until a commit index that came alone is written, where no Ready takes it along: one write for many."""


class LogWriter:
    """The thread that writes the log, and its queue. All public methods are for the loop's thread.

    ``fileno`` becomes readable when ``durable`` has something to say: a Ready, a failure, a full disk. On a full disk
    *reserve* is released once, for what was accepted before, and ``tight`` is set for the caller to clear; *marker* is
    where a failure is remembered. *in_place*: there is no thread, ``submit`` and ``keep_snapshot`` write before they
    return, and ``durable`` is asked at once; for a loop whose clock only moves when it is told to.
    """

    def __init__(
        self,
        storage: RaftStorage,
        marker: FailureMarker,
        boot_id: str,
        reserve: DiskReserve,
        in_place: bool = False,
    ) -> None:
        self.failed: StorageError | None = None
        self.full: DiskFull | None = None
        self.tight: DiskFull | None = None
        self._storage = storage
        self._marker = marker
        self._boot_id = boot_id
        self._reserve = reserve
        # For the fields below, ``failed`` and ``full``. Not held while the disk is at work: the loop must not wait so
        # long.
        self._changed = threading.Condition()
        self._waiting: deque[Ready | RaftSnapshot] = deque()
        self._waiting_bytes = 0
        self._lazy: HardState | None = None
        self._done: deque[Ready] = deque()
        self._closing = False
        self._complained = False
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        if not in_place:
            self._thread = threading.Thread(target=self._run, name="ledger log", daemon=True)
            self._thread.start()

    def fileno(self) -> int:
        """The descriptor to watch."""
        return self._told

    @property
    def has_capacity(self) -> bool:
        """Whether ``submit`` takes one more."""
        return len(self._waiting) < READYS_MAX and self._waiting_bytes < BYTES_MAX

    def submit(self, ready: Ready) -> bool:
        """Have *ready* stored; true when nothing must be durable first: go on with it at once.

        Raises the failure that ended the writer, or MailboxFull: ask ``has_capacity`` before taking a Ready.
        """
        with self._changed:
            if self.failed is not None:
                raise self.failed
            if not ready.must_sync:
                assert not ready.entries and ready.snapshot is None, "entries and snapshots must be synced"
                if ready.hard_state is not None:
                    self._lazy = ready.hard_state
                    if not self._waiting:
                        self._changed.notify()
                return True
            if not self.has_capacity:
                raise MailboxFull("too many Readys wait for the disk", found=f"{len(self._waiting)} waiting")
            if ready.hard_state is not None:
                self._lazy = None  # this one knows better
            self._waiting.append(ready)
            self._waiting_bytes += _size(ready)
            self._changed.notify()
        self._write_in_place()
        return False

    def keep_snapshot(self, snapshot: RaftSnapshot) -> None:
        """Store the state machine's snapshot, then drop the log behind the one before it.

        When that fails it is logged: the log then stays as long as it is.
        """
        with self._changed:
            self._waiting.append(snapshot)
            self._waiting_bytes += len(snapshot.data)
            self._changed.notify()
        self._write_in_place()

    def durable(self) -> list[Ready]:
        """The Readys that are durable since the last call, in order. Raises the failure that ended the writer."""
        with contextlib.suppress(BlockingIOError):  # asked without being told
            if self._told >= 0:
                os.eventfd_read(self._told)
        with self._changed:
            found = list(self._done)
            self._done.clear()
            if not found and self.failed is not None:
                raise self.failed
        return found

    def retry(self) -> None:
        """Try again to write what waits: there may be room on the disk."""
        with self._changed:
            self.full = None
            self._changed.notify()
        self._write_in_place()

    def close(self) -> None:
        """Store what waits, unless the disk is full or failed, and end the thread. Harmless when done already."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        elif self._lazy is not None and self.failed is None and self.full is None:
            self._turn()
        if self._told >= 0:
            os.close(self._told)
            self._told = -1

    # -- the thread

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            # The loop must hear of it: it would wait for ever for a thread that is gone.
            log.exception("the log's thread broke")
            self._fail(LogFailed(f"the log's thread broke: {error!r}"))

    def _work(self) -> None:
        while self.failed is None and self._wait():
            self._turn()

    def _write_in_place(self) -> None:
        while self._thread is None and self._waiting and self.failed is None and self.full is None:
            self._turn()

    def _turn(self) -> None:
        """Carry out what waits, or write the lazy state where nothing does."""
        with self._changed:
            batch = self._next()
            lazy, self._lazy = (self._lazy, None) if not batch else (None, self._lazy)
        try:
            self._carry_out(batch, lazy)
        except DiskFull as full:
            self._make_room(full)
        except StorageError as error:
            self._fail(error)

    def _wait(self) -> bool:
        """Wait until there is something to do; false when nothing more is to come."""
        with self._changed:
            while True:
                if self._closing and (self.full is not None or not (self._waiting or self._lazy)):
                    return False
                if self._waiting and self.full is None:
                    return True
                lazy = self._lazy is not None and self.full is None
                if self._closing and lazy:
                    return True
                told = self._changed.wait(LAZY_S if lazy else None)
                if not told and not self._waiting and self._lazy is not None:
                    return True

    def _next(self) -> list[Ready] | RaftSnapshot:
        """The next work to carry out together: a snapshot alone, or all Readys before the next snapshot."""
        batch: list[Ready] = []
        for item in self._waiting:
            if isinstance(item, RaftSnapshot):
                return batch or item
            batch.append(item)
        return batch

    def _carry_out(self, batch: list[Ready] | RaftSnapshot, lazy: HardState | None) -> None:
        if lazy is not None:
            self._storage.write_state(lazy)
            return
        if isinstance(batch, RaftSnapshot):
            self._keep(batch)
            count = 1
        else:
            self._storage.store(batch)
            count = len(batch)
        self._complained = False
        # Taken out only now: what a full disk refused stays first in the line, and is written again when there is room.
        with self._changed:
            for _ in range(count):
                item = self._waiting.popleft()
                self._waiting_bytes -= _size(item)
                if isinstance(item, Ready):
                    self._done.append(item)
        self._tell()

    def _keep(self, snapshot: RaftSnapshot) -> None:
        if snapshot.index <= self._storage.snapshot_index:
            return  # a newer one was received meanwhile
        try:
            self._storage.create_snapshot(snapshot.index, snapshot.conf_state, snapshot.data)
        except LogFailed:
            raise
        except StorageError as error:
            log.error("no snapshot, so the log behind it stays: %s", error)
            return
        dropped = self._storage.compact(snapshot.index)
        log.info("snapshot at entry %d; %d segments dropped", snapshot.index, dropped)

    def _make_room(self, full: DiskFull) -> None:
        self.tight = self.tight or full
        if self._reserve.release():
            log.warning("the reserve of %d bytes is used for what was accepted before", self._reserve.size_bytes)
            return
        if not self._complained:
            log.error("no room on the disk: what waits for it goes on waiting (%s)", full.found)
        self._complained = True
        with self._changed:
            self.full = full
        self._tell()

    def _fail(self, error: StorageError) -> None:
        log.critical("%s", error)
        # Before the loop hears of it, which ends the server: a start in this boot must find the mark.
        try:
            self._marker.write(self._boot_id, self._storage.log.end, error.message)
        except OSError as second:
            log.critical("cannot even remember that: %s", second)
        with self._changed:
            self.failed = error
            self._waiting.clear()
            self._waiting_bytes = 0
        self._tell()

    def _tell(self) -> None:
        os.eventfd_write(self._told, 1)


def _size(item: Ready | RaftSnapshot) -> int:
    """Bytes of data in *item*."""
    if isinstance(item, RaftSnapshot):
        return len(item.data)
    return sum(len(entry.data) for entry in item.entries) + (len(item.snapshot.data) if item.snapshot else 0)
