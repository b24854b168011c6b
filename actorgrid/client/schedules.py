"""Work that is due at times, as a client writes it and looks at it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from actorgrid.errors import BadRequest

from .http import AdminHttp, segment
from .options import options_of

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
        job = _job(client, work, args, kwargs or {}, options)
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


def _job(
    client: Client,
    work: Callable[..., Any] | Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """The job that is to come again, as a request."""
    if isinstance(work, (str, bytes)):
        raise BadRequest("a command is a list of words", asked=repr(work)[:80], hint='["sh", "-c", "..."] for a shell')
    cwd = options.pop("cwd", None)
    chosen = options_of({**options, "durable": True})
    sent = client._working_dir if cwd is None else None
    environment = chosen.environment or client._environment
    more: dict[str, Any] = {} if sent is None else {"working_dir": sent.send_to_door(client.http)}
    if environment is not None:
        more["environment"] = environment.send_to_door(client.http, for_functions=callable(work))
    if not callable(work):
        if args or kwargs:
            raise BadRequest(
                "a command has no arguments beside it", asked=repr(args)[:80], hint="put them into the list"
            )
        if cwd is not None:
            more["cwd"] = os.path.abspath(cwd)
        words = [str(word) for word in work]
        return chosen.job_request(kind="command", command=words, **more)
    from .pickling import PYTHON, job_payload

    payload, inputs = job_payload(work, args, kwargs, directory=sent is None, installed=environment is None)
    if inputs:
        raise BadRequest("work that comes again takes no results of other jobs", asked=inputs[0])
    called = str(getattr(work, "__name__", type(work).__name__))
    return chosen.job_request(kind="function", payload=payload, python=PYTHON, name=called, **more)
