"""``alerts``: what is wrong, on which host; silences."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.amounts import duration

from .call import CommandContext, host_command, host_options
from .printing import say
from .quota import QuotaCommands
from .show import table
from .times import seconds_above_zero
from .watching import keep_showing, watch_option

FIRING_CODE = 1


@click.group(cls=QuotaCommands, invoke_without_command=True)
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show what is wrong with hosts and cluster, silence alerts.

    Alone: what list shows.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(CommandContext))


@command.command("list")
@watch_option
@host_command
def list_(call: CommandContext, watch: float | None) -> int:
    """List alerts that are pending or fire, on all hosts.

    Exits with 1 while one fires that is not silenced.
    """
    code = 0

    def show() -> None:
        nonlocal code
        code = _list(call)

    keep_showing(show, watch, call.json)
    return code


def _list(call: CommandContext) -> int:
    answer = call.http.get("/api/alerts")
    loud = any(each["state"] == "firing" and not each["silenced_until"] for each in answer["alerts"])
    if call.json:
        call.document(answer)
        return FIRING_CODE if loud else 0
    now = time.time()
    rows = [
        [
            _state(each),
            each["severity"],
            each["alert"].removeprefix("Actorgrid"),
            "cluster" if each["of_cluster"] else each["host"],
            duration(max(0.0, now - each["since"])),
            each["text"],
        ]
        for each in answer["alerts"]
    ]
    table(["STATE", "SEVERITY", "ALERT", "HOST", "FOR>", "WHAT"], rows, "nothing is wrong, as far as alerts tell")
    for each in answer["alerts"]:
        if each["state"] == "firing":
            say(f"{each['alert'].removeprefix('Actorgrid')}: {each['action']}", err=True)
    for silence in answer["silences"]:
        left = duration(max(0.0, silence["until"] - now))
        what = " ".join(silence[name] for name in ("alert", "host", "subject"))
        say(f"silence {silence['silence_id']}: {what}, {left} left, by {silence['by']} {silence['reason']}".rstrip())
    for name in answer["unheard"]:
        say(f"actorgrid: {name} did not answer", err=True)
    for problem in answer["problems"]:
        say(f"actorgrid: {problem}", err=True)
    if not answer["targets"]:
        say("nobody is told of alerts: actorgrid config set alerts.targets (docs/alerts.md)", err=True)
    return FIRING_CODE if loud else 0


def _state(alert: dict[str, Any]) -> str:
    return "silenced" if alert["silenced_until"] else str(alert["state"])


@command.command("silence")
@click.argument("alert", default="*")
@click.option("--host", default="*", metavar="PATTERN", help="Of hosts called so.")
@click.option("--subject", default="*", metavar="PATTERN", help="About this GPU or host.")
@click.option("--for", "for_s", callback=seconds_above_zero, required=True, metavar="TIME", help="So long: 30m, 2h.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for others to read.")
@host_command
def silence(call: CommandContext, alert: str, host: str, subject: str, for_s: float, reason: str) -> None:
    """Have nobody told of alerts called ALERT, a pattern: GpuHot, 'Gpu*'.

    They are listed all the same.
    """
    _silence(call, alert, host, subject, for_s, reason, firing_only=False)


@command.command("ack")
@click.argument("alert")
@click.option("--host", default="*", metavar="PATTERN", help="Of hosts called so.")
@click.option("--subject", default="*", metavar="PATTERN", help="About this GPU or host.")
@click.option("--for", "for_s", callback=seconds_above_zero, default="24h", metavar="TIME", help="At most; 24h.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for others to read.")
@host_command
def ack(call: CommandContext, alert: str, host: str, subject: str, for_s: float, reason: str) -> None:
    """Say that somebody sees to ALERT, which fires: nobody is reminded of it.

    When it is over and fires again, people are told.
    """
    _silence(call, alert, host, subject, for_s, reason, firing_only=True)


def _silence(
    call: CommandContext, alert: str, host: str, subject: str, for_s: float, reason: str, *, firing_only: bool
) -> None:
    name = alert if alert.startswith(("Actorgrid", "*")) else f"Actorgrid{alert}"
    body = {"alert": name, "host": host, "subject": subject, "for_s": for_s, "reason": reason}
    answer = call.http.post("/api/alerts/silences", {**body, "firing_only": firing_only})
    call.answer(answer, f"{answer['silence_id']}: nobody is told of {name} for {duration(for_s)}")


@command.command("unsilence")
@click.argument("silence_id")
@host_command
def unsilence(call: CommandContext, silence_id: str) -> None:
    """End a silence."""
    from actorgrid.client.http import segment

    answer = call.http.delete(f"/api/alerts/silences/{segment(silence_id)}", patient=False)
    call.answer(answer, f"{answer['silence_id']} is over")


@command.command("test")
@host_command
def test(call: CommandContext) -> None:
    """Send a made-up alert to who is told of alerts."""
    answer = call.http.post("/api/alerts/test")
    call.answer(answer, "sent to " + ", ".join(answer["targets"]) + "; alerts list shows if it could not be")
