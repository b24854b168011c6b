"""How often what is new is passed on in a large cluster: at once as long as that is seldom, and then together.

Each packet costs its receiver, its disk and its acknowledgement as much whether it brings one delta or fifty. So pushes
have a rate with a burst (the generic cell rate algorithm, ITU-T I.371): a write now and then waits nowhere, and of a
stream of them each host passes on some dozens together, a few tens of milliseconds later.
"""

from __future__ import annotations

from math import inf

PUSHES_A_SECOND = 25.0
BURST = 25


class PushPace:
    """Asked before each push."""

    def __init__(self) -> None:
        self.waits = False
        """Whether a push is due later: it takes along what comes until then."""
        self._free_at_s = -inf

    def wait_s(self, now_s: float) -> float:
        """How long the push has to wait; 0: it may go now, and counts."""
        begins_s = max(self._free_at_s, now_s - (BURST - 1) / PUSHES_A_SECOND)
        if begins_s > now_s:
            return begins_s - now_s
        self._free_at_s = begins_s + 1.0 / PUSHES_A_SECOND
        return 0.0
