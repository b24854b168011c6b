"""News that wait to be passed on, a bounded number of times each: at most one word about each member.

What was sent least often goes first, and of that what cannot wait: accusations, deaths and refutations before joins.
A later word about a member takes the place of the one that waits, so the queue is never longer than the table.
"""

from __future__ import annotations

from .packets import record_bytes
from .records import ALIVE, LIFE_BITS, MemberStatus

_REFUTED = (1 << LIFE_BITS) - 1
"""The lower bits of an incarnation: refutations in this start."""
MISFITS_MAX = 4
"""Records in a row that do not fit into what is left of a packet, before it is full enough."""


class _Tier:
    """Words that were sent equally often; of an even number those that are urgent, above each the others."""

    __slots__ = ("number", "records")

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: dict[str, tuple[MemberStatus, int]] = {}


class BroadcastQueue:
    """See the module. Taking costs what is taken, however much waits."""

    __slots__ = ("_bytes", "_tiers", "_where")

    def __init__(self) -> None:
        self._tiers: dict[int, _Tier] = {}
        self._where: dict[str, _Tier] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._where)

    def put(self, record: MemberStatus) -> None:
        """Pass this on, instead of what waits about the same member."""
        self.drop(record.name)
        urgent = record.state != ALIVE or record.incarnation & _REFUTED
        size = record_bytes(record)
        self._bytes += size
        self._place(record, size, 0 if urgent else 1)

    def drop(self, name: str) -> None:
        """Pass nothing on about that member."""
        tier = self._where.pop(name, None)
        if tier is not None:
            self._bytes -= tier.records.pop(name)[1]
            if not tier.records:
                del self._tiers[tier.number]

    def take(self, room_bytes: int, limit: int) -> list[MemberStatus]:
        """News for one packet, each counted as sent once more; those sent *limit* times are dropped."""
        if self._bytes <= room_bytes:
            return self._take_all(2 * limit)
        taken: list[tuple[MemberStatus, int, _Tier]] = []
        misfits = 0
        for number in sorted(self._tiers):
            tier = self._tiers[number]
            # The newest of a tier first: what waits longer has come to others by now.
            for record, size in reversed(tier.records.values()):
                if size <= room_bytes:
                    room_bytes -= size
                    taken.append((record, size, tier))
                else:
                    misfits += 1
                    if misfits >= MISFITS_MAX:
                        break
            if misfits >= MISFITS_MAX:
                break
        for record, size, tier in taken:
            number = tier.number + 2
            if number < 2 * limit:
                del tier.records[record.name]
                if not tier.records:
                    del self._tiers[tier.number]
                self._place(record, size, number)
            else:
                self.drop(record.name)
        return [record for record, _, _ in taken]

    def _take_all(self, number_max: int) -> list[MemberStatus]:
        """All there is fits into the packet: the usual case, and cheap, since whole tiers move."""
        found: list[MemberStatus] = []
        moved: dict[int, _Tier] = {}
        for tier in self._tiers.values():
            found += [record for record, _ in tier.records.values()]
            tier.number += 2
            if tier.number < number_max:
                moved[tier.number] = tier
            else:
                for name, (_, size) in tier.records.items():
                    del self._where[name]
                    self._bytes -= size
        self._tiers = moved
        return found

    def _place(self, record: MemberStatus, size: int, number: int) -> None:
        tier = self._tiers.get(number)
        if tier is None:
            tier = self._tiers[number] = _Tier(number)
        tier.records[record.name] = (record, size)
        self._where[record.name] = tier
