"""How many wrong tokens are looked at: few from one address, not many in all; right ones do not count."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import NamedTuple

from actorgrid.errors import Overloaded

SOURCES_MAX = 1024
"""Addresses remembered; beyond that the one that has been quiet longest is forgotten."""


class Rate(NamedTuple):
    """A rate: so many tries at once, and so many more each second."""

    burst: float
    per_s: float


SOURCE, TOTAL = Rate(5.0, 0.1), Rate(50.0, 5.0)
"""Of join tokens."""


class _TokenBucket:
    """A bucket of tries that fills at its rate."""

    __slots__ = ("_burst", "_left", "_per_s", "_seen_s")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._burst, self._per_s, self._left, self._seen_s = rate.burst, rate.per_s, rate.burst, now_s

    def left(self, now_s: float) -> float:
        self._left = min(self._burst, self._left + max(0.0, now_s - self._seen_s) * self._per_s)
        self._seen_s = max(self._seen_s, now_s)
        return self._left

    def take(self, now_s: float) -> None:
        self._left = max(0.0, self.left(now_s) - 1)


class TokenRateLimit:
    """Counts wrong tokens by source (``network_of``; ``""`` counts in all only); *what* they are, for people.

    A wrong token costs one try. Of join tokens, an address has 5 tries and gets one back every 10 s, all together have
    50 and get back 5 each second. 128 random bits need no such limit; it keeps the work and the log that garbage causes
    small. Times are seconds on a clock that only goes forward.
    """

    def __init__(self, what: str = "join tokens", source: Rate = SOURCE, total: Rate = TOTAL) -> None:
        self._what = what
        self._source_rate, self._total_rate = source, total
        self._sources: OrderedDict[str, _TokenBucket] = OrderedDict()
        self._total: _TokenBucket | None = None
        self.wrong_total = 0

    def check(self, source: str, now_s: float) -> None:
        """Raises Overloaded when *source*, or all together, have shown too many wrong tokens lately."""
        bucket = self._sources.get(network_of(source))
        if bucket is not None and bucket.left(now_s) < 1:
            raise Overloaded(
                f"too many wrong {self._what} from this address",
                asked=source[:60],
                hint=f"wait {1 / self._source_rate.per_s:.0f} s, and check the token",
            )
        if self._total is not None and self._total.left(now_s) < 1:
            raise Overloaded(f"too many wrong {self._what}", hint="try again in a second")

    def count(self, source: str, now_s: float) -> None:
        """Count a wrong token from *source*."""
        self.wrong_total += 1
        if source:
            self._count_source(network_of(source), now_s)
        if self._total is None:
            self._total = _TokenBucket(self._total_rate, now_s)
        self._total.take(now_s)

    def _count_source(self, network: str, now_s: float) -> None:
        bucket = self._sources.get(network)
        if bucket is None:
            bucket = self._sources[network] = _TokenBucket(self._source_rate, now_s)
            if len(self._sources) > SOURCES_MAX:
                self._sources.popitem(last=False)
        self._sources.move_to_end(network)
        bucket.take(now_s)


def network_of(source: str) -> str:
    """The network that counts as one source: an IPv4 address, or a /64 of IPv6, which one subscriber has whole."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return source[:60]
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
