"""``tune``: what is slow, on which host, and which setting to change; changes it when asked."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command
from .config import text
from .printing import say
from .show import clock, say_folded

ALL = "all"


@click.command()
@click.option(
    "--apply", "apply", is_flag=False, flag_value=ALL, metavar="[NAME]", help="Change the setting that NAME says; all."
)
@click.option(
    "--undo", "undo", is_flag=False, flag_value=ALL, metavar="[NAME]", help="Change it back to what it was before."
)
@host_command
def command(call: CommandContext, apply: str | None, undo: str | None) -> None:
    """Show what is slow, and which setting to change.

    From figures that the hosts have anyway, of the last minutes. Nothing is changed without --apply; that changes live
    settings alone, for the whole cluster, as config set does. Other settings are written into a file.
    """
    if apply is not None and undo is not None:
        raise click.UsageError("--apply and --undo are two things: give one of them")
    if apply is not None or undo is not None:
        word, name = ("apply", apply) if apply is not None else ("undo", undo)
        answer = call.http.post(f"/api/tuning/{word}", {"names": [] if name == ALL else [name]})
        _changed(call, answer)
        return
    answer = call.http.get("/api/tuning")
    if call.json:
        call.document(answer)
        return
    for finding in answer["findings"]:
        _finding(finding)
    if not answer["findings"] and not answer["problems"]:
        say("nothing is slow, as far as the figures tell")
    for change in answer["applied"]:
        before, after = text(change["before"]), text(change["after"])
        say_folded(f"applied: {change['name']}: {change['setting']} {before} -> {after}, {clock(change['at'])}")
    for name in answer["unheard"]:
        say(f"actorgrid: {name} did not answer", err=True)
    for problem in answer["problems"]:
        say(f"actorgrid: {problem}", err=True)


def _finding(finding: dict[str, Any]) -> None:
    say_folded(f"{click.style(finding['name'], bold=True)} on {finding['host']}: {finding['what']}")
    say_folded(f"  found    {finding['evidence']}")
    if finding["setting"]:
        live = "" if finding["live"] else " (in its file; at the next start)"
        say_folded(f"  setting  {finding['setting']}: {text(finding['now'])} -> {text(finding['to'])}{live}")
    say_folded(f"  {'effect ' if finding['setting'] else 'try    '}  {finding['effect']}")
    if finding["live"]:
        say(f"  next     actorgrid tune --apply {finding['name']}")


def _changed(call: CommandContext, answer: dict[str, Any]) -> None:
    if call.json:
        call.document(answer)
        return
    for change in answer["changed"]:
        say(f"{change['setting']} = {text(change['after'])} (was {text(change['before'])}), for {change['name']}")
    for name, why in answer["kept"].items():
        say_folded(f"{name}: nothing changed: {why}")
    if not answer["changed"] and not answer["kept"]:
        say("nothing to change")
