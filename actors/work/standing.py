"""Attempts that stand behind others: each is to have the place of the one in front as soon as that is gone.

The ledger counts the place once, for the one in front, until it has been told of that one's end. What runs is the
host's to see: it begins who stands behind when nothing of the one in front is left, and tells both later, together
with others. Who has stood for STANDING_S is given back unbegun: the one in front takes longer than was expected, and
there may be room elsewhere by now.
"""

from __future__ import annotations

STANDING_S = 0.25


class StandingAttempts:
    """Those of one host, at most as many as the ledger lets stand behind what runs there."""

    def __init__(self) -> None:
        self._front: dict[str, str] = {}
        self._follower: dict[str, str] = {}
        self._until: dict[str, float] = {}  # the first to be given back first

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._until

    def add(self, attempt_id: str, front_id: str, now: float) -> None:
        """Let *attempt_id* stand behind *front_id*, or behind another than before; its time goes on."""
        self._unlink(attempt_id)
        self._front[attempt_id], self._follower[front_id] = front_id, attempt_id
        self._until.setdefault(attempt_id, now + STANDING_S)

    def behind(self, front_id: str) -> str | None:
        """Who stands right behind *front_id*."""
        return self._follower.get(front_id)

    def remove(self, attempt_id: str) -> bool:
        """Let *attempt_id* stand no longer; ``False`` when it did not."""
        self._unlink(attempt_id)
        return self._until.pop(attempt_id, None) is not None

    def left_s(self, attempt_id: str, now: float) -> float:
        """The seconds after which *attempt_id* is given back."""
        return self._until[attempt_id] - now

    def late(self, now: float) -> list[str]:
        """Those who have stood for too long, the last of each chain first: nobody moves up who goes as well."""
        found = []
        for attempt_id, until in self._until.items():
            if until > now:
                break
            found.append(attempt_id)
        return found[::-1]

    def clear(self) -> None:
        """Let nobody stand: nothing more is begun here."""
        for table in (self._front, self._follower, self._until):
            table.clear()

    def _unlink(self, attempt_id: str) -> None:
        front_id = self._front.pop(attempt_id, None)
        if front_id is not None and self._follower.get(front_id) == attempt_id:
            del self._follower[front_id]
