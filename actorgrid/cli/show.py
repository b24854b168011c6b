"""How answers look: tables, bars, sizes, ages, colours. rich is loaded only to draw on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from .printing import say, say_json, visible

LINE_EVERY_S = 10.0

STATE_COLOURS = {
    "queued": "yellow",
    "placed": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "lost": "red",
    "healthy": "green",
    "up": "green",
    "available": "green",
    "allocated": "blue",
    "degraded": "yellow",
    "not_ready": "red",
    "stalled": "red",
    "electing": "yellow",
    "no_quorum": "red",
    "unreachable": "red",
    "error": "red",
}


def on_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def coloured(word: str) -> str:
    """A state in its colour; click takes the colour off again where nobody sees it."""
    colour = STATE_COLOURS.get(word)
    return click.style(word, fg=colour) if colour else word


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print rows under their headings: drawn on a terminal, aligned plain text elsewhere. A name that ends in ``>``
    is aligned to the right."""
    rows = [[visible(cell, cell=True) for cell in row] for row in rows]
    if not rows:
        say(empty)
    elif on_terminal():
        _drawn(columns, rows)
    else:
        say("\n".join(aligned([[name.rstrip(">") for name in columns], *rows], columns)))


def aligned(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    """Cells padded to the width of their column, two spaces between, nothing cut off."""
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    shown = []
    for line in lines:
        cells = [
            cell.rjust(width) if name.endswith(">") else cell.ljust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        shown.append("  ".join(cells).rstrip())
    return shown


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        grid.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left", overflow="ellipsis")
    for row in rows:
        grid.add_row(*[Text(cell, style=STATE_COLOURS.get(cell, "")) for cell in row])
    Console(no_color=bool(os.environ.get("NO_COLOR")) or None, highlight=False).print(grid)


def _lines(as_json: bool, every_s: float) -> Callable[[str, float, float], None]:
    last, next_at = "", time.monotonic() + every_s

    def report(label: str, done: float, total: float) -> None:
        nonlocal last, next_at
        now = time.monotonic()
        if label == last or now < next_at:
            return
        last, next_at = label, now + every_s
        if as_json:
            say_json({"event": "step", "step": label, "done": done, "of": total or None}, err=True)
        else:
            of = f" ({done:.3g} of {total:.3g} done)" if total else ""
            say(f"{time.strftime('%H:%M:%S')} {label}{of}", err=True)

    return report


@contextmanager
def progress(as_json: bool, *, steps: bool = False) -> Iterator[Callable[[str, float, float], None]]:
    """How far long work is, on stderr: a bar for people who watch, a line for logs and scripts (with ``--json`` a
    document a line). Tell it what is done, how far, and of how much in all: 0 is not known.

    *steps*: each label is a step of its own and gets its line; else there is one every ten seconds.
    """
    if as_json or not sys.stderr.isatty():
        yield _lines(as_json, 0.0 if steps else LINE_EVERY_S)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    layout = (TextColumn("{task.description}"), BarColumn(40), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*layout, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None)
        yield lambda label, done, total: bars.update(
            bar, description=visible(label, cell=True), completed=done, total=total or None
        )


def size(number: int | None) -> str:
    """Bytes for people: ``80 GiB``; ``-`` for a reading that is not there."""
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def span(seconds: float | None) -> str:
    """A length of time: ``3s``, ``4m10s``, ``2h5m``, ``3d4h``."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def ago(at: float | None) -> str:
    """How long ago, for a table."""
    return span(None if at is None else time.time() - at)


def clock(at: float) -> str:
    """A time of day; with its date when it is not of today or so."""
    day = "" if abs(at - time.time()) < 43_200 else "%Y-%m-%d "
    return time.strftime(f"{day}%H:%M:%S", time.localtime(at))


def last_known(answer: Mapping[str, Any], *, err: bool = True) -> None:
    """Say that an answer is not of now, on stderr unless *err* is off; nothing for one that is of now."""
    known = answer.get("last_known")
    if known:
        why = f": {known['why']}" if known.get("why") else ""
        say(click.style(f"last known {span(known['age_s'])} ago{why}", fg="yellow"), err=err)


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A reading with its unit, or ``-``."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def share(milli: int) -> str:
    """Thousandths of a device as people write them: 250 is ``0.25``."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")
