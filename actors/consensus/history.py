"""What ended and what happened, on its way to the store and in it: one answer for both."""

from __future__ import annotations

import logging
from typing import NamedTuple

from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.outcome import Event, Outcome
from actorgrid.actors.ledger.query_answers import HistoryEvent
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.raft.storage.store import Store
from actorgrid.errors import LogCorrupted, LogFailed, StorageError

log = logging.getLogger("actorgrid.consensus")

WRITE_AT_ROWS = 1_000
ROWS_MAX = 500_000


class EndedJobs(NamedTuple):
    """Some of the jobs that left memory. *last_seen*: number and id of the last that was looked at, where there are
    more."""

    jobs: list[JobRecord]
    last_seen: tuple[int, str] | None


class History:
    """The ended jobs and events that entries leave behind: collected, and written in batches.

    What is not written yet is in memory, and after a crash comes again from the log. While the store refuses
    (disk full), at most 500,000 rows wait; at that point LogFailed ends the server.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._retired: dict[str, tuple[int, JobRecord]] = {}
        self._events: list[Event] = []
        self._written = store.newest()

    def keep(self, outcome: Outcome) -> None:
        """Take over what an entry left behind; what is written already, as in a replay, is left out."""
        written_job, written_event = self._written
        self._events.extend(event for event in outcome.events if event.number > written_event)
        for number, job in outcome.retired:
            if number > written_job:
                self._retired[job["job_id"]] = (number, job)

    @property
    def waiting(self) -> int:
        """The number of rows that are not written yet."""
        return len(self._events) + len(self._retired)

    def write(self, durable_index: int) -> None:
        """Write what waits. Raises LogCorrupted, or LogFailed when it has waited too long; else only logs."""
        if not self.waiting:
            return
        try:
            self._store.write(durable_index, self._retired.values(), self._events)
        except LogCorrupted:
            raise
        except StorageError as error:
            log.warning("%d rows of history wait in memory: %s", self.waiting, error)
            if self.waiting > ROWS_MAX:
                raise LogFailed(f"the ledger's history cannot be written: {error}") from error
            return
        self._events.clear()
        self._retired.clear()

    def job(self, job_id: str) -> JobRecord | None:
        """An ended job that left the ledger's memory, or ``None``."""
        waiting = self._retired.get(job_id)
        return waiting[1] if waiting is not None else self._store.job(job_id)

    def jobs(self, wanted: JobFilter, limit: int) -> EndedJobs:
        """Ended jobs that left memory, newest submitted first."""
        waiting = [job for _, job in self._retired.values() if wanted.passes(job)]
        stored, last_seen = self._store.jobs(wanted, limit)
        found = [*waiting, *stored]
        found.sort(key=lambda job: -int(job["ordinal"]))
        return EndedJobs(found[:limit], last_seen)

    def counts(self) -> dict[str, int]:
        """The number of jobs that left memory, by state."""
        counts = self._store.counts()
        for _, job in self._retired.values():
            counts[job["state"]] = counts.get(job["state"], 0) + 1
        return counts

    def events(self, from_index: int, limit: int) -> list[HistoryEvent]:
        """Written events from an index on, oldest first."""
        return self._store.events(from_index, limit)
