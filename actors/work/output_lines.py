"""Lines of output: which match a pattern, and where the last of them begin. Nothing is read here.

Patterns are regular expressions as RE2 knows them (https://github.com/google/re2/wiki/Syntax): whatever a pattern is,
a line takes time in proportion to its length, so nobody's pattern holds up a host. That is why it has no backreferences
and does not look ahead. A pattern has at most 1,000 characters, and what it compiles to 1 MiB.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from actorgrid.errors import BadRequest, NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERN_CHARS_MAX = 1_000
PATTERN_BYTES_MAX = 2**20
PATTERNS_KEPT = 64


@lru_cache(PATTERNS_KEPT)
def matcher(pattern: str) -> Callable[[bytes], bool]:
    """What tells of a line whether *pattern* is somewhere in it. Raises BadRequest for none that RE2 knows,
    NotSupported where RE2 is not installed."""
    try:
        import re2
    except ImportError as error:
        raise NotSupported(
            "this host cannot search output",
            found=str(error),
            hint="pip install google-re2, or search what logs prints",
        ) from error
    if len(pattern) > PATTERN_CHARS_MAX:
        raise BadRequest(
            "the pattern is too long", asked=f"{len(pattern)} characters", hint=f"{PATTERN_CHARS_MAX} at most"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    options.encoding = re2.Options.Encoding.UTF8
    try:
        found = re2.compile(pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        said = error.args[0] if error.args else "it is no regular expression"
        raise BadRequest(
            "the pattern is no regular expression that is searched for",
            asked=pattern[:200],
            found=said.decode(errors="replace") if isinstance(said, bytes) else str(said),
            hint="RE2's syntax, without backreferences and looking ahead; \\ takes the character after it as it is",
        ) from error
    search = found.search
    return lambda line: search(line) is not None


def whole_lines(data: bytes, ended: bool) -> int:
    """How many bytes of *data* are lines that are whole; all of them where nothing comes after (*ended*).

    A line that fills all of it counts as whole: there is a longest one.
    """
    return len(data) if ended else data.rfind(b"\n") + 1


def matching(data: bytes, matches: Callable[[bytes], bool]) -> bytes:
    """The lines of *data* that match, with their ends."""
    return b"".join([line for line in lines_of(data) if matches(line.rstrip(b"\r\n"))])


def first_lines(data: bytes, count: int) -> bytes:
    """The first *count* lines, with their ends; all of it where there are no more."""
    parts = data.split(b"\n", count)
    return data[: len(data) - len(parts[-1])] if len(parts) > count else data


def lines_of(data: bytes) -> list[bytes]:
    """The lines, each with its end. Only a newline ends one: a progress bar's carriage returns do not."""
    parts = data.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])


def start_of_last(data: bytes, count: int, matches: Callable[[bytes], bool] | None) -> tuple[int, int]:
    """Where in *data* the last *count* lines (that match) begin, and how many of them are in it."""
    if matches is None:
        return _start_of_last(data, count)
    place, found = len(data), 0
    at = len(data)
    for line in reversed(lines_of(data)):
        at -= len(line)
        if found == count:
            break
        if matches(line.rstrip(b"\r\n")):
            place, found = at, found + 1
    return place, found


def _start_of_last(data: bytes, count: int) -> tuple[int, int]:
    if not count or not data:
        return len(data), 0
    place, found = len(data), 0
    while found < count and place > 0:
        place = data.rfind(b"\n", 0, place - 1) + 1
        found += 1
    return place, found
