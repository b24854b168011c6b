"""Whether one replica of a service answers: when it is asked, and what its answers mean. Decisions only.

It is ready after a real completion (or the answer that its service names), however soon its port is open; it serves
for as long as it answers, whatever its socket does. Three silences in a row, and it is unwell; one real answer makes it
well again. One that has not answered in the time that it has to start never will.
"""

from __future__ import annotations

from enum import Enum

from actorgrid.actors.ledger.service_records import ServingRecord

START_EVERY_S = (0.25, 0.25, 0.5, 1.0)
LIVE_EVERY_S = 5.0
UNWELL_EVERY_S = 2.0
MISSES_MAX = 3
ANSWER_S, LIVE_ANSWER_S = 120.0, 5.0
"""How long a real answer may take, which may have to compile something first, and a sign of life."""


class ProbeKind(Enum):
    """What a replica is asked for."""

    ANSWER = "a real answer"
    LIFE = "a sign of life"


class ReplicaWatch:
    """Of one attempt that runs. Times are seconds since the epoch."""

    def __init__(self, serving: ServingRecord, started_at: float, state: str, now: float) -> None:
        self.serving = serving
        self._started_at = started_at
        self._asks = False
        self._asked = 0
        self._misses = 0
        self._next_at = now
        self.state = state
        self.reason = ""
        self.model = ""
        self.served = state in ("ready", "unhealthy")

    @property
    def next_at(self) -> float:
        """When it is asked again."""
        return self._next_at

    def due(self, now: float) -> tuple[ProbeKind, float] | None:
        """What to ask it now, and how long to wait for it; ``None``: nothing yet, or it is being asked."""
        if self._asks or now < self._next_at:
            return None
        if not self.served and self._is_late(now):
            self._give_up(now)
            return None
        self._asks = True
        if self.state == "ready":
            return ProbeKind.LIFE, LIVE_ANSWER_S
        left_s = ANSWER_S if self.served else max(1.0, self._started_at + self.serving["start_timeout_s"] - now)
        return ProbeKind.ANSWER, min(ANSWER_S, left_s)

    def answered(self, now: float, reason: str, model: str = "", *, is_stranger: bool = False) -> None:
        """It was asked; *reason*: what was wrong with the answer, empty: nothing; *is_stranger*: it was not its own."""
        self._asks = False
        if not reason:
            self.state, self.reason, self.served = "ready", "", True
            self.model = model or self.model
            self._misses, self._next_at = 0, now + LIVE_EVERY_S
            return
        if not self.served:
            self.reason = reason
            self._next_at = now + START_EVERY_S[min(self._asked, len(START_EVERY_S) - 1)]
            self._asked += 1
            if self._is_late(now):
                self._give_up(now)
            return
        self._misses += 1
        self._next_at = now + UNWELL_EVERY_S
        if self._misses >= MISSES_MAX or is_stranger:
            self.state, self.reason = "unhealthy", reason

    def _is_late(self, now: float) -> bool:
        return now - self._started_at > self.serving["start_timeout_s"]

    def _give_up(self, now: float) -> None:
        waited_s = self.serving["start_timeout_s"]
        last = f": {self.reason}" if self.reason and self.state != "unhealthy" else ""
        if self.state != "unhealthy":
            self.state, self.reason = "unhealthy", f"no answer {waited_s:g} s after its start{last}"
        self._next_at = now + UNWELL_EVERY_S
