"""``doctor``: looks at this machine with and without a running agent, and says what to do about each problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .call import CommandContext, config_option, host_command
from .printing import say

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("problem", "red")}


@click.command()
@config_option
@click.option("--settings/--no-settings", default=True, show_default=True, help="List every setting with its origin.")
@host_command
def command(call: CommandContext, config_dir: Path | None, settings: bool) -> int:
    """Check this machine; each problem with a fix.

    Works with and without a running agent. Exits with 0 when nothing is wrong (notes are not), else 1.
    """
    from .checks import check_all

    report = check_all(call, config_dir)
    problems = [finding for finding in report.findings if finding.level == "problem"]
    if call.json:
        call.document(
            {
                "ok": not problems,
                "findings": [finding.to_dict() for finding in report.findings],
                "settings": report.settings if settings else [],
                "running": report.running,
            }
        )
        return 1 if problems else 0
    for finding in report.findings:
        word, colour = MARKS[finding.level]
        say(f"{click.style(f'{word:<8}', fg=colour)} {finding.name:<14} {finding.text}")
        if finding.fix:
            say(f"{'':<8} {'':<14} {click.style('fix', bold=True)}: {finding.fix}")
    if settings and report.settings:
        _settings(report.settings, report.running)
    say()
    say("nothing is wrong" if not problems else f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
    return 1 if problems else 0


def _settings(settings: list[dict[str, Any]], running: bool) -> None:
    from .config import show

    say()
    say("settings of the running agent:" if running else "settings the next agent would read:")
    show(settings, "")
