"""``sacct``: jobs that have ended too, with what they took."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import click

from ..call import CommandContext, host_command
from ..printing import say
from .queue import STATES, jobs_of, last_attempt, members_of, moment, own_name, ran_s, states_of
from .table import Row, clock

DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"


def _exit_code(job: Row) -> str:
    attempt = last_attempt(job)
    return f"{attempt.get('exit_code') or 0}:{attempt.get('signal') or 0}"


def _memory(job: Row) -> str:
    used = last_attempt(job).get("max_rss_bytes")
    return "" if used is None else f"{round(used / 1024)}K"


def _state(job: Row) -> str:
    error = job.get("error") or last_attempt(job).get("error") or {}
    code = error.get("code")
    if job["state"] == "failed" and code in ("TaskTimedOut", "MemoryLimitExceeded", "WorkerOverMemory"):
        return "TIMEOUT" if code == "TaskTimedOut" else "OUT_OF_MEMORY"
    return STATES[job["state"]][0]


FIELDS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "jobid": ("JobID", lambda job: str(job["job_id"])),
    "jobidraw": ("JobIDRaw", lambda job: str(job["job_id"])),
    "jobname": ("JobName", lambda job: str(job["name"])),
    "partition": ("Partition", lambda job: str((job.get("labels") or {}).get("partition", "actorgrid"))),
    "account": ("Account", lambda job: str((job.get("labels") or {}).get("account", ""))),
    "user": ("User", lambda job: str(job["user_id"])),
    "alloccpus": ("AllocCPUS", lambda job: f"{members_of(job) * job['resources'].get('cpu_milli', 0) / 1000:g}"),
    "ncpus": ("NCPUS", lambda job: f"{members_of(job) * job['resources'].get('cpu_milli', 0) / 1000:g}"),
    "state": ("State", _state),
    "exitcode": ("ExitCode", _exit_code),
    "elapsed": ("Elapsed", lambda job: clock(ran_s(job))),
    "elapsedraw": ("ElapsedRaw", lambda job: str(int(ran_s(job)))),
    "timelimit": ("Timelimit", lambda job: clock(job.get("max_execution_time_s"))),
    "submit": ("Submit", lambda job: moment(job["submitted_at"])),
    "start": ("Start", lambda job: moment(last_attempt(job).get("started_at"))),
    "end": ("End", lambda job: moment(job.get("ended_at"))),
    "maxrss": ("MaxRSS", _memory),
    "totalcpu": ("TotalCPU", lambda job: clock(last_attempt(job).get("cpu_s") or 0)),
    "priority": ("Priority", lambda job: str(job["priority"])),
    "restarts": ("Restarts", lambda job: str(max(0, len(job.get("attempts") or []) - 1))),
    "nnodes": ("NNodes", lambda job: str(members_of(job))),
    "comment": ("Comment", lambda job: str((job.get("annotations") or {}).get("comment", ""))),
}


def _since(text: str | None) -> float:
    """How many seconds ago that was: a date, a date and time, a time of today, ``now-2hours``; today without one."""
    now = datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text is None or text.lower() in ("today", "midnight"):
        return (now - midnight).total_seconds() + 1
    word, _, back = text.lower().partition("-")
    if word == "now":
        number = "".join(filter(str.isdigit, back)) or "0"
        unit = back[len(number) :].rstrip("s") or "second"
        sizes = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
        if unit in sizes:
            return int(number) * sizes[unit] + 1.0
    try:
        at = datetime.fromisoformat(text if "-" in text else f"{now.date().isoformat()}T{text}")
    except ValueError:
        raise click.UsageError(
            f"--starttime {text!r}: write 2030-01-31, 2030-01-31T18:00, 18:00 or now-2hours"
        ) from None
    return max(timedelta(), now - at.astimezone()).total_seconds() + 1


@click.command(context_settings={"help_option_names": ["--help"]})
@click.option("-j", "--jobs", "ids", metavar="ID,...", help="Only these, however old.")
@click.option("-u", "--user", metavar="USER", help="Only this user's.")
@click.option("-a", "--allusers", is_flag=True, help="Everybody's.")
@click.option("--name", metavar="NAME,...", help="Only of these names.")
@click.option("-s", "--state", "states", metavar="STATE,...", help="Only in these states: CD, F, ...")
@click.option("-S", "--starttime", metavar="TIME", help="Submitted since then; without it, today.")
@click.option("-o", "--format", "spec", default=DEFAULT, metavar="FIELD,...", help=f"Of: {' '.join(FIELDS)}.")
@click.option("-n", "--noheader", is_flag=True, help="Without the line of titles.")
@click.option("-P", "--parsable2", is_flag=True, help="Fields with | between them.")
@click.option("-p", "--parsable", is_flag=True, help="Fields with | behind each.")
@click.option("-X", "--allocations", is_flag=True, help="As it is anyway: jobs have no steps here.")
@host_command
def sacct(
    call: CommandContext,
    ids: str | None,
    user: str | None,
    allusers: bool,
    name: str | None,
    states: str | None,
    starttime: str | None,
    spec: str,
    noheader: bool,
    parsable2: bool,
    parsable: bool,
    allocations: bool,
) -> None:
    """List jobs that have ended too, with what they took."""
    since_s = None if ids else _since(starttime)
    whose = user or (None if allusers or ids else own_name())
    jobs = jobs_of(call, states_of(states or "all"), ids, whose, name, since_s)
    if call.json:
        call.document({"jobs": jobs})
        return
    names = [part.partition("%")[0].strip().lower() for part in spec.split(",") if part.strip()]
    unknown = [each for each in names if each not in FIELDS]
    if unknown:
        raise click.UsageError(f"--format: {unknown[0]} is not known here; known: {', '.join(FIELDS)}")
    rows: list[list[str]] = [] if noheader else [[FIELDS[each][0] for each in names]]
    rows += [[FIELDS[each][1](job) for each in names] for job in reversed(jobs)]
    if parsable or parsable2:
        for row in rows:
            say("|".join(row) + ("|" if parsable else ""))
        return
    if not noheader:
        rows.insert(1, [])
    widths = [max((len(row[place]) for row in rows if row), default=0) for place in range(len(names))]
    rows = [row or ["-" * width for width in widths] for row in rows]
    for row in rows:
        say(" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
