"""``schedule``: work that is due at times."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command, host_options, pass_call
from .show import table
from .times import left, seconds_above_zero
from .work import request, work_options

OVERLAP = click.Choice(["skip", "queue", "replace"])
MISSED = click.Choice(["run_once", "skip", "run_all"])


@click.group()
def command() -> None:
    """Have work run at times: written once, run by whichever host leads then.

    \b
        actorgrid schedule add nightly --cron "0 3 * * *" --tz Europe/Berlin -- ./backup.sh
        actorgrid schedule add tidy --every 10m -- ./tidy.sh
    """


def _every(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A length of time in whole seconds."""
    length_s = seconds_above_zero(context, option, text)
    if length_s is not None and length_s != int(length_s):
        raise click.BadParameter(f"{text!r} is no whole number of seconds")
    return None if length_s is None else int(length_s)


@command.command("add")
@click.argument("schedule", metavar="NAME")
@click.option("--cron", metavar="EXPR", help="Five fields, as '0 3 * * *', or @daily, @hourly, ...")
@click.option("--tz", "time_zone", metavar="ZONE", help="The time zone of --cron and --at, as Europe/Berlin. [UTC]")
@click.option("--at", metavar="TIME", help="Once: 2030-12-01T03:00, of here, of --tz, or with its zone behind.")
@click.option("--every", callback=_every, metavar="TIME", help="From now on, after each: 30s, 10m, 2h, 7d.")
@click.option("--overlap", type=OVERLAP, default="skip", show_default=True, help="While the run before is not over.")
@click.option(
    "--missed", type=MISSED, default="run_once", show_default=True, help="Due times at which no host led the cluster."
)
@click.option(
    "--missed-max", type=click.IntRange(1, 100), default=10, show_default=True, help="Of run_all: so many, the latest."
)
@click.option("--paused", is_flag=True, help="Let nothing begin before it is resumed.")
@click.option("--replace", is_flag=True, help="Write over a schedule of that name.")
@work_options
@host_options
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1, required=True)
@pass_call
def add(
    call: CommandContext,
    /,
    schedule: str,
    cron: str | None,
    time_zone: str | None,
    at: str | None,
    every: int | None,
    words: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a command whenever it is due: --cron, --every or --at says when.

    Each run is a job of its own, with an id made of NAME and the due time: ps, logs, why and cancel know it. Options
    say what each run gets; --retries is of each run.
    """
    from actorgrid.client.http import segment

    if sum(given is not None for given in (cron, at, every)) != 1:
        raise click.UsageError("one of --cron, --every and --at says when it is due")
    if options["deadline"] is not None or options["after"]:
        raise click.UsageError("work that comes again has no --deadline and comes --after no job: use --timeout")
    names = ("overlap", "missed", "missed_max", "paused", "replace")
    body: dict[str, Any] = {name: options.pop(name) for name in names}
    if cron is not None:
        body |= {"cron": cron, "time_zone": time_zone or "UTC"}
    elif every is not None:
        body["every_s"] = every
    else:
        body["execute_at"] = _moment(str(at), time_zone).isoformat()
    body["job"] = request(call, list(words), None, **options)
    answer = call.http.put(f"/api/schedules/{segment(schedule)}", body)
    view = answer["schedule"]
    due = f"due {_when(view['next_due'])}" if view["next_due"] else "paused" if view["paused"] else "never due"
    call.answer(answer, f"{schedule}: {due}" + (" (it was so before)" if answer["unchanged"] else ""))


def _moment(text: str, zone: str | None) -> datetime:
    """A time, of the zone it names, of *zone*, or of here."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(
            f"--at: {text!r} is no time; write for example 2030-01-31T18:00 or 2030-01-31T18:00+01:00"
        ) from None
    if moment.tzinfo is not None or zone is None:
        return moment.astimezone()
    from zoneinfo import ZoneInfo

    try:
        return moment.replace(tzinfo=ZoneInfo(zone))
    except (OSError, ValueError, KeyError):
        raise click.BadParameter(f"--tz: there is no time zone {zone!r}; write for example Europe/Berlin") from None


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List schedules."""
    schedules = call.http.get("/api/schedules")["schedules"]
    if call.json:
        call.document({"schedules": schedules})
        return
    rows = []
    for each in schedules:
        last = each["runs"][-1] if each["runs"] else None
        state = "paused" if each["paused"] else "running" if each["live"] else "waiting"
        rows.append([each["name"], _trigger(each), state, _when(each["next_due"]), _outcome(last), _work(each)])
    table(
        ["NAME", "WHEN", "STATE", "NEXT", "LAST", "RUNS"],
        rows,
        "no schedules; one is made by: actorgrid schedule add NAME --every 10m -- CMD",
        spare=("RUNS", "LAST"),
    )


@command.command("show")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def show(call: CommandContext, name: str) -> None:
    """Show a schedule: when it is due, what runs, what became of the last runs."""
    view = _view(call, name)
    if call.json:
        call.document(view)
        return
    rows = [
        ["when", _trigger(view)],
        ["next", ", ".join(_time(due) for due in view["next_due"]) or ("-" if view["paused"] else "never")],
        ["state", "paused" if view["paused"] else f"job {view['live']}" if view["live"] else "waiting"],
        ["in line", ", ".join(_time(due) for due in view["held"]) or "-"],
        ["overlap", view["overlap"]],
        ["missed", view["missed"] + (f", at most {view['missed_max']}" if view["missed"] == "run_all" else "")],
        ["runs", _work(view)],
        ["user", view["user_id"]],
        ["started", str(view["started_total"])],
    ]
    if view["problem"]:
        rows.append(["problem", view["problem"]])
    table(["", name], rows, "")
    _history(view)


@command.command("history")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def history(call: CommandContext, name: str) -> None:
    """Show what became of the last 20 due times."""
    view = _view(call, name)
    if call.json:
        call.document({"name": name, "runs": view["runs"]})
    else:
        _history(view)


@command.command("pause")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def pause(call: CommandContext, name: str) -> None:
    """Let nothing more of it begin; what runs goes on."""
    view = _asked(call, name, "pause")
    call.answer(view, f"{name} is paused" + (f"; job {view['live']} goes on" if view["live"] else ""))


@command.command("resume")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def resume(call: CommandContext, name: str) -> None:
    """Let it go on; what was due meanwhile is passed over."""
    view = _asked(call, name, "resume")
    call.answer(view, f"{name}: due {_when(view['next_due'])}")


@command.command("run-now")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def run_now(call: CommandContext, name: str) -> None:
    """Run it now, as if it were due: its overlap policy holds."""
    done = _asked(call, name, "run")
    call.answer(done, done["started"][0] if done["started"] else f"{name}: {done['held']} in line")


@command.command("rm")
@click.argument("name", shell_complete=candidates.schedules)
@host_command
def remove(call: CommandContext, name: str) -> None:
    """Take it away; what runs goes on."""
    from actorgrid.client.http import segment

    gone = call.http.delete(f"/api/schedules/{segment(name)}", patient=False)
    call.answer(gone, f"{name} is removed" + (f"; job {gone['live']} goes on" if gone["live"] else ""))


def _view(call: CommandContext, name: str) -> dict[str, Any]:
    from actorgrid.client.http import segment

    view: dict[str, Any] = call.http.get(f"/api/schedules/{segment(name)}")
    return view


def _asked(call: CommandContext, name: str, verb: str) -> dict[str, Any]:
    from actorgrid.client.http import segment

    # Running it twice is two runs: what may have been lost is not asked again.
    done: dict[str, Any] = call.http.post(f"/api/schedules/{segment(name)}/{verb}", repeat=verb != "run")
    return done


def _history(view: dict[str, Any]) -> None:
    rows = [
        [_time(run["due_at"]), _outcome(run), run["job_id"] or "-", run["reason"] or "-"]
        for run in reversed(view["runs"])
    ]
    table(["DUE", "OUTCOME", "JOB", "WHY"], rows, "nothing was due yet", spare=("WHY",))


def _outcome(run: dict[str, Any] | None) -> str:
    if run is None:
        return "-"
    if run["outcome"] == "started":
        return str(run["state"] or "running")
    return f"{run['outcome']} x{run['count']}" if run["count"] > 1 else str(run["outcome"])


def _trigger(view: dict[str, Any]) -> str:
    if view["cron"] is not None:
        return f"{view['cron']} {view['time_zone']}"
    return f"every {left(view['every_s'])}" if view["every_s"] is not None else f"at {_time(view['execute_at'])}"


def _work(view: dict[str, Any]) -> str:
    job = view["job"]
    return " ".join(job.get("command") or [job.get("name") or job["kind"]])


def _when(due: list[int]) -> str:
    if not due:
        return "-"
    left_s = due[0] - time.time()
    return f"{_time(due[0])} (in {left(left_s)})" if left_s > 0 else f"{_time(due[0])} (now)"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
