"""The leader's timer for lock leases: sleeps until the next may be over, and has the entries proposed that end them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actorgrid.actors.ledger.record_types import LockRecord
from actorgrid.supervisors.runtime import Runtime, Timer

from .lock_expiry import LockExpiry

Expire = Callable[[str, str, int], None]


class LockLeases:
    """The timer. *leads*: whether this host leads; *expire* proposes the end of (lock, owner, renewals seen)."""

    def __init__(self, runtime: Runtime, leads: Callable[[], bool], expire: Expire) -> None:
        self._runtime, self._leads, self._expire = runtime, leads, expire
        self._expiry = LockExpiry()
        self._timer: Timer | None = None
        self._at = 0.0

    def lead(self, locks: Mapping[str, LockRecord]) -> None:
        """Begin as the leader: every lease of *locks* starts anew."""
        self._expiry.lead(locks, self._runtime.monotonic())
        self.arm()

    def changed(self, name: str, record: LockRecord | None) -> None:
        """Take the lock's new *record*; ``None`` when nobody holds it any more."""
        self._expiry.changed(name, record, self._runtime.monotonic())
        self.arm()

    def arm(self) -> None:
        """Set the timer to when the next lease may be over, where it is not set to earlier."""
        at = self._expiry.next_at()
        if not self._leads() or at is None or (self._timer is not None and self._at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._runtime.after(max(0.0, at - self._runtime.monotonic()), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._leads():
            for lease in self._expiry.due(self._runtime.monotonic()):
                self._expire(*lease)
            self.arm()
