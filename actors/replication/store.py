"""The shared state on disk: a snapshot and the deltas since, in one directory.

    snapshot-N      all states as of the start of journal-N; whole from its first day (written aside, synced, renamed)
    journal-N       deltas since, a record per group commit

A record is [2, origins, rows, vector]: each row a key and a delta (or a state) with its dot, and counts that the
version vector takes beside those of the rows. States and vector are in one record, so that no crash leaves one without
the other: a vector ahead of its states would hide what is missing for ever. Records of version 1 are lists of
(key, delta).

A record [3, origins, rows, vector, retired] says too what is retired in the states from its end on, and what the ledger
says is (``retirement``): reading back retires the same at the same place. A row numbered -2 in it is a state that takes
the place of the one before, as when a state of another level was joined.

Deltas, not states, are written, so that one field of a large map costs one field. Reading back joins them, so that
a delta read twice does no harm. When the journal has outgrown the snapshot the next pair is begun.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import ActorGridError, DiskFull, LogCorrupted, LogFailed, MalformedBody
from actorgrid.supervisors.gc_pause import collection_paused

from .causal import Replica, check_count, replica_from_plain
from .delta_log import LOG_BYTES, DottedDelta
from .journal import Journal, frame, framed_size, read_record, storage_error
from .plain import pack, unpack
from .retirement import NOBODY, RetiredOrigins, retire, retired_from_plain, retired_to_plain, settle
from .types import Crdt, decode
from .version_vector import Vector, from_plain, to_plain

log = logging.getLogger("actorgrid.distributed_state")

States = dict[str, dict[str, Crdt]]
"""By key, then by type name; nearly always one type to a key."""
COMPACT_AT_BYTES = 4 * 2**20
"""The journal is not compacted below this size."""
SNAPSHOT_RECORD_BYTES = 2**20
RECORD_FORMAT = 2
RECORD_FORMAT_RETIRED = 3
NO_DOT, REPLACES = -1, -2
"""In place of a row's number of its origin."""
_NAMES = re.compile(r"(snapshot|journal)-(\d{12})")


class StateStore:
    """Durable CRDT states and their version vector. ``states`` and ``vector`` are memory's view, ahead of the disk by
    what was staged and not committed. ``rows`` are the deltas with dots that were read at opening, the newest 16 MiB.

    Stage deltas, then ``commit`` them: when that returns, they survive a crash. When it raises DiskFull ``states``
    holds what the disk does not: ``reopen`` before anything is read. After LogFailed the disk is not to be trusted.
    """

    def __init__(self, directory: Path) -> None:
        """Read all there is. Raises LogCorrupted, DiskFull or LogFailed."""
        self.directory = directory
        self.states: States = {}
        self.vector: Vector = {}
        self.retired = self.known = NOBODY
        """What is retired in ``states``, and what the ledger says is."""
        self.rows: deque[DottedDelta] = deque()
        self.commits = 0
        self.compactions = 0
        self._number = 0
        self.snapshot_bytes = 0
        self._batch: list[Entry] = []
        self._batch_vector: Vector = {}
        self._batch_retired = False
        self._batch_bytes = 0
        self._compact_at = COMPACT_AT_BYTES
        self._rows_bytes = 0
        self._journal: Journal
        self._open()

    @property
    def staged(self) -> int:
        """Deltas waiting for ``commit``."""
        return len(self._batch) + len(self._batch_vector) + self._batch_retired

    @property
    def staged_bytes(self) -> int:
        """About how large the next record is."""
        return self._batch_bytes

    @property
    def journal_bytes(self) -> int:
        """Size of the journal in use."""
        return self._journal.size

    @property
    def torn_bytes(self) -> int:
        """Bytes dropped at opening: a write cut short by a crash, never acknowledged."""
        return self._journal.torn_bytes

    def reserve(self, delta_bytes: int) -> None:
        """Make room for one more delta of at most this size. Raises DiskFull; then nothing has changed."""
        self._journal.reserve(self._batch_bytes + delta_bytes + 64)

    def stage(self, key: str, delta: bytes, origin: Replica | None = None, sequence: int = 0) -> None:
        """Put a delta, already joined into ``states``, into the next commit, with its dot if it has one."""
        self._batch.append((key, delta, origin, sequence))
        self._batch_bytes += len(delta) + 4 * len(key) + 32
        if origin is not None:
            if origin not in self.vector:
                self._batch_bytes += len(origin[0]) + 16
            self.vector[origin] = max(sequence, self.vector.get(origin, 0))

    def stage_run(self, rows: list[DottedDelta]) -> None:
        """``stage`` of deltas of one origin that follow each other."""
        origin, last = rows[-1].origin, rows[-1].sequence
        self._batch.extend([(key, delta, origin, sequence) for _origin, sequence, key, delta in rows])
        self._batch_bytes += sum([len(delta) + 4 * len(key) + 32 for _origin, _sequence, key, delta in rows])
        if origin not in self.vector:
            self._batch_bytes += len(origin[0]) + 16
        self.vector[origin] = max(last, self.vector.get(origin, 0))

    def stage_vector(self, vector: Vector) -> None:
        """Put these counts into the next commit, with what was staged before."""
        for origin, count in vector.items():
            self._batch_vector[origin] = self.vector[origin] = max(count, self.vector.get(origin, 0))
            self._batch_bytes += len(origin[0]) + 24

    @property
    def retirement_bytes(self) -> int:
        """About how much it adds to a record to say what is retired."""
        return 128 + 2 * sum(len(host) + 16 for host in self.known.floors)

    def stage_state(self, key: str, state: bytes) -> None:
        """Put a whole state of a key into the next commit, in place of the one it has of that type."""
        self._batch.append((key, state, None, REPLACES))
        self._batch_bytes += len(state) + 4 * len(key) + 32

    def stage_known(self, known: RetiredOrigins) -> None:
        """Put into the next commit what the ledger says is retired."""
        self.known, self._batch_retired = known, True
        self._batch_bytes += self.retirement_bytes

    def retire(self, retired: RetiredOrigins) -> list[str]:
        """Retire origins in states and vector, with the next commit; the keys whose states changed.

        Nothing may be staged. Takes 3 to 7 us a key.
        """
        assert not self._batch and not self._batch_vector, "what is staged would be read back behind this"
        self.retired, self._batch_retired = retired, True
        self._batch_bytes += self.retirement_bytes
        return self._carry_out()

    def _carry_out(self) -> list[str]:
        self.vector = self.retired.without(self.vector)
        changed: list[str] = []
        for key, kinds in self.states.items():
            if any([retire(state, self.retired) for state in kinds.values()]):
                changed.append(key)
        return changed

    def commit(self) -> None:
        """Make all that is staged durable, in one write and one fdatasync."""
        if not self.staged:
            return
        with collection_paused():
            retirement = (self.retired, self.known) if self._batch_retired else None
            payload = _record(self._batch, self._batch_vector, retirement)
        self._batch, self._batch_vector, self._batch_bytes, self._batch_retired = [], {}, 0, False
        self._journal.append(payload)
        self.commits += 1

    def maybe_compact(self) -> None:
        """Begin a new snapshot when the journal has outgrown the last one; without room for it, try again later.

        Nothing may be staged. Takes about 5 ms per MB of state.
        """
        if self._journal.size < self._compact_at:
            return
        assert not self.staged, "a snapshot of uncommitted states would make refused mutations durable"
        try:
            self.compact()
        except DiskFull as error:
            self._compact_at = self._journal.size * 2
            log.warning("no room for a snapshot, the journal goes on: %s", error)

    def compact(self) -> None:
        """Write the next snapshot and begin its journal. Raises DiskFull or LogFailed; the old pair is then kept."""
        number = self._number + 1
        path = self.directory / f"snapshot-{number:012d}"
        draft = path.with_suffix(".draft")
        journal: Journal | None = None
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                size = 0
                for record in _snapshot_records(self.states, self.vector, (self.retired, self.known)):
                    size += file.write(record)
                file.flush()
                os.fsync(file.fileno())
            # The journal first: once the snapshot has its name, nothing may be written to the old journal.
            journal = Journal(self.directory / f"journal-{number:012d}")
            os.rename(draft, path)
        except (OSError, ActorGridError) as error:
            draft.unlink(missing_ok=True)
            if journal is not None:
                journal.close()
                journal.path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise storage_error(error, f"cannot write {path.name}") from error
            raise
        old, old_number = self._journal, self._number
        self._journal, self._number = journal, number
        old.close()
        try:
            sync_folder(self.directory)
        except OSError as error:
            raise LogFailed(f"cannot sync {self.directory.name}: {error.strerror}", hint="check the disk") from error
        self._compact_at = max(COMPACT_AT_BYTES, size)
        self.snapshot_bytes = size
        self.compactions += 1
        self._forget(old_number)

    def reopen(self) -> None:
        """Forget what is in memory and read the disk again. Raises as the constructor."""
        self._journal.close()
        self._batch, self._batch_vector, self._batch_bytes, self._batch_retired = [], {}, 0, False
        self._open()

    def close(self) -> None:
        """Close the files; what was committed is durable already."""
        self._journal.close()

    def _open(self) -> None:
        found: dict[str, list[int]] = {"snapshot": [], "journal": []}
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self.directory.iterdir():
                if path.suffix == ".draft":
                    path.unlink()
                elif name := _NAMES.fullmatch(path.name):
                    found[name[1]].append(int(name[2]))
        except OSError as error:
            raise storage_error(error, f"cannot read {self.directory.name}") from error
        self._number = max(found["snapshot"], default=0)
        for number in found["journal"]:
            path = self.directory / f"journal-{number:012d}"
            if number > self._number and path.stat().st_size:  # an empty one: a snapshot was begun, not finished
                raise _damaged(path, "its snapshot is missing")
        self.states, self.vector = {}, {}
        self.retired = self.known = NOBODY
        self.rows, self._rows_bytes = deque(), 0
        self.snapshot_bytes = 0
        if self._number:
            self.snapshot_bytes = self._read_snapshot(self.directory / f"snapshot-{self._number:012d}")
        self._compact_at = max(COMPACT_AT_BYTES, self.snapshot_bytes)
        self._journal = Journal(self.directory / f"journal-{self._number:012d}")
        try:
            sync_folder(self.directory)
            for payload in self._journal.replay():
                self._join(payload, self._journal.path)
        except OSError as error:
            self._journal.close()
            raise storage_error(error, f"cannot read {self.directory.name}") from error
        except ActorGridError:
            self._journal.close()
            raise
        for number in {*found["snapshot"], *found["journal"]} - {self._number}:
            self._forget(number)

    def _read_snapshot(self, path: Path) -> int:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise storage_error(error, f"cannot read {path.name}") from error
        at, number = 0, 0
        while True:
            record = read_record(data, at, number)
            if record is None:
                raise _damaged(path, f"record {number} fails its checksum, {at} bytes in")
            payload = record[1]
            at += framed_size(len(payload))
            number += 1
            if not payload:
                break
            self._join(payload, path)
        if at != len(data):
            raise _damaged(path, f"{len(data) - at} bytes after its end")
        return at

    def _join(self, payload: bytes, path: Path) -> None:
        """Take in a batch of states or deltas; its checksum was right, so it must be sound."""
        try:
            rows, vector, retirement = _read(payload)
            for key, data, origin, sequence in rows:
                delta = decode(data)
                kinds = self.states.setdefault(key, {})
                known = kinds.get(delta.kind)
                kinds[delta.kind] = delta if known is None or sequence == REPLACES else known.join(delta)
                if self.retired.level and sequence != REPLACES:
                    settle(kinds[delta.kind], delta, self.retired)
                if origin is not None:
                    self.vector[origin] = max(sequence, self.vector.get(origin, 0))
                    self._keep(DottedDelta(origin, sequence, key, data))
            for origin, count in vector.items():
                self.vector[origin] = max(count, self.vector.get(origin, 0))
            if retirement is not None:
                before, (self.retired, self.known) = self.retired, retirement
                if self.retired != before:
                    self._carry_out()
        except (MalformedBody, TypeError, ValueError, LookupError) as error:
            raise _damaged(path, f"a record with a right checksum cannot be read: {error}") from error

    def _keep(self, row: DottedDelta) -> None:
        self.rows.append(row)
        self._rows_bytes += row.size
        while self._rows_bytes > LOG_BYTES:
            self._rows_bytes -= self.rows.popleft().size

    def _forget(self, number: int) -> None:
        """Remove an older pair; what cannot be removed now is removed at the next opening."""
        for name in ("journal", "snapshot"):
            path = self.directory / f"{name}-{number:012d}"
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove %s: %s", path.name, error)


Entry = tuple[str, bytes, Replica | None, int]
"""A key, a delta or a state, and its dot; without an origin 0, or ``REPLACES``."""
Retirement = tuple[RetiredOrigins, RetiredOrigins]
"""What is retired here, and what the ledger says is."""


def _record(rows: list[Entry], vector: Vector, retirement: Retirement | None = None) -> bytes:
    """A record's payload: origins once, then the rows by their number (or what stands in place of one)."""
    table: dict[Replica, int] = {}
    plain = [
        [REPLACES if sequence == REPLACES else NO_DOT, 0, key, data]
        if origin is None
        else [table.setdefault(origin, len(table)), sequence, key, data]
        for key, data, origin, sequence in rows
    ]
    whole = [list(table), plain, to_plain(vector)]
    if retirement is not None:
        return pack([RECORD_FORMAT_RETIRED, *whole, [retired_to_plain(each) for each in retirement]])
    if any(sequence == REPLACES for _key, _data, _origin, sequence in rows):
        return pack([RECORD_FORMAT_RETIRED, *whole, []])
    return pack([RECORD_FORMAT, *whole])


def _read(payload: bytes) -> tuple[list[Entry], Vector, Retirement | None]:
    """The reverse, of any version. Raises MalformedBody, TypeError, ValueError, IndexError."""
    whole = unpack(payload)
    if not whole or not isinstance(whole[0], int):
        return [(key, data, None, 0) for key, data in whole], {}, None
    if whole[0] not in (RECORD_FORMAT, RECORD_FORMAT_RETIRED):
        raise MalformedBody(f"a record of format {whole[0]}: of a later version")
    _, origins, plain, vector, *more = whole
    table = [replica_from_plain(origin) for origin in origins]
    rows: list[Entry] = [
        (key, data, None, REPLACES if number == REPLACES else 0)
        if number in (NO_DOT, REPLACES)
        else (key, data, table[check_count(number, 0)], sequence)
        for number, sequence, key, data in plain
    ]
    if not any(more):
        return rows, from_plain(vector), None
    [[retired, known]] = more
    return rows, from_plain(vector), (retired_from_plain(retired), retired_from_plain(known))


def _snapshot_records(states: States, vector: Vector, retirement: Retirement) -> Iterator[bytes]:
    """Records of states, by key, then of the vector; an empty one ends the file, so that a cut is noticed."""
    number = 0
    batch: list[Entry] = []
    size = 0
    for key in sorted(states):
        for kind in sorted(states[key]):
            data = states[key][kind].to_bytes()
            batch.append((key, data, None, 0))
            size += len(data)
        if size >= SNAPSHOT_RECORD_BYTES:
            yield frame(number, _record(batch, {}))
            number += 1
            batch, size = [], 0
    if batch or vector or retirement[1].level:
        yield frame(number, _record(batch, vector, retirement if retirement[1].level else None))
        number += 1
    yield frame(number, b"")


def _damaged(path: Path, what: str) -> LogCorrupted:
    return LogCorrupted(
        f"{path.name}: {what}",
        asked=str(path),
        hint="the shared state stays down; restore state/ from a backup, or move it away to start empty",
    )
