"""What a step that streams leaves while it runs, in the folder of its attempt, for steps that take it as it comes.

    ATTEMPT_ID/items            its items so far (actorgrid/dag/step_items.py), which stay: a taker that begins anew
                                begins with the first
    ATTEMPT_ID/items-taken.BY   how many items the attempt BY has taken, as its host was told; it is touched each time

Of a step that is kept apart, which writes and lists nothing there::

    ATTEMPT_ID/home/OWN_ITEMS          its items
    ATTEMPT_ID/takers/items-taken.BY   the agent's, for it to read

Who writes is held back by those who take: it is ahead of the slowest by ``AHEAD_ITEMS`` and ``AHEAD_BYTES`` at most. A
taker that was not heard of for ``TAKER_S`` counts no more, and where there is none nobody is waited for, so that a step
whose takers have no room comes to its end.
"""

from __future__ import annotations

import os
import pickle  # nosec B403 - a worker exists to run what its authenticated owner sent
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from actorgrid.actors.files.untrusted_files import open_below, open_to_read, open_to_write, read_whole, write_all
from actorgrid.dag.step_items import MAGIC, item
from actorgrid.errors import NotARegularFile, Overloaded, UnpicklableResult

from .isolation.own_folders import HOME, TAKERS

ITEMS, OWN_ITEMS = "items", ".actorgrid-items"
AHEAD_ITEMS = 256
AHEAD_BYTES = 8 * 2**20
TAKER_S = 15.0
TAKERS_MAX = 64
LOOK_S = 0.02
DIGITS_MAX = 20
_TAKER = re.compile(r"items-taken\.([A-Za-z0-9][A-Za-z0-9_.-]{0,99})")


def takers_of(attempt: Path) -> Path:
    """The folder that says how far those are who take items of the attempt with that folder."""
    own = attempt / TAKERS
    try:
        return own if stat.S_ISDIR(os.lstat(own).st_mode) else attempt
    except FileNotFoundError:
        return attempt


@contextmanager
def open_items(attempt: Path) -> Iterator[int]:
    """The descriptor of the items of the attempt with that folder. Raises FileNotFoundError, NotARegularFile, OSError.

    Where the step has its own uid they are that uid's, or they are none.
    """
    if takers_of(attempt) == attempt:
        with open_to_read(attempt, ITEMS) as held:
            yield held
        return
    with open_below(attempt, [HOME, OWN_ITEMS]) as held:
        found = os.fstat(held)
        if found.st_nlink > 1 or found.st_uid != os.lstat(attempt / HOME).st_uid:
            raise NotARegularFile(
                f"what lies where the items of {attempt.name} belong has another name, or owner",
                hint="the work itself must have put it there",
            )
        yield held


class ItemSpool:
    """Of a step that leaves its items at *path*, and finds in the folder *takers* who takes them; all its items
    together have *bytes_max* at most."""

    def __init__(self, path: Path, takers: Path, bytes_max: int) -> None:
        self._path = path
        self._takers = takers
        self._bytes_max = bytes_max
        self._ends: list[int] = []  # where each item ends, in bytes
        self._slowest = 0  # items that the slowest had taken, or that there were, when it was looked last

    def write_all(self, values: Iterable[Any]) -> bytes:
        """Write the *values* as they come; gives all of it. Raises UnpicklableResult, OSError and what they raise."""
        from .function_call import dump_value  # it loads cloudpickle; a host's door, which only reads, does without

        size = len(MAGIC)
        fd = open_to_write(self._path.parent, self._path.name, os.O_TRUNC)
        try:
            write_all(fd, MAGIC)
            for value in values:
                written = item(dump_value(value, self._bytes_max))
                size += len(written)
                if size > self._bytes_max:
                    raise UnpicklableResult(
                        "the items of the step are too large together",
                        asked=f"{size} bytes up to item {len(self._ends) + 1}",
                        found=f"at most {self._bytes_max} bytes (work.max_result_bytes)",
                        hint="yield paths of large files, or references to them",
                    )
                write_all(fd, written)
                self._ends.append(size)
                while self._is_ahead():
                    time.sleep(LOOK_S)
        finally:
            os.close(fd)
        with open_to_read(self._path.parent, self._path.name) as read:
            return os.pread(read, size, 0)

    def _is_ahead(self) -> bool:
        """Whether somebody takes, and has to take more before the next item is made. It is looked once that may be."""
        if not self._is_beyond():
            return False
        self._slowest = min([*taken(self._takers), len(self._ends)])
        return self._is_beyond()

    def _is_beyond(self) -> bool:
        before = self._ends[self._slowest - 1] if self._slowest else len(MAGIC)
        return len(self._ends) - self._slowest >= AHEAD_ITEMS or self._ends[-1] - before >= AHEAD_BYTES


def taken(folder: Path) -> list[int]:
    """How many items each taker has taken that was heard of of late, as it says in that folder of takers."""
    found: list[int] = []
    now = time.time()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TAKER.fullmatch(entry.name) is None:
                continue
            with suppress(OSError, ValueError, NotARegularFile):
                if now - entry.stat(follow_symlinks=False).st_mtime <= TAKER_S:
                    found.append(int(read_whole(folder, entry.name, DIGITS_MAX) or b"0"))
    return found


def note_taken(attempt: Path, by: str, count: int) -> None:
    """Note for an attempt that another, *by*, has taken so many items, and is there. Raises Overloaded, OSError."""
    folder, name = takers_of(attempt), f"items-taken.{by}"
    if not (folder / name).exists():
        now, there = time.time(), 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if _TAKER.fullmatch(entry.name) is None:
                    continue
                with suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime > TAKER_S:
                        os.unlink(entry.path)
                        continue
                there += 1
        if there >= TAKERS_MAX:
            raise Overloaded("too many take the items of that step", asked=by, found=f"{there} do")
    # In place: while a file is replaced, who looks at the folder may find neither, and think that nobody takes.
    fd = open_to_write(folder, name, 0)
    try:
        if folder != attempt:
            os.fchmod(fd, 0o644)  # in a folder that only the step comes to
        os.pwrite(fd, f"{count:0{DIGITS_MAX}}".encode(), 0)
    finally:
        os.close(fd)


def loads_item(content: bytes) -> Any:
    """The value of an item."""
    return pickle.loads(content)  # nosec B301 - a worker reads what a worker of the same owner wrote
