"""Reads that wait until this host's ledger holds whatever was committed when they were asked.

The leader confirms with a quorum that it still leads, and says how far it had committed (Raft, dissertation 6.4:
ReadIndex); the read is answered once that index is applied here. Bound: ``READS_MAX`` at once.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable

from actorgrid.errors import ActorGridError, MailboxFull
from actorgrid.supervisors.runtime import Waiter

from .raft.messages import Accepted, Dropped

READS_MAX = 4_096


class Reads:
    """*ask* hands a context to the core; *applied* gives the last index that is applied here."""

    def __init__(self, ask: Callable[[bytes], Accepted | Dropped], applied: Callable[[], int]) -> None:
        self._ask = ask
        self._applied = applied
        self._asked: dict[bytes, tuple[Waiter, float]] = {}
        self._readable: list[tuple[int, int, Waiter]] = []
        # Of no other life of this host: an answer that comes late to the one before must not confirm a read of ours.
        self._total = int.from_bytes(os.urandom(6), "big")

    @property
    def waiting(self) -> int:
        """How many were asked and are not answered."""
        return len(self._asked) + len(self._readable)

    def begin(self, now_s: float) -> Waiter | Dropped:
        """The waiter is set when the read may be answered, or fails with what ``abandon`` or ``give_up`` was given.

        Raises MailboxFull.
        """
        if len(self._asked) >= READS_MAX:
            raise MailboxFull("too many reads wait", found=f"{READS_MAX} waiting", hint="read again")
        self._total += 1
        context = self._total.to_bytes(8, "big")
        taken = self._ask(context)
        if isinstance(taken, Dropped):
            return taken
        waiter = Waiter()
        self._asked[context] = waiter, now_s
        return waiter

    def confirmed(self, context: bytes, index: int) -> None:
        """The leader's answer."""
        waiter, _ = self._asked.pop(context, (None, 0.0))
        if waiter is not None:
            heapq.heappush(self._readable, (index, int.from_bytes(context, "big"), waiter))
            self.release()

    def release(self) -> None:
        """Something was applied."""
        while self._readable and self._readable[0][0] <= self._applied():
            heapq.heappop(self._readable)[2].set(None)

    def abandon(self, error: ActorGridError) -> None:
        """No answer can come to those that were asked."""
        asked, self._asked = self._asked, {}
        for waiter, _ in asked.values():
            waiter.fail(error)

    def give_up(self, before_s: float, error: ActorGridError) -> None:
        """Those asked before then were lost on their way, or their answer was."""
        for context, (waiter, _) in [each for each in self._asked.items() if each[1][1] < before_s]:
            del self._asked[context]
            waiter.fail(error)
