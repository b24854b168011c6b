"""Messages of other replicas that came in fragments, put together again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from actorgrid.errors import Overloaded

from .packets import Fragment


@dataclass(slots=True)
class _Unfinished:
    """A message of which parts are missing; ``quiet_rounds`` since its last part."""

    message: int
    count: int
    parts: dict[int, bytes] = field(default_factory=dict)
    quiet_rounds: int = 0


class Assembly:
    """One unfinished message of each of *peers_max* peers; a newer one takes the place of one that was cut off."""

    def __init__(self, peers_max: int, patience_rounds: int) -> None:
        self._peers_max = peers_max
        self._patience_rounds = patience_rounds
        self._unfinished: dict[str, _Unfinished] = {}

    def add(self, peer: str, part: Fragment) -> bytes | None:
        """The whole message, with its last part. Raises Overloaded where too many peers have one under way."""
        unfinished = self._unfinished.get(peer)
        if unfinished is None and len(self._unfinished) >= self._peers_max:
            raise Overloaded("too many messages in fragments are under way", found=f"{self._peers_max} peers")
        if unfinished is None or (unfinished.message, unfinished.count) != (part.message, part.count):
            unfinished = self._unfinished[peer] = _Unfinished(part.message, part.count)
        unfinished.parts[part.index] = part.data
        unfinished.quiet_rounds = 0
        if len(unfinished.parts) < part.count:
            return None
        del self._unfinished[peer]
        return b"".join(unfinished.parts[index] for index in range(part.count))

    def round(self) -> None:
        """A round has passed: those that did not go on are lost, and come again as a whole."""
        for peer, unfinished in list(self._unfinished.items()):
            unfinished.quiet_rounds += 1
            if unfinished.quiet_rounds > self._patience_rounds:
                del self._unfinished[peer]

    def keep_only(self, peers: Container[str]) -> None:
        """The others are no members any more."""
        for peer in list(self._unfinished):
            if peer not in peers:
                del self._unfinished[peer]
