"""The way to one host on one lane: the link in use, when to dial, and what waits for a link.

It owns no socket and no clock: links are the net's (``RoutableLink`` says what is asked of them), times and jitter
arrive as arguments, and what to do comes back as values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from actorgrid.errors import ActorGridError, HostUnreachable, MailboxFull

from .limits import PeerLimits


class RoutableLink(Protocol):
    """What a ``LinkRoute`` asks of a link."""

    @property
    def usable(self) -> bool:
        """Whether calls, casts and streams may begin on it."""


L = TypeVar("L", bound=RoutableLink)


class Work(Generic[L]):
    """A call, cast or stream to begin once there is a link."""

    __slots__ = ("begin", "deadline_s", "give_up", "size")

    def __init__(
        self, begin: Callable[[L], None], give_up: Callable[[ActorGridError], None], size: int, deadline_s: float
    ) -> None:
        self.begin = begin
        self.give_up = give_up
        self.size = size
        self.deadline_s = deadline_s


class LinkRoute(Generic[L]):
    """The way to one host on one lane. Bounds: ``waiting_max`` and ``waiting_bytes_max``, then MailboxFull."""

    def __init__(self, own_host: str, host_id: str, limits: PeerLimits) -> None:
        self.host_id = host_id
        self.dialling = False
        self.failures = 0
        """Dials and short-lived links in a row."""
        self.last_error = ""
        self.refusals: Counter[str] = Counter()
        """Its links that were refused or closed for a reason."""
        self.casts_dropped = 0
        self.bytes_in = self.bytes_out = 0
        """Of links that have ended."""
        self._own_host = own_host
        self._limits = limits
        self._link: L | None = None
        self._up_since_s = 0.0
        self._dialled_by_us = False
        self._retry_at_s = 0.0
        self._waiting: dict[Work[L], None] = {}
        self._waiting_bytes = 0

    @property
    def link(self) -> L | None:
        """The link on which to begin calls, casts and streams; ``None`` without one."""
        return self._link if self._link is not None and self._link.usable else None

    @property
    def waiting(self) -> int:
        """The number of things that wait for a link."""
        return len(self._waiting)

    def idle(self, now_s: float) -> bool:
        """Whether this object may go: it has no link, and nothing waits in it."""
        return not (self._link or self.dialling or self._waiting) and now_s >= self._retry_at_s

    def wait(self, work: Work[L], now_s: float) -> None:
        """Keep *work* for the next link. Raises MailboxFull, or HostUnreachable when no dial is due in its time."""
        if len(self._waiting) >= self._limits.waiting_max or (
            self._waiting_bytes + work.size > self._limits.waiting_bytes_max
        ):
            raise MailboxFull(
                f"{len(self._waiting)} messages of {self._waiting_bytes} bytes wait for a link to {self.host_id}",
                hint="await that it is reachable",
            )
        if not self.dialling and self._retry_at_s >= work.deadline_s:
            raise HostUnreachable(
                f"{self.host_id} is dialled again in {self._retry_at_s - now_s:.1f} s only", found=self.last_error
            )
        self._waiting[work] = None
        self._waiting_bytes += work.size

    def forget(self, work: Work[L]) -> bool:
        """Drop *work*, which nobody wants any more; whether it was waiting."""
        if work not in self._waiting:
            return False
        del self._waiting[work]
        self._waiting_bytes -= work.size
        return True

    def take_waiting(self) -> list[Work[L]]:
        """Take out all that waits, in order."""
        waiting, self._waiting, self._waiting_bytes = list(self._waiting), {}, 0
        return waiting

    def dial_in_s(self, now_s: float, wanted: bool) -> float | None:
        """Seconds until the next dial; ``None`` with nothing to dial for. *wanted*: a link is to be there always."""
        if self.link is not None or self.dialling or not (wanted or self._waiting):
            return None
        return max(0.0, self._retry_at_s - now_s)

    def dial_failed(self, error: str, now_s: float, jitter: float) -> None:
        """Plan the next dial, as no address gave a link. *jitter* is in [0, 1).

        Delays double from ``backoff_first_s`` to ``backoff_max_s``; each is between half of that and all of it, so that
        many hosts do not dial in step.
        """
        self.dialling = False
        self.last_error = error
        limits = self._limits
        longest_s = min(limits.backoff_max_s, limits.backoff_first_s * 2 ** min(self.failures, 32))
        self.failures += 1
        self._retry_at_s = now_s + longest_s * (0.5 + jitter / 2)

    def settle(self, link: L, dialled_by_us: bool, now_s: float) -> L | None:
        """Take a link that is up; gives the link to retire, where there are two now.

        Two hosts that dial each other at once have two links, and both must keep the same one: the one that the host of
        the lesser id dialled. Later than ``handshake_s`` after the first that cannot be it: the first is broken at the
        other side, which is why it dialled, and the second is kept.
        """
        old = self.link
        if old is not None and dialled_by_us != self._dialled_by_us:
            at_once = now_s - self._up_since_s <= self._limits.handshake_s
            if at_once and dialled_by_us != (self._own_host < self.host_id):
                return link
        self._link, self._dialled_by_us, self._up_since_s = link, dialled_by_us, now_s
        return old

    def lost(self, link: L, error: str, now_s: float, jitter: float) -> bool:
        """A link that was up ended: whether it was the one in use. One that did not last counts as a failed dial."""
        if self._link is not link:
            return False
        self._link = None
        if now_s - self._up_since_s >= self._limits.backoff_max_s:
            self.failures = 0
        dialling = self.dialling
        self.dial_failed(error, now_s, jitter)
        self.dialling = dialling
        return True
