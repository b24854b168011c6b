"""Remembers that the log failed in this boot, so that a restart does not trust what a failed fsync left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import LogFailed

from .log import EndMark


class FailureMarker:
    """A small file beside the log: which boot failed, and where the durable log ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, boot_id: str, end: EndMark, reason: str) -> None:
        """Write the marker; when even this fails, the process dying is all the protection left."""
        text = json.dumps({"boot_id": boot_id, "segment": end.segment, "offset": end.offset, "reason": reason})
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def check(self, boot_id: str) -> EndMark | None:
        """Raises LogFailed when it was this boot that failed; else the end to trust, if an earlier one did."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        try:
            marker = json.loads(text)
            end = EndMark(str(marker["segment"]), int(marker["offset"]))
        except (ValueError, KeyError, TypeError):
            # Cut short while being written: the failure is known, the place is not; the log's own checks decide.
            marker, end = {}, None
        if marker.get("boot_id") == boot_id:
            raise LogFailed(
                f"the ledger's log failed earlier in this boot: {marker.get('reason', '')}",
                hint="look at the disk (dmesg), then stop the agent and start it again",
            )
        return end

    def clear(self) -> None:
        """Remove the marker once the log was verified in a new boot.

        Durable: an old mark must never cut new records.
        """
        if self.path.exists():
            self.path.unlink()
            sync_folder(self.path.parent)
