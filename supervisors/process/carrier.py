"""What a shard asks of whatever brings messages and signals to other shards."""

from __future__ import annotations

from typing import Any, Protocol

from actorgrid.hotpath.light import Pid, ShardAddress

from ..exits import ExitReason

NOCONNECTION = ExitReason("noconnection", "there is no way to its shard")


class Carrier(Protocol):
    """Brings messages and signals to other shards, each in the order in which they were given.

    Or says that it cannot.
    """

    def message(self, address: ShardAddress, target: Pid, message: Any) -> bool:
        """Take a message along; ``False`` when there is no way, or too much waits already."""

    def signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> bool:
        """Take a signal along, however much waits; ``False`` when there is no way."""

    def why_not(self, address: ShardAddress) -> ExitReason:
        """Why there is no way: what becomes the reason of the end of those who are there."""

    def whereis(self, name: str) -> Pid | None:
        """The process of another shard that has the name."""


class NoCarrier:
    """A shard by itself: there are no others."""

    def message(self, address: ShardAddress, target: Pid, message: Any) -> bool:
        """Say no."""
        return False

    def signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> bool:
        """Say no."""
        return False

    def why_not(self, address: ShardAddress) -> ExitReason:
        """Say that there is no way."""
        return NOCONNECTION

    def whereis(self, name: str) -> Pid | None:
        """Nobody."""
        return None
