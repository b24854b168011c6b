"""What is told of a job's notifications where the job is explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actorgrid.actors.ledger.notice_records import NoticeRecord
from actorgrid.notification_words import shown_target


def notice_notes(notices: Iterable[NoticeRecord]) -> Iterator[str]:
    """A line for each notification that waits or was given up."""
    for each in notices:
        whom = f"notification of {each['event']} to {shown_target(each['target'])}"
        if each["failed_at"] is None:
            yield f"{whom}: not sent yet"
        else:
            yield f"{whom}: given up after {each['tries']} tries, {each['failure']}"
