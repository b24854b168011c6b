"""The ids of attempts and of their members, and back: ``JOB.NUMBER``, and ``JOB.NUMBER-RANK`` for one of a gang.

A job's id may hold dots and hyphens, a number holds neither: so what follows the last dot is the number, with or
without a rank, and no two jobs have an id in common. An allocation of an attempt has the id of its member; so has the
folder where that runs.
"""

from __future__ import annotations

COUNT_DIGITS_MAX = 18


def attempt_id(job_id: str, number: int) -> str:
    """The id of an attempt, and of all it holds when it is no gang's."""
    return f"{job_id}.{number}"


def member_id(job_id: str, number: int, rank: int) -> str:
    """The id of one member of a gang's attempt."""
    return f"{job_id}.{number}-{rank}"


def attempt_of(id: str) -> str:
    """The id of the attempt that a gang's member belongs to; any other id unchanged."""
    head, dot, tail = id.rpartition(".")
    return f"{head}.{tail.partition('-')[0]}" if dot else id


def job_of(id: str) -> str:
    """The id of the job of an attempt or member; a lease's id, which has no number, unchanged."""
    return id.rpartition(".")[0] or id


def number_of(id: str) -> int | None:
    """The attempt's number, from 1; ``None`` for an id that is no attempt's."""
    number = id.rpartition(".")[2].partition("-")[0]
    return int(number) if _counts(number) else None


def rank_of(id: str) -> int | None:
    """The rank of a gang's member; ``None`` for an attempt as a whole."""
    rank = id.rpartition(".")[2].partition("-")[2]
    return int(rank) if _counts(rank) else None


def _counts(text: str) -> bool:
    # No longer than any count is: beyond some thousands of digits Python refuses to read a number.
    return len(text) <= COUNT_DIGITS_MAX and text.isascii() and text.isdecimal()
