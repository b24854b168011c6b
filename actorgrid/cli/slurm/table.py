"""Tables as Slurm's listings print them: by default, and as ``-o "%.18i %j"`` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ..printing import say

_FIELD = re.compile(r"%(\.?)(\d{0,3})([A-Za-z])")
Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def print_rows(
    columns: Mapping[str, Column], default: str, spec: str | None, rows: Sequence[Row], header: bool
) -> None:
    """Print *rows*: the letters of *spec* (or of *default*, each as wide as it needs) name *columns*. Raises
    UsageError."""
    if spec is None:
        chosen = [columns[letter] for letter in default]
        cells = [[title for title, _ in chosen]] if header else []
        cells += [[value(row) for _, value in chosen] for row in rows]
        widths = [max(map(len, each)) for each in zip(*cells, strict=True)] if cells else []
        for line in cells:
            say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    for field in _FIELD.finditer(spec):
        if field[3] not in columns:
            raise click.UsageError(f"--format: %{field[3]} is not known here; known: {' '.join(columns)}")
    if header:
        say(_filled(spec, {letter: title for letter, (title, _) in columns.items()}))
    for row in rows:
        letters = {field[3] for field in _FIELD.finditer(spec)}
        say(_filled(spec, {letter: columns[letter][1](row) for letter in letters}))


def _filled(spec: str, values: Mapping[str, str]) -> str:
    def cell(field: re.Match[str]) -> str:
        width, text = int(field[2] or 0), values[field[3]]
        if not width:
            return text
        return text[:width].rjust(width) if field[1] else text[:width].ljust(width)

    return _FIELD.sub(cell, spec).rstrip()


def clock(seconds: float | None) -> str:
    """A length of time as Slurm prints it: ``1:02``, ``3:04:05``, ``1-02:03:04``."""
    if seconds is None:
        return "UNLIMITED"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
