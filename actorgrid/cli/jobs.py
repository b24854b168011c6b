"""``ps`` and ``cancel``."""

from __future__ import annotations

import time
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .label_option import labels_option
from .printing import say
from .show import ago, coloured, last_known, lined_up, on_terminal, share, size, span, table, terminal_width
from .times import seconds_above_zero

STATES = ["queued", "placed", "running", "succeeded", "failed", "cancelled", "lost"]
LIVE = ["queued", "placed", "running"]
COLUMNS = ["JOB", "NAME", "STATE", "GPUS>", "ON", "AGE>", "RAN>", "TRY>", "NOTE"]
SPARE = ["TRY>", "ON", "RAN>", "AGE>"]
WATCH_INTERVAL_S = 1.0
PAGE = 1_000
"""As many as a host lists at once."""


@click.command()
@click.option("-a", "--all", "every", is_flag=True, help="Ended jobs too.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated.")
@click.option("--label", "labels", multiple=True, callback=labels_option, metavar="K=V", help="Only with this label.")
@click.option("--name", default="", metavar="TEXT", help="Only with this in their names.")
@click.option("--user", default="", metavar="USER", help="Only this user's.")
@click.option("--host", "on", default="", metavar="HOST", help="Only those that ran on this host.")
@click.option("--since", callback=seconds_above_zero, metavar="TIME", help="Only those submitted in the last 30m, 2h.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most so many.")
@click.option(
    "--after", metavar="JOB", shell_complete=candidates.jobs, help="Go on after that one, the last of the page before."
)
@click.option("--sessions", is_flag=True, help="Workers that clients' sessions hold, in place of jobs.")
@click.option("--watch", is_flag=True, help="Go on, once a second, until interrupted.")
@host_command
def ps(
    call: CommandContext,
    every: bool,
    states: tuple[str, ...],
    labels: dict[str, str] | None,
    name: str,
    user: str,
    on: str,
    since: float | None,
    limit: int,
    after: str | None,
    sessions: bool,
    watch: bool,
) -> None:
    """List jobs.

    Waiting and running ones, newest first; --all adds those that ended. What is not asked for stays on the host. Where
    there are more than are listed, the last line says how to go on (with --json: "next" is the job to name with
    --after). With --watch on a terminal the list is redrawn; elsewhere each change is a line (with --json: a document a
    line).
    """
    if sessions:
        from .session_leases import show_leases

        if watch or every or states or after is not None or labels or name or user or on or since:
            raise click.UsageError("--sessions lists what is held now: leave out --watch and what chooses among jobs")
        show_leases(call)
        return
    wanted = list(states) or (STATES if every else LIVE)
    part = _part(call, labels, name, user, on, since)
    if watch:
        if after is not None:
            raise click.UsageError("--watch shows the newest jobs: leave --after out")
        _watch(call, wanted, min(limit, PAGE), part, strict=bool(states))
        return
    answer = _list(call, wanted, limit, after, part)
    if call.json:
        call.document(answer)
        return
    rows = _rows(answer["jobs"], _host_names(call, answer["jobs"]))
    last_known(answer)
    empty = "no jobs" if every or states else "no jobs wait or run; actorgrid ps --all shows ended ones"
    if part:
        empty = "no such jobs" if every or states else "no such jobs wait or run; with --all, ended ones too"
    table(COLUMNS, rows, empty, SPARE)
    if answer.get("total", 0) > len(rows) > 0:
        again = ["--all"][: int(every)] + [f"--state {state}" for state in states] + _said(labels, name, user, on)
        say(_more(answer, len(rows), again, after))


def _part(
    call: CommandContext, labels: dict[str, str] | None, name: str, user: str, on: str, since: float | None
) -> dict[str, Any]:
    """What chooses among the jobs of some states, as the query has it."""
    asked: dict[str, Any] = {"name": name, "user": user, "since_s": since}
    if labels:
        asked["label"] = ",".join(f"{key}={value}" for key, value in labels.items())
    if on:
        from .host_names import find_host

        asked["host"] = find_host(call.http.get("/api/hosts")["hosts"], on)["node_id"]
    return {key: value for key, value in asked.items() if value not in (None, "")}


def _said(labels: dict[str, str] | None, name: str, user: str, on: str) -> list[str]:
    """The options that choose, to be said again for the page that follows; a time would be another by then."""
    from shlex import quote

    said = [f"--label {key}={value}" for key, value in (labels or {}).items()]
    return said + [f"--{word} {quote(text)}" for word, text in (("name", name), ("user", user), ("host", on)) if text]


def _more(answer: dict[str, Any], shown: int, chosen: list[str], after: str | None) -> str:
    """The line on how many more jobs there are than those listed, and how to see them."""
    which = "" if after else "the newest "
    if answer.get("next") is None:
        return f"({shown} of {answer['total']:,}; there are none after these)"
    again = " ".join(["actorgrid ps", *chosen])
    return f"({which}{shown} of {answer['total']:,}; {again} --after {answer['next']} goes on; --limit lists more)"


def _list(
    call: CommandContext, states: list[str], limit: int, after: str | None, part: dict[str, Any]
) -> dict[str, Any]:
    """At most *limit* jobs, in as many requests as it takes; ``next`` is where the list goes on."""
    from .lookup import find_job

    query = None if len(states) == len(STATES) else ",".join(states)
    cursor = find_job(call.http, after)["job_id"] if after is not None else None
    answer: dict[str, Any] = call.http.get("/api/jobs", state=query, limit=min(limit, PAGE), cursor=cursor, **part)
    jobs = answer["jobs"]
    while answer.get("next") is not None and len(jobs) < limit:
        most = min(limit - len(jobs), PAGE)
        page = call.http.get("/api/jobs", state=query, limit=most, cursor=answer["next"], **part)
        jobs.extend(page["jobs"])
        answer["next"] = page.get("next")
    return answer


def _rows(jobs: list[dict[str, Any]], hosts: dict[str, str]) -> list[list[str]]:
    from .lookup import short_ids

    names = short_ids([job["job_id"] for job in jobs])
    return [_row(job, names[job["job_id"]], hosts) for job in jobs]


def _host_names(call: CommandContext, jobs: list[dict[str, Any]]) -> dict[str, str]:
    """The names of the hosts by id; none when there is one, or when none of *jobs* was on any."""
    if not any(job.get("attempts") for job in jobs):
        return {}
    hosts = call.http.get("/api/hosts")["hosts"]
    names = [str(host["hostname"]) for host in hosts]
    return {
        host["node_id"]: name if names.count(name) == 1 else f"{name}:{host['node']}"
        for host, name in zip(hosts, names, strict=True)
        if len(hosts) > 1
    }


def _row(job: dict[str, Any], shown: str, hosts: dict[str, str]) -> list[str]:
    attempts = job.get("attempts") or []
    last = attempts[-1] if attempts else {}
    started, ended = last.get("started_at"), last.get("ended_at")
    ran = span((ended or time.time()) - started) if started else "-"
    return [
        shown,
        str(job["name"])[:32],
        # Not plainly: what it is now, only its host could say.
        str(job["state"]) + ("?" if job.get("unconfirmed") else ""),
        _gpus(job.get("resources", {})),
        _place(last, hosts),
        ago(job["submitted_at"]),
        ran,
        str(len(attempts)),
        note(job),
    ]


def _place(attempt: dict[str, Any], hosts: dict[str, str]) -> str:
    members = attempt.get("members") or []
    if members:
        count = len({member["host"] for member in members})
        return f"{count} host{'s' if count > 1 else ''}"
    indexes = ",".join(str(index) for index in attempt.get("gpu_indexes", []))
    parts = [hosts.get(attempt.get("host", ""), ""), f"gpu {indexes}" if indexes else ""]
    return " ".join(filter(None, parts)) or "-"


def _gpus(resources: dict[str, Any]) -> str:
    gpus = resources.get("gpus", 0)
    if not gpus:
        return "-"
    memory = resources.get("gpu_memory_mib", 0)
    each = share(round(gpus * 1000)) + (f" ({size(memory << 20)})" if memory else "")
    return f"{resources['gang']} x {each}" if "gang" in resources else each


def note(job: dict[str, Any]) -> str:
    """The note on a job beside its state."""
    if job.get("cancel_requested") and job["state"] in LIVE:
        return "stopping"
    if job.get("unconfirmed"):
        return str(job["unconfirmed"])
    attempts = job.get("attempts") or []
    last = attempts[-1] if attempts else {}
    if last.get("preemption") and job["state"] in ("placed", "running"):
        return f"stopping for {last['preemption']['for_job'][:8]}"
    if last.get("state") == "preempted" and job["state"] == "queued":
        return f"preempted ({job['preemptions']})"
    if job["state"] in ("failed", "lost") or (job["state"] == "queued" and attempts):
        error = job.get("error") or last.get("error") or {}
        if last.get("signal"):
            return f"signal {last['signal']}"
        if last.get("exit_code"):
            return f"exit {last['exit_code']}"
        return str(error.get("message", ""))[:60]
    return ""


def _watch(call: CommandContext, states: list[str], limit: int, part: dict[str, Any], strict: bool) -> None:
    """Redraw or tell changes. A job that ends is told too, unless *strict*: then only the states asked for."""
    first = True
    seen: dict[str, str] = {}
    drawing = on_terminal() and not call.json
    while True:
        # Ended jobs are asked for too, or a job that leaves the list would leave without a word.
        answer = _list(call, states if drawing else STATES, limit, None, part)
        jobs = answer["jobs"]
        if drawing:
            rows = _rows(jobs, _host_names(call, jobs))
            click.clear()
            say(f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves")
            last_known(answer)
            lines = lined_up(COLUMNS, rows, terminal_width(), SPARE) if rows else ["no jobs"]
            say("\n".join(lines))
        for job in reversed([] if drawing else jobs):
            state = job["state"]
            if seen.get(job["job_id"]) == state:
                continue
            seen[job["job_id"]] = state
            if state not in states and (first or strict):
                continue
            call.answer(job, f"{job['job_id']} {job['name']} {state} {note(job)}".rstrip())
        first = False
        seen = {job["job_id"]: seen[job["job_id"]] for job in jobs if job["job_id"] in seen}
        time.sleep(WATCH_INTERVAL_S)


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, shell_complete=candidates.live_jobs)
@click.option("--label", "labels", multiple=True, callback=labels_option, metavar="K=V", help="All with this label.")
@click.option("--force", is_flag=True, help="Also what runs under a session's lease; jobs are ended either way.")
@host_command
def cancel(call: CommandContext, job_ids: tuple[str, ...], labels: dict[str, str] | None, force: bool) -> None:
    """Cancel jobs, waiting or running.

    By their ids, or those that have all the labels given; of an array, some indexes: JOB[3], 'JOB[0-9,20]', JOB_3,
    which end as failed while the others go on. Also what runs on a worker that a session holds, by the id of
    its lease or session (ps --sessions lists them).

    A running job gets SIGTERM, and SIGKILL when its grace (work.kill_grace_s) is over. Cancelling an ended job does
    nothing. All names are looked up before the first job is cancelled.
    """
    from actorgrid.client.http import segment

    from .array_part import find_part
    from .session_leases import cancel_leases, find_work

    if bool(job_ids) == bool(labels):
        raise click.UsageError("say which jobs: by their ids, or with --label K=V")
    if labels:
        from actorgrid.client.job_calls import cancel_labelled

        found_so = cancel_labelled(call.http, labels)
        if call.json:
            call.document({"jobs": found_so})
            return
        for each in found_so:
            say(f"{each['job_id']} {coloured('cancelled') if each['state'] == 'queued' else 'stopping'}")
        if not found_so:
            say("no such jobs wait or run", err=True)
        return
    parts = {text: part for text in job_ids if (part := find_part(call.http, text)) is not None}
    # --force is how Python asks for it (cancel(force=True)); here, an id of a lease is clear enough.
    works = [find_work(call.http, text) for text in job_ids if text not in parts]
    found = [job["job_id"] for job, _ in works if job is not None]
    leases = {lease["lease_id"]: lease for _, held in works for lease in held}
    ended = cancel_leases(call.http, list(leases.values()))
    jobs = [call.http.post(f"/api/jobs/{segment(job_id)}/cancel", repeat=True) for job_id in dict.fromkeys(found)]
    indexes = [{"job_id": part.array_id, **part.ask(call.http, "cancel")} for part in parts.values()]
    if call.json:
        more = {"leases": ended} if ended else {}
        call.document({"jobs": jobs, **more, **({"indexes": indexes} if indexes else {})})
        return
    for text, told in zip(parts, indexes, strict=True):
        say(f"{text}: {told['cancelled']} cancelled, {told['stopping']} stopping, {told['over']} had ended")
    for lease in ended:
        say(f"{lease['lease_id']} {coloured('cancelled')}: its task was killed")
    for job in jobs:
        stopping = job["state"] in LIVE
        say(f"{job['job_id']} {'stopping' if stopping else coloured(job['state'])}")
