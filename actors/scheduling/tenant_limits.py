"""Limits of tenants, how much each may hold at once, and what it holds: what keeps those at their limit out of the
queue.

The scheduler steps around a tenant without room of its own; the guard that refuses is the ledger's (its quotas). Use
is kept by id, so that hearing of a start or an end twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from actorgrid.demand import Demand


class Amounts(NamedTuple):
    """The counted amounts: thousandths of GPUs, MiB of their memory, thousandths of CPUs, MiB of memory."""

    gpu_milli: int
    gpu_memory_mib: int
    cpu_milli: int
    memory_mib: int


Limits = tuple[int | None, int | None, int | None, int | None]
"""As Amounts; ``None`` is no limit."""


def amounts_of(demand: Demand) -> Amounts:
    """The amounts that a request of that demand holds."""
    devices = demand.gang * demand.gpu_count
    return Amounts(
        devices * demand.gpu_milli,
        devices * demand.gpu_memory_mib,
        demand.gang * demand.cpu_milli,
        demand.gang * demand.memory_mib,
    )


class TenantLimits:
    """The limits and use of each tenant. The tenant ``""`` is nobody: never limited, not counted."""

    def __init__(self) -> None:
        self._limits: Mapping[str, Limits] = {}
        self._others: Limits | None = None
        self._holds: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = {}

    def limit(self, limits: Mapping[str, Limits], others: Limits | None) -> None:
        """Set the limits by tenant, and those of all *others* (``None``: not limited)."""
        self._limits, self._others = dict(limits), others

    def limits_of(self, tenant: str) -> Limits | None:
        """The limits of *tenant*; ``None``: not limited."""
        return self._limits.get(tenant, self._others) if tenant else None

    def hold(self, id: str, tenant: str, demand: Demand) -> None:
        """Count what *id* holds, by *demand*, for *tenant*."""
        self.free(id)
        if tenant:
            amounts = amounts_of(demand)
            self._holds[id] = tenant, amounts
            self._used[tenant] = _plus(self.used(tenant), amounts)

    def free(self, id: str) -> str:
        """Stop counting *id*; gives its tenant, ``""`` when it held nothing."""
        tenant, amounts = self._holds.pop(id, ("", _NOTHING))
        if tenant:
            left = _plus(self.used(tenant), amounts, -1)
            if any(left):
                self._used[tenant] = left
            else:
                self._used.pop(tenant, None)
        return tenant

    def clear(self) -> None:
        """Count nothing for anybody; limits stay."""
        self._holds.clear()
        self._used.clear()

    def used(self, tenant: str) -> Amounts:
        """The amounts that *tenant* holds."""
        return self._used.get(tenant, _NOTHING)

    def has_capacity(self, tenant: str, demand: Demand, ahead: Iterable[Demand] = ()) -> bool:
        """Whether *demand* is within the limits of *tenant*, beside what it holds and what is kept for those *ahead*.

        What is asked for as zero is always within them.
        """
        limits = self.limits_of(tenant)
        if limits is None:
            return True
        taken = self.used(tenant)
        for other in ahead:
            taken = _plus(taken, amounts_of(other))
        return _within(limits, taken, demand)

    def could_hold(self, tenant: str, demand: Demand) -> bool:
        """Whether *demand* is within the limits of *tenant* once it holds nothing else."""
        limits = self.limits_of(tenant)
        return limits is None or _within(limits, _NOTHING, demand)


_NOTHING = Amounts(0, 0, 0, 0)


def _plus(one: Amounts, other: Amounts, times: int = 1) -> Amounts:
    return Amounts(
        one[0] + times * other[0], one[1] + times * other[1], one[2] + times * other[2], one[3] + times * other[3]
    )


def _within(limits: Limits, taken: Amounts, demand: Demand) -> bool:
    return all(
        limit is None or not asked or used + asked <= limit
        for limit, used, asked in zip(limits, taken, amounts_of(demand), strict=True)
    )
