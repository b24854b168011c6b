"""Fewer faults for the same failure: what is left is where to look."""

from __future__ import annotations

from .node import SimulatedHost
from .run import RunResult, play

RUNS_MAX = 120


def shrink(failed: RunResult, node_class: type[SimulatedHost] = SimulatedHost) -> RunResult:
    """A run of the same seed that the same checker fails, without the strikes it does not need.

    Leaves out strikes from the end, half of them at once, then fewer (Zeller and Hildebrandt, "Simplifying and
    Isolating Failure-Inducing Input", 2002, in its simple form). At most 120 runs.
    """
    best, runs = failed, 0
    size = max(1, failed.strikes // 2)
    while True:
        before = best
        left = [number for number in reversed(range(failed.strikes)) if number not in best.without]
        for start in range(0, len(left), size):
            if runs >= RUNS_MAX:
                return best
            runs += 1
            fewer = {*best.without, *left[start : start + size]}
            tried = play(failed.scenario, failed.seed, node_class, without=fewer, hostile=failed.hostile)
            if tried.checker == failed.checker:
                best = tried
        if size == 1 and best is before:
            return best
        size = max(1, size // 2)
