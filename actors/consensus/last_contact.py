"""When a leader last heard of each host, and never earlier than it did: leases are judged by it (docs/leases.md)."""

from __future__ import annotations

from collections.abc import Mapping

SIGNS_OF_LIFE = frozenset({"append_reply", "heartbeat_reply", "snapshot_reply", "read_index"})
"""What a leader hears of a host that hears it. A read must be among them: it renews the host's lease."""


class LastContact:
    """When each host was last heard of in one leadership. All times are seconds of the leader's CLOCK_BOOTTIME.

    Who was not heard of in it counts as heard at its beginning: up to then another leader may have confirmed its lease.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, float] = {}

    def begin(self) -> None:
        """Begin a leadership: nobody has been heard of yet."""
        self._nodes.clear()

    def message(self, kind: str, sender: int, now: float) -> None:
        """Note that a message came; to be called before anything is done about it."""
        if kind in SIGNS_OF_LIFE:
            self._nodes[sender] = now

    def of(self, nodes: Mapping[str, int], own: int, now: float) -> dict[str, float]:
        """The last contact by host, for the members (*nodes*); *own* is our node.

        To be asked at the beginning, and often: who is asked for the first time counts as heard now.
        """
        self._nodes[own] = now
        return {host_id: self._nodes.setdefault(node, now) for host_id, node in nodes.items()}
