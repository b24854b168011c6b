"""Which work has left its devices idle for longer than it said it may: sample by sample, without clock or device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

IDLE_BELOW_PERCENT = 5.0
"""A device is idle while it reads less: what drivers say of one on which nothing computes is 0, and a little more with
a screen or a probe on it."""


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """Work with devices, and how long (s) it may leave all of them idle."""

    work_id: str
    uuids: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class IdleWork:
    """Work whose time is over."""

    work_id: str
    idle_s: float


class IdleTracker:
    """Counts for each work since when none of its devices was busy. Bounded by what is granted here.

    A device of which nobody can say how busy it is counts as busy, and so does one on which others compute, as shares
    of a device are not told apart. What has begun counts from its first sample; after a restart it counts anew.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def take(self, terms: Iterable[IdleTerms], utilization: Mapping[str, float | None], now: float) -> list[IdleWork]:
        """Take the next sample; gives the work that has been idle for its whole limit."""
        since: dict[str, float] = {}
        over = []
        for each in terms:
            if any(_busy(utilization.get(uuid)) for uuid in each.uuids):
                continue
            began = since[each.work_id] = self._since.get(each.work_id, now)
            if now - began >= each.limit_s:
                over.append(IdleWork(each.work_id, now - began))
        self._since = since
        return over


def _busy(percent: float | None) -> bool:
    return percent is None or percent >= IDLE_BELOW_PERCENT
