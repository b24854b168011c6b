"""Schedules: work that is due at times, and the jobs that are made of it. Part of the replicated state.

When a schedule is due nobody can tell here: that takes time zones, which differ from host to host, and a clock. The
host that leads tells it, and this decides what becomes of it, in one entry with the job that is made: a due time is
decided once, whoever leads, as what is told has to follow on what was decided before (``due_after``), and is of this
writing of the schedule (``revision``).

There is one live job of a schedule at most. What is due meanwhile is passed over, or stands in line and begins in the
very entry that ends the job before it.

Bounds: 1,000 schedules whose jobs take 4 MiB packed; 100 due times in line each, and the last 20 of what became of
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from actorgrid.errors import ActorGridError, QueueFull, UnknownSchedule, WrongState
from actorgrid.labels import LABELS_MAX

from ..answers import FireAnswer, RemoveScheduleAnswer, ScheduleAnswer
from ..commands import FireSchedule, PauseSchedule, PutSchedule, RemoveSchedule, RunSchedule
from ..entry import EntryContext, applies
from ..record_types import JobRecord
from ..records import new_job
from ..schedule_checks import HELD_MAX, SCHEDULE_BYTES_MAX
from ..schedule_records import ScheduleRecord, ScheduleRunRecord
from ..snapshot import pack
from .jobs import Jobs
from .quotas import Quotas

SCHEDULES_MAX = 1_000
SCHEDULES_BYTES_MAX = 4 * 2**20
RUNS_KEPT = 20
NAMES_TRIED = 100
"""Ids for the job of one due time: by hand, a schedule may be run several times in one second."""
LABEL = "schedule"
"""What each of its jobs is labelled with, so that all of them are found, long after they have ended."""
STARTED, SKIPPED, MISSED, REFUSED = "started", "skipped", "missed", "refused"
SKIP, QUEUE, REPLACE = "skip", "queue", "replace"
_LATEST = 253_402_300_799


class Schedules:
    """The schedules by name. They make and end *jobs*, within *quotas*. *changed* is told of each that is another.

    *room* refuses so many more live jobs; *index* gives that of the entry being applied.
    """

    def __init__(
        self,
        jobs: Jobs,
        quotas: Quotas,
        room: Callable[[int], None],
        index: Callable[[], int],
        changed: Callable[[str, ScheduleRecord | None, str], None],
    ) -> None:
        self._jobs = jobs
        self._quotas = quotas
        self._room = room
        self._index = index
        self._changed = changed
        self.records: dict[str, ScheduleRecord] = {}
        self._of_job: dict[str, str] = {}
        self._bytes: dict[str, int] = {}
        jobs.when_ended.append(self._job_ended)

    def load(self, records: Iterable[ScheduleRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        for record in records:
            self._keep(record)

    # -- verbs

    @applies(PutSchedule)
    def put(self, command: PutSchedule, entry: EntryContext) -> ScheduleAnswer:
        """Write a schedule. Raises WrongState for a name that is taken, QueueFull at the bounds."""
        given = command.schedule
        name = given["name"]
        before = self.records.get(name)
        if before is not None and all(before.get(field) == given[field] for field in _SAID):
            return {"name": name, "revision": before["revision"], "unchanged": True}
        if before is not None and not command.replace:
            raise WrongState(
                f"there is a schedule {name} already",
                asked="to make it",
                found=f"made by {before['made_by'] or 'somebody'}",
                hint="take another name, or write it over: --replace, replace=True",
            )
        size = len(pack(given["job"]))
        whole = sum(self._bytes.values()) - self._bytes.get(name, 0) + size
        if size > SCHEDULE_BYTES_MAX:
            raise QueueFull(
                f"the job of schedule {name} is too large", asked=f"{size} bytes", found=f"at most {SCHEDULE_BYTES_MAX}"
            )
        if (before is None and len(self.records) >= SCHEDULES_MAX) or whole > SCHEDULES_BYTES_MAX:
            raise QueueFull(
                "the ledger holds its maximum of schedules",
                asked=f"one more, of {size} bytes",
                found=f"{len(self.records)} of {SCHEDULES_MAX}, {whole - size} of {SCHEDULES_BYTES_MAX} bytes",
                hint="remove some: actorgrid schedule list",
            )
        now = _second(entry.at)
        trigger = given["trigger"]
        record: ScheduleRecord = {
            **cast("ScheduleRecord", given),
            "made_at": entry.at if before is None else before["made_at"],
            "revision": entry.index,
            "counts_from": now,
            "due_after": min(now, trigger["at"] - 1) if trigger["kind"] == "at" else now,
            "live": None if before is None else before["live"],
            "held": [],
            "started_total": 0 if before is None else before["started_total"],
            "runs": [] if before is None else before["runs"],
        }
        self._put(record, "made" if before is None else "changed")
        return {"name": name, "revision": entry.index, "unchanged": False}

    @applies(RemoveSchedule)
    def remove(self, command: RemoveSchedule, _entry: EntryContext) -> RemoveScheduleAnswer:
        """Take a schedule away. Raises UnknownSchedule."""
        record = self._known(command.name)
        del self.records[command.name], self._bytes[command.name]
        if record["live"] is not None:
            self._of_job.pop(record["live"], None)
        self._changed(command.name, None, "gone")
        return {"name": command.name, "live": record["live"]}

    @applies(PauseSchedule)
    def pause(self, command: PauseSchedule, entry: EntryContext) -> ScheduleAnswer:
        """Pause a schedule, or let it go on from now. Raises UnknownSchedule."""
        record = self._known(command.name)
        if record["paused"] == command.paused:
            return {"name": command.name, "revision": record["revision"], "unchanged": True}
        changed: ScheduleRecord = {**record, "paused": command.paused}
        if command.paused:
            changed["held"] = []
        else:
            # Not what was due while it was paused; and from this time on even where a clock once was far ahead.
            changed["revision"], changed["due_after"] = entry.index, _second(entry.at)
        self._put(changed, "paused" if command.paused else "resumed")
        return {"name": command.name, "revision": changed["revision"], "unchanged": False}

    @applies(RunSchedule)
    def run(self, command: RunSchedule, entry: EntryContext) -> FireAnswer:
        """Run it now. Raises UnknownSchedule; WrongState where another run is not over and it is not to stand in line;
        what refuses the job."""
        record = self._known(command.name)
        if record["live"] is not None and record["overlap"] == SKIP:
            raise WrongState(
                f"a run of schedule {command.name} is not over",
                asked="run it now",
                found=f"job {record['live']}",
                hint=f"actorgrid cancel {record['live']} ends that; --overlap queue lets runs stand in line",
            )
        if record["live"] is None:
            self._check(record)
        answer: FireAnswer = {"started": [], "held": 0, "skipped": 0}
        self._put(self._due(record, _second(entry.at), entry.at, answer), "")
        self._begin(command.name, entry.at, answer)
        return answer

    @applies(FireSchedule)
    def fire(self, command: FireSchedule, entry: EntryContext) -> FireAnswer:
        """Decide due times. Raises UnknownSchedule, WrongState for what is decided already, or for a paused one."""
        record = self._known(command.name)
        fence = (record["revision"], record["due_after"])
        if fence != (command.revision, command.after) or command.until <= command.after or record["paused"]:
            raise WrongState(
                f"that is decided already about schedule {command.name}",
                asked=f"due after {command.after}, of revision {command.revision}",
                found="it is paused" if record["paused"] else f"due after {fence[1]}, of revision {fence[0]}",
            )
        if command.due and not command.after < command.due[0] <= command.due[-1] <= command.until:
            raise WrongState(
                f"due times of schedule {command.name} are not among those that are decided",
                asked=f"{command.due[0]} to {command.due[-1]}",
                found=f"{command.after} to {command.until}",
            )
        answer: FireAnswer = {"started": [], "held": 0, "skipped": 0}
        record = {**record, "due_after": command.until}
        if command.missed:
            record = _noted(record, _run(command.until, entry.at, MISSED, count=command.missed, reason=_NOBODY))
        for due in command.due:
            record = self._due(record, due, entry.at, answer, in_line=command.in_line)
        self._put(record, "fired")
        self._begin(command.name, entry.at, answer)
        return answer

    # -- inside

    def _due(
        self, record: ScheduleRecord, due: int, at: float, answer: FireAnswer, *, in_line: bool = False
    ) -> ScheduleRecord:
        """*record* with one more due time: in line, or passed over. Nothing is begun yet."""
        busy = record["live"] is not None or bool(record["held"])
        if busy and not in_line and record["overlap"] == SKIP:
            answer["skipped"] += 1
            return _noted(record, _run(due, at, SKIPPED, reason=f"{record['live'] or 'a run before it'} is not over"))
        if busy and not in_line and record["overlap"] == REPLACE:
            for passed in record["held"]:
                answer["skipped"] += 1
                record = _noted(record, _run(passed, at, SKIPPED, reason="a later run has taken its place"))
            return {**record, "held": [due]}
        if len(record["held"]) >= HELD_MAX:
            answer["skipped"] += 1
            return _noted(record, _run(due, at, SKIPPED, reason=f"{HELD_MAX} runs stand in line"))
        return {**record, "held": [*record["held"], due]}

    def _begin(self, name: str, at: float, answer: FireAnswer) -> None:
        """Begin what may begin, and end what is to be replaced."""
        record = self.records[name]
        live = record["live"]
        if live is not None and record["held"] and record["overlap"] == REPLACE:
            self._jobs.end(live, at, "its schedule")  # what only waits ends at once, and the next begins as it does
            now = self.records[name]["live"]
            if now is not None and now != live:
                answer["started"].append(now)
        self._next(name, at, answer)

    def _next(self, name: str, at: float, answer: FireAnswer) -> None:
        """Begin the first run in line, if none is live. What cannot be a job is noted, and the next one tried."""
        record = self.records[name]
        while record["live"] is None and record["held"]:
            due, *left = record["held"]
            try:
                self._check(record)
            except ActorGridError as error:
                answer["skipped"] += 1
                record = _noted({**record, "held": left}, _run(due, at, REFUSED, reason=error.message[:500]))
                continue
            job_id = self._job_id(name, due)
            run = _run(due, at, STARTED, job_id=job_id)
            started = record["started_total"] + 1
            record = _noted({**record, "held": left, "live": job_id, "started_total": started}, run)
            answer["started"].append(job_id)
        if record is not self.records[name]:
            self._put(record, "")
        if record["live"] is not None and not self._jobs.known(record["live"]):
            given = self._job(record, record["live"])
            self._jobs.accept([new_job(given, self._jobs.next_ordinal, self._index(), at)], at)
        answer["held"] = len(self.records[name]["held"])

    def _job(self, record: ScheduleRecord, job_id: str) -> Mapping[str, Any]:
        given = record["job"]
        labels = {**(given.get("labels") or {}), LABEL: record["name"]}
        more = {"labels": labels} if len(labels) <= LABELS_MAX else {}
        return {"name": record["name"], **given, **more, "job_id": job_id, "user_id": record["user_id"]}

    def _check(self, record: ScheduleRecord) -> None:
        """Raises what one more job of *record* is refused with."""
        self._room(1)
        self._quotas.check_submit([cast("JobRecord", self._job(record, record["name"]))])

    def _job_id(self, name: str, due: int) -> str:
        plain = f"{name}-{datetime.fromtimestamp(due, UTC):%Y%m%dT%H%M%S}"
        ids = (plain, *(f"{plain}-{number}" for number in range(2, NAMES_TRIED)))
        return next((id for id in ids if not self._jobs.known(id)), f"{plain}-{self._index()}")

    def _job_ended(self, job: JobRecord, at: float) -> None:
        """A job has ended: note how, and begin what stands in line."""
        name = self._of_job.pop(job["job_id"], None)
        if name is None:
            return
        record = self.records[name]
        runs = [
            cast("ScheduleRunRecord", {**run, "state": job["state"], "ended_at": at})
            if run["job_id"] == job["job_id"]
            else run
            for run in record["runs"]
        ]
        self._put({**record, "live": None, "runs": runs}, "ended")
        self._next(name, at, {"started": [], "held": 0, "skipped": 0})

    def _known(self, name: str) -> ScheduleRecord:
        record = self.records.get(name)
        if record is None:
            raise UnknownSchedule(
                f"there is no schedule {name}",
                asked=name,
                found=f"{len(self.records)} schedules",
                hint="actorgrid schedule list shows them",
            )
        return record

    def _put(self, record: ScheduleRecord, word: str) -> None:
        self._keep(record)
        self._changed(record["name"], record, word)

    def _keep(self, record: ScheduleRecord) -> None:
        name = record["name"]
        before = self.records.get(name)
        if before is None or before["job"] is not record["job"]:
            self._bytes[name] = len(pack(record["job"]))
        if before is not None and before["live"] is not None:
            self._of_job.pop(before["live"], None)
        if record["live"] is not None:
            self._of_job[record["live"]] = name
        self.records[name] = record


_SAID = ("user_id", "trigger", "job", "overlap", "missed", "missed_max", "paused")
"""What people say of a schedule: where all of it is as it was, nothing is changed."""
_NOBODY = "nobody led the cluster in time"


def _run(
    due: int, at: float, outcome: str, *, job_id: str | None = None, count: int = 1, reason: str = ""
) -> ScheduleRunRecord:
    return {
        "due_at": due,
        "at": at,
        "outcome": outcome,
        "job_id": job_id,
        "state": None,
        "ended_at": None,
        "count": count,
        "reason": reason,
    }


def _noted(record: ScheduleRecord, run: ScheduleRunRecord) -> ScheduleRecord:
    return {**record, "runs": [*record["runs"], run][-RUNS_KEPT:]}


def _second(at: float) -> int:
    """The whole second of a proposer's clock, which may say anything."""
    return int(min(max(at, 0.0), float(_LATEST)))
