"""A mark beside the log of how far it was durable, so that a tail which was acknowledged and then lost is noticed.

What it finds: a log that ends before the mark (truncated, zeroed, a segment deleted), or that holds something else
there (an older copy put in its place). What it cannot find: a loss of the newest records when the mark was rolled back
with them (the whole folder replaced by an older copy), and what was acknowledged after the mark last reached the disk:
it is written after every fsync of the log but synced only when a segment is begun and at the end, so a power cut may
leave it behind by what the kernel had not written back. It is never ahead of the log. What it misses a leader notices,
which knows what was acknowledged.

Two slots in sectors of their own, written in turn: a torn or flipped one leaves the other.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import LogCorrupted

from .log_record import SECTOR
from .segments import RECOVERY_HINT, write_all

REJOIN_HINT = (
    "what is committed is not lost, the other voters have it; this host's place is, and the work that runs on it. On"
    " another host: actorgrid leave --host THIS-HOST --force, then actorgrid token create. Here: actorgrid up"
    " --join MEMBER --token TOKEN with an empty --data-dir. Do not restore a backup of the ledger while others live"
)
GOING_ON_HINT = (
    "with other voters, this host joins anew (docs/ledger_files.md). Alone: actorgrid ledger restore BACKUP --replace."
    " To go on without what is lost: actorgrid ledger backup FILE, then actorgrid ledger restore FILE --replace, so"
    " that tokens of a new recovery epoch are greater than all before. If the ledger is gone as a whole, and is to"
    " begin anew: move DATA_DIR/attempts away"
)
MAGIC = b"AGACKED1"
_SLOT = struct.Struct("<8sQQQI")
_CRC = struct.Struct("<I")
SLOT_BYTES = _SLOT.size + _CRC.size


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The log was durable up to *offset* in segment *number*, with *chain* there and *last_index* as its last."""

    number: int
    offset: int
    last_index: int
    chain: int


def acknowledged_lost(last_index: int, acknowledged_index: int, **where: Any) -> LogCorrupted:
    """The error of a log that ends too early; *where* says in which segment, at which offset."""
    return LogCorrupted(
        "the log ends before an entry that was acknowledged",
        found=f"last entry {last_index}, acknowledged up to {acknowledged_index}",
        hint=RECOVERY_HINT,
        index=last_index + 1,
        **where,
    )


@dataclass(frozen=True, slots=True)
class KnownGrant:
    """An attempt that was set up here: its grant was committed at *index* in recovery epoch *epoch*."""

    epoch: int
    index: int
    attempt_id: str


def refuse_lost_grant(known: KnownGrant | None, last_index: int, epoch: int) -> None:
    """Raises LogCorrupted when the log ends before the entry of a grant that this host has acted upon.

    Call it before anything is appended: one new entry more, and the index says nothing. Grants of an earlier epoch than
    the ledger's are older than a restore, which gave up what is not in it.
    """
    if known is None or (known.epoch, known.index) <= (epoch, last_index):
        return
    raise LogCorrupted(
        "the log ends before an entry that this host has acted upon: what was accepted since is missing",
        found=f"last entry {last_index} of epoch {epoch}; attempt {known.attempt_id} was granted by entry {known.index}"
        f" of epoch {known.epoch}",
        hint=GOING_ON_HINT,
        index=last_index + 1,
    )


def end_lost(last_index: int) -> LogCorrupted:
    """The error of a voter whose leader knows that it had more: nothing here says how much."""
    return LogCorrupted(
        "this host's log has lost its end: the leader knows of entries that it had acknowledged",
        found=f"last entry {last_index}",
        hint=REJOIN_HINT,
        index=last_index + 1,
    )


class DurableWatermark:
    """The file that holds the mark. ``write`` is cheap: no fsync."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._slot = 0

    def read(self) -> Mark | None:
        """The mark; ``None`` when there is none, or none that is whole: then nothing can be said. Comes first."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        slots = [_decode(data[slot * SECTOR :][:SLOT_BYTES]) for slot in (0, 1)]
        found = max((mark for mark in slots if mark is not None), default=None)
        # The slot that is written next is the one that does not hold the newest.
        self._slot = 1 if found is not None and found == slots[0] else 0
        return found

    def open(self) -> None:
        """Get ready to write. Raises OSError."""
        if self._fd >= 0:
            return
        new = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < 2 * SECTOR:
                write_all(fd, bytes(2 * SECTOR), 0)
                os.fsync(fd)
            if new:
                sync_folder(self.path.parent)
        except OSError:
            os.close(fd)
            self.path.unlink(missing_ok=True)
            raise
        self._fd = fd

    def write(self, mark: Mark) -> None:
        """Write that the log is durable as far as *mark*. Raises OSError."""
        if self._fd < 0:
            return
        fields = _SLOT.pack(MAGIC, mark.number, mark.offset, mark.last_index, mark.chain)
        write_all(self._fd, fields + _CRC.pack(zlib.crc32(fields)), self._slot * SECTOR)
        self._slot = 1 - self._slot

    def sync(self) -> None:
        """Sync the mark, so that it survives power loss. Raises OSError."""
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _decode(slot: bytes) -> Mark | None:
    if len(slot) < SLOT_BYTES or zlib.crc32(slot[: _SLOT.size]) != _CRC.unpack_from(slot, _SLOT.size)[0]:
        return None
    magic, number, offset, last_index, chain = _SLOT.unpack_from(slot)
    return Mark(number, offset, last_index, chain) if magic == MAGIC else None
