"""``notifications``: what jobs are still to tell, and could not; trying a target."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.amounts import duration

from . import candidates
from .call import CommandContext, host_command, host_options
from .lookup import find_job
from .printing import say
from .quota import QuotaCommands
from .show import table


@click.group(cls=QuotaCommands, invoke_without_command=True)
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show notifications that wait or were given up; try targets.

    Jobs tell of their states whom run --notify names. What was sent is not kept.
    """
    if ctx.invoked_subcommand is None:
        call = ctx.ensure_object(CommandContext)
        answer = call.http.get("/api/notifications")
        if call.json:
            call.document(answer)
            return
        _show(answer)


def _show(answer: dict[str, Any]) -> None:
    rows = [
        [
            each["job_id"][:12],
            each["event"],
            each["target"],
            each["state"],
            duration(max(0.0, time.time() - each["at"])),
            str(each["tries"]),
            _next(each),
        ]
        for each in answer["notifications"]
    ]
    columns = ["JOB", "EVENT", "TARGET", "STATE", "AGE>", "TRIES>", "WHY"]
    table(columns, rows, "no notification waits, and none was given up")
    named = ", ".join(answer["targets"]) or "none"
    say(f"targets named on this host: {named}; mail: {'yes' if answer['mail'] else 'no'}", err=True)
    if answer["problem"]:
        say(f"actorgrid: {answer['problem']}", err=True)


def _next(notice: dict[str, Any]) -> str:
    text = str(notice["failure"])
    if notice["next_at"] and notice["next_at"] > time.time():
        text += f" (again in {duration(notice['next_at'] - time.time())})"
    return text.strip()


@command.command("clear")
@click.argument("job_id", metavar="[JOB]", default="", shell_complete=candidates.jobs)
@host_command
def clear(call: CommandContext, job_id: str) -> None:
    """Forget notifications that were given up: those of JOB, or all."""
    wanted = find_job(call.http, job_id)["job_id"] if job_id else ""
    answer = call.http.post("/api/notifications/clear", {"job_id": wanted}, repeat=True)
    call.answer(answer, f"{answer['cleared']} forgotten")


@command.command("test")
@click.argument("target", metavar="TARGET")
@host_command
def test(call: CommandContext, target: str) -> int:
    """Send one message to TARGET: webhook:URL, mail:ADDRESS, or a name.

    The host that is asked sends it. Exits with 1 when it did not arrive.
    """
    answer = call.http.post("/api/notifications/test", {"target": target})
    call.answer(answer, f"{answer['target']}: " + ("sent" if answer["sent"] else f"not sent: {answer['failure']}"))
    return 0 if answer["sent"] else 1
