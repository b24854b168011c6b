"""Checkpoints of jobs: what is asked for with a job, how work is told of them, and how much one may be.

A checkpoint is what the next attempt of a job, on whichever host, begins with. It is kept as payloads are: named by its
content, on the disks of a majority of the voters, and entered into the ledger with the token of the attempt that made
it. So what an attempt leaves that is not the job's any more is refused. A job has one, the last.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NotRequired, TypedDict

from actorgrid.output_paths import inside
from actorgrid.task_context import CHECKPOINT_DIR, CHECKPOINT_FROM

STATE_VARIABLE = "ACTORGRID_CHECKPOINT_STATE"
"""Of work that makes its checkpoints itself (an actor): the file with the last one; empty: there is none yet."""
SPOOL_VARIABLE = "ACTORGRID_CHECKPOINT_SPOOL"
"""Of such work: the folder in which it leaves them for its host."""
ANSWERS_VARIABLE = "ACTORGRID_CHECKPOINT_ANSWERS"
"""Of such work: the folder in which its host says what became of them, where that is another."""
VARIABLES = (CHECKPOINT_DIR, CHECKPOINT_FROM, STATE_VARIABLE, SPOOL_VARIABLE, ANSWERS_VARIABLE)
READY_MARK = ".checkpoint-ready"
"""Written into the directory, it says: what lies here now is a whole checkpoint. It does not go along."""
UNFINISHED = (".tmp", ".partial")
"""What files are called at their ends while they are written, if an interval may take the directory at any time."""
CHECKPOINT_BYTES_MAX = 1000 * 2**20
"""Of one, packed: hosts bring each other files of 1 GiB at most."""
FILES_MAX = 20_000
"""Files, links and folders of a directory together."""
EVERY_MIN_S, EVERY_MAX_S = 1.0, 86_400.0
HEAD_BYTES = 256
_HEAD = re.compile(rb"actorgrid checkpoint 1 (\S{1,100}) (\d{1,20}) *\n")


class CheckpointWish(TypedDict):
    """What a job asks for. Without a path its work makes its checkpoints itself."""

    path: NotRequired[str]
    """The directory, relative to that in which the work runs."""
    every_s: NotRequired[float]
    """Seconds from one to the next; without, they are taken when the work says that one is ready."""


class CheckpointPolicy(NamedTuple):
    """When an actor's state is saved by itself."""

    calls: int
    """After so many calls; 0: not by their number."""
    seconds: float
    """After so long, if it was called meanwhile; 0: not by the time."""


class EnteredCheckpoint(NamedTuple):
    """A checkpoint that its job has: the next incarnation begins with it."""

    attempt_number: int
    """Of the incarnation that saved it."""
    number: int
    """Which of that incarnation's it is, from 1."""
    size_bytes: int


def is_wish(value: object) -> bool:
    """Whether *value* is a well-formed ``CheckpointWish``."""
    if not isinstance(value, dict) or not value.keys() <= {"path", "every_s"}:
        return False
    path, every_s = value.get("path"), value.get("every_s")
    if path is not None and (not isinstance(path, str) or inside(path) != path):
        return False
    if every_s is None:
        return True
    is_number = isinstance(every_s, (int, float)) and not isinstance(every_s, bool)
    return path is not None and is_number and EVERY_MIN_S <= every_s <= EVERY_MAX_S


def head_of(attempt_id: str, number: int) -> bytes:
    """The first ``HEAD_BYTES`` of a checkpoint's file: whose it is, so that no two files are the same.

    What is dropped with a later checkpoint is then nobody else's payload.
    """
    return f"actorgrid checkpoint 1 {attempt_id} {number}".encode().ljust(HEAD_BYTES - 1) + b"\n"


def parse_head(head: bytes) -> tuple[str, int] | None:
    """The attempt and the number in the head of a checkpoint's file; ``None`` for any other file."""
    found = _HEAD.fullmatch(head) if len(head) == HEAD_BYTES else None
    return None if found is None else (found[1].decode("ascii", "replace"), int(found[2]))
