"""The status of a node: its role, term, log and members, for inspection and tests."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import ConfState, Role
from .progress import PeerStatus


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one node. ``progress`` is empty unless it leads; ``transferee`` is 0 unless it hands over.

    ``damaged``: a leader found this node's log shorter than what it acknowledged, so it neither votes nor campaigns
    until it is restarted without its data.
    """

    node: int
    role: Role
    term: int
    vote: int
    leader: int
    commit: int
    applied: int
    first_index: int
    last_index: int
    config: ConfState
    progress: dict[int, PeerStatus]
    transferee: int
    damaged: bool

    def silent(self, ticks: float) -> frozenset[int]:
        """The nodes that a leader has not heard of for more than so many ticks."""
        return frozenset(node for node, progress in self.progress.items() if progress.quiet_ticks > ticks)
