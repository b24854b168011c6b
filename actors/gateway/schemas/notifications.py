"""What the routes of notifications take and give."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody
from actorgrid.notification_words import TARGET_CHARS_MAX


class NoticeView(AnswerBody):
    """One event of one job for one target, that waits to be sent or was given up; what was sent is not kept."""

    notice_id: str
    job_id: str
    name: str
    user_id: str
    target: str = Field(description="of a webhook its host alone")
    event: str
    at: float
    state: str = Field(description="waiting or failed")
    failed_at: float | None
    failure: str = Field(description="why the last try did not come through; empty: none is known")
    tries: int
    next_at: float | None = Field(description="when it is tried again, where the host that leads has said")


class NoticesAnswer(AnswerBody):
    """Notifications that wait or were given up, oldest first, and how many there are of each."""

    notifications: list[NoticeView]
    waiting: int
    failed: int
    targets: list[str] = Field(description="names of targets that this host has")
    mail: bool = Field(description="whether this host sends mail")
    problem: str = Field(description="why the operator's file cannot be used; empty: it can")


class NoticesQuery(RequestBody):
    """Of which job."""

    job_id: str = Field(default="", max_length=64)


class ClearNoticesRequest(RequestBody):
    """Which of those that were given up are to be forgotten; empty: all."""

    job_id: str = Field(default="", max_length=64)


class NoticesCleared(AnswerBody):
    """How many were forgotten."""

    cleared: int


class TestTarget(RequestBody):
    """Whom to send something to try it."""

    target: str = Field(min_length=1, max_length=TARGET_CHARS_MAX)


class TargetTested(AnswerBody):
    """What became of it."""

    target: str
    sent: bool
    failure: str
