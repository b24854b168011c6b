"""How much may be asked with one key and in one tenant: GCRA, in whole nanoseconds. No clock of its own.

For each key and each tenant one number is kept, the *theoretical arrival time*: when what was asked so far would have
arrived, had it come evenly at the rate (ITU-T I.371, the virtual scheduling form). What comes is taken unless that time
is ahead of now by more than the burst is worth. Whole numbers, because floats gave 19 of a burst of 20, and waits of
4e-16 s. A batch costs as many as there are jobs in it, at most the burst: else it could never pass.

Bounds: 10,000 numbers; beyond that the one that was used longest ago is forgotten, which gives whoever it was a burst.
Each host counts for itself: with N hosts asked at once it is N times the rate.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from actorgrid.access import ALL_TENANTS, Identity

SECOND_NS = 10**9
COUNTED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RequestRate:
    """So many at once, and so many more each second; a rate of 0 limits nothing."""

    per_s: int
    burst: int

    @property
    def interval_ns(self) -> int:
        """The time that one of them is worth."""
        return max(1, SECOND_NS // self.per_s)

    @property
    def window_s(self) -> int:
        """In how many seconds a whole burst comes back, at most."""
        return -(-self.interval_ns * self.burst // SECOND_NS)


@dataclass(frozen=True, slots=True)
class RateLeft:
    """How much of a burst is left of the key or of the tenant (*name*), and in how many seconds all of it is back.

    *wait_s*: over 0 where the requests were too many and none was counted: in so many seconds there is room.
    """

    name: str
    rate: RequestRate
    left: int
    full_in_s: int
    wait_s: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """As draft-ietf-httpapi-ratelimit-headers-10 has them."""
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.rate.burst};w={self.rate.window_s}',
            "RateLimit": f'"{self.name}";r={self.left};t={self.full_in_s}',
        }


class RequestLimits:
    """What was asked lately by each key and in each tenant."""

    def __init__(self) -> None:
        self._arrivals_ns: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.refused_total = 0

    def __len__(self) -> int:
        return len(self._arrivals_ns)

    def take(
        self, who: Identity, of_key: RequestRate, of_tenant: RequestRate, now_ns: int, cost: int = 1
    ) -> RateLeft | None:
        """Count *cost* requests of *who*, or none of them where key or tenant has no room.

        Gives what is left of the one that has less; ``None`` for whoever is not limited: the host's own token.
        """
        subjects: list[tuple[str, str, RequestRate]] = []
        own = who.key_id or who.work_id
        if own is None:
            return None
        if of_key.per_s:
            subjects.append(("key", own, of_key))
        if of_tenant.per_s and who.tenant != ALL_TENANTS:
            subjects.append(("tenant", who.tenant, of_tenant))
        found: list[tuple[tuple[str, str], int, RateLeft]] = []
        for name, subject, rate in subjects:
            arrival_ns = max(self._arrivals_ns.get((name, subject), 0), now_ns)
            arrival_ns += rate.interval_ns * min(cost, rate.burst)
            over_ns = arrival_ns - now_ns - rate.interval_ns * rate.burst
            if over_ns > 0:
                self.refused_total += 1
                wait_s = -(-over_ns // SECOND_NS)
                return RateLeft(name, rate, 0, wait_s, wait_s)
            left = (rate.interval_ns * rate.burst - (arrival_ns - now_ns)) // rate.interval_ns
            full_in_s = -(-(arrival_ns - now_ns) // SECOND_NS)
            found.append(((name, subject), arrival_ns, RateLeft(name, rate, left, full_in_s)))
        for key, arrival_ns, _ in found:
            self._arrivals_ns[key] = arrival_ns
            self._arrivals_ns.move_to_end(key)
        while len(self._arrivals_ns) > COUNTED_MAX:
            self._arrivals_ns.popitem(last=False)
        return min((left for _, _, left in found), key=lambda left: left.left, default=None)
