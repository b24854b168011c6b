"""Work that is due at times, as a client writes it and looks at it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from actorgrid.errors import BadRequest

from .http import AdminHttp, segment

if TYPE_CHECKING:
    from .client import Client


class Schedule:
    """A schedule of the cluster, by its name. Every method raises UnknownSchedule where it is no more."""

    def __init__(self, http: AdminHttp, name: str) -> None:
        self._http = http
        self.name = name

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    @property
    def path(self) -> str:
        """Where the door has it."""
        return f"/api/schedules/{segment(self.name)}"

    def look(self) -> dict[str, Any]:
        """What it is now: ``next_due``, ``live``, ``held``, ``paused``, ``runs`` and what it was made with."""
        seen: dict[str, Any] = self._http.get(self.path)
        return seen

    def runs(self) -> list[dict[str, Any]]:
        """What became of the last 20 due times, oldest first: ``due_at``, ``outcome``, ``job_id``, ``state``."""
        runs: list[dict[str, Any]] = self.look()["runs"]
        return runs

    def pause(self) -> None:
        """Let nothing more of it begin; what runs goes on."""
        self._http.post(f"{self.path}/pause", repeat=True)

    def resume(self) -> None:
        """Let it go on from now."""
        self._http.post(f"{self.path}/resume", repeat=True)

    def run_now(self) -> str | None:
        """Run it as if it were due: the job's id, or ``None`` where it stands in line. Raises WrongState."""
        started: list[str] = self._http.post(f"{self.path}/run")["started"]
        return started[0] if started else None

    def remove(self) -> None:
        """Take it away; what runs goes on."""
        self._http.delete(self.path, patient=False)


class ScheduleCalls:
    """A part of :class:`~.client.Client`."""

    def schedule(
        self,
        work: Callable[..., Any] | Sequence[str],
        /,
        *args: Any,
        name: str | None = None,
        cron: str | None = None,
        time_zone: str = "UTC",
        every: float | timedelta | None = None,
        execute_at: datetime | None = None,
        overlap: str = "skip",
        missed: str = "run_once",
        missed_max: int = 10,
        paused: bool = False,
        replace: bool = False,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Schedule:
        """Have a function with these arguments, or a command, run whenever it is due, by whichever host leads then.

        One of *cron* (``"0 3 * * *"``, in *time_zone*), *every* (seconds) and *execute_at* (once; of here, if it has no
        zone) says when. *overlap*: what happens while the run before is not over: ``skip``, ``queue`` or ``replace``.
        *missed*: what becomes of due times at which nobody led: ``run_once``, ``skip``, or ``run_all`` (the latest
        *missed_max*). Further options as for a durable ``submit``; ``retries`` are of each run. Raises InvalidSchedule,
        WrongState for a name that is taken, unless *replace*.
        """
        from .job_bodies import job_body

        client = cast("Client", self)
        body: dict[str, Any] = {"overlap": overlap, "missed": missed, "missed_max": missed_max, "paused": paused}
        if every is not None:
            seconds = every.total_seconds() if isinstance(every, timedelta) else every
            if seconds != int(seconds):
                raise BadRequest("every is a whole number of seconds", asked=str(every))
            body["every_s"] = int(seconds)
        if cron is not None:
            body |= {"cron": cron, "time_zone": time_zone}
        if execute_at is not None:
            body["execute_at"] = execute_at.astimezone().isoformat()
        job = job_body(client.http, work, args, kwargs or {}, options, client._working_dir, client._environment)
        name = name or f"{str(job.get('name') or 'work').strip('<>')[:30]}-{uuid.uuid4().hex[:6]}"
        schedule = Schedule(client.http, name)
        client.http.put(schedule.path, {**body, "replace": replace, "job": job})
        return schedule

    def schedules(self) -> list[dict[str, Any]]:
        """All schedules, by name, as ``Schedule.look()`` gives each."""
        found: list[dict[str, Any]] = cast("Client", self).http.get("/api/schedules")["schedules"]
        return found

    def find_schedule(self, name: str, /) -> Schedule:
        """The schedule of that name. Raises UnknownSchedule."""
        schedule = Schedule(cast("Client", self).http, name)
        schedule.look()
        return schedule
