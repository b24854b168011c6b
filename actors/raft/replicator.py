"""Replication to one member at a time: the entries after those it has, or a snapshot where those are compacted.

Every message that a leader sends is numbered here, upwards: an answer carries its message's number back, so that the
leader knows what had happened before it was given (``reads``, ``Leadership.lost_its_log``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from .log import RaftLog
from .messages import Entry, Message, RaftConfig, RaftSnapshot
from .progress import Progress
from .snapshots import OutgoingSnapshot
from .storage.memory import Compacted, Unavailable


class Replicator:
    """Sends members what they lack, for the leader of *term*. ``sequence`` is the last number given to a message.

    Memory: the entries of one message, and one checksum.
    """

    __slots__ = ("_checksum", "_config", "_log", "_node", "_send", "_slice", "_term", "sequence")

    def __init__(self, config: RaftConfig, term: int, log: RaftLog, send: Callable[[Message], None]) -> None:
        self._config = config
        self._node = config.node
        self._term = term
        self._log = log
        self._send = send
        self.sequence = 0
        self._slice: tuple[int, int, tuple[Entry, ...], int] = (0, 0, (), 0)
        self._checksum: tuple[RaftSnapshot, int] | None = None

    def send_heartbeat(self, node: int, commit: int) -> None:
        """Send *node* a heartbeat with the commit index as far as it is known to hold the entries."""
        self._send(Message("heartbeat", node, self._node, self._term, commit=commit, sequence=self._number()))

    def replicate(self, node: int, progress: Progress, last: int, active: bool) -> bool:
        """Send *node* entries up to *last*, chunks of a snapshot or a new commit index; true when anything was due.

        A member that is not *active* is sent no snapshot.
        """
        if progress.damaged:
            return False
        any_sent = False
        while True:
            if progress.outgoing is not None:
                return self._send_chunks(node, progress.outgoing) or any_sent
            if progress.paused or progress.full:
                return any_sent
            # An append without entries brings the commit index: a member at the end of the log could else not apply
            # the last entries before the next heartbeat.
            behind = progress.next <= last or progress.sent_commit < self._log.commit
            if not (behind or progress.poked):
                return any_sent
            if self._send_append(node, progress, last, active):
                any_sent = True
            elif progress.outgoing is None:
                return any_sent

    def _send_append(self, node: int, progress: Progress, last: int, active: bool) -> bool:
        """Send what follows ``next - 1``; false when that is compacted and the member needs a snapshot, or when there
        is nothing yet from the beginning on."""
        before = progress.next - 1
        try:
            before_term = self._log.term(before)
            entries, size_bytes = self._entries_from(progress.next, last)
        except Compacted:
            self._begin_snapshot(progress, active)
            return False
        if not before and not entries:
            progress.poked = False
            return False
        if not before and entries[0].kind != "conf_change":  # a log of old that does not say who its members are
            self._begin_snapshot(progress, active)
            return False
        # All of it, unlike a heartbeat: an append shows how far the logs agree, and the receiver takes no more of the
        # commit index than that.
        commit = self._log.commit
        self._send(
            Message(
                "append",
                node,
                self._node,
                self._term,
                index=before,
                log_term=before_term,
                commit=commit,
                entries=entries,
                sequence=self._number(),
            )
        )
        progress.poked = False
        progress.sent_commit = commit
        progress.sent(before + len(entries), size_bytes)
        return True

    def _entries_from(self, index: int, last: int) -> tuple[tuple[Entry, ...], int]:
        """The entries of one append from *index* to *last*, and their bytes; members at one point share them.

        The last ones are kept, at most one message of them: those who are told in later turns share them too.
        """
        if self._slice[:2] != (index, last):
            end = max(index, min(last, index + self._config.message_entries_max - 1) + 1)
            entries = self._log.entries(index, end, self._config.message_bytes_max)
            self._slice = (index, last, entries, sum([len(entry.data) for entry in entries]))
        return self._slice[2], self._slice[3]

    def _begin_snapshot(self, progress: Progress, active: bool) -> None:
        snapshot = self._snapshot() if active else None
        if snapshot is None:  # or nobody is there to take it; the next heartbeat's answer asks again
            progress.poked, progress.paused = False, True
            return
        assert snapshot.index >= self._log.first_index - 1, "the log is compacted only behind a snapshot that is there"
        # Once for all who need this one: it may have up to ``snapshot_bytes_max`` bytes.
        if self._checksum is None or self._checksum[0] is not snapshot:
            self._checksum = (snapshot, zlib.crc32(snapshot.data))
        progress.become_snapshot(OutgoingSnapshot(self._config, snapshot, self._checksum[1]))

    def _snapshot(self) -> RaftSnapshot | None:
        try:
            snapshot = self._log.snapshot()
        except Unavailable:
            return None
        return snapshot if snapshot.index else None

    def _send_chunks(self, node: int, outgoing: OutgoingSnapshot) -> bool:
        any_sent = False
        for chunk in outgoing.due():
            self._send(Message("snapshot", node, self._node, self._term, chunk=chunk, sequence=self._number()))
            any_sent = True
        return any_sent

    def _number(self) -> int:
        self.sequence += 1
        return self.sequence
