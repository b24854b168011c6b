"""What the Raft core reads and its Readys write, on disk: entries and hard state in the log, snapshots in the store.

``RaftStorage`` is a ``raft.storage.Storage``. Reading is for the core's thread, ``store``, ``create_snapshot`` and
``compact`` for one thread that writes; both may run at the same time. The members as of the applied index are those of
the newest snapshot: a start applies what follows it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from actorgrid.actors.raft.messages import NO_NODE, ConfState, Entry, HardState, RaftSnapshot, Ready
from actorgrid.errors import LogCorrupted

from .durable_watermark import acknowledged_lost
from .log import Cut, LogChange, Reset, SegmentLog
from .memory import Compacted, Unavailable
from .segments import RECOVERY_HINT
from .store import Store, StoredSnapshot


class RaftStorage:
    """Memory: that of the log (``entry_table``), and the newest snapshot once it was asked for.

    *members* is who they are before the first entry, or as of a snapshot that an earlier version wrote. Raises
    LogCorrupted when log and snapshots do not make a whole.
    """

    def __init__(self, log: SegmentLog, store: Store, members: ConfState) -> None:
        self._log = log
        self._store = store
        self._older = 0
        self._snapshot: RaftSnapshot | None = None
        newest = self._load(members)
        self._about = replace(newest, data=b"")
        self._reconcile()
        self._compacted = self._oldest_base()
        self._hard_state = self._recovered_state()

    # -- what the core reads

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state last stored, and the members as of the newest snapshot."""
        return self._hard_state, self._about.conf_state

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """See Storage. Also raises LogCorrupted or LogFailed when the disk does not give back what it was given."""
        if lo <= self._compacted[0]:
            raise Compacted(lo)
        if hi > self._log.last_index + 1:
            raise Unavailable(hi - 1)
        return self._log.entries(lo, hi, max_bytes)

    def term(self, index: int) -> int:
        """See Storage."""
        base_index, base_term = self._compacted
        if index < base_index:
            raise Compacted(index)
        if index == base_index:
            return base_term
        found = self._log.term(index)
        if found is None:
            raise Unavailable(index)
        return found

    def first_index(self) -> int:
        """See Storage."""
        return self._compacted[0] + 1

    def last_index(self) -> int:
        """See Storage."""
        return self._log.last_index

    def snapshot(self) -> RaftSnapshot:
        """The newest snapshot, read from the store when it is asked for the first time. Raises LogCorrupted."""
        if self._snapshot is None or self._snapshot.index != self._about.index:
            self._snapshot = self._load(self._about.conf_state)
        return self._snapshot

    # -- what Readys write

    def store(self, readys: Sequence[Ready]) -> None:
        """Make what *readys* hold durable, in their order, by one fdatasync; by none where none of them must sync.

        Raises DiskFull (nothing happened but that a snapshot may be stored; it may be tried again), LogFailed or
        LogCorrupted (the host stays down).
        """
        changes: list[LogChange] = []
        last = self._log.last_index
        received: RaftSnapshot | None = None
        for ready in readys:
            if ready.snapshot is not None:
                # Stored before the log says that it begins after it: a crash between the two is mended by
                # ``_reconcile``; the other way round nobody here would have the state.
                received = ready.snapshot
                self._save(received, received=True)
                changes.append(Reset(received.index, received.term))
                last = received.index
            if ready.entries:
                # What these replace is void first: a record that goes back in the log is taken for damage by a start.
                if ready.entries[0].index <= last:
                    changes.append(Cut(ready.entries[0].index - 1))
                changes.append(ready.entries)
                last = ready.entries[-1].index
            if ready.hard_state is not None:
                changes.append(ready.hard_state)
        self._log.write(changes, any(ready.must_sync for ready in readys))
        self._hard_state = next((r.hard_state for r in reversed(readys) if r.hard_state), self._hard_state)
        if received is not None:
            self._about, self._snapshot = replace(received, data=b""), None
            self._compacted = (received.index, received.term)

    def write_state(self, state: HardState) -> None:
        """Note a commit index that need not be durable: it is with the next fdatasync."""
        self._log.write([state], sync=False)

    def create_snapshot(self, index: int, conf_state: ConfState, data: bytes) -> RaftSnapshot:
        """Keep the state machine's *data* as of *index*, durably; the log stays until ``compact``.

        Raises DiskFull, LogCorrupted or StorageError; then there is none.
        """
        assert index > self._about.index, f"a snapshot of {self._about.index} or later exists"
        snapshot = RaftSnapshot(index, self.term(index), conf_state, data)
        self._save(snapshot, received=False)
        self._about, self._snapshot = replace(snapshot, data=b""), None
        return snapshot

    def compact(self, index: int) -> int:
        """Drop the entries up to *index*, all of which the snapshot covers; how many segments went.

        On disk those stay that only the snapshot before can do without, for the day when the newest is damaged.
        Raises Compacted when they are gone.
        """
        assert index <= self._about.index, f"entry {index} is not in the snapshot of {self._about.index}"
        if index <= self._compacted[0]:
            raise Compacted(index)
        self._compacted = (index, self.term(index))
        return self._log.drop_behind(min(index, self._older))

    @property
    def snapshot_index(self) -> int:
        """The index of the newest snapshot; 0 without one."""
        return self._about.index

    @property
    def log(self) -> SegmentLog:
        """The log underneath."""
        return self._log

    # -- plumbing

    def _save(self, snapshot: RaftSnapshot, received: bool) -> None:
        members = members_to_text(snapshot.conf_state)
        self._older = self._store.save_snapshot(snapshot.index, snapshot.term, snapshot.data, members, received)

    def _load(self, members: ConfState) -> RaftSnapshot:
        stored = self._store.snapshots()
        intact = [snapshot for snapshot in stored if snapshot.intact]
        self._older = intact[1].index if len(intact) > 1 else 0
        return _snapshot(intact[0], members) if intact else RaftSnapshot(0, 0, members, b"")

    def _reconcile(self) -> None:
        """See that the log goes on from the snapshot and ends where it was acknowledged."""
        about, log = self._about, self._log
        durable = max([self._store.durable_index(), *(snapshot.index for snapshot in self._store.snapshots())])
        stands = log.base_index <= about.index <= log.last_index and log.term(about.index) in (about.term, None)
        if not stands and self._store.received_index() == about.index == durable > log.base_index:
            # Received from the leader and stored, then the host stopped before the log said so.
            log.reset(about.index, about.term)
            return
        if log.last_index < durable:
            where = {"segment": str(log.folder / log.end.segment), "offset": log.end.offset}
            raise acknowledged_lost(log.last_index, durable, **where)
        if not stands:
            raise self._corrupted(
                "the log no longer reaches back to a snapshot that is intact",
                f"state of entry {about.index}, log from entry {log.first_index} to {log.last_index}",
            )

    def _oldest_base(self) -> tuple[int, int]:
        base, about = self._log.base_index, self._about
        term = self._log.term(base)
        if term is not None:
            return base, term
        # Format 1 did not keep the term before its first entry: that entry serves as the base, if it may.
        if base < about.index:
            return base + 1, self._log.term(base + 1) or 0
        return about.index, about.term

    def _recovered_state(self) -> HardState:
        """What was stored, or what is true of a log of format 1: one voter, whose every durable entry is committed.

        Entries of a term may have reached the disk when the term that they belong to did not: nobody was told of
        either, and no vote was given in it.
        """
        log = self._log
        state = log.hard_state or HardState(log.last_term, NO_NODE, log.last_index)
        term = max(log.last_term, self._about.term)
        if term > state.term:
            state = HardState(term, NO_NODE, state.commit)
        if state.commit > log.last_index:
            raise self._corrupted(
                "the log ends before an entry that was committed",
                f"last entry {log.last_index}, committed up to {state.commit}",
            )
        return replace(state, commit=max(state.commit, self._about.index))

    def _corrupted(self, reason: str, found: str) -> LogCorrupted:
        end = self._log.end
        return LogCorrupted(
            reason,
            found=found,
            hint=RECOVERY_HINT,
            segment=str(self._log.folder / end.segment),
            offset=end.offset,
            index=self._log.last_index + 1,
        )


def members_to_text(members: ConfState) -> str:
    """The members as they stand beside a snapshot."""
    return json.dumps(asdict(members), sort_keys=True, separators=(",", ":"))


def members_from_text(text: str) -> ConfState:
    """The members in a text that ``members_to_text`` wrote."""
    fields = json.loads(text)
    auto_leave = bool(fields.pop("auto_leave"))
    return ConfState(**{name: tuple(nodes) for name, nodes in fields.items()}, auto_leave=auto_leave)


def _snapshot(stored: StoredSnapshot, members: ConfState) -> RaftSnapshot:
    known = members_from_text(stored.members) if stored.members else members
    return RaftSnapshot(stored.index, stored.term, known, stored.data)
