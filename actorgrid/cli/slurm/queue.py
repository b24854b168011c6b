"""``squeue`` and ``scancel``: jobs that wait and run, and their end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from actorgrid.errors import BadRequest

from ..call import CommandContext, host_command
from ..host_names import hostnames
from ..printing import say
from .table import Column, Row, clock, print_rows

PAGE, LISTED_MAX = 1_000, 10_000
STATES = {
    "queued": ("PENDING", "PD"),
    "placed": ("CONFIGURING", "CF"),
    "running": ("RUNNING", "R"),
    "succeeded": ("COMPLETED", "CD"),
    "failed": ("FAILED", "F"),
    "cancelled": ("CANCELLED", "CA"),
    "lost": ("NODE_FAIL", "NF"),
}
LIVE = ("queued", "placed", "running")


def states_of(text: str | None) -> list[str]:
    """Our words for a list of Slurm's; all that live without one. Raises UsageError."""
    if not text:
        return list(LIVE)
    if text.lower() == "all":
        return list(STATES)
    found = []
    for part in text.upper().split(","):
        known = [state for state, names in STATES.items() if part in names or (part, state) == ("TIMEOUT", "failed")]
        if not known:
            names = ", ".join(name for name, _ in STATES.values())
            raise click.UsageError(f"--states: {part} is no state here; known: {names}")
        found += known
    return found


def jobs_of(
    call: CommandContext,
    states: Iterable[str],
    ids: str | None = None,
    user: str | None = None,
    name: str | None = None,
    since_s: float | None = None,
) -> list[dict[str, Any]]:
    """The jobs that are meant, newest first; by ids, or at most 10,000 of those chosen by the host."""
    from ..lookup import find_job

    if ids:
        found = [find_job(call.http, each) for each in ids.split(",") if each]
        return [job for job in found if job["state"] in set(states)]
    one = name if name and "," not in name else None  # the host looks for one part of a name
    asked: dict[str, Any] = {"state": ",".join(states), "limit": PAGE, "user": user, "name": one, "since_s": since_s}
    jobs: list[dict[str, Any]] = []
    while len(jobs) < LISTED_MAX:
        page = call.http.get("/api/jobs", **{key: value for key, value in asked.items() if value})
        jobs += page["jobs"]
        if page.get("next") is None:
            break
        asked["cursor"] = page["next"]
    names = set(name.split(",")) if name else None
    return [job for job in jobs if names is None or job["name"] in names]


def last_attempt(job: Row) -> Mapping[str, Any]:
    """The latest attempt of a job; empty before the first."""
    attempts = job.get("attempts") or []
    last: Mapping[str, Any] = attempts[-1] if attempts else {}
    return last


def ran_s(job: Row) -> float:
    """How long its latest attempt has run, or ran."""
    attempt = last_attempt(job)
    begun = attempt.get("started_at")
    return 0.0 if begun is None else (attempt.get("ended_at") or time.time()) - begun


def members_of(job: Row) -> int:
    """How many tasks it has."""
    return int(job["resources"].get("gang") or 1)


def _place(job: Row) -> str:
    attempt = last_attempt(job)
    if job["state"] not in ("placed", "running"):
        waits_for = "Dependency" if job.get("depends_on") else "Resources"
        return f"({waits_for})" if job["state"] == "queued" else ""
    hosts = {member["host"]: None for member in attempt.get("members") or (attempt,) if member.get("host")}
    return ",".join(str(job.get("host_names", {}).get(host, host)) for host in hosts)


COLUMNS: dict[str, Column] = {
    "i": ("JOBID", lambda job: str(job["job_id"])),
    "A": ("JOBID", lambda job: str(job["job_id"])),
    "F": ("ARRAY_JOB_ID", lambda job: str(job["job_id"])),
    "P": ("PARTITION", lambda job: str((job.get("labels") or {}).get("partition", "actorgrid"))),
    "j": ("NAME", lambda job: str(job["name"])),
    "u": ("USER", lambda job: str(job["user_id"])),
    "t": ("ST", lambda job: STATES[job["state"]][1]),
    "T": ("STATE", lambda job: STATES[job["state"]][0]),
    "M": ("TIME", lambda job: clock(ran_s(job))),
    "l": ("TIME_LIMIT", lambda job: clock(job.get("max_execution_time_s"))),
    "D": ("NODES", lambda job: str(members_of(job))),
    "C": ("CPUS", lambda job: f"{members_of(job) * job['resources'].get('cpu_milli', 0) / 1000:g}"),
    "Q": ("PRIORITY", lambda job: str(job["priority"])),
    "a": ("ACCOUNT", lambda job: str((job.get("labels") or {}).get("account", ""))),
    "V": ("SUBMIT_TIME", lambda job: moment(job["submitted_at"])),
    "S": ("START_TIME", lambda job: moment(last_attempt(job).get("started_at"))),
    "r": ("REASON", lambda job: _place(job).strip("()") if job["state"] == "queued" else "None"),
    "R": ("NODELIST(REASON)", _place),
    "N": ("NODELIST", lambda job: "" if job["state"] == "queued" else _place(job)),
}


def moment(at: float | None) -> str:
    """A time as Slurm prints it."""
    return "N/A" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def own_name() -> str:
    """The user that this command line submits as."""
    from actorgrid.client.user import user_name

    return user_name()


@click.command(context_settings={"help_option_names": ["--help"]})
@click.option("-j", "--jobs", "ids", metavar="ID,...", help="Only these.")
@click.option("-u", "--user", metavar="USER", help="Only this user's.")
@click.option("--me", is_flag=True, help="Only one's own.")
@click.option("-n", "--name", metavar="NAME,...", help="Only of these names.")
@click.option("-t", "--states", metavar="STATE,...", help="Only in these states: PD, R, ...; all: ended ones too.")
@click.option("-h", "--noheader", is_flag=True, help="Without the line of titles.")
@click.option("-o", "--format", "spec", metavar="FORMAT", help=f"Fields, as in '%.18i %j'; known: {' '.join(COLUMNS)}.")
@click.option("-l", "--long", "_long", is_flag=True, hidden=True)
@host_command
def squeue(
    call: CommandContext,
    ids: str | None,
    user: str | None,
    me: bool,
    name: str | None,
    states: str | None,
    noheader: bool,
    spec: str | None,
    _long: bool,
) -> None:
    """List jobs that wait and run."""
    from ..lookup import short_ids

    jobs = jobs_of(call, states_of(states), ids, own_name() if me else user, name)
    if call.json:
        call.document({"jobs": jobs})
        return
    names = hostnames(call)
    short = short_ids([job["job_id"] for job in jobs])
    rows = [{**job, "host_names": names} for job in jobs]
    if spec is None:
        rows = [{**job, "job_id": short[job["job_id"]]} for job in rows]
    print_rows(COLUMNS, "iPjutMDR", spec, rows, not noheader)


@click.command(context_settings={"help_option_names": ["--help"]})
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("-u", "--user", metavar="USER", help="All of this user.")
@click.option("--me", is_flag=True, help="All of one's own.")
@click.option("-n", "--name", metavar="NAME,...", help="All of these names.")
@click.option("-t", "--state", "states", metavar="STATE,...", help="Of these only in that state: PENDING, RUNNING.")
@click.option("-A", "--account", metavar="ACCOUNT", help="Of these only of this account.")
@click.option("-s", "--signal", metavar="SIGNAL", help="Has no meaning here.")
@click.option("-Q", "--quiet", is_flag=True, hidden=True)
@host_command
def scancel(
    call: CommandContext,
    job_ids: tuple[str, ...],
    user: str | None,
    me: bool,
    name: str | None,
    states: str | None,
    account: str | None,
    signal: str | None,
    quiet: bool,
) -> None:
    """Cancel jobs."""
    from actorgrid.client.http import segment

    if signal is not None:
        raise click.UsageError(
            "--signal has no meaning here: a cancelled job gets SIGTERM, and SIGKILL after its grace"
        )
    if not (job_ids or user or me or name or account):
        raise click.UsageError("say which jobs: their ids, --user, --me, --name or --account")
    ids = ",".join(job_ids) or None
    jobs = jobs_of(call, states_of(states), ids, own_name() if me else user, name)
    if account is not None:
        jobs = [job for job in jobs if (job.get("labels") or {}).get("account") == account]
    for job in jobs:
        if job.get("step_of"):
            array = str(job["job_id"]).partition(".")[0]
            raise BadRequest(
                "an index of an array is not cancelled as a job: it would begin again",
                asked=str(job["job_id"]),
                hint=f"actorgrid cancel '{array}[INDEX]' cancels an index, scancel {array} all of it",
            )
    done = [call.http.post(f"/api/jobs/{segment(job['job_id'])}/cancel", repeat=True) for job in jobs]
    if call.json:
        call.document({"jobs": done})
    elif not done and not quiet:
        say("actorgrid: no such jobs wait or run", err=True)
