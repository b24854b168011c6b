"""Lengths of time on the command line: how they are read, and how what is left of one is told."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def length_in_seconds(text: str) -> float | None:
    """A number of seconds, or one with s, m, h or d, in seconds; ``None`` for a text that is no length of time."""
    found = _LENGTH.fullmatch(text.strip())
    length_s = float(found[1]) * _UNIT_SECONDS[found[2]] if found else math.inf
    return length_s if math.isfinite(length_s) else None


def seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that takes a length of time, 0 too; an option that is not given stays ``None``."""
    if text is None:
        return None
    length_s = length_in_seconds(text)
    if length_s is None:
        raise _no_length(text)
    return length_s


def seconds_above_zero(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that takes a length of time and for which 0 means nothing."""
    length_s = seconds(context, option, text)
    if text is not None and length_s == 0:
        raise _no_length(text, " above 0")
    return length_s


def deadline_of(context: click.Context, option: click.Parameter, value: str | None) -> float | datetime | None:
    """A length of time from now, in seconds, or a date and time (of here, unless it names its zone)."""
    if value is None or length_in_seconds(value) is not None:
        return seconds_above_zero(context, option, value)
    try:
        return datetime.fromisoformat(value.strip()).astimezone()
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time; write for example 30m, 2h, 2030-01-31T18:00 or 2030-01-31T18:00+01:00"
        ) from None


def until(at: float) -> str:
    """A time as the clock here shows it, to the minute."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def _no_length(text: str, which: str = "") -> click.BadParameter:
    return click.BadParameter(f"{text!r} is not a length of time{which}; write for example 30, 90s, 10m, 2h or 7d")


def left(left_s: float) -> str:
    """A time that is left as text: in the largest unit of which there are two, or exactly one."""
    for unit, size_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if left_s >= 2 * size_s or left_s == size_s:
            return f"{left_s / size_s:.0f} {unit}"
    return f"{left_s:.0f} s"


def validity(credential: Mapping[str, Any], used_up: bool = False) -> str:
    """Whether an API key or a join token still opens anything, and for how long."""
    left_s = credential["expires_at"] - time.time()
    if credential["revoked_at"] is not None:
        return "revoked"
    if left_s <= 0:
        return "expired"
    return "used up" if used_up else f"good for {left(left_s)}"
