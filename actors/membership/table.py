"""The members that a host knows, and whom it turns to: each in turn in an order of its own, or some by chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from .packets import MEMBERS_MAX
from .records import SUSPECT, MemberStatus


class RandomSource(Protocol):
    """What of ``random.Random`` the core uses."""

    def random(self) -> float:
        """A number from 0 on, below 1."""
        ...


class MemberTable:
    """The latest word about each other member; at most 8,191 of them.

    ``turn`` goes round in a new order each time (SWIM, section 4.3: so the time to the first probe of a dead member is
    bounded). The order is drawn as it is used, one step of Fisher and Yates a turn: no call costs more the more members
    there are, and who is new stands anywhere among those still to come.
    """

    __slots__ = ("_dice", "_names", "_near", "_place", "reachable", "records")

    def __init__(self, own: str, dice: RandomSource, records: Iterable[MemberStatus] = ()) -> None:
        self._dice = dice
        self._near: Callable[[str], bool] = lambda name: True
        self.records = {record.name: record for record in records if record.name != own}
        self._names = list(self.records)
        self._place = 0
        self.reachable = sum(record.state <= SUSPECT for record in self.records.values())

    @property
    def full(self) -> bool:
        """Whether no further member may be added."""
        return len(self.records) >= MEMBERS_MAX - 1

    def set(self, record: MemberStatus) -> MemberStatus | None:
        """This is the latest word now; gives the one before."""
        before = self.records.get(record.name)
        self.records[record.name] = record
        if before is None:
            if self._near(record.name):
                self._names.append(record.name)
        else:
            self.reachable -= before.state <= SUSPECT
        self.reachable += record.state <= SUSPECT
        return before

    def remove(self, name: str) -> MemberStatus | None:
        """Forget a member. Rare: it costs a look at all names."""
        before = self.records.pop(name, None)
        if before is not None:
            self.reachable -= before.state <= SUSPECT
            if self._near(name):
                place = self._names.index(name)
                self._names[place] = self._names[-1]
                self._names.pop()
        return before

    def set_near(self, near: Callable[[str], bool]) -> None:
        """Turn only to members of whom *near* is true from now on."""
        self._near = near
        self._names = [name for name in self.records if near(name)]

    def turn(self) -> MemberStatus | None:
        """Whose turn it is to be probed: nobody's where nobody is reachable."""
        names = self._names
        for _ in range(len(names)):
            place = self._place
            if place >= len(names):
                place = 0
            other = place + int(self._dice.random() * (len(names) - place))
            name = names[other]
            names[other] = names[place]
            names[place] = name
            self._place = place + 1
            record = self.records[name]
            if record.state <= SUSPECT:
                return record
        return None

    def some(self, count: int, fits: Callable[[MemberStatus], bool]) -> list[MemberStatus]:
        """Up to *count* different members that fit, by chance. May give fewer where few fit, and does not look at all
        of a large table to find them."""
        names, random = self._names, self._dice.random
        found: list[MemberStatus] = []
        if len(names) <= 4 * count:
            candidates = [record for name in names if fits(record := self.records[name])]
            while candidates and len(found) < count:
                found.append(candidates.pop(int(random() * len(candidates))))
            return found
        for _ in range(4 * count):
            record = self.records[names[int(random() * len(names))]]
            if fits(record) and record not in found:
                found.append(record)
                if len(found) == count:
                    break
        return found
