"""Answers of the routes of sessions."""

from __future__ import annotations

from actorgrid.models import AnswerBody


class SessionAnswer(AnswerBody):
    """An open session: renew it every ``renew_s``; after ``expires_s`` without that it is closed."""

    session_id: str
    renew_s: float
    expires_s: float
    balancing: dict[str, str] = {}
    """By pool, which of the session's workers gets a task where the client does not say."""
    objects: str = ""
    """The socket of the host's object store, for clients on that host; empty: it has none."""


class RenewalAnswer(AnswerBody):
    """The session lives on. ``leave``: leases that the client is to give back once what they run has ended."""

    done: bool = True
    leave: list[str] = []


class LeaseEndAnswer(AnswerBody):
    """How a worker ended; ``ended`` is false while it runs, and when nothing is known of it any more."""

    ended: bool
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stderr: str = ""
