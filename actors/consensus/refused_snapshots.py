"""Snapshots that a leader sent and this host refused, as status tells of them: whose, why, and whether this host went
on since.

It is told for an hour after: a voter that sends what is no state has damaged files, or somebody else has its key.
"""

from __future__ import annotations

from actorgrid.actors.ledger.query_answers import RefusedSnapshot

TOLD_S = 3600.0


class RefusedSnapshots:
    """The last refused snapshot. *now_s* is of one clock that never goes back."""

    def __init__(self) -> None:
        self._last: tuple[str, str, float, int] | None = None
        self.total = 0

    def refused(self, sender: str, reason: str, now_s: float, index: int) -> None:
        """Note a snapshot refused from *sender*, which led; *index* is as far as the ledger here had come."""
        self.total += 1
        self._last = sender, reason, now_s, index

    def report(self, now_s: float, index: int) -> RefusedSnapshot | None:
        """``ago_s``, ``sender`` and ``reason`` of the last one; ``behind``: nothing has come to the ledger since."""
        if self._last is None or now_s - self._last[2] > TOLD_S:
            return None
        sender, reason, at_s, was = self._last
        return {"sender": sender, "reason": reason, "ago_s": round(now_s - at_s, 3), "behind": index <= was}
