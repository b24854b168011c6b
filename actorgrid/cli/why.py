"""``why``: where a job is, why, and what to do about it; with ``host``, the same of a host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .printing import say, visible
from .show import aligned, coloured, folded, lined_up, say_folded, share, span, terminal_width
from .used import used_by

ESTIMATES = {
    "reservation": "its room is reserved",
    "time_limits": "by the time limits of what holds its room",
    "retry": "the next attempt",
}
HELD_SHOWN = 5
SPARE = ["FOR>", "CPUS>", "PRIORITY>", "HOST"]
INDENT = "  "
USUAL_POLICY, USUAL_PRIORITY = "priority", 50


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.jobs)
@click.argument("host", metavar="| host HOST", required=False, shell_complete=candidates.hosts)
@host_command
def command(call: CommandContext, job_id: str, host: str | None) -> None:
    """Why a job waits or failed, or a host or a service is as it is, and what to do.

    For a host: its checks with their figures, what failed there, what was done about it and what would be next.

    For a waiting job: what it lacks, on how many hosts, its place in the line, what holds the room it could use, when
    it is expected to start, and which smaller request would fit now. For an ended one: how it ended. JOB is an id or
    the beginning of one.
    """
    from actorgrid.client.http import segment

    from .service_lookup import explain_service, find_work_or_service
    from .session_leases import explain_leases

    if host is not None:
        if job_id != "host":
            raise click.UsageError("one JOB, or the word host and then a HOST")
        from .why_host import explain_host

        explain_host(call, host)
        return
    job, leases, service = find_work_or_service(call.http, job_id)
    if service is not None:
        explain_service(call, service)
        return
    if job is None:
        explain_leases(call, leases)
        return
    answer = call.http.get(f"/api/jobs/{segment(job['job_id'])}/why")
    if call.json:
        call.document(answer)
        return
    headline = answer.get("headline") or next(iter(answer.get("reasons", [])), "")
    say_folded(f"{answer['job_id']} ({job['name']}) {coloured(answer['state'])}: {headline}")
    for section in (_constraints(answer), _facts(answer, time.time()), _attempts(answer), _held(answer), _tail(answer)):
        if section:
            say()
            say_folded("\n".join(INDENT + line for line in section))
    if used := used_by(job):
        say()
        say_folded(INDENT + used)
    steps = answer.get("next_steps") or [answer.get("next_step") or "nothing to do"]
    say()
    say(INDENT + click.style("next step" if len(steps) == 1 else "next steps, any of", bold=True))
    width = terminal_width()
    for step in steps:
        first, *more = folded(step, width and width - len(INDENT) - 2)
        say("\n".join([f"{INDENT}- {first}", *(f"{INDENT}  {line}" for line in more)]))


def _table(columns: list[str], rows: list[list[str]], spare: Sequence[str] = ()) -> list[str]:
    width = terminal_width()
    return lined_up(columns, rows, width and width - len(INDENT), spare)


def _constraints(answer: dict[str, Any]) -> list[str]:
    total = answer.get("total_hosts")
    rows = [[one["text"], f"{one['hosts']} of {total}"] for one in answer.get("constraints", [])]
    return _table(["WHY NOT", "HOSTS>"], rows) if rows else []


def _facts(answer: dict[str, Any], now: float) -> list[str]:
    """The facts known beside the constraints, a line each."""
    rows: list[list[str]] = []
    if answer.get("position"):
        rows.append(["line", f"{answer['position']} of {answer['waiting']}{_order(answer)}"])
    if answer.get("waiting_s") is not None:
        rows.append(["waiting", f"for {span(answer['waiting_s'])}"])
    rows += [["depends on", f"{one['job_id']} ({one['state']})"] for one in answer.get("depends_on", [])[:HELD_SHOWN]]
    if answer.get("not_before"):
        rows.append(["not before", _moment(answer["not_before"], now)])
    reservation = answer.get("reservation")
    if reservation:
        nodes = ", ".join(reservation.get("nodes") or [])
        at = reservation.get("starts_at")
        rows.append(["reserved", (f"{nodes}, " if nodes else "") + (_moment(at, now) if at else "no time yet")])
    start = answer.get("estimated_start")
    if start:
        rows.append(["start", f"{_moment(start['at'], now)}: {ESTIMATES.get(start['from'], start['from'])}"])
    rows += [["note", note] for note in answer.get("notes", [])]
    return aligned(rows, ["", ""]) if rows else []


def _order(answer: dict[str, Any]) -> str:
    """By what the line is ordered, for those who chose it: nothing where policy and priority are the usual ones."""
    policy, priority = answer.get("policy", USUAL_POLICY), answer.get("priority", USUAL_PRIORITY)
    chosen = [f"its priority is {priority}"] if priority != USUAL_PRIORITY else []
    chosen += [f"the policy is {policy}"] if policy != USUAL_POLICY else []
    return f" ({', '.join(chosen)})" if chosen else ""


def _moment(at: float, now: float) -> str:
    """A time of day and how far away it is: ``14:03:10 (in 4m10s)``."""
    day = "" if abs(at - now) < 43_200 else "%Y-%m-%d "
    clock = time.strftime(f"{day}%H:%M:%S", time.localtime(at))
    return f"{clock} (in {span(at - now)})" if at > now else f"{clock} (now)"


def _attempts(answer: dict[str, Any]) -> list[str]:
    """Earlier tries, where there was more than one."""
    attempts = answer.get("attempts", [])
    if len(attempts) < 2:
        return []
    rows = []
    for one in attempts:
        how = f"signal {one['signal']}" if one.get("signal") else ""
        how = how or (f"exit {one['exit_code']}" if one.get("exit_code") is not None else "")
        rows.append(
            [str(one["number"]), str(one.get("state") or "-"), str(one.get("host") or "-"), span(one.get("ran_s")), how]
        )
    return _table(["TRY>", "STATE", "HOST", "RAN>", "END"], rows)


def _held(answer: dict[str, Any]) -> list[str]:
    """The lines on who holds the room on the nearest host."""
    from .lookup import short_ids

    held = answer.get("held_by", [])
    names = short_ids([one["job_id"] for one in held if one.get("job_id")])
    rows = [
        [
            names[one["job_id"]] if one.get("job_id") else "-",
            str(one.get("name") or "-")[:32],
            "-" if one.get("priority") is None else str(one["priority"]),
            share(round(one["gpus"] * 1000)) if one.get("gpus") else "-",
            f"{one['cpu_milli'] / 1000:g}",
            str(one.get("host") or "-"),
            span(time.time() - one["since"]) if one.get("since") else "-",
            f"in {span(one['ends_by'] - time.time())}" if one.get("ends_by") else "-",
        ]
        for one in held[:HELD_SHOWN]
    ]
    if not rows:
        return []
    lines = _table(["HELD BY", "NAME", "PRIORITY>", "GPUS>", "CPUS>", "HOST", "FOR>", "ENDS AT LATEST"], rows, SPARE)
    return [*lines, f"and {len(held) - HELD_SHOWN} more"] if len(held) > HELD_SHOWN else lines


def _tail(answer: dict[str, Any]) -> list[str]:
    """The last lines it wrote to stderr; control characters of theirs do not reach the terminal."""
    lines = answer.get("stderr_tail", [])
    shown = [visible(line, cell=True)[:200] for line in lines]
    return ["its last words on stderr:", *(f"| {line}" for line in shown)] if shown else []
