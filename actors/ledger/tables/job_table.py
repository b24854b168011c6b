"""Jobs by id, those that only wait packed small: a queue of 20,000 is told to other processes and kept by several.

A record of a job that waits for its first attempt is some thirty values, and all but a few are those of the job before
it. What is common is kept once (``_Shared``: what most jobs have alike, and, by itself, the environment, which jobs
of one shell share and may be long); what is a job's own is one string of bytes. A record is made anew whenever it is
asked for: equal to what was put in, field for field and in the same order, as snapshots and digests depend on it.
Records of work that has begun or ended are kept as they are.

At most 1,024 sorts of jobs are told apart; one of a further sort is packed whole, in about 800 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.record_checks import JOB_FIELDS_SINCE
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.snapshot import pack, unpack

SORTS_MAX = 1_024
OWN = (
    "command",
    "name",
    "payload_digest",
    "stdin_digest",
    "depends_on",
    "submitted_at",
    "ordinal",
    "submitted_index",
    "deadline",
    "not_before",
    *JOB_FIELDS_SINCE,
    "checkpoint_digest",
    "step_of",
    "near",
    "edits",
)
"""What jobs that are alike otherwise differ in, beside their ids; also what few jobs have at all."""
ENVIRONMENT = "env"
APART = ("job_id", ENVIRONMENT)
"""The key of the table, and what is shared by itself."""
QUEUED = "queued"


class _Shared:
    """The part that ``count`` records have in common. ``value``: a record of the sort."""

    __slots__ = ("count", "key", "own", "value")

    def __init__(self, key: bytes, value: Plain, own: tuple[str, ...]) -> None:
        self.key = key
        self.value = value
        self.own = own
        self.count = 0


_Packed = tuple[_Shared, _Shared, bytes]


@dataclass(frozen=True, slots=True)
class PackedFilter:
    """What tells of most jobs that wait, without unpacking them, that they are not those which are looked for.

    *user*: whose they are; empty: anybody's. *own*: bytes that are somewhere in what is a job's own.
    """

    user: str
    own: tuple[bytes, ...]

    @classmethod
    def of(cls, wanted: JobFilter) -> PackedFilter:
        """As much of *wanted* as can be told so."""
        # A map is packed as its keys and values one behind the other, a text as its bytes behind its length.
        labels = [pack(key) + pack(value) for key, value in wanted.labels.items()]
        return cls(wanted.user, (*labels, *([wanted.name.encode()] if wanted.name else [])))

    def may_be(self, entry: _Packed) -> bool:
        """Whether the job may be one of these."""
        for part in self.own:  # asked of each job of a long queue: no generator
            if part not in entry[2]:
                return False
        return not self.user or entry[0].value.get("user_id") == self.user


class JobTable(MutableMapping[str, JobRecord]):
    """A dict of records, in the order in which they were added. Records are to be replaced, not written into."""

    __slots__ = ("_entries", "_environments", "_sorts")

    def __init__(self, records: Mapping[str, JobRecord] | Iterable[tuple[str, JobRecord]] = ()) -> None:
        self._entries: dict[str, JobRecord | bytes | _Packed] = {}
        self._sorts: dict[bytes, _Shared] = {}
        self._environments: dict[bytes, _Shared] = {}
        self.update(records)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __getitem__(self, job_id: str) -> JobRecord:
        return _record(job_id, self._entries[job_id])

    def __setitem__(self, job_id: str, record: JobRecord) -> None:
        entry = self._packed(record) if record["state"] == QUEUED and not record["attempts"] else record
        before = self._entries.get(job_id)
        self._entries[job_id] = entry
        self._let_go(before)

    def __delitem__(self, job_id: str) -> None:
        self._let_go(self._entries.pop(job_id))

    def waits(self, job_id: str) -> bool:
        """Whether the job waits for its first attempt; nothing is unpacked to answer."""
        return type(self._entries.get(job_id)) is not dict and job_id in self._entries

    def newest(self, wanted: JobFilter, behind: str | None = None) -> Iterator[JobRecord]:
        """The records that pass *wanted*, newest first; *behind*, where it is in the table: only those older than that
        one. What can be passed by without unpacking it is not unpacked.
        """
        waiting, prefix = not wanted.states or QUEUED in wanted.states, wanted.prefix
        packed = PackedFilter.of(wanted)
        entries = reversed(self._entries.items())
        if behind in self._entries:
            next((True for job_id, _ in entries if job_id == behind), None)
        for job_id, entry in entries:
            if not job_id.startswith(prefix) or (type(entry) is not dict and not waiting):
                continue
            if type(entry) is tuple and not packed.may_be(entry):
                continue
            record = _record(job_id, entry)
            if wanted.passes(record):
                yield record

    def at_once(self) -> Iterator[JobRecord]:
        """All records as they are at this call, unpacked one by one as they are taken."""
        return (_record(job_id, entry) for job_id, entry in list(self._entries.items()))

    def own_fields(
        self, names: tuple[str, ...], keep: Callable[[JobRecord], bool], behind: str | None = None
    ) -> Iterator[tuple[str, list[Any]]]:
        """Ids and these fields (``None``: it has none), which are in ``OWN``: as they are at this call, newest first.

        Of those that wait for their first attempt, and of others that pass *keep*; *behind* as in ``newest``.
        """
        assert set(names) <= set(OWN), f"{names} are not all packed by themselves"
        entries = reversed(list(self._entries.items()))
        if behind in self._entries:
            next((True for job_id, _ in entries if job_id == behind), None)
        for job_id, entry in entries:
            if isinstance(entry, tuple):
                fields: Plain = dict(zip(entry[0].own, unpack(entry[2]), strict=True))
            else:
                record = _record(job_id, entry)
                if record is entry and not keep(record):
                    continue
                fields = cast("Plain", record)
            yield job_id, [fields.get(name) for name in names]

    def copy(self, keep: Callable[[JobRecord], bool], waiting: bool = True) -> JobTable:
        """A copy of the jobs that wait for their first attempt, if *waiting*, and of the others that pass *keep*."""
        found = JobTable()
        for job_id, entry in self._entries.items():
            if isinstance(entry, dict):
                if keep(entry):
                    found._entries[job_id] = entry
            elif waiting:
                found._entries[job_id] = found._take_over(entry) if isinstance(entry, tuple) else entry
        return found

    # -- packing

    def _packed(self, record: JobRecord) -> bytes | _Packed:
        own = tuple(name for name in OWN if name in record)
        common = {**record, **dict.fromkeys((*own, *(name for name in APART if name in record)))}
        sort = self._share(self._sorts, pack(common), common, own, SORTS_MAX)
        if sort is None:
            return pack(record)
        environment = self._share(self._environments, pack(record.get(ENVIRONMENT)), {}, ())
        assert environment is not None, "there is no bound on environments"
        return sort, environment, pack([cast("Plain", record)[name] for name in own])

    def _share(
        self, pool: dict[bytes, _Shared], key: bytes, value: Plain, own: tuple[str, ...], most: int | None = None
    ) -> _Shared | None:
        shared = pool.get(key)
        if shared is None:
            if most is not None and len(pool) >= most:
                return None
            shared = pool[key] = _Shared(key, value, own)
        shared.count += 1
        return shared

    def _take_over(self, entry: _Packed) -> _Packed:
        sort, environment, own = entry
        mine = self._share(self._sorts, sort.key, sort.value, sort.own)
        around = self._share(self._environments, environment.key, {}, ())
        assert mine is not None and around is not None, "what was in one table fits another"
        return mine, around, own

    def _let_go(self, entry: JobRecord | bytes | _Packed | None) -> None:
        if type(entry) is tuple:
            for shared, pool in zip(entry[:2], (self._sorts, self._environments), strict=True):
                shared.count -= 1
                if not shared.count:
                    del pool[shared.key]


def _record(job_id: str, entry: JobRecord | bytes | _Packed) -> JobRecord:
    if isinstance(entry, dict):
        return entry
    if isinstance(entry, bytes):
        whole: JobRecord = unpack(entry)
        return whole
    sort, environment, own = entry
    record: Plain = {**sort.value, **dict(zip(sort.own, unpack(own), strict=True)), "job_id": job_id}
    if ENVIRONMENT in record:
        record[ENVIRONMENT] = unpack(environment.key)
    return cast("JobRecord", record)
