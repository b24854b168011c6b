"""How much a host flaps, as BGP damps routes: a penalty for each failure, which halves with time; decisions only.

Villamizar, Chandra and Govindan, "BGP Route Flap Damping", RFC 2439, 1998: each flap adds a fixed penalty; the figure
of merit decays exponentially with a half-life; above the cut-off the route is suppressed until it is below the reuse
threshold, and a ceiling bounds for how long. Here a flap is a check that begins to fail. A host that is suppressed is
not taken for recovered, however well it looks: what was done about it stays. Mao et al., "Route Flap Damping
Exacerbates Internet Routing Convergence", 2002, say what too low a cut-off does: one failure alone suppresses nothing.

The penalty is a function of the failures, so it needs no state of its own and every leader finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp2, log2

FLAP_PENALTY = 1000.0
CUT_OFF = 2500.0
"""RFC 2439 leaves it to the operator; Cisco's 2000 suppresses at the second flap that follows at once, this at the
third."""
REUSE = 750.0
CEILING_HALF_LIVES = 4.0
"""No host is held back for longer than so many half-lives after its last flap (RFC 2439, 4.2: maximum hold time)."""
TOGETHER_S = 10.0
"""Checks that fail within this time of the first are one flap: one cause may show in several."""


@dataclass(frozen=True, slots=True)
class Damping:
    """A host's penalty at one moment."""

    penalty: float
    suppressed: bool
    """It is not taken for recovered."""
    reuse_in_s: float
    """Seconds until it may be, without another flap; 0 where it may be now."""
    flaps: int


def ceiling() -> float:
    """The most that a penalty is: it decays to the reuse threshold within the longest time to hold back."""
    return REUSE * exp2(CEILING_HALF_LIVES)


def damping(flaps: Iterable[float], half_life_s: float, now: float) -> Damping:
    """The penalty at *now* by the times of *flaps*, in any order; those after *now* are left out."""
    penalty, last, began, suppressed, counted = 0.0, 0.0, float("-inf"), False, 0
    for at in sorted(at for at in flaps if at <= now):
        if at - began < TOGETHER_S:
            continue
        penalty = _decayed(penalty, at - last, half_life_s)
        suppressed = suppressed and penalty >= REUSE
        penalty = min(ceiling(), penalty + FLAP_PENALTY)
        suppressed = suppressed or penalty > CUT_OFF
        last, began, counted = at, at, counted + 1
    penalty = _decayed(penalty, now - last, half_life_s) if counted else 0.0
    suppressed = suppressed and penalty >= REUSE
    reuse_in_s = half_life_s * log2(penalty / REUSE) if suppressed else 0.0
    return Damping(penalty, suppressed, max(0.0, reuse_in_s), counted)


def _decayed(penalty: float, for_s: float, half_life_s: float) -> float:
    return penalty * exp2(-for_s / half_life_s) if for_s < 1000 * half_life_s else 0.0
