"""Requests that a follower forwards to its leader: proposals and reads on their way, and what became of them.

A read that was accepted always ends: with an answer, or with a word that none has come. That is said when another
leads, when the leader refuses it, and after ``2 * election_ticks`` without an answer, since a message may be lost. It
may also be late, and for long: behind a snapshot on a slow link, each answer may take longer than that. So one that
comes after the word counts all the same; else whoever asks anew and anew would never have one.
A proposal ends where the log says so; only a refusal of the leader is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from .messages import (
    NO_NODE,
    Dropped,
    DroppedLater,
    DroppedReason,
    Entry,
    EntryKind,
    Message,
    ProposalAccepted,
    RaftConfig,
    ReadState,
)

# The position in these is what is sent: append to the type, never reorder.
REASONS: tuple[DroppedReason, ...] = get_args(DroppedReason)


class Forwarding:
    """The requests sent to a leader.

    Bounded: ``reads_max`` reads without an answer, and as many whose answer is late.
    """

    __slots__ = ("_asked", "_config", "_late", "_send", "_ticks", "dropped")

    def __init__(self, config: RaftConfig, send: Callable[[Message], None]) -> None:
        self._config = config
        self._send = send
        self._ticks = 0
        self._asked: dict[bytes, tuple[int, int]] = {}  # by context: whom, and in which tick; oldest first
        self._late: dict[bytes, int] = {}  # by context: whom; oldest first
        self.dropped: list[DroppedLater] = []

    def propose(self, leader: int, term: int, kind: EntryKind, data: bytes, context: bytes) -> ProposalAccepted:
        """Send a proposal to *leader*."""
        entries = (Entry(0, 0, kind, data),)
        self._send(Message("propose", leader, self._config.node, term, entries=entries, context=context))
        return ProposalAccepted(forwarded=True)

    def read(self, leader: int, term: int, context: bytes) -> ProposalAccepted | Dropped:
        """Ask *leader* for a read."""
        if len(self._asked) >= self._config.reads_max:
            return Dropped("too_many_reads")
        self._asked.pop(context, None)  # asked anew, it is the youngest
        self._asked[context] = leader, self._ticks
        self._send(Message("read_index", leader, self._config.node, term, context=context, force=True))
        return ProposalAccepted(forwarded=True)

    def refusal(self, request: Message, reason: DroppedReason, term: int) -> Message | None:
        """The message that tells the sender of *request* that it is dropped; None for one who knows no such message."""
        known = bool(request.context) if request.kind == "propose" else request.force
        if not known:
            return None
        return Message(
            "propose_reply" if request.kind == "propose" else "read_index_reply",
            request.sender,
            self._config.node,
            term,
            reject=True,
            hint=REASONS.index(reason),
            context=request.context,
        )

    def proposal_refused(self, message: Message) -> None:
        """Note that the leader refused a proposal."""
        self.dropped.append(DroppedLater("proposal", message.context, _reason(message)))

    def read_answered(self, message: Message) -> ReadState | None:
        """The answer to a read that was asked of the sender; None for any other, and for a refusal."""
        context = message.context
        waits = self._asked.get(context, (NO_NODE, 0))[0] == message.sender
        if not waits and self._late.get(context) != message.sender:
            return None
        self._asked.pop(context, None)
        self._late.pop(context, None)
        if message.reject:
            if waits:
                self.drop_reads((context,), _reason(message))
            return None
        return ReadState(message.index, context)

    def tick(self) -> None:
        """Take one tick, and give up the reads that have waited for too long."""
        self._ticks += 1
        # The oldest stands first (a dict keeps its order), so a tick costs no more than what has ended in it.
        while self._asked:
            context, (leader, since) = next(iter(self._asked.items()))
            if self._ticks - since < 2 * self._config.election_ticks:
                return
            del self._asked[context]
            if len(self._late) >= self._config.reads_max:
                del self._late[next(iter(self._late))]
            self._late[context] = leader
            self.drop_reads((context,), "no_answer")

    def leader_changed(self) -> None:
        """Drop what the former leader was asked: nobody answers it any more."""
        asked, self._asked = self._asked, {}
        self._late.clear()
        self.drop_reads(asked, "leader_changed")

    def drop_reads(self, contexts: Iterable[bytes], reason: DroppedReason) -> None:
        """Say that these reads are not answered."""
        self.dropped += [DroppedLater("read", context, reason) for context in contexts]


def _reason(message: Message) -> DroppedReason:
    """The reason in a refusal; "not_leader" for one that only a newer leader's version knows."""
    return REASONS[message.hint] if message.hint < len(REASONS) else "not_leader"
