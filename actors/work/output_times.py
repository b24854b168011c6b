"""When output came: beside each file of output, at which place it was when, so that its latest minutes can be found.

The file is a row of places, 16 bytes each: an offset and the host's time in seconds, both big-endian. A place is noted
before what is written there, when the one before is older than the interval: a second, and of work that has run for
longer than five hours a 20,000th of that. So a month of output has 117,000 places at most, which are 2 MB.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from actorgrid.errors import NotARegularFile

_PLACE = struct.Struct(">Qd")
INTERVAL_S = 1.0
PARTS = 20_000
BYTES_MAX = 2 * 2**20


class OutputTimes:
    """Notes the places of one file of output. *open_file* gives a descriptor, asked for once there is output.

    What cannot be written (a full disk) is left out: then more output than was asked for counts as of later.
    """

    def __init__(self, open_file: Callable[[], int]) -> None:
        self._open_file = open_file
        self._file: int | None = None
        self._first = 0.0
        self._next = 0.0
        self._room = BYTES_MAX

    def note(self, offset: int, at: float) -> None:
        """Note that what comes at *offset* is written at *at*, if that is not known well enough already."""
        if self._first <= at < self._next or self._room < _PLACE.size:
            return
        self._first = self._first or at
        self._next = at + interval_s(at - self._first)
        self._room -= _PLACE.size
        try:
            if self._file is None:
                self._file = self._open_file()
            os.write(self._file, _PLACE.pack(offset, at))
        except (OSError, NotARegularFile):
            return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def interval_s(ran_s: float) -> float:
    """How far apart places are, of work that has run for so long."""
    return max(INTERVAL_S, ran_s / PARTS)


def offset_since(places: bytes, since_at: float, size: int) -> int:
    """Where output begins that came at *since_at* or later, by the *places* of its file; the file has *size* bytes.

    At most what came within one interval before is in it too. Without any places it is all of it.
    """
    whole = len(places) - len(places) % _PLACE.size
    began: float | None = None
    begin: int | None = 0
    after: int | None = None
    for offset, at in _PLACE.iter_unpack(places[:whole]):
        began = at if began is None else began
        if at > since_at:
            after = offset if after is None else after
            continue
        # A clock may have been set back: the last place that is early enough counts.
        begin, after = (offset if since_at < at + interval_s(max(0.0, at - began)) else None), None
    if begin is None:
        begin = size if after is None else after
    return min(begin, size)
