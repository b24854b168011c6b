"""Bounds of a listener on who may connect: connections of one address are counted until they have proven a host.

Addresses and times in, verdicts out. A proof costs a millisecond of this host's time, so that an address that proves
nothing gets few of them: a token bucket each, which an honest host's links give back.
"""

from __future__ import annotations

from collections import OrderedDict

from .limits import PeerLimits, Refusal


class _ConnectRate:
    __slots__ = ("half_open", "left", "since_s")

    def __init__(self, left: float, now_s: float) -> None:
        self.left = left
        self.since_s = now_s
        self.half_open = 0


class PeerAcceptor:
    """Counts the unproven connections of each address and says which to refuse; ``PeerLimits`` has the bounds."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._addresses: OrderedDict[str, _ConnectRate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, address: str, now_s: float) -> Refusal | None:
        """Why a connection from *address* is to be closed unread; ``None``: keep it, ``proven`` or ``gone`` follows."""
        limits = self._limits
        rate = self._addresses.get(address)
        if rate is None:
            rate = self._addresses[address] = _ConnectRate(limits.connects_burst, now_s)
            if len(self._addresses) > limits.addresses_max:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        earned = max(0.0, now_s - rate.since_s) * limits.connects_per_s
        rate.left, rate.since_s = min(limits.connects_burst, rate.left + earned), now_s
        if rate.half_open >= limits.half_open_per_address_max:
            return Refusal.TOO_MANY_HALF_OPEN
        if rate.left < 1:
            return Refusal.TOO_FAST
        rate.left -= 1
        rate.half_open += 1
        return None

    def proven(self, address: str) -> None:
        """Take note that a connection of *address* has proven a host: it does not count any more."""
        rate = self._addresses.get(address)
        if rate is not None:
            rate.left = min(self._limits.connects_burst, rate.left + 1)
        self.gone(address)

    def gone(self, address: str) -> None:
        """Take note that a connection of *address* ended before it proved a host."""
        rate = self._addresses.get(address)
        if rate is not None and rate.half_open:
            rate.half_open -= 1
