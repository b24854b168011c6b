"""Amounts and lengths of time as people say them, in sentences."""

from __future__ import annotations

import re
from fractions import Fraction

_MIB = 2**20
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def duration(seconds: float) -> str:
    """A length of time: ``0.4 s``, ``3 min 5 s``, ``2 h 4 min``."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, noun: str) -> str:
    """A count with its noun: ``1 job``, ``3 jobs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mebibytes(amount: int) -> str:
    """An amount given in MiB: ``512 MiB``, ``1.5 GiB``."""
    return f"{amount} MiB" if amount < 1024 else f"{amount / 1024:.4g} GiB"


def unclear_memory(amount: object) -> str:
    """Why an amount of memory is unclear, with what to write instead; empty when it is clear.

    ``"64"`` means bytes to one and GiB to another, and no work fits into 64 bytes: a text names its unit, and a number
    (of bytes) is a MiB at least. 0 asks for none.
    """
    if isinstance(amount, str):
        bare = amount.strip()
        if re.fullmatch(r"\d+(\.\d+)?", bare) and float(bare) > 0:
            return f"{bare!r} has no unit; write {bare}GiB or {bare}MiB ({bare}B for bytes)"
    elif isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < _MIB:
        return f"{amount:g} bytes are less than a MiB; write '{amount:g}GiB' or '{amount:g}MiB'"
    return ""


def parse_bytes(value: object) -> object:
    """``"2GiB"``, ``"500MB"``, ``1024`` as a number of bytes; KiB is 1024, kB is 1000.

    Anything that is neither a number nor such a text is handed on for the model to refuse.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.match(value)
    if not found:
        raise ValueError(f"{value!r} is not a size; write bytes, or a number with KiB, MiB, GiB, kB, MB or GB")
    number, unit, binary = found.groups()
    base = 1024 if binary else 1000
    return round(Fraction(number) * base ** _POWERS[unit.lower()])  # a float holds 2**53 bytes exactly, no more


def parse_memory(value: object) -> object:
    """An amount of memory that somebody asks for: a text with its unit (``"64GiB"``), or a number of bytes.

    Texts without a unit and numbers below a MiB (0 is none) are refused with what was probably meant.
    """
    unclear = unclear_memory(value)
    if unclear:
        raise ValueError(unclear)
    return parse_bytes(value)
