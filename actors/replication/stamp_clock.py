"""The time that a replica dates its writes by, and ends values by: the wall clock, but for steps that nobody confirms.

A clock that is set forward by an hour would date this host's writes an hour ahead. Others take none of that until their
clocks have come near, nor what this host wrote after it; and values of others would end here an hour early. So a step
forward counts only as far as other hosts' writes show that it is that late. A step back counts at once: it can make
writes of this host lose to concurrent ones of others, and holds nobody up.
"""

from __future__ import annotations

from collections.abc import Mapping

from .crdt import Crdt
from .lww import LWWRegister

STEP_US = 1_000_000
"""A wall clock that went on by so much more than the time since boot was set; by less, its frequency was corrected."""


class StampClock:
    """*alone*: nobody could confirm anything, and nobody is held up; then it is the wall clock.

    Times are microseconds: *wall_us* since 1970, *boot_us* since the machine's boot, which no one sets.
    """

    def __init__(self, alone: bool, wall_us: int, boot_us: int) -> None:
        self._alone = alone
        self._offset_us = wall_us - boot_us
        self.unconfirmed_us = 0
        """How far ahead the wall clock is of what is believed."""

    def now_us(self, wall_us: int, boot_us: int) -> int:
        """The time, of both clocks' readings."""
        ahead_us = wall_us - boot_us - self._offset_us
        if self._alone or ahead_us <= STEP_US:
            self._offset_us += ahead_us
            ahead_us = 0
        self.unconfirmed_us = ahead_us
        return boot_us + self._offset_us

    def heard(self, stamp_us: int, wall_us: int, boot_us: int) -> None:
        """Another host dated a write so: it is no earlier than that, as far as the wall clock here says so too."""
        self._offset_us = max(self._offset_us, min(stamp_us, wall_us) - boot_us)


def latest_of_others(kinds: Mapping[str, Crdt], own: str) -> int:
    """The time of a register's last write, when it is not of the host *own*; else 0."""
    register = kinds.get(LWWRegister.kind)
    if not isinstance(register, LWWRegister) or register.stamp is None or register.writer == own:
        return 0
    return register.stamp[0]
