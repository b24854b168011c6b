"""Reads that wait until this host's ledger holds whatever was committed when they were asked.

The leader confirms with a quorum that it still leads, and says how far it had committed (Raft, dissertation 6.4:
ReadIndex); the read is answered once that index is applied here. Those that come in the same turn are asked as one: a
follower sends its leader one message for all of them. Bound: ``READS_MAX`` at once.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable

from actorgrid.actors.raft.messages import Dropped, ProposalAccepted
from actorgrid.errors import ActorGridError, MailboxFull
from actorgrid.supervisors.runtime import Waiter

READS_MAX = 4_096


class LinearizableReads:
    """The waiting reads. *ask* hands a context to the core; *applied* gives the last index that is applied here."""

    def __init__(self, ask: Callable[[bytes], ProposalAccepted | Dropped], applied: Callable[[], int]) -> None:
        self._ask = ask
        self._applied = applied
        self._gathered: list[Waiter] = []
        self._asked: dict[bytes, tuple[list[Waiter], float]] = {}
        self._readable: list[tuple[int, int, list[Waiter]]] = []
        self._waiting = 0
        # Of no other life of this host: an answer that comes late to the one before must not confirm a read of ours.
        self._total = int.from_bytes(os.urandom(6), "big")

    @property
    def waiting(self) -> int:
        """How many are not answered."""
        return self._waiting

    def begin(self) -> Waiter:
        """The waiter is set when the read may be answered, or fails with what ended it; ``ask`` must follow.

        Raises MailboxFull.
        """
        if self._waiting >= READS_MAX:
            raise MailboxFull("too many reads wait", found=f"{READS_MAX} waiting", hint="read again")
        self._waiting += 1
        waiter = Waiter()
        self._gathered.append(waiter)
        return waiter

    def ask(self, now_s: float, refused: Callable[[str], ActorGridError]) -> None:
        """Ask for all that have gathered; they fail with *refused* of a reason where nobody can be asked."""
        if not self._gathered:
            return
        waiters, self._gathered = self._gathered, []
        self._ask_for(waiters, now_s, refused)

    def _ask_for(self, waiters: list[Waiter], since_s: float, refused: Callable[[str], ActorGridError]) -> None:
        self._total += 1
        context = self._total.to_bytes(8, "big")
        taken = self._ask(context)
        if isinstance(taken, Dropped):
            self._fail(waiters, refused(taken.reason))
        else:
            self._asked[context] = waiters, since_s

    def confirmed(self, context: bytes, index: int) -> None:
        """Take the leader's answer: what was asked under *context* may be read once *index* is applied here."""
        waiters, _ = self._asked.pop(context, ([], 0.0))
        if waiters:
            heapq.heappush(self._readable, (index, int.from_bytes(context, "big"), waiters[:]))
            waiters.clear()  # of another question for the same, too
            self.release()

    def dropped(self, context: bytes, reason: str, now_s: float, refused: Callable[[str], ActorGridError]) -> None:
        """No answer to this has come: it is asked anew, for the same waiters, whom the first answer sets then.

        One that the leader had no room for fails with *refused* of the reason: to ask again makes that worse.
        """
        waiters, since_s = self._asked.get(context, ([], now_s))
        if not waiters or reason != "no_answer":
            self._asked.pop(context, None)
        if waiters and reason == "too_many_reads":
            self._fail(waiters, refused(reason))
        elif waiters:
            self._ask_for(waiters, since_s, refused)

    def release(self) -> None:
        """Answer the reads whose index is applied by now."""
        while self._readable and self._readable[0][0] <= self._applied():
            waiters = heapq.heappop(self._readable)[2]
            self._waiting -= len(waiters)
            for waiter in waiters:
                waiter.set(None)

    def abandon(self, error: ActorGridError) -> None:
        """Fail the reads that wait for the leader's answer with *error*: none can come any more."""
        gathered, self._gathered = self._gathered, []
        asked, self._asked = self._asked, {}
        for waiters in (gathered, *(waiters for waiters, _ in asked.values())):
            self._fail(waiters, error)

    def give_up(self, before_s: float, error: ActorGridError) -> None:
        """Fail the reads asked before *before_s*: they were lost on their way, or their answer was."""
        for context, (waiters, _) in [each for each in self._asked.items() if each[1][1] < before_s]:
            del self._asked[context]
            self._fail(waiters, error)

    def _fail(self, waiters: list[Waiter], error: ActorGridError) -> None:
        self._waiting -= len(waiters)
        for waiter in waiters:
            waiter.fail(error)
        waiters.clear()
