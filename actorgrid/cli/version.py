"""``version``: what is installed here, and whether its fast path is compiled."""

from __future__ import annotations

import platform

import click

from actorgrid import __version__

from .call import CommandContext, json_option, pass_call
from .printing import say


@click.command()
@json_option
@pass_call
def command(call: CommandContext) -> None:
    """Show versions."""
    from actorgrid import hotpath

    versions = {
        "actorgrid": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hotpath": "compiled" if hotpath.COMPILED else "plain Python",
    }
    if call.json:
        call.document(versions)
        return
    for name, value in versions.items():
        say(f"{name:<10} {value}")
