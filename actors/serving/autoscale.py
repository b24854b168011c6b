"""How many replicas a service is to have, by what is asked of it. Decisions only: the clock comes as an argument.

Knative's autoscaler (KPA) is the model: requests under way and held, over a window of 60 s and one of 6 s, where the
short one at twice of what is there is a panic in which nothing is taken away. What differs is what people lost requests
by elsewhere: never fewer than what is under way needs, one less each 300 s at most, to zero only after a while without
any request, counted from the last one, and no further down before a whole window was seen by whoever leads now.
"""

from __future__ import annotations

import math
from collections import deque

from actorgrid.actors.ledger.service_records import ServiceScaleRecord

from .gateway_reports import DemandNow

WINDOW_S, PANIC_WINDOW_S = 60, 6
UTILISATION = 0.7
"""Of what a replica serves at once: the rest takes what comes while another one starts."""
PANIC_AT = 2.0
PANIC_S = 60.0
DOWN_EVERY_S = 300.0
UP_FACTOR = 2
UP_EVERY_S = 6.0
"""Within so long no more than twice as many replicas, and one more where there are none."""


class Autoscaler:
    """Of one service. Times are seconds of one clock that does not step back; *began_s*: since when it is watched."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._asked_s = began_s
        self._seconds: deque[tuple[float, int]] = deque()
        self._panic_until_s = -math.inf
        self._lowered_s = -math.inf
        self._raised_s = -math.inf
        self._raised_from = 0

    def observe(self, now_s: float, demand: DemandNow, since_request_s: float) -> None:
        """Take what is asked now, and how long ago the last request was; once a second."""
        asked = demand.in_flight + demand.held
        self._asked_s = max(self._asked_s, now_s if asked else now_s - max(0.0, since_request_s))
        self._seconds.append((now_s, asked))
        while self._seconds[0][0] <= now_s - WINDOW_S:
            self._seconds.popleft()

    def decide(self, now_s: float, scale: ServiceScaleRecord, target: int, ready: int, in_flight: int) -> int:
        """How many there are to be, of *target* that are meant to be there now, and *ready* that are."""
        asked = self._seconds[-1][1] if self._seconds else 0
        each = scale["concurrency"] * UTILISATION
        wanted = math.ceil(self._mean(now_s, WINDOW_S) / each - 1e-9)
        urgent = math.ceil(self._mean(now_s, PANIC_WINDOW_S) / each - 1e-9)
        if urgent >= PANIC_AT * max(1, ready):
            self._panic_until_s = now_s + PANIC_S
        if now_s < self._panic_until_s:
            wanted = max(wanted, urgent, target)
        # Never fewer than what is under way needs; and where something waits, one at least.
        wanted = max(wanted, math.ceil(in_flight / scale["concurrency"]), 1 if asked else 0)
        if wanted == 0 and target > 0 and now_s - self._asked_s < scale["idle_s"]:
            wanted = 1
        wanted = min(max(wanted, scale["min"]), scale["max"])
        if wanted > target:
            return self._raise(now_s, target, wanted, scale["min"])
        if wanted < target:
            return self._lower(now_s, target, wanted, scale["max"])
        return target

    def _raise(self, now_s: float, target: int, wanted: int, least: int) -> int:
        if now_s - self._raised_s >= UP_EVERY_S:
            self._raised_s, self._raised_from = now_s, target
        most = max(1, self._raised_from * UP_FACTOR, least)
        return max(target, min(wanted, most))

    def _lower(self, now_s: float, target: int, wanted: int, most: int) -> int:
        if target > most:
            return most  # a person has said so
        if now_s - self._began_s < WINDOW_S:
            return target
        # The last one goes after a time of its own, which has passed.
        if now_s - self._lowered_s < DOWN_EVERY_S and not (target == 1 and wanted == 0):
            return target
        self._lowered_s = now_s
        return target - 1

    def _mean(self, now_s: float, window_s: float) -> float:
        seen = [asked for at_s, asked in self._seconds if at_s > now_s - window_s]
        return sum(seen) / len(seen) if seen else 0.0
