"""How answers look: tables, bars, sizes, ages, colours. rich is loaded only to draw on a terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from .printing import say, say_json, visible

LINE_EVERY_S = 10.0
CUT_AT_LEAST = 12
"""Columns leave before a cell is cut to less than this."""
_GAP = "  "
_LABEL = re.compile(r"\s*(?:\S+(?: \S+)?\s{2,})?")

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


def terminal_width() -> int | None:
    """The terminal's width; ``None`` where nobody reads and nothing is cut off."""
    if not on_terminal():
        return None
    import shutil  # which loads the archivers, and scripts that read our output need no width

    return shutil.get_terminal_size().columns


def cut(text: str, room: int) -> str:
    """*text* in at most *room* characters, and a sign where some are missing."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"


def folded(text: str, width: int | None) -> list[str]:
    """*text* in lines of at most *width*, broken between words; those that go on stand below the text, not below its
    label (what two spaces set off). A word that is wider stays whole, so that it can be copied."""
    if width is None or len(click.unstyle(text)) <= width:
        return [text]
    label = _LABEL.match(click.unstyle(text))
    indent = " " * min(label.end() if label else 0, width // 2)
    first = text[: len(indent)] if text[: len(indent)].isprintable() else ""
    lines = [first]
    for word in text[len(first) :].split():
        longer = f"{lines[-1]}{' ' if lines[-1].strip() and lines[-1] != first else ''}{word}"
        if len(click.unstyle(longer)) > width and lines[-1].strip() and lines[-1] != first:
            lines.append(indent + word)
        else:
            lines[-1] = longer
    return lines


def say_folded(text: str, *, err: bool = False) -> None:
    """Print text for people, folded where it is wider than their terminal."""
    width = terminal_width()
    say("\n".join(part for line in text.split("\n") for part in folded(line, width)), err=err)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str, spare: Sequence[str] = ()) -> None:
    """Print rows under their headings: drawn on a terminal, aligned plain text elsewhere. A name that ends in ``>``
    is aligned to the right. *spare*: the columns that leave on a narrow terminal, the first one first."""
    rows = [[visible(cell, cell=True) for cell in row] for row in rows]
    if not rows:
        say(empty)
    elif on_terminal():
        columns, rows = fitting(columns, rows, terminal_width(), spare)
        _drawn(columns, rows)
    else:
        say("\n".join(aligned([[name.rstrip(">") for name in columns], *rows], columns)))


def fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, spare: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The columns and rows that fit in *width*: *spare* columns leave, then the widest cells are cut, then the
    columns furthest to the right leave."""
    shown, cells = list(columns), [list(row) for row in rows]
    if width is None:
        return shown, cells
    widths = [max(len(name.rstrip(">")), *(len(row[place]) for row in cells)) for place, name in enumerate(shown)]

    def needed(least: int) -> int:
        return sum(min(each, least) for each in widths) + len(_GAP) * (len(widths) - 1)

    def drop(place: int) -> None:
        for line in (shown, widths, *cells):
            del line[place]  # type: ignore[attr-defined]

    for name in spare:
        if needed(CUT_AT_LEAST) <= width:
            break
        if name in shown:
            drop(shown.index(name))
    while needed(CUT_AT_LEAST) > width and len(shown) > 1:
        drop(len(shown) - 1)
    while needed(max(widths)) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    names = [cut(name.rstrip(">"), room) + ">" * name.endswith(">") for name, room in zip(shown, widths, strict=True)]
    return names, [[cut(cell, room) for cell, room in zip(row, widths, strict=True)] for row in cells]


def lined_up(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, spare: Sequence[str] = ()
) -> list[str]:
    """A table as plain lines, in *width*."""
    columns, rows = fitting(columns, rows, width, spare)
    return aligned([[name.rstrip(">") for name in columns], *rows], columns)


def aligned(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    """Cells padded to the width of their column, two spaces between, nothing cut off."""
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    shown = []
    for line in lines:
        cells = [
            cell.rjust(width) if name.endswith(">") else cell.ljust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        shown.append(_GAP.join(cells).rstrip())
    return shown


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        grid.add_column(
            name.rstrip(">"), justify="right" if name.endswith(">") else "left", overflow="ellipsis", no_wrap=True
        )
    for row in rows:
        grid.add_row(*[Text(cell, style=STATE_COLOURS.get(cell, "")) for cell in row])
    Console(width=terminal_width(), no_color=bool(os.environ.get("NO_COLOR")) or None, highlight=False).print(grid)


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
    """A number of bytes as text: ``80 GiB``; ``-`` for a reading that is not there."""
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
    """A past time as a length of time, for a table."""
    return span(None if at is None else time.time() - at)


def clock(at: float) -> str:
    """A time of day as text; with its date when it is not of today or so."""
    day = "" if abs(at - time.time()) < 43_200 else "%Y-%m-%d "
    return time.strftime(f"{day}%H:%M:%S", time.localtime(at))


def last_known(answer: Mapping[str, Any], *, err: bool = True) -> None:
    """Say that an answer is not of now, on stderr unless *err* is off; nothing for one that is of now."""
    known = answer.get("last_known")
    if known:
        why = f": {known['why']}" if known.get("why") else ""
        say_folded(click.style(f"last known {span(known['age_s'])} ago{why}", fg="yellow"), err=err)


def number(value: float | None, unit: str = "") -> str:
    """A reading with its unit, or ``-``."""
    return "-" if value is None else f"{value:.0f}{unit}"


def share(milli: int) -> str:
    """Thousandths of a device as text: 250 is ``0.25``."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")
