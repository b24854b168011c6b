"""What the ledger knows of one thing that somebody is to be told of a job."""

from __future__ import annotations

from typing import TypedDict


class NoticeRecord(TypedDict):
    """A notice: one event of one job for one target. It is gone once it was sent."""

    notice_id: str
    """JOB.ENTRY.PLACE: the same however often it is sent, and of no other notice."""
    job_id: str
    """Of which job."""
    target: str
    """Who is told, as it was asked for: webhook:URL, mail:ADDRESS or a target's name."""
    event: str
    """A word of ``notification_words.EVENTS``."""
    at: float
    """When it happened."""
    name: str
    """What people call the job."""
    user_id: str
    """Whose it is."""
    attempt: int
    """How many attempts it had had by then."""
    host: str | None
    """The id of the host of the last of them."""
    exit_code: int | None
    """That one's, where it is known."""
    reason: str
    """Why it did not succeed, at most 500 characters."""
    failed_at: float | None
    """When it was given up; ``None``: it is still to be sent."""
    failure: str
    """Why it was given up."""
    tries: int
    """How often it was tried until then."""
