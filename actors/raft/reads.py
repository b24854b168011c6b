"""Linearizable reads that wait for a quorum to confirm the leader (Raft dissertation, section 6.4, ReadIndex).

A read may be served from the state at index *i* once a quorum has answered anything that the leader sent after the
read was asked: then nobody else had led and committed more by that time. One round of answers serves all reads
asked before it. A leader that has committed nothing in its own term does not know the commit index yet; its reads
wait for that first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that *node* asked for, at the commit index of then, confirmed by answers to numbers over *sequence*."""

    node: int
    context: bytes
    index: int
    sequence: int


class Reads:
    """The reads of one leadership, at most *reads_max* at a time."""

    __slots__ = ("_early", "_max", "_waiting")

    def __init__(self, reads_max: int) -> None:
        self._max = reads_max
        self._early: list[tuple[int, bytes]] = []
        self._waiting: deque[PendingRead] = deque()

    def __len__(self) -> int:
        return len(self._early) + len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the next read is dropped."""
        return len(self) >= self._max

    @property
    def waiting(self) -> bool:
        """Whether an answer of a quorum would release something."""
        return bool(self._waiting)

    def ask_early(self, node: int, context: bytes) -> None:
        """Keep a read until the leader commits in its own term."""
        self._early.append((node, context))

    def ask(self, node: int, context: bytes, commit: int, sequence: int) -> None:
        """Keep a read at *commit* until a quorum answers to more than *sequence*, the last number given out."""
        self._waiting.append(PendingRead(node, context, commit, sequence))

    def committed_in_term(self, commit: int, sequence: int) -> None:
        """Have the reads kept until now wait for the quorum: the commit index is known."""
        for node, context in self._early:
            self.ask(node, context, commit, sequence)
        self._early.clear()

    def of(self, node: int) -> list[bytes]:
        """The contexts of the reads that *node* has asked for."""
        early = [context for asker, context in self._early if asker == node]
        return early + [read.context for read in self._waiting if read.node == node]

    def confirmed(self, sequence: int) -> list[PendingRead]:
        """The reads that a quorum's answers to number *sequence* release, in the order they were asked."""
        # Less than, not at most: the answer to a message that left before the read was asked says nothing of since.
        released = []
        while self._waiting and self._waiting[0].sequence < sequence:
            released.append(self._waiting.popleft())
        return released
