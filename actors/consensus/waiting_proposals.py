"""This host's proposals that wait for what comes of them: under which session and number, who asks, and since when."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.errors import ActorGridError, MailboxFull, NotLeader
from actorgrid.supervisors.runtime import Waiter

WAITING_MAX = 10_000
"""Callers that wait at once; one more gets MailboxFull, rather than memory without end while the disk stands still."""

Key = tuple[str, int]
"""Session and number: who asks again under the same waits beside the first."""


class WaitingProposals:
    """The callers that wait for their proposals: at most ``WAITING_MAX``.

    Times are seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Waiter, float]]] = {}
        self._count = 0
        self._answers: list[tuple[Waiter, Outcome]] = []

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def refuse_when_full(self) -> None:
        """Raises MailboxFull when no more may wait."""
        if self._count >= WAITING_MAX:
            raise MailboxFull(
                "too many commands wait for the disk", found=f"{WAITING_MAX} waiting", hint="propose it again"
            )

    def add(self, key: Key, now_s: float) -> Waiter:
        """Wait for the proposal of *key*: the waiter is set to its outcome, or fails."""
        waiter = Waiter()
        self._waiting.setdefault(key, []).append((waiter, now_s))
        self._count += 1
        return waiter

    def since(self) -> Collection[Sequence[tuple[Waiter, float]]]:
        """For each key, the waiters and since when each waits, the oldest first."""
        return self._waiting.values()

    def applied(self, key: Key, outcome: Outcome) -> list[float]:
        """Note that the proposal was applied: ``answer`` tells those who wait. Gives since when each has waited."""
        waiters = self._take(key)
        self._answers += [(waiter, outcome) for waiter, _ in waiters]
        return [since_s for _, since_s in waiters]

    def answer(self) -> None:
        """Tell those whose proposals were applied."""
        answers, self._answers = self._answers, []
        for waiter, outcome in answers:
            waiter.set(outcome)

    def fail(self, key: Key, error: ActorGridError) -> None:
        """Fail those who wait for *key* with *error*."""
        for waiter, _ in self._take(key):
            waiter.fail(error)

    def give_up(self, before_s: float, error: ActorGridError) -> None:
        """Fail the proposals that nobody has asked for again since *before_s*: they were lost, and the callers left."""
        for key in [key for key, waiters in self._waiting.items() if waiters[-1][1] < before_s]:
            self.fail(key, error)

    def abandon(self, error: ActorGridError) -> None:
        """Fail all that wait with *error*: no answer can come to them any more."""
        for key in list(self._waiting):
            self.fail(key, error)

    def _take(self, key: Key) -> list[tuple[Waiter, float]]:
        waiters = self._waiting.pop(key, [])
        self._count -= len(waiters)
        return waiters


def not_taken(reason: str, *, taken: bool) -> ActorGridError:
    """The error of a proposal that the core, here or on the leader, did not take; *taken* as for ``not_leader``."""
    if reason != "too_many_uncommitted_bytes":
        return not_leader(reason, taken=taken)
    return MailboxFull("too much waits for the disk", found=reason, hint="propose it again", taken=taken)


def not_leader(found: str = "", *, taken: bool = True) -> NotLeader:
    """The error of a host that does not lead. *taken*: the proposal may be in a log, and be committed later."""
    return NotLeader(
        "this host does not lead the ledger",
        found=found or "its leadership ended",
        hint="propose it again, here or where the leader is: an entry that was committed is answered, not repeated",
        taken=taken,
    )
