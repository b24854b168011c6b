"""Which GPUs a host says no more that it cuts, because its driver did not do it. No I/O and no clock.

All hosts of a cluster come to the same host for each piece of work (``mig_policy``): one that is chosen and may not cut
keeps the work from the others, for as long as it says that it would.
"""

from __future__ import annotations

from dataclasses import dataclass

LASTING = ("Insufficient Permissions", "only after a reset", "Not Supported")
"""What does not pass by itself, by the words of the driver; anything else may have, the next time."""
PATIENCE = 3
"""So many refusals of another kind in a row count as lasting, too."""
BACK_S, BACK_MAX_S = 60.0, 3600.0
"""It is said again after so long, twice as long each time: each is an entry of the ledger."""


@dataclass(slots=True)
class _Refused:
    count: int = 0
    withdrawals: int = 0
    until_s: float = 0.0


class MigRefusals:
    """Of one host. As many are remembered as GPUs were refused since the start: at most those that it has."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refused] = {}

    def refused(self, uuid: str, why: str, now_s: float) -> None:
        """The driver did not cut a GPU."""
        one = self._refused.setdefault(uuid, _Refused())
        one.count += 1
        if one.count >= PATIENCE or any(words in why for words in LASTING):
            one.until_s = now_s + min(BACK_MAX_S, BACK_S * 2**one.withdrawals)
            one.withdrawals = min(one.withdrawals + 1, 16)

    def cut(self, uuid: str) -> None:
        """The driver did cut it."""
        self._refused.pop(uuid, None)

    def withdrawn(self, now_s: float) -> frozenset[str]:
        """The GPUs of which it is not said that they are cut."""
        return frozenset(uuid for uuid, one in self._refused.items() if now_s < one.until_s)
