"""Which part of an attempt's output somebody asked for: its latest time, its last lines, lines that match a pattern.

What is chosen is chosen where the output lies; nothing else of it comes here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from .attempt_files import AttemptFiles
from .schemas.answers import LogsQuery


def chooses_start(query: LogsQuery) -> bool:
    """Whether the place where the output is to begin has to be found first."""
    return query.since_s is not None or query.tail is not None


async def start_of(files: AttemptFiles, query: LogsQuery) -> int:
    """The offset at which begins what *query* asks for: after its time, and no more than its last lines."""
    place = await files.since(query.stream, query.since_s)
    if query.tail is None:
        return place.offset
    start = end = place.size
    missing = query.tail
    while missing and end > place.offset:
        last = await files.last(query.stream, place.offset, end, missing, query.grep)
        if last.found:
            start = last.offset
        missing -= last.found
        if last.end >= end:
            break
        end = last.end
    return start


async def read_matching(files: AttemptFiles, query: LogsQuery, offset: int, end: int) -> AsyncGenerator[bytes]:
    """The lines between *offset* and *end* that match, as they are now."""
    while offset < end:
        found = await files.matching(query.stream, offset, end, query.grep)
        if found.data:
            yield found.data
        if found.end <= offset:
            return
        offset = found.end
