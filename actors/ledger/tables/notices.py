"""Notices: what people asked to be told of their jobs, from when it happened until it was sent. Part of the state.

A notice is made by the very entry that changes the job's state, so that none is lost with whoever was to send it, and
is taken away by the entry that says it was sent: the pattern is a transactional outbox (Richardson, Microservices
Patterns, 2018, 3.3.7). Who leads sends; one who dies between sending and that entry has its successor send again, under
the same id.

Bounds: 2,000 that wait, then a further one is made as given up; of those that were given up the last 500 are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from actorgrid.notification_words import ENDS, is_events, is_targets

from ..answers import ClearedNotices, SettledNotices
from ..commands import ClearNotices, SettleNotices
from ..entry import EntryContext, applies
from ..notice_records import NoticeRecord
from ..record_types import JobRecord
from .jobs import FINAL, PLACED, QUEUED, RUNNING, Jobs

WAITING_MAX = 2_000
FAILED_MAX = 500
REASON_CHARS_MAX = 500


class Notices:
    """The notices by id, oldest first, of those *jobs* that have ``notify``.

    *now* gives the time and the index of the entry being applied; *changed* is told of each that is new, another or
    gone, with a word for people.
    """

    def __init__(
        self,
        jobs: Jobs,
        now: Callable[[], tuple[float, int]],
        changed: Callable[[str, NoticeRecord | None, str], None],
    ) -> None:
        self._now = now
        self._changed = changed
        self.records: dict[str, NoticeRecord] = {}
        self._failed = 0
        self._of_entry = (0, 0)
        jobs.when_moved.append(self._job_moved)

    def load(self, records: Iterable[NoticeRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((record["notice_id"], record) for record in records)
        self._failed = sum(record["failed_at"] is not None for record in self.records.values())

    @applies(SettleNotices)
    def settle(self, command: SettleNotices, entry: EntryContext) -> SettledNotices:
        """Take away what was sent, and mark what was given up. What is settled already stays so."""
        sent = failed = 0
        for each in command.settled:
            record = self.records.get(each["notice_id"])
            if record is None or record["failed_at"] is not None:
                continue
            if not each["failure"]:
                sent += 1
                del self.records[each["notice_id"]]
                self._changed(each["notice_id"], None, "sent")
                continue
            failed += 1
            marked = {**record, "failed_at": entry.at, "failure": each["failure"], "tries": each["tries"]}
            self._keep_failed(cast("NoticeRecord", marked))
        return {"sent": sent, "failed": failed}

    @applies(ClearNotices)
    def clear(self, command: ClearNotices, _entry: EntryContext) -> ClearedNotices:
        """Forget what was given up."""
        gone = [
            record["notice_id"]
            for record in self.records.values()
            if record["failed_at"] is not None and command.job_id in ("", record["job_id"])
        ]
        for notice_id in gone:
            self._forget(notice_id)
        return {"cleared": len(gone)}

    def _job_moved(self, before: str, job: JobRecord) -> None:
        """A job has gone from one state into another."""
        targets = job.get("notify")
        # What hosts of the version before took into a job unread may be anything.
        if not targets or not is_targets(targets) or not is_events(job.get("notify_on", list(ENDS))):
            return
        event = _event(before, job)
        if event is None or event not in (job.get("notify_on") or ENDS):
            return
        at, index = self._now()
        place = self._of_entry[1] if self._of_entry[0] == index else 0
        for number, target in enumerate(targets):
            record = _notice(job, event, target, at, f"{job['job_id']}.{index}.{place + number}")
            if len(self.records) - self._failed >= WAITING_MAX:
                failure = f"{WAITING_MAX:,} notices waited already"
                self._keep_failed(cast("NoticeRecord", {**record, "failed_at": at, "failure": failure}))
            else:
                self.records[record["notice_id"]] = record
                self._changed(record["notice_id"], record, "waiting")
        self._of_entry = (index, place + len(targets))

    def _keep_failed(self, record: NoticeRecord) -> None:
        self.records.pop(record["notice_id"], None)
        self.records[record["notice_id"]] = record  # at the end: in the order in which they were given up
        self._failed += 1
        self._changed(record["notice_id"], record, "failed")
        if self._failed > FAILED_MAX:
            self._forget(next(id for id, each in self.records.items() if each["failed_at"] is not None))

    def _forget(self, notice_id: str) -> None:
        del self.records[notice_id]
        self._failed -= 1
        self._changed(notice_id, None, "")


def _event(before: str, job: JobRecord) -> str | None:
    """The event that a move from the state *before* is; ``None``: nothing that is told."""
    state = job["state"]
    if state == RUNNING:
        return "started"
    if state == QUEUED:
        return "requeued" if before in (PLACED, RUNNING) else None
    return state if state in FINAL else None


def _notice(job: JobRecord, event: str, target: str, at: float, notice_id: str) -> NoticeRecord:
    attempts = job["attempts"]
    last = attempts[-1] if attempts else None
    error = job["error"] or (last["error"] if last is not None and event == "requeued" else None)
    message = str(error.get("message") or "") if error is not None else ""
    return {
        "notice_id": notice_id,
        "job_id": job["job_id"],
        "target": target,
        "event": event,
        "at": at,
        "name": job["name"],
        "user_id": job["user_id"],
        "attempt": len(attempts) if last is None else last["number"],
        "host": None if last is None else last["host"],
        "exit_code": None if last is None or event == "started" else last["exit_code"],
        "reason": message[:REASON_CHARS_MAX],
        "failed_at": None,
        "failure": "",
        "tries": 0,
    }
