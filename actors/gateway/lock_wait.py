"""One request to hold a lock, as its host carries it out for a client that waits: what to ask the ledger, what to tell.

The client's connection may break at any moment, and the client asks again, here or at another host, before or after
the ledger has carried out the first request. So each request has an id; what it was given is taken back under that id
alone (``clean_up``), which the ledger refuses once the owner was told or has asked again. Nobody counts signs of life
to guess whose they were: that took locks from who held them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from actorgrid.actors.ledger.answers import HoldAnswer, ReleaseAnswer
from actorgrid.actors.ledger.field_checks import ABSENT, Absent
from actorgrid.actors.ledger.record_types import LockEntry, LockRecord
from actorgrid.errors import LockLost, LockTimeout

from ..consensus.lock_expiry import WAITER_LEASE_S
from ..ledger.commands import AcquireLock, ReleaseLock, RenewLock

RENEWS_A_LEASE = 3


@dataclass(frozen=True, slots=True)
class WaitTerms:
    """The terms of a request; see ``schemas.locks.LockRequest``. ``number`` 0: the client numbers no requests."""

    name: str
    owner: str
    ttl_s: float
    slots: int = 1
    wait_s: float = 0.0
    stay: bool = False
    user_id: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Commit the command that asks for the lock, and give the answer to ``answered``."""

    command: AcquireLock | RenewLock


@dataclass(frozen=True, slots=True)
class CommitLeave:
    """Commit the command that leaves the line, and give the answer to ``left``."""

    command: ReleaseLock


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """Answer the client with this. ``asked_s``: since when the lease counts at the latest."""

    answer: HoldAnswer
    asked_s: float


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait until the record changes, or until that time."""

    at_s: float


Step = CommitRequest | CommitLeave | GiveAnswer | WaitUntil


class LockWait:
    """Begin with ``acquire``; then do what ``next`` says. All times are seconds of one monotonic clock, except ``at``.

    *id* is of this request alone, in the whole cluster. ``None``: some hosts do not know such ids yet; then nothing is
    taken back but by its lease.
    """

    def __init__(self, terms: WaitTerms, id: str | None, now_s: float) -> None:
        self._terms = terms
        self._request: list[Any] | Absent = ABSENT if id is None else [terms.number, id]
        self._ends_s = now_s + terms.wait_s
        self._renew_every_s = max(terms.ttl_s, WAITER_LEASE_S) / RENEWS_A_LEASE
        self._asked_s = now_s
        self._answer = cast("HoldAnswer", {})  # known from ``answered`` on
        self._over = False  # the time to wait is, and its end was told to the ledger
        self._unsure = False  # the record is not known: the ledger is asked

    def acquire(self, at: float) -> AcquireLock:
        """The command that begins the request."""
        terms = self._terms
        return AcquireLock(
            terms.name,
            terms.owner,
            terms.ttl_s,
            at=at,
            wait=terms.wait_s > 0 or terms.stay,
            slots=terms.slots,
            user_id=terms.user_id,
            request=self._request,
        )

    def answered(self, answer: HoldAnswer, asked_s: float) -> None:
        """Take the ledger's answer about the owner, to a command proposed at *asked_s*."""
        self._answer, self._asked_s, self._unsure = answer, asked_s, False
        self._look_at(answer.get("request"))

    def changed(self, record: LockRecord | None, now_s: float) -> None:
        """Take the lock's new record; ``None``: it is gone, or unknown.

        Raises LockLost when the owner has asked anew.
        """
        mine = entry_of(record, self._terms.owner)
        if mine is None:
            self._unsure = True
            return
        self._look_at(mine.get("request"))
        if mine["token"] is not None:
            # The lease counts from the grant.
            self._answer = {**self._answer, "held": True, "token": mine["token"], "position": 0}
            self._asked_s, self._unsure = now_s, False

    def _look_at(self, request: list[Any] | None) -> None:
        """A later request of the owner is told from here on; were this one, too, its clean-up could not be trusted."""
        if self._request is not ABSENT and request is not None and request[1] not in ("", self._request[1]):
            raise LockLost(
                f"{self._terms.owner} has asked for lock {self._terms.name} again since",
                hint="nothing, when another request of this owner is under way; else ask again",
            )

    def next(self, now_s: float, at: float) -> Step:
        """The next thing to do. Raises LockTimeout."""
        terms = self._terms
        if self._answer["held"]:
            return GiveAnswer(self._answer, self._asked_s)
        if self._unsure or (not self._over and now_s >= self._asked_s + self._renew_every_s):
            return CommitRequest(RenewLock(terms.name, terms.owner, at=at, request=self._request))
        if not self._over and now_s < self._ends_s:
            return WaitUntil(min(self._ends_s, self._asked_s + self._renew_every_s))
        if terms.stay and (self._over or not terms.wait_s):
            return GiveAnswer(self._answer, self._asked_s)
        if self._over:
            raise LockTimeout(
                f"lock {terms.name} was held all the time",
                asked=f"it for {terms.owner} within {terms.wait_s:g} s",
                found=f"{self._answer['position']} in line at the last look",
                hint="wait longer, or ask again later; actorgrid lock list shows who holds it",
            )
        self._over = True
        if terms.stay:
            return CommitRequest(RenewLock(terms.name, terms.owner, at=at, request=self._request))
        # Not under the request alone: at the last moment it may have been granted, and then it is told.
        seen = self._answer["renewals"]
        return CommitLeave(ReleaseLock(terms.name, terms.owner, at=at, renewals=seen, request=self._request))

    def left(self, answer: ReleaseAnswer) -> None:
        """Take the ledger's answer to leaving the line; who was not in it any more may hold the lock by now."""
        self._unsure = not answer["released"]

    def lost(self, error: LockLost) -> None:
        """Deal with an owner that neither holds the lock nor waits. Raises *error* unless its time is over anyway."""
        if not self._over or self._terms.stay:
            raise error
        self._unsure = False

    def clean_up(self, at: float) -> ReleaseLock | None:
        """The command that takes back what this request was given and answered, for a client that is gone.

        ``None``: its lease ends it.
        """
        if self._request is ABSENT:
            return None
        return ReleaseLock(self._terms.name, self._terms.owner, at=at, request=self._request)


def entry_of(record: LockRecord | None, owner: str) -> LockEntry | None:
    """The part of a lock's record that is about *owner*."""
    those = () if record is None else (*record["holders"], *record["waiters"])
    return next((each for each in those if each["owner"] == owner), None)
