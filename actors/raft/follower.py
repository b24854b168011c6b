"""A follower's side of replication: taking appends, heartbeats and pieces of a snapshot into its log."""

from __future__ import annotations

from collections import Counter

from .log import RaftLog
from .messages import Message, RaftConfig, RaftSnapshot
from .snapshots import IncomingSnapshot


class Follower:
    """The receiving side of replication. Every method takes a message of the node's own term and gives the reply.

    A reply that is not a rejection is an acknowledgement and must wait until the log is durable. At most one
    snapshot is being received.
    """

    __slots__ = ("_check", "_incoming", "_log", "_node", "_refused", "_unfit")

    def __init__(self, config: RaftConfig, log: RaftLog, refused: Counter[str]) -> None:
        self._node = config.node
        self._check = config.snapshot_check
        self._refused = refused
        self._unfit: tuple[int, ...] | None = None  # the snapshot refused last, and by whom in which term it was sent
        self._log = log
        self._incoming = IncomingSnapshot(config)

    def append(self, message: Message) -> Message:
        """Add entries where the logs agree, or say where they may."""
        log = self._log
        # Before the terms are compared: the entry at that index may be compacted, and then nobody could compare.
        if self.is_late(message.index):
            return self._acknowledge(message, log.commit)
        agreed = log.append_after(message.index, message.log_term, message.entries)
        if agreed is None:
            hint, hint_term = log.last_with_term_up_to(message.index, message.log_term)
            return self._answer(message, message.index, reject=True, hint=hint, log_term=hint_term)
        # Not past what this append has shown to be the same: after it this log may hold entries of another leader,
        # and a commit index of the new one says nothing of those (Raft paper, figure 2, AppendEntries 5).
        log.commit_to(min(message.commit, agreed))
        self._incoming.drop_behind(log.commit)
        return self._acknowledge(message, agreed)

    def heartbeat(self, message: Message) -> Message:
        """Take the commit index, as far as the leader knows that this log holds it.

        A log that ends before it has lost what it acknowledged; the reply's ``last_index`` tells the leader.
        """
        # No further than this log goes: an index that it does not hold can be neither applied nor kept (``commit_to``).
        if message.commit <= self._log.last_index:
            self._log.commit_to(message.commit)
        return Message(
            "heartbeat_reply",
            message.sender,
            self._node,
            message.term,
            commit=self._log.commit,
            last_index=self._log.last_index,
            sequence=message.sequence,
        )

    def snapshot(self, message: Message) -> Message | None:
        """Add a chunk; with the last one, restore. No answer to a snapshot that is no state."""
        chunk, log = message.chunk, self._log
        assert chunk is not None, "a snapshot message carries a chunk"
        if not self.is_news(chunk.index):
            return self._acknowledge(message, log.commit)
        if log.matches(chunk.index, chunk.term):  # the log has it all; only the commit index was behind
            self._incoming.drop()
            log.commit_to(chunk.index)
            return self._acknowledge(message, chunk.index)
        # Of this leader in this term: its checksum is easily met, and must not keep out another leader's snapshot.
        identity = (chunk.index, chunk.term, chunk.total_bytes, chunk.checksum, message.sender, message.term)
        if identity == self._unfit:  # the leader asks again and again: to look at it once is enough
            return None
        whole = self._incoming.take(chunk)
        if whole is None:
            return Message(
                "snapshot_reply",
                message.sender,
                self._node,
                message.term,
                index=chunk.index,
                reject=True,
                hint=self._incoming.received,
                last_index=log.last_index,
                sequence=message.sequence,
            )
        # Before it replaces anything: restored, it would stand for a log that is gone.
        if self._check is not None and not self._check(whole):
            self._unfit = identity
            self._refused["a snapshot that is no state"] += 1
            return None
        self._restore(whole)
        return self._acknowledge(message, whole.index)

    def is_late(self, index: int) -> bool:
        """Whether an append after *index* is late or doubled: up to the commit index the logs are the same.

        What it brings may be compacted here already.
        """
        return index < self._log.commit

    def is_news(self, index: int) -> bool:
        """Whether a snapshot of *index* holds more than is committed here: never go back behind that."""
        return index > self._log.commit

    def _restore(self, snapshot: RaftSnapshot) -> None:
        self._log.restore(snapshot)

    def _acknowledge(self, message: Message, index: int) -> Message:
        return self._answer(message, index)

    def _answer(
        self, message: Message, index: int, *, reject: bool = False, hint: int = 0, log_term: int = 0
    ) -> Message:
        return Message(
            "append_reply",
            message.sender,
            self._node,
            message.term,
            index=index,
            log_term=log_term,
            commit=self._log.commit,
            reject=reject,
            hint=hint,
            last_index=self._log.last_index,
            sequence=message.sequence,
        )
