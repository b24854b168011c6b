"""Which replicas get no requests for now, and how often requests are tried again. No clock: it is an argument.

A replica is ejected when it refuses a connection, or fails three requests in a row: for half a second, then twice as
long each time, up to 15 s. When that is over it gets one request, and by what comes of it all of them or none: it heals
alone. One that has requests and has said nothing for 10 s is passed over where others are there.

Tries: two more at most, and over 10 s a tenth of the requests (and 5): where everything fails, trying again is what
keeps it down.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FAILURES_MAX = 3
EJECTED_S, EJECTED_MAX_S = 0.5, 15.0
SILENT_S = 10.0
RETRIES_MAX = 2
RETRY_SHARE, RETRIES_FREE, RETRY_WINDOW_S = 0.1, 5, 10.0


@dataclass(slots=True)
class ReplicaCondition:
    """How a replica does, as one gateway sees it."""

    attempt: str
    in_flight: int = 0
    requests_total: int = 0
    failures_total: int = 0
    in_a_row: int = 0
    ejected_until: float | None = None
    ejected_for_s: float = 0.0
    is_tried: bool = False
    """Whether one request is there to see if it has healed."""
    is_asked: bool = False
    """Whether it is being asked if it is there (``replica_probe.py``)."""
    heard_at: float = 0.0
    """When it last said something, or got its first request while it had none."""

    def began(self, now: float) -> None:
        """A request goes there."""
        if not self.in_flight:
            self.heard_at = now
        self.in_flight += 1
        self.requests_total += 1
        if self.ejected_until is not None:
            self.is_tried = True

    def ended(self) -> None:
        """A request there is over, however."""
        self.in_flight -= 1

    def heard(self, now: float) -> None:
        """It said something."""
        self.heard_at = now

    def succeeded(self) -> None:
        """It answered a request."""
        self.in_a_row = 0
        self.ejected_until, self.ejected_for_s, self.is_tried = None, 0.0, False

    def gave_up(self) -> None:
        """A client gave up a request there, which says nothing of the replica."""
        self.is_tried = False

    def failed(self, now: float, at_once: bool) -> None:
        """It failed a request; *at_once*: so that the next would fail too."""
        self.failures_total += 1
        self.in_a_row += 1
        if at_once or self.is_tried or self.in_a_row >= FAILURES_MAX:
            self.ejected_for_s = min(EJECTED_MAX_S, self.ejected_for_s * 2 or EJECTED_S)
            self.ejected_until = now + self.ejected_for_s
            self.is_tried = False

    def is_ejected(self, now: float) -> bool:
        """Whether it gets no requests for now."""
        return self.ejected_until is not None and (now < self.ejected_until or self.is_tried)

    def said_nothing_for(self, seconds: float, now: float) -> bool:
        """Whether it has requests and has said nothing for so long."""
        return self.in_flight > 0 and now - self.heard_at >= seconds

    def is_silent(self, now: float) -> bool:
        """Whether it has requests and has said nothing for long."""
        return self.in_flight > 0 and now - self.heard_at > SILENT_S


class RetryBudget:
    """Requests and tries over the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[list[float]] = deque()  # second, requests, tries

    def _now(self, now: float) -> list[float]:
        while self._seconds and self._seconds[0][0] <= now - RETRY_WINDOW_S:
            self._seconds.popleft()
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append([float(int(now)), 0.0, 0.0])
        return self._seconds[-1]

    def asked(self, now: float) -> None:
        """A request came."""
        self._now(now)[1] += 1

    def may_retry(self, now: float) -> bool:
        """Whether another try is within the budget; it is counted then."""
        current = self._now(now)
        asked = sum(each[1] for each in self._seconds)
        tried = sum(each[2] for each in self._seconds)
        if tried >= RETRIES_FREE + RETRY_SHARE * asked:
            return False
        current[2] += 1
        return True
