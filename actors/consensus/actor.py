"""Consensus: the ledger's process. With one voter, an entry is committed once this host's disk has it.

Commands that wait in the mailbox are committed together by one fdatasync; each is answered only after it, and after
the subscribers were told. What is decided sits in ``ledger.py`` (may this be), ``log.py`` (is it durable) and
``store.py`` (snapshots, ended jobs, events); this file ties them to messages and clocks.

Start refuses with LogCorrupted (damaged files), LogFailed (the disk failed a write in this boot) or DiskFull (not even
the new term can be recorded); the host then stays down.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from time import time
from typing import Any, ClassVar

from actorgrid.errors import (
    ActorGridError,
    DiskFull,
    LogCorrupted,
    LogFailed,
    MailboxFull,
    StorageError,
)
from actorgrid.supervisors.runtime import Timer, Waiter
from actorgrid.supervisors.server import Server, handles

from .commands import ABOUT_ACCEPTED_WORK, check, decode_entry, encode_entry, new_term
from .failure import FailureMarker
from .history import WRITE_AT_ROWS, History
from .ledger import Ledger, Outcome
from .log import RECOVERY_HINT, SegmentLog
from .messages import Applied, Propose, Proposed, Query, Snapshot, Subscribe
from .queries import Queries
from .record import Record
from .reserve import Reserve, free_bytes
from .store import Store

BACKLOG_MAX = 10_000
HOUSEKEEPING_S = 1.0
RESYNC_S = 0.5
RESYNC_TRIES = 120
TIMES_KEPT = 1024
RESYNC = "resync"


@dataclass(slots=True)
class _Proposal:
    """One command on its way into the log."""

    session: str
    seq: int
    command: dict[str, Any]
    payload: bytes
    waiter: Waiter


class Consensus(Server):
    """Propose, query, subscribe: the only door to the ledger."""

    name = "consensus"
    # A snapshot of 100,000 jobs is written in one go.
    max_handler_s: ClassVar[float] = 30.0

    def start(self) -> None:
        """Recover the state from disk and begin a new term."""
        performance = self.host.settings.performance
        folder = self.host.paths.ledger_dir
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._failed: StorageError | None = None
        self._full: DiskFull | None = None
        self._pending: deque[_Proposal] = deque()
        self._flush_timer: Timer | None = None
        self._subscribers: dict[str, int] = {}
        self._lagging: dict[str, int] = {}
        self._resync_planned = False
        self._commits_total = 0
        self._batches_total = 0
        self._refused_total: Counter[str] = Counter()
        self._sync_times: deque[float] = deque(maxlen=TIMES_KEPT)
        self._reserve = Reserve(folder / "reserve", performance.reserve_bytes)
        self._marker = FailureMarker(folder / "failed")
        end = self._marker.check(self.host.boot_id)
        self._store = self._open_store()
        try:
            self._history = History(self._store)
            self._ledger, self._snapshot_index = self._load_snapshot()
            self._queries = Queries(self._ledger, self._history)
            self._snapshot_due = self._snapshot_index + performance.ledger_snapshot_every
            self._log = SegmentLog.open(folder / "segments", performance.ledger_segment_bytes, self._replay, end)
            try:
                self._check_reach()
                self._marker.clear()
                self._reserve.refill(performance.min_free_bytes)
                self._begin_term()
            except StorageError:
                self._log.close()
                raise
        except StorageError:
            self._store.close()
            raise
        self.every(HOUSEKEEPING_S, self._keep_house)

    def stop(self, reason: str) -> None:
        """Commit what waits, keep a snapshot, let go of the files."""
        while self._pending and self._failed is None:
            self._commit_batch()
        if self._failed is None:
            self._write_history()
            if self._ledger.index > self._snapshot_index:
                self._save_snapshot()
        self._failed = self._failed or StorageError("the ledger is stopped")
        self._log.close()
        self._store.close()

    def _keep_house(self) -> None:
        self._write_history()
        self._look_for_room()

    # -- recovery

    def _open_store(self) -> Store:
        path = self.host.paths.ledger_dir / "state.db"
        try:
            return Store(path)
        except LogCorrupted:
            raise
        except StorageError:
            # SQLite needs a little room only to open its file.
            if not self._reserve.release():
                raise
            return Store(path)

    def _load_snapshot(self) -> tuple[Ledger, int]:
        for snapshot in self._store.snapshots():
            if snapshot.intact:
                return Ledger.restore(snapshot.data), snapshot.index
            self.log.error("snapshot %d fails its digest: trying the one before it", snapshot.index)
        return Ledger(), 0

    def _replay(self, record: Record) -> None:
        if record.index <= self._ledger.index:
            return
        if record.index > self._ledger.index + 1:
            raise LogCorrupted(
                "the log no longer reaches back to a snapshot that is intact",
                found=f"state of entry {self._ledger.index}, log from entry {record.index}",
                hint=RECOVERY_HINT,
                segment=str(self.host.paths.ledger_dir / "state.db"),
                offset=0,
                index=self._ledger.index + 1,
            )
        session, seq, command = decode_entry(record.payload)
        self._history.keep(self._ledger.apply(record.index, command, session, seq))
        if self._history.waiting > WRITE_AT_ROWS:
            self._write_history()

    def _check_reach(self) -> None:
        durable = max([self._store.durable_index(), *(snapshot.index for snapshot in self._store.snapshots())])
        if self._log.last_index < durable or self._ledger.index < self._log.last_index:
            raise LogCorrupted(
                "the log ends before an entry that was acknowledged",
                found=f"last entry {self._log.last_index}, acknowledged up to {durable}",
                hint=RECOVERY_HINT,
                segment=self._log.end.segment,
                offset=self._log.end.offset,
                index=self._log.last_index + 1,
            )

    def _begin_term(self) -> None:
        command = new_term(self._ledger.term + 1, time())
        record = Record(self._ledger.index + 1, self._ledger.term + 1, encode_entry(command, "", 0))
        try:
            self._log.append([record])
        except DiskFull:
            if not self._reserve.release():
                raise
            self._log.append([record])
        except LogFailed as error:
            self._remember(error)
            raise
        self._history.keep(self._ledger.apply(record.index, command))

    # -- proposals

    @handles(Propose)
    async def _propose(self, request: Propose) -> Proposed:
        if self._failed is not None:
            raise self._failed
        earlier = self._ledger.repeated(request.session, request.seq)
        if earlier is not None:
            return self._proposed(earlier)
        try:
            payload = encode_entry(request.command, request.session, request.seq)
            # The command as the log will have it, not as it was sent: so a replay sees the very same values.
            command = check(decode_entry(payload)[2])
            self._refuse_without_room(command["type"])
            if len(self._pending) >= BACKLOG_MAX:
                raise MailboxFull(
                    "too many commands wait for the disk", found=f"{BACKLOG_MAX} waiting", hint="propose it again"
                )
        except ActorGridError as error:
            self._refused_total[error.code] += 1
            raise
        proposal = _Proposal(request.session, request.seq, command, payload, Waiter())
        self._pending.append(proposal)
        # A timer of no delay fires when the mailbox is empty: until then, the batch grows.
        if len(self._pending) >= self.host.settings.performance.ledger_batch_max:
            self._flush()
        elif self._flush_timer is None:
            self._flush_timer = self.runtime.after(0.0, self._flush)
        return self._proposed(await proposal.waiter)

    def _proposed(self, outcome: Outcome) -> Proposed:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None, "an entry has a result or an error"
        return Proposed(outcome.index, outcome.result)

    def _refuse_without_room(self, command_type: str) -> None:
        if command_type in ABOUT_ACCEPTED_WORK:
            return
        if self._full is not None:
            raise self._full
        free = free_bytes(self.host.paths.ledger_dir)
        wanted = self.host.settings.performance.min_free_bytes
        if free < wanted:
            raise DiskFull(
                "the disk is nearly full, so no new work is accepted",
                asked=f"{wanted} bytes free (performance.min_free_bytes)",
                found=f"{free} bytes free under {self.host.paths.data_dir}",
                hint="free some space; everything accepted is kept and goes on",
                free_bytes=free,
                min_free_bytes=wanted,
            )

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._failed is not None:
            return
        self._commit_batch()
        if self._ledger.index >= self._snapshot_due:
            self._save_snapshot()
        if self._pending:
            self._flush_timer = self.runtime.after(0.0, self._flush)

    def _commit_batch(self) -> None:
        size = min(len(self._pending), self.host.settings.performance.ledger_batch_max)
        batch = [self._pending.popleft() for _ in range(size)]
        started = self.runtime.monotonic()
        try:
            committed = self._append(batch)
        except StorageError as error:
            self._fail(error, batch)
            return
        if committed:
            self._sync_times.append(self.runtime.monotonic() - started)
            self._batches_total += 1
            self._commits_total += len(committed)
        for proposal in committed:
            outcome = self._ledger.apply(self._ledger.index + 1, proposal.command, proposal.session, proposal.seq)
            if outcome.error is not None:
                self._refused_total[outcome.error.code] += 1
            self._history.keep(outcome)
            self._tell(outcome, proposal.command)
            proposal.waiter.set(outcome)
        if self._history.waiting > WRITE_AT_ROWS:
            self._write_history()

    def _append(self, batch: list[_Proposal]) -> list[_Proposal]:
        """Make *batch* durable, as much of it as there is room for; the rest is answered with DiskFull."""
        for _ in range(3):
            first = self._ledger.index + 1
            records = [
                Record(first + number, self._ledger.term, proposal.payload) for number, proposal in enumerate(batch)
            ]
            try:
                self._log.append(records)
            except DiskFull as full:
                batch = self._make_room(full, batch)
                continue
            return batch
        for proposal in batch:
            self._refused_total[DiskFull.__name__] += 1
            proposal.waiter.fail(self._full or DiskFull("no room left to record this"))
        return []

    def _make_room(self, full: DiskFull, batch: list[_Proposal]) -> list[_Proposal]:
        """Refuse what is new in *batch*, give the reserve to what is not."""
        if self._full is None:
            self.log.error("no room on the disk: no new work is accepted (%s)", full.found)
        self._full = full
        if self._reserve.release():
            self.log.warning("the reserve of %d bytes is used for work accepted before", self._reserve.size_bytes)
        kept = []
        for proposal in batch:
            if proposal.command["type"] in ABOUT_ACCEPTED_WORK:
                kept.append(proposal)
            else:
                self._refused_total[full.code] += 1
                proposal.waiter.fail(full)
        return kept

    def _look_for_room(self) -> None:
        if self._failed is not None:
            return
        least = self.host.settings.performance.min_free_bytes
        held = self._reserve.refill(least)
        if self._full is not None and (held or self._reserve.size_bytes == 0):
            if free_bytes(self.host.paths.ledger_dir) < least:
                return
            self._full = None
            self.log.warning("there is room on the disk again: new work is accepted")

    def _fail(self, error: StorageError, batch: list[_Proposal]) -> None:
        """The log cannot be trusted any more: tell those who wait, remember it for this boot, die."""
        self._failed = error
        self._remember(error)
        for proposal in [*batch, *self._pending]:
            proposal.waiter.fail(error)
        self._pending.clear()
        self.runtime.crash(error)

    def _remember(self, error: StorageError) -> None:
        self.log.critical("%s", error)
        try:
            self._marker.write(self.host.boot_id, self._log.end, error.message)
        except OSError as second:
            self.log.critical("cannot even remember that: %s", second)

    # -- the store

    def _write_history(self) -> None:
        if self._failed is not None:
            return
        try:
            self._history.write(self._ledger.index)
        except StorageError as error:
            self._failed = error
            self.log.critical("%s", error)
            self.runtime.crash(error)

    def _save_snapshot(self) -> None:
        every = self.host.settings.performance.ledger_snapshot_every
        self._snapshot_due = self._ledger.index + every
        if self._full is not None:
            return
        self._write_history()
        try:
            previous = self._store.save_snapshot(self._ledger.index, self._ledger.term, self._ledger.snapshot())
        except StorageError as error:
            self.log.error("no snapshot, so the log behind it stays: %s", error)
            return
        self._snapshot_index = self._ledger.index
        dropped = self._log.drop_behind(previous)
        self.log.info("snapshot at entry %d; %d segments dropped", self._snapshot_index, dropped)

    # -- subscribers

    @handles(Subscribe)
    def _subscribe(self, _request: Subscribe, sender: str) -> Snapshot:
        self._subscribers[sender] = self._ledger.index
        self._lagging.pop(sender, None)
        return self._ledger.live()

    def _tell(self, outcome: Outcome, command: dict[str, Any]) -> None:
        if not outcome.changes:
            return
        for name, previous in list(self._subscribers.items()):
            applied = Applied(outcome.index, previous, command["at"], command["type"], outcome.changes)
            if self.cast(name, applied):
                self._subscribers[name] = outcome.index
            else:
                del self._subscribers[name]
                self._lagging[name] = 0
                self._plan_resync()

    def _tell_lagging(self) -> None:
        """A subscriber that missed a cast is told so as soon as it takes one, and subscribes again."""
        self._resync_planned = False
        if self._failed is not None:
            return
        for name, tries in list(self._lagging.items()):
            if self.cast(name, Applied(self._ledger.index, -1, 0.0, RESYNC, ())) or tries >= RESYNC_TRIES:
                del self._lagging[name]
            else:
                self._lagging[name] = tries + 1
        self._plan_resync()

    def _plan_resync(self) -> None:
        if self._lagging and not self._resync_planned:
            self._resync_planned = True
            self.runtime.after(RESYNC_S, self._tell_lagging)

    # -- reading

    @handles(Query)
    def _query(self, query: Query) -> Any:
        if query.kind == "status":
            return self.status()
        answer = self._queries.answer(query.kind, query.args)
        if query.kind == "counts":
            answer["commit_latency_ms"] = 1000 * _percentile(self._sync_times, 50) if self._sync_times else None
        return answer

    def metrics(self) -> dict[str, float]:
        """Commits, batches, refusals by reason, sync times over the last 1,024 batches, sizes."""
        found: dict[str, float] = {
            "ledger_commits_total": self._commits_total,
            "ledger_batches_total": self._batches_total,
            "ledger_fsync_seconds_p50": _percentile(self._sync_times, 50),
            "ledger_fsync_seconds_p99": _percentile(self._sync_times, 99),
            "ledger_last_index": self._ledger.index,
            "ledger_snapshot_index": self._snapshot_index,
            "ledger_term": self._ledger.term,
            "ledger_bytes": self._log.size_bytes,
            "ledger_segments": self._log.segment_count,
            "ledger_subscribers": len(self._subscribers),
            "ledger_accepts_new_work": float(self._accepts()),
            "ledger_refused_total": sum(self._refused_total.values()),
        }
        for code, count in self._refused_total.items():
            found[f"ledger_refused_{code}_total"] = count
        return found

    def status(self) -> dict[str, Any]:
        """Where the ledger stands."""
        return {
            "role": "leader",
            "term": self._ledger.term,
            "index": self._ledger.index,
            "epoch": self._ledger.epoch,
            "snapshot_index": self._snapshot_index,
            "log_bytes": self._log.size_bytes,
            "segments": self._log.segment_count,
            "subscribers": sorted(self._subscribers),
            "free_bytes": free_bytes(self.host.paths.ledger_dir),
            "accepts_new_work": self._accepts(),
        }

    def _accepts(self) -> bool:
        if self._failed is not None:
            return False
        try:
            self._refuse_without_room("submit_jobs")
        except DiskFull:
            return False
        return True


def _percentile(values: deque[float], percent: int) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
