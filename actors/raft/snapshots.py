"""Snapshots on their way in chunks: the sender's window and the receiver's assembly."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from .messages import RaftConfig, RaftSnapshot, SnapshotChunk


class OutgoingSnapshot:
    """A snapshot on its way to one member: at most ``snapshot_chunks_inflight`` chunks beyond what it confirmed.

    A chunk or its reply that is lost is sent again after ``election_ticks`` without news; a receiver that lost
    what it had (it restarted) says so, and is sent the rest from there.
    """

    __slots__ = (
        "_config",
        "_last_sent",
        "checksum",
        "confirmed",
        "confirmed_sequence",
        "idle_ticks",
        "sent",
        "snapshot",
    )

    def __init__(self, config: RaftConfig, snapshot: RaftSnapshot, checksum: int) -> None:
        self._config = config
        self.snapshot = snapshot
        self.checksum = checksum
        self.sent = 0
        self.confirmed = 0
        self.confirmed_sequence = 0
        self.idle_ticks = 0
        self._last_sent = False

    def due(self) -> Iterator[SnapshotChunk]:
        """The chunks to send now."""
        data, step = self.snapshot.data, self._config.snapshot_chunk_bytes
        window = step * self._config.snapshot_chunks_inflight
        while not self._last_sent and self.sent - self.confirmed < window:
            piece = data[self.sent : self.sent + step]
            yield SnapshotChunk(
                index=self.snapshot.index,
                term=self.snapshot.term,
                conf_state=self.snapshot.conf_state,
                offset=self.sent,
                total_bytes=len(data),
                checksum=self.checksum,
                data=piece,
            )
            self.sent += len(piece)
            self._last_sent = self.sent >= len(data)

    def confirm(self, received: int, sequence: int, last_sequence: int) -> None:
        """Take the word, in answer to *sequence*, that *received* bytes came; *last_sequence* was given out last."""
        # Fewer bytes than before are believed only of an answer to something sent since: an old one that comes late
        # says less too, and to begin again for each of those might never end.
        fell_back = received < self.confirmed and sequence > self.confirmed_sequence
        if received > self.confirmed or fell_back:
            self.confirmed, self.confirmed_sequence, self.idle_ticks = received, last_sequence, 0
            # It may have more than was sent: it was brought another way.
            self.sent = max(self.sent, min(received, len(self.snapshot.data)))
        if fell_back:
            self.again()

    def again(self) -> None:
        """Send once more what is not confirmed."""
        self.sent, self._last_sent, self.idle_ticks = self.confirmed, False, 0

    def tick(self) -> bool:
        """Take one tick; true when there was no news for so long that something must be lost."""
        self.idle_ticks += 1
        return self.idle_ticks >= self._config.election_ticks


class IncomingSnapshot:
    """Puts one snapshot together. Holds at most ``snapshot_bytes_max`` bytes; another snapshot replaces it."""

    __slots__ = ("_config", "_data", "_identity")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self._identity: tuple[int, int, int, int] | None = None
        self._data = bytearray()

    @property
    def received(self) -> int:
        """Bytes received so far."""
        return len(self._data)

    def take(self, chunk: SnapshotChunk) -> RaftSnapshot | None:
        """Add *chunk* where it continues what is here; the snapshot when it is whole.

        One that turns out not to have its checksum is dropped, and begins again at its first byte.
        """
        identity = (chunk.index, chunk.term, chunk.total_bytes, chunk.checksum)
        if identity != self._identity:
            self.drop()
            self._identity = identity
        # Only what continues: the reply says how far that is (``received``), and the sender goes on from there.
        if chunk.total_bytes > self._config.snapshot_bytes_max or chunk.offset != len(self._data):
            return None
        if len(self._data) + len(chunk.data) > chunk.total_bytes:
            return None
        self._data += chunk.data
        if len(self._data) < chunk.total_bytes:
            return None
        data = bytes(self._data)
        self.drop()
        if zlib.crc32(data) != chunk.checksum:
            return None
        return RaftSnapshot(chunk.index, chunk.term, chunk.conf_state, data)

    def drop_behind(self, commit: int) -> None:
        """Forget what was received of a snapshot that the log has caught up with by itself."""
        if self._identity is not None and self._identity[0] <= commit:
            self.drop()

    def drop(self) -> None:
        """Forget what was received."""
        self._identity = None
        self._data = bytearray()
