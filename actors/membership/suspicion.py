"""How long a silent member stays suspect before it is declared dead: less, the more others found it silent too.

Lifeguard's dynamic suspicion (Dadgar, Phillips, Currey: "Lifeguard: Local Health Awareness for More Accurate Failure
Detection", 2018, section IV-B). A lone accuser may be the one that is slow, so it waits long; each independent
accusation makes that less likely, and the wait shorter, by a logarithm: the first confirmations count most.
"""

from __future__ import annotations

from math import log


class Suspicion:
    """See the module. *needed* confirmations bring the wait down to *min_s*; with 0 it is that from the start.

    ``witnesses``: who accused, in the order heard, at most *needed* and one. ``asked`` and ``due`` are its keeper's:
    how often the accused was asked a last time, and when there is something to do.
    """

    __slots__ = ("_began", "_max_s", "_min_s", "_needed", "asked", "deadline", "due", "witnesses")

    def __init__(self, by: str, now: float, min_s: float, max_s: float, needed: int) -> None:
        self._began = now
        self._min_s = min_s
        self._max_s = max_s
        self._needed = needed
        self.witnesses = [by]
        self.asked = 0
        self.due = now
        self.deadline = now + self._timeout_s()

    def confirm(self, by: str) -> bool:
        """Another accuser; whether that was news (then ``deadline`` may be nearer, even past)."""
        if len(self.witnesses) > self._needed or by in self.witnesses:
            return False
        self.witnesses.append(by)
        self.deadline = self._began + self._timeout_s()
        return True

    def postpone(self, seconds: float) -> None:
        """Give the accused time in which we could not have heard it."""
        self._began += seconds
        self.deadline += seconds

    def _timeout_s(self) -> float:
        if not self._needed:
            return self._min_s
        share = log(len(self.witnesses)) / log(self._needed + 1)
        return max(self._min_s, self._max_s - (self._max_s - self._min_s) * share)
