"""A part of an attempt's output, chosen by time, by a pattern or from its end: read on the host that has it.

Each question is about at most ``SEARCH_BYTES`` of the output, and ``LINES_MAX`` lines where a pattern is looked for, so
that none holds its host up for long; who wants more asks again. Patterns are those of ``work/output_lines.py``. A line
longer than that is looked at in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any

from actorgrid.errors import MalformedMessage

from ..work.attempt_dir import AttemptDir
from ..work.output_lines import first_lines, lines_of, matcher, matching, start_of_last, whole_lines
from ..work.output_times import offset_since
from .pieces import Fields, is_count

SEARCH_BYTES = 2**19
LINES_MAX = 10_000
"""To begin looking at a line takes a microsecond or two: of empty lines, half a million would take a second."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A place in an output."""

    exists: bool
    """Whether anything of the attempt is there."""
    offset: int
    size: int
    """Of the output now."""

    def to_plain(self) -> Fields:
        """The place as plain values, for the wire."""
        return {"exists": self.exists, "offset": self.offset, "size": self.size}

    @classmethod
    def of_plain(cls, fields: Any) -> OutputPlace:
        """The place in plain values from the wire. Raises MalformedMessage."""
        match fields:
            case {"exists": bool(exists), "offset": offset, "size": size} if is_count(offset) and is_count(size):
                return cls(exists, offset, size)
        raise MalformedMessage("not a place in an output", found=str(fields)[:100])


@dataclass(frozen=True, slots=True)
class LastLines:
    """The last lines of a part of an output, as far as it was looked through."""

    offset: int
    """Where the first of them begins."""
    found: int
    end: int
    """What is before this was not looked at."""

    def to_plain(self) -> Fields:
        """These lines as plain values, for the wire."""
        return {"offset": self.offset, "found": self.found, "end": self.end}

    @classmethod
    def of_plain(cls, fields: Any) -> LastLines:
        """These lines in plain values from the wire. Raises MalformedMessage."""
        match fields:
            case {"offset": offset, "found": found, "end": end} if all(map(is_count, (offset, found, end))):
                return cls(offset, found, end)
        raise MalformedMessage("not lines of an output", found=str(fields)[:100])


@dataclass(frozen=True, slots=True)
class MatchingLines:
    """Lines of an output that match."""

    data: bytes
    end: int
    """Where the part that was looked through ends."""
    size: int
    """Of the output now."""

    def to_plain(self) -> Fields:
        """These lines as plain values, for the wire."""
        return {"data": self.data, "end": self.end, "size": self.size}

    @classmethod
    def of_plain(cls, fields: Any) -> MatchingLines:
        """These lines in plain values from the wire. Raises MalformedMessage."""
        match fields:
            case {"data": bytes(data), "end": end, "size": size} if is_count(end) and is_count(size):
                return cls(data, end, size)
        raise MalformedMessage("not lines of an output", found=str(fields)[:100])


def place_since(folder: AttemptDir, stream: str, since_s: float | None) -> OutputPlace:
    """Where the output of the last *since_s* seconds begins, with the line that it began in; ``None``: of all time."""
    size = folder.output_size(stream)
    offset = 0
    if since_s is not None:
        offset = offset_since(folder.read_times(stream), time() - since_s, size)
        first = max(0, offset - SEARCH_BYTES)
        before = folder.read_output(stream, first, offset - first)
        offset = first + whole_lines(before, ended=False) if b"\n" in before or not first else offset
    return OutputPlace(folder.path.exists(), offset, size)


def last_lines(folder: AttemptDir, stream: str, first: int, end: int, count: int, pattern: str) -> LastLines:
    """The last *count* lines between *first* and *end*, those that match *pattern* where it is not empty."""
    matches = matcher(pattern) if pattern else None
    begin = max(first, end - SEARCH_BYTES)
    data = folder.read_output(stream, begin, end - begin)
    cut = len(lines_of(data)[0]) if begin > first and data else 0
    cut = 0 if cut >= len(data) else cut  # the end of a line whose beginning was not read; of one too long, the part
    if matches is not None:
        cut = max(cut, start_of_last(data, LINES_MAX, None)[0] if data else 0)
    place, found = start_of_last(data[cut:], count, matches)
    return LastLines(begin + cut + place, found, begin + cut)


def matching_lines(folder: AttemptDir, stream: str, offset: int, end: int | None, pattern: str) -> MatchingLines:
    """The lines from *offset* on that match, up to *end*; ``None``: as far as lines are whole, or nothing comes."""
    matches = matcher(pattern)
    ended = folder.ended()  # before the read: what was written until then is read
    most = SEARCH_BYTES if end is None else min(SEARCH_BYTES, max(0, end - offset))
    data = first_lines(folder.read_output(stream, offset, most), LINES_MAX)
    size = folder.output_size(stream)
    last = offset + len(data) >= (size if end is None else min(end, size))
    whole = whole_lines(data, last and (ended or end is not None))
    whole = len(data) if not whole and len(data) == SEARCH_BYTES else whole
    return MatchingLines(matching(data[:whole], matches), offset + whole, size)
