"""Whether a value is one that JSON carries, and comes back as it went."""

from __future__ import annotations

import math
from typing import Any

from actorgrid.errors import BadRequest

MAX_DEPTH = 32
INT_LEAST, INT_MOST = -(2**63), 2**64 - 1


def check_plain(value: Any, place: str = "the value", depth: int = 0) -> None:
    """Raises BadRequest, naming the place, unless it is None, a bool, an int of 64 bits, a finite float, text without
    half a surrogate pair, or lists and dicts (with text keys) of these, up to 32 within each other.
    """
    match value:
        case None | bool():
            return
        case int():
            if not INT_LEAST <= value <= INT_MOST:
                raise _refused(place, f"an integer of {value.bit_length()} bits", "at most 64 bits: send it as text")
        case float():
            if not math.isfinite(value):
                raise _refused(place, str(value), "JSON has no such number: use None")
        case str():
            check_text(value, place)
        case bytes() | bytearray() | memoryview():
            raise _refused(place, "bytes", "JSON has none: send base64 text, or the id of a job's result")
        case list() | tuple() | dict() if depth >= MAX_DEPTH:
            raise _refused(place, "nested too deep", f"at most {MAX_DEPTH} lists and dicts within each other")
        case list() | tuple():
            for number, item in enumerate(value):
                check_plain(item, f"{place}[{number}]", depth + 1)
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise _refused(place, f"a dict with a {type(name).__name__} as a key", "keys are text")
                check_text(name, place)
                check_plain(item, f"{place}[{name[:40]!r}]", depth + 1)
        case _:
            raise _refused(
                place, f"a {type(value).__name__}", "plain values only: None, bool, int, float, str, list, dict"
            )


def check_text(text: str, place: str) -> None:
    """Raises BadRequest for text that UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(place, "text with half a surrogate pair", "send valid Unicode") from error


def _refused(place: str, found: str, hint: str) -> BadRequest:
    return BadRequest(f"{place} is not JSON", asked=place, found=found, hint=hint)
