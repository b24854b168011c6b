"""Leases that sessions wait for: in the scheduler's queue beside the jobs, and in the ledger only once granted."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.demand import Demand
from actorgrid.errors import AdmissionRefused, Overloaded, QueueFull

from ..ledger.tables.quotas import quota_of, refuse_over_whole, shortage
from ..scheduling.request import Refuse
from .engine_mirror import EngineMirror
from .feasibility import check_feasible
from .messages import AcquireLease
from .mig_policy import WaitingForGpu
from .placement_records import PlacementRecords
from .proposals import Proposals, retry_delay_s
from .scheduler_requests import admission_refused, request_of_lease

WAITING_LEASES_MAX = 4096


@dataclass(slots=True)
class _WaitingLease:
    lease: AcquireLease
    refusals: int = 0
    """Grants refused in a row."""


class WaitingLeases:
    """Keeps the leases that wait or are being granted: at most WAITING_LEASES_MAX."""

    def __init__(self, records: PlacementRecords, proposals: Proposals, mirror: EngineMirror) -> None:
        self._records = records
        self._proposals = proposals
        self._mirror = mirror
        self._waiting: dict[str, _WaitingLease] = {}
        self._refused: dict[str, AdmissionRefused] = {}
        self._count = 0

    def load(self, now: float) -> None:
        """Start (again) from a snapshot, with a scheduler in which nothing waits."""
        # One that was granted while nobody told us waits for nothing more.
        self._waiting = {id: each for id, each in self._waiting.items() if id not in self._records.allocations}
        # Those that are being granted have their room in the engine already: queued too, they could get it twice.
        for id, each in self._waiting.items():
            if id not in self._proposals.grants:
                self._queue(each.lease, 0.0, now)

    def ask(self, lease: AcquireLease, now: float) -> None:
        """Let a lease wait for room. Raises as ``check_feasible``, QuotaExceeded when it never may, or QueueFull."""
        check_feasible(Demand.of(lease.resources), self._records.hosts.values())
        refuse_over_whole(lease.user_id, quota_of(lease.user_id, self._records.quotas), lease.resources, "the lease")
        if len(self._waiting) >= WAITING_LEASES_MAX:
            raise QueueFull(
                "too many leases are being waited for", found=f"{WAITING_LEASES_MAX}", hint="try again in a moment"
            )
        self._waiting[lease.lease_id] = _WaitingLease(lease)
        self._queue(lease, 0.0, now)

    def withdraw(self, lease_id: str) -> bool:
        """Stop waiting; ``False`` when the lease is being granted already, or not known."""
        if lease_id in self._proposals.grants or self._waiting.pop(lease_id, None) is None:
            return False
        self._mirror.scheduler.withdraw(lease_id)
        return True

    def find(self, lease_id: str) -> AcquireLease | None:
        """The request of a lease that waits, or is being granted."""
        found = self._waiting.get(lease_id)
        return None if found is None else found.lease

    def waiting(self) -> list[WaitingForGpu]:
        """Those that wait for GPUs, as what may cut a GPU looks at them."""
        return [
            WaitingForGpu(id, Demand.of(each.lease.resources))
            for id, each in self._waiting.items()
            if each.lease.resources.get("gpu_count")
        ]

    def settled(self, lease_id: str) -> None:
        """Forget a lease that the ledger has granted."""
        self._waiting.pop(lease_id, None)

    def try_again(self, lease_id: str, now: float) -> None:
        """Let a lease wait again after a grant for it was refused, longer each time."""
        found = self._waiting.get(lease_id)
        if found is not None:
            found.refusals += 1
            self._queue(found.lease, now + retry_delay_s(found.refusals), now)

    def give_up(self, decision: Refuse, now: float) -> None:
        """Give up a lease that the policy lets wait no longer: who asked for it is to be told."""
        del self._waiting[decision.id]
        self._refused[decision.id] = admission_refused(decision.error, decision.why, None, None, now)

    def take_refused(self) -> dict[str, AdmissionRefused]:
        """The leases that the policy gave up since this was asked last, with why."""
        refused, self._refused = self._refused, {}
        return refused

    def no_room(self, lease: AcquireLease) -> Overloaded:
        """The error for one that has waited as long as it wanted to: what it lacks."""
        asked, user = f"a worker within {lease.wait_s:g} s", lease.user_id
        short = shortage(user, self._records.quotas, lease.resources, self._records.allocations.values())
        if short is not None:
            return Overloaded(
                f"the quota of user {user} did not come free in time",
                asked=asked,
                found=short.in_use,
                hint=f"wait for work of {user} to end, or have the quota raised (actorgrid quota)",
            )
        self._mirror.catch_up()
        nearest = self._mirror.scheduler.explain_demand(Demand.of(lease.resources)).get("nearest")
        return Overloaded(
            "no room came free in time",
            asked=asked,
            found=f"nearest: {nearest}" if nearest else "everything is in use",
            hint="wait longer (wait_s), ask for a smaller share, or free some work",
        )

    def clear(self) -> None:
        """Forget all leases: another host grants from here on, and who waits asks there."""
        self._waiting.clear()
        self._refused.clear()

    def _queue(self, lease: AcquireLease, not_before: float, now: float) -> None:
        scheduler = self._mirror.scheduler
        self._count += 1
        demand = Demand.of(lease.resources)
        self._mirror.arrivals.saw(demand)
        scheduler.queue_max += 1  # leases have a bound of their own and never crowd out jobs
        try:
            scheduler.submit(
                request_of_lease(lease.lease_id, demand, lease.user_id, lease.near or lease.home),
                now,
                order=self._count,
                not_before=not_before,
            )
        finally:
            scheduler.queue_max -= 1
