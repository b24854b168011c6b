"""Whether a new revision of a service answers worse than what it is exchanged for. Decisions only.

Bounds: more failures than the old by 5 % of requests, or a first byte that is at the 99th percentile both twice as late
and half a second later. Judged from 20 requests on, and the time from 100 of each: fewer say nothing, but that all of 5
failed, where of the old less than a fifth does.
"""

from __future__ import annotations

from .gateway_reports import RevisionFigures

REQUESTS_MIN = 20
ALL_FAILED_MIN, OLD_FAILED_MAX = 5, 0.2
"""At the most that the old may fail, five in a row by chance are one exchange in 3,000."""
TIMED_MIN = 100
FAILED_MORE = 0.05
LATER_FACTOR, LATER_S = 2.0, 0.5


def fault_of(new: RevisionFigures, old: RevisionFigures) -> str:
    """What is wrong with the new, in words; empty: nothing, or nobody can tell yet."""
    before = old.failures / old.requests if old.requests >= REQUESTS_MIN else 0.0
    if new.requests >= ALL_FAILED_MIN and new.failures >= new.requests and before < OLD_FAILED_MAX:
        return f"all of {new.requests} requests failed, of the old {before:.0%}"
    if new.requests < REQUESTS_MIN:
        return ""
    failed = new.failures / new.requests
    if failed > before + FAILED_MORE:
        return f"{new.failures} of {new.requests} requests failed, of the old {before:.0%}"
    enough = min(new.requests, old.requests) >= TIMED_MIN
    late_s = max(LATER_FACTOR * old.first_byte_p99_s, old.first_byte_p99_s + LATER_S)
    if enough and new.first_byte_p99_s > late_s:
        return f"the first byte comes after {new.first_byte_p99_s:.2f} s (p99), of the old {old.first_byte_p99_s:.2f} s"
    return ""
