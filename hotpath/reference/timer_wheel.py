"""Timers by the tick they are due at: a hierarchical timing wheel, in plain Python.

Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 7. Each wheel has 64 slots; a slot
of one wheel spans a whole turn of the wheel below. A timer lies in the lowest wheel where its tick differs from the
present one, and moves down when time reaches its slot: at most 11 times, and mostly once or twice. A bit per slot
lets time jump over what is empty. Setting and cancelling cost O(1) whatever the number of timers.
"""

from __future__ import annotations

from typing import Any

from actorgrid.errors import BadRequest

_BITS = 6
_SLOTS = 1 << _BITS
_WHEELS = 11
TICK_MAX = (1 << 63) - 1


class _Timer:
    __slots__ = ("item", "next", "previous", "slot", "tick")

    def __init__(self) -> None:
        self.item: Any = None
        self.tick = 0
        self.slot = -1
        self.next = -1
        self.previous = -1


class TimerWheel:
    """Items by tick (whole numbers from 0 to 2**63 - 1 of whichever length), from the tick *now* on.

    It holds any number of timers, in about 32 bytes each at the most there were at once, and 11 KiB.
    """

    def __init__(self, now: int = 0) -> None:
        if not 0 <= now <= TICK_MAX:
            raise BadRequest("a tick out of range", asked=str(now), hint="ticks are 0 to 2**63 - 1")
        self._now = now
        self._bits = [0] * _WHEELS
        self._heads = [-1] * (_WHEELS * _SLOTS)
        self._tails = [-1] * (_WHEELS * _SLOTS)
        self._timers: list[_Timer] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._timers) - len(self._free)

    def add(self, tick: int, item: Any) -> int:
        """Let *item* be due at *tick* (at once, when that is past); gives its handle. Raises BadRequest below 0."""
        if not 0 <= tick <= TICK_MAX:
            raise BadRequest("a tick out of range", asked=str(tick), hint="ticks are 0 to 2**63 - 1")
        if self._free:
            handle = self._free.pop()
        else:
            handle = len(self._timers)
            self._timers.append(_Timer())
        timer = self._timers[handle]
        timer.item = item
        timer.tick = max(tick, self._now)
        self._link(handle)
        return handle

    def cancel(self, handle: int) -> Any:
        """Forget the timer and give its item; the handle is void from here on, as it is once the timer was due."""
        assert 0 <= handle < len(self._timers) and self._timers[handle].slot >= 0, f"no timer is set under {handle}"
        timer = self._timers[handle]
        slot, before, behind = timer.slot, timer.previous, timer.next
        if before >= 0:
            self._timers[before].next = behind
        else:
            self._heads[slot] = behind
        if behind >= 0:
            self._timers[behind].previous = before
        else:
            self._tails[slot] = before
        if self._heads[slot] < 0:
            self._bits[slot >> _BITS] &= ~(1 << (slot & (_SLOTS - 1)))
        return self._drop(handle)

    def advance(self, tick: int) -> list[Any]:
        """Move on to *tick* (an earlier one is as the present one) and take out what is due by then, earliest first.

        What is due at one tick comes in the order in which it was set.
        """
        due: list[Any] = []
        tick = min(tick, TICK_MAX)
        while (found := self._next_slot()) is not None:
            wheel, slot, start = found
            if start > tick:
                break
            self._now = start
            at = self._heads[slot]
            self._heads[slot] = self._tails[slot] = -1
            self._bits[wheel] &= ~(1 << (slot & (_SLOTS - 1)))
            while at >= 0:
                behind = self._timers[at].next
                if wheel:
                    self._link(at)
                else:
                    due.append(self._drop(at))
                at = behind
        self._now = max(self._now, tick)
        return due

    def next_tick(self) -> int | None:
        """The tick at which the next timer is due, or ``None``. Costs the timers that share its slot."""
        found = self._next_slot()
        if found is None:
            return None
        wheel, slot, start = found
        if not wheel:
            return start
        at = self._heads[slot]
        earliest = self._timers[at].tick
        while at >= 0:
            earliest = min(earliest, self._timers[at].tick)
            at = self._timers[at].next
        return earliest

    def _next_slot(self) -> tuple[int, int, int] | None:
        """The wheel, slot and first tick of the earliest slot in use."""
        for wheel in range(_WHEELS):
            bits = self._bits[wheel]
            if bits:
                slot = (bits & -bits).bit_length() - 1
                shift = _BITS * wheel
                above = self._now >> (shift + _BITS) << (shift + _BITS)
                return wheel, wheel * _SLOTS + slot, max(self._now, above | slot << shift)
        return None

    def _link(self, handle: int) -> None:
        timer = self._timers[handle]
        wheel = ((timer.tick ^ self._now) | 1).bit_length() - 1
        wheel //= _BITS
        slot = wheel * _SLOTS + ((timer.tick >> (_BITS * wheel)) & (_SLOTS - 1))
        before = self._tails[slot]
        timer.slot, timer.previous, timer.next = slot, before, -1
        if before >= 0:
            self._timers[before].next = handle
        else:
            self._heads[slot] = handle
        self._tails[slot] = handle
        self._bits[wheel] |= 1 << (slot & (_SLOTS - 1))

    def _drop(self, handle: int) -> Any:
        timer = self._timers[handle]
        item = timer.item
        timer.item = None
        timer.slot = -1
        self._free.append(handle)
        return item
