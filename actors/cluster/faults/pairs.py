"""What a host measures of the path to another: round trips, losses, and how far apart the clocks are; decisions only.

The round trip is smoothed as TCP does (Jacobson 1988; RFC 6298: a weight of 1/8). The offset of the clocks is that of
the sample with the shortest round trip among the last eight, since its error is at most half of that: NTP's clock
filter (Mills, RFC 5905, 10).

Bound: 16 outcomes and 8 samples of a peer; 512 peers, those that were not asked for the longest go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

WEIGHT = 1 / 8
OUTCOMES = 16
SILENT = 3
"""Calls in a row without an answer, each of a patience of its own, until a peer counts as silent."""
PEERS_MAX = 512


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The figures of one peer. ``rtt_ms``, ``offset_s``: ``None`` before the first answer."""

    rtt_ms: float | None
    loss: float
    silent: bool
    offset_s: float | None
    why: str = ""

    def to_plain(self) -> dict[str, Any]:
        """The figures as the report of a host has them."""
        return {
            "rtt_ms": None if self.rtt_ms is None else round(self.rtt_ms, 3),
            "loss": round(self.loss, 3),
            "silent": self.silent,
            "offset_s": None if self.offset_s is None else round(self.offset_s, 4),
            "why": self.why[:200],
        }


class _Pair:
    def __init__(self) -> None:
        self.rtt_s: float | None = None
        self.outcomes: deque[bool] = deque(maxlen=OUTCOMES)
        self.samples: deque[tuple[float, float]] = deque(maxlen=8)
        self.why = ""


class Pairs:
    """The paths to the peers of one host."""

    def __init__(self) -> None:
        self._pairs: dict[str, _Pair] = {}

    def answered(self, peer: str, sent_at: float, told_at: float, rtt_s: float) -> None:
        """Take an answer: *sent_at* by our wall clock, *told_at* by the peer's, about half a round trip later."""
        pair = self._pair(peer)
        pair.rtt_s = rtt_s if pair.rtt_s is None else pair.rtt_s + WEIGHT * (rtt_s - pair.rtt_s)
        pair.outcomes.append(True)
        pair.samples.append((rtt_s, told_at - (sent_at + rtt_s / 2)))
        pair.why = ""

    def lost(self, peer: str, why: str) -> None:
        """Take note that no answer came."""
        pair = self._pair(peer)
        pair.outcomes.append(False)
        pair.why = why

    def keep(self, peers: Iterable[str]) -> None:
        """Forget all but *peers*."""
        known = set(peers)
        self._pairs = {peer: pair for peer, pair in self._pairs.items() if peer in known}

    def _pair(self, peer: str) -> _Pair:
        pair = self._pairs.pop(peer, None) or _Pair()
        self._pairs[peer] = pair
        if len(self._pairs) > PEERS_MAX:
            del self._pairs[next(iter(self._pairs))]
        return pair

    def figures(self) -> dict[str, PairFigures]:
        """What is known of each peer that was asked."""
        found = {}
        for peer, pair in sorted(self._pairs.items()):
            last = list(pair.outcomes)[-SILENT:]
            found[peer] = PairFigures(
                None if pair.rtt_s is None else 1000 * pair.rtt_s,
                pair.outcomes.count(False) / len(pair.outcomes) if pair.outcomes else 0.0,
                len(last) == SILENT and not any(last),
                min(pair.samples)[1] if pair.samples else None,
                pair.why,
            )
        return found
