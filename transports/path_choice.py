"""Which path brings large things from a host: by what real transfers showed of each. Decides, does no I/O.

The best path is used until another one was measured to be faster by ``FASTER``, so that noise does not move it to and
fro. What was never measured is tried with a real transfer, ``TRIES`` times at most in ``TRY_AGAIN_S``, and only with
one of ``TRY_BYTES_MAX`` at most: nothing is sent only to find out. A path that failed is left for ``LEFT_S``, twice as
long each time, ``LEFT_S_MAX`` at most; one that brings something again begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .paths import PathKind

ORDER = (PathKind.RDMA, PathKind.TLS_STREAMS, PathKind.TLS)
"""Which is taken to be the best before anything was measured."""
MEASURED_BYTES_MIN = 4 * 2**20
"""A transfer of less says more of round trips than of the path."""
WEIGHT = 0.3
"""Of the newest transfer: after seven, nine tenths of the figure are theirs."""
FASTER = 1.25
SAMPLES_MIN = 2
TRIES, TRY_AGAIN_S, TRY_BYTES_MAX = 2, 3600.0, 64 * 2**20
LEFT_S, LEFT_S_MAX = 30.0, 600.0


@dataclass(slots=True)
class MeasuredPath:
    """What is known of one path to one host."""

    bytes_per_s: float = 0.0
    """Weighted towards the newest; 0 before the first transfer that counts."""
    samples: int = 0
    bytes: int = 0
    """Of the transfers that counted."""
    failures: int = 0
    """In a row."""
    left_until_s: float = 0.0
    why: str = ""
    """Why it failed last; empty once it brings something."""
    tries: int = 0
    tried_at_s: float = 0.0


@dataclass(slots=True)
class PathChoice:
    """The paths from one host. All times are of one clock that never steps back."""

    paths: dict[PathKind, MeasuredPath] = field(default_factory=dict)
    used: PathKind | None = None
    """What a large thing came over last, tries left out."""

    def choose(self, up: Sequence[PathKind], size: int, now_s: float) -> PathKind:
        """The path for a thing of *size* bytes; *up*: those that there are, at least one."""
        ready = self._ready(up, now_s)
        best = self.best(up, now_s)
        if self._known(best).samples:
            for kind in ready:
                if kind != best and size <= TRY_BYTES_MAX and self._may_try(kind, now_s):
                    return kind
        self.used = best
        return best

    def best(self, up: Sequence[PathKind], now_s: float) -> PathKind:
        """The path that is used now, but for tries."""
        ready = self._ready(up, now_s)
        best = ready[0]
        if self.used in ready and self._known(self.used).samples:
            best = self.used
        for kind in ready:
            known, other = self._known(kind), self._known(best)
            if known.samples >= SAMPLES_MIN and other.samples and known.bytes_per_s > FASTER * other.bytes_per_s:
                best = kind
        return best

    def measured(self, kind: PathKind, count: int, took_s: float) -> None:
        """Take note that *count* bytes came over a path, alone there, in that time."""
        known = self.paths.setdefault(kind, MeasuredPath())
        known.failures, known.left_until_s, known.why = 0, 0.0, ""
        if count < MEASURED_BYTES_MIN or took_s <= 0:
            return
        rate = count / took_s
        known.bytes_per_s = known.bytes_per_s + WEIGHT * (rate - known.bytes_per_s) if known.samples else rate
        known.samples += 1
        known.bytes += count

    def failed(self, kind: PathKind, why: str, now_s: float) -> None:
        """Take note that a path brought nothing, or not all: it is left for a time."""
        known = self.paths.setdefault(kind, MeasuredPath())
        known.left_until_s = now_s + min(LEFT_S_MAX, LEFT_S * 2 ** min(known.failures, 16))
        known.failures += 1
        known.why = why

    def left_s(self, kind: PathKind, now_s: float) -> float:
        """For how long a path is still left."""
        return max(0.0, self._known(kind).left_until_s - now_s)

    def _ready(self, up: Sequence[PathKind], now_s: float) -> list[PathKind]:
        """What is up and not left; all that is up where all of it failed. In the order of ``ORDER``."""
        known = [kind for kind in ORDER if kind in up]
        return [kind for kind in known if not self.left_s(kind, now_s)] or known

    def _known(self, kind: PathKind) -> MeasuredPath:
        return self.paths.get(kind) or MeasuredPath()

    def _may_try(self, kind: PathKind, now_s: float) -> bool:
        """Whether to try a path of which nothing is known, or nothing of late; counts it."""
        known = self.paths.setdefault(kind, MeasuredPath())
        if known.tries and now_s - known.tried_at_s >= TRY_AGAIN_S:
            known.tries = 0
        elif not known.tries and known.samples:
            known.tries, known.tried_at_s = min(TRIES, known.samples), now_s  # it was used before: those were tries
        if known.tries >= TRIES:
            return False
        if not known.tries:
            known.tried_at_s = now_s
        known.tries += 1
        return True


class Burst(NamedTuple):
    """Bytes that came one after the other."""

    size: int
    took_s: float


class BurstMeter:
    """Finds, in bytes that come now and then, the bursts in which they came as fast as the path brings them.

    A pause of ``GAP_S`` ends a burst: whoever reads has what it wanted. ``BURST_BYTES`` end it as well.
    """

    GAP_S = 0.1
    BURST_BYTES = 64 * 2**20

    def __init__(self) -> None:
        self._began_s = self._last_s = 0.0
        self._count = -1  # no burst

    def came(self, count: int, now_s: float) -> Burst | None:
        """Count bytes; gives the burst that is over with them, if it is worth something."""
        over = None
        if self._count >= 0 and (self.is_over(now_s) or self._count >= self.BURST_BYTES):
            over = self.over()
        if self._count < 0:
            self._began_s, self._count = now_s, 0  # the first bytes came in no time that we know
        else:
            self._count += count
        self._last_s = now_s
        return over

    def is_over(self, now_s: float) -> bool:
        """Whether nothing came for so long that the burst is over."""
        return now_s - self._last_s > self.GAP_S

    def over(self) -> Burst | None:
        """End the burst."""
        count, self._count = self._count, -1
        took_s = self._last_s - self._began_s
        return Burst(count, took_s) if count >= MEASURED_BYTES_MIN and took_s > 0 else None
