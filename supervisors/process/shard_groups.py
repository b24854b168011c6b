"""Groups over several shards: each tells the others who joined and left, as ``pg`` does.

A membership is seen elsewhere a moment later; the members of a shard that is lost are out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from actorgrid.hotpath.light import Pid, ShardAddress

from ..exits import ExitReason
from .shard import Shard


class GroupedShard(Shard):
    """A shard whose groups have members in others, too."""

    def __init__(self, host: str, number: int, *, clock: Callable[[], int], **more: Any) -> None:
        super().__init__(host, number, clock=clock, **more)
        self.foreign_groups: dict[str, dict[Pid, None]] = {}
        self.names.on_membership = self.group_changed

    def group_shards(self) -> Iterable[ShardAddress]:
        """The shards that are to hear of memberships here."""
        raise NotImplementedError

    def members(self, group: str) -> list[Pid]:
        """The members in all shards: ours first, those of each the oldest first."""
        return [*self.names.members(group), *self.foreign_groups.get(group, ())]

    def group_changed(self, group: str, pid: Pid, joined: bool) -> None:
        """Tell the other shards."""
        for address in self.group_shards():
            self.carrier.signal(address, ("joined" if joined else "left", group, pid))

    def take_signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> None:
        """Take a signal from another shard: also ``joined left``."""
        if signal[0] == "joined":
            self.foreign_groups.setdefault(signal[1], {})[signal[2]] = None
        elif signal[0] == "left":
            self._left(signal[1], signal[2])
        else:
            super().take_signal(address, signal)

    def _left(self, group: str, pid: Pid) -> None:
        members = self.foreign_groups.get(group, {})
        members.pop(pid, None)
        if not members:
            self.foreign_groups.pop(group, None)

    def shard_lost(self, address: ShardAddress, reason: ExitReason) -> None:
        """Tell who is tied to its processes, and take those out of the groups."""
        for group, members in list(self.foreign_groups.items()):
            for pid in [pid for pid in members if pid.address == address]:
                self._left(group, pid)
        super().shard_lost(address, reason)

    def groups_for(self, address: ShardAddress) -> None:
        """Tell a shard that is new to us of all our memberships."""
        for group, members in self.names.groups.items():
            for pid in members:
                self.carrier.signal(address, ("joined", group, pid))
