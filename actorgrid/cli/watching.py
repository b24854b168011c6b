"""``--watch``: shows the same again and again, in place on a terminal, one after the other elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from actorgrid.errors import HostUnreachable

from .printing import CLEAR, HOME, draw, say
from .show import clock, on_terminal, say_folded

INTERVAL_S = 2.0
LEAST_S, MOST_S = 0.2, 3600.0


def watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--watch [SECONDS]``, given to the command as ``watch``: the interval, or None."""
    return click.option(
        "--watch",
        "-w",
        is_flag=False,
        flag_value=INTERVAL_S,
        type=click.FloatRange(LEAST_S, MOST_S),
        metavar="[SECONDS]",
        help=f"Go on showing, every {INTERVAL_S:g} s or so many; with --json, a line for each time. Ctrl-C ends it.",
    )(command)


def keep_showing(show: Callable[[], None], every_s: float | None, as_json: bool) -> None:
    """Show once, or with *every_s* until Ctrl-C. A host that is not there for a moment is waited for."""
    if every_s is None:
        show()
        return
    drawn = on_terminal() and not as_json
    if drawn:
        draw(HOME + CLEAR)
    try:
        while True:
            try:
                if drawn:
                    draw(HOME)
                    say(f"every {every_s:g} s, at {clock(time.time())}; Ctrl-C ends it")
                show()
                if drawn:
                    draw(CLEAR)  # what is left of a longer picture
            except HostUnreachable as error:
                say_folded(f"{error.message}: still asking", err=True)
            time.sleep(every_s)
    except KeyboardInterrupt:
        return
