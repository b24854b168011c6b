"""The members of a JSON object and where in the text their values are, in plain Python.

For who changes one value and leaves all else as it was written. The values are read by Python's own scanner, so that
what is JSON is the same everywhere; only the way from one member to the next is ours.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_space = re.compile(r"[ \t\n\r]*").match


class JsonMember(NamedTuple):
    """A member of an object: its value, and where in the text that is."""

    value: Any
    start: int
    end: int


def json_members(text: str) -> dict[str, JsonMember]:
    """The members of the object in *text*, by name.

    Raises ValueError, StopIteration, IndexError or RecursionError for anything else, and ValueError for a name that is
    there twice: two readers may take different ones.
    """
    at = opened(text)
    found: dict[str, JsonMember] = {}
    if text[at] == "}":
        at += 1
    else:
        while True:
            if text[at] != '"':
                raise ValueError(at)
            name, at = scanstring(text, at + 1, True)
            at = _after_space(text, at)
            if text[at] != ":" or name in found:
                raise ValueError(at)
            start = _after_space(text, at + 1)
            value, end = _scan(text, start)
            found[name] = JsonMember(value, start, end)
            at = _after_space(text, end)
            if text[at] == "}":
                at += 1
                break
            if text[at] != ",":
                raise ValueError(at)
            at = _after_space(text, at + 1)
    if _after_space(text, at) != len(text):
        raise ValueError(at)
    return found


def opened(text: str) -> int:
    """Where the first member of the object in *text* begins, or its end is. Raises ValueError, IndexError."""
    at = _after_space(text, 0)
    if text[at] != "{":
        raise ValueError(at)
    return _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    found = _space(text, at)
    return found.end() if found else at
