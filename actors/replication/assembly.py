"""Messages of other replicas that came in fragments, put together again."""

from __future__ import annotations

from collections.abc import Container

from actorgrid.errors import Overloaded

from .packets import Fragment


class Assembly:
    """One unfinished message of each of *peers_max* peers; a newer one takes the place of one that was cut off."""

    def __init__(self, peers_max: int, patience_rounds: int) -> None:
        self._peers_max = peers_max
        self._patience_rounds = patience_rounds
        self._parts: dict[str, dict[int, bytes]] = {}
        self._message: dict[str, tuple[int, int]] = {}
        self._quiet_rounds: dict[str, int] = {}

    def add(self, peer: str, part: Fragment) -> bytes | None:
        """The whole message, with its last part. Raises Overloaded where too many peers have one under way."""
        if self._message.get(peer) != (part.message, part.count):
            if peer not in self._parts and len(self._parts) >= self._peers_max:
                raise Overloaded("too many messages in fragments are under way", found=f"{self._peers_max} peers")
            self._parts[peer], self._message[peer] = {}, (part.message, part.count)
        parts = self._parts[peer]
        parts[part.index] = part.data
        self._quiet_rounds[peer] = 0
        if len(parts) < part.count:
            return None
        self._forget(peer)
        return b"".join(parts[index] for index in range(part.count))

    def round(self) -> None:
        """A round has passed: those that did not go on are lost, and come again as a whole."""
        for peer in list(self._parts):
            self._quiet_rounds[peer] += 1
            if self._quiet_rounds[peer] > self._patience_rounds:
                self._forget(peer)

    def keep_only(self, peers: Container[str]) -> None:
        """The others are no members any more."""
        for peer in list(self._parts):
            if peer not in peers:
                self._forget(peer)

    def _forget(self, peer: str) -> None:
        del self._parts[peer], self._message[peer], self._quiet_rounds[peer]
