"""A leader's measure of its followers: how long commits stand still, and which member does not follow although it
is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from actorgrid.actors.ledger.query_answers import CommitStalls
from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.raft.status import Status


class Stalls:
    """Since when commits, and each follower, stand still. *now*: seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._commit = -1
        self._moved_at = 0.0
        self._stands = False
        self._members: dict[int, tuple[int, float]] = {}

    def look(self, now: float, status: Status) -> None:
        """Compare *status* with the one before, and note what has moved since."""
        if status.commit != self._commit or status.last_index <= status.commit:
            self._commit, self._moved_at = status.commit, now
        self._stands = status.last_index > status.commit
        seen = self._members
        self._members = {
            node: (member.match, now if node not in seen or seen[node][0] != member.match else seen[node][1])
            for node, member in status.progress.items()
            if member.active and member.match < status.commit
        }

    def report(
        self,
        now: float,
        status: Status,
        waiting: Collection[Sequence[tuple[Any, float]]],
        members: Mapping[str, MemberRecord],
    ) -> CommitStalls:
        """Look, and say what was found. *waiting*: this host's proposals, the oldest first, with since when each waits.

        ``commits_stalled_s``: how long something proposed has waited while nothing was committed; ``None`` while
        nothing waits. ``behind_s``, by host, where this node leads: for how long it has taken nothing, of those that
        answer and lack what is committed.
        """
        self.look(now, status)
        waits = [now - waiters[0][1] for waiters in islice(waiting, 1)]
        if self._stands:
            waits.append(now - self._moved_at)
        nodes = {int(record["node"]): host_id for host_id, record in members.items()}
        behind = {nodes[node]: round(now - since, 3) for node, (_, since) in self._members.items() if node in nodes}
        return {"commits_stalled_s": round(max(waits), 3) if waits else None, "behind_s": behind}
