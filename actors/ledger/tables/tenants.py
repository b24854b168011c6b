"""Tenants: what each is given, what it holds now and held of late; and the guard that keeps it to its limits.

Part of the replicated state are the records, and the means of what tenants with a record held of late. What they hold
is derived, kept up with every allocation. A mean forgets half in HALF_LIFE_S and is counted in whole numbers, so that
every host has the same: an allocation takes its time from the entry that made or ended it.

A removed tenant's record stays, so that nothing of it is taken by mistake: until it is created again, or until
REMOVED_MAX others were removed. Bound: 10,000 tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isqrt

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.answers import TenantAnswer
from actorgrid.actors.ledger.commands import PutTenant, RemoveTenant
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.record_types import AllocationRecord, JobRecord, ResourcesRecord
from actorgrid.errors import NotFound, QueueFull, QuotaExceeded, WrongState

from ..tenant_records import (
    CPU,
    GPU,
    GPU_MEMORY,
    JOBS_WAITING,
    MEMORY,
    OF_MODEL,
    WAITING_BYTES,
    TenantRecord,
    TenantUsage,
    TenantUseRecord,
    amount_under,
)
from .waiting_bytes import WaitingBytes, job_bytes

TENANTS_MAX = 10_000
REMOVED_MAX = 1_000
HALF_LIFE_S = 7 * 86_400
MEAN_SCALE = 2**20
_TICKS = 30
"""A half-life in parts of 2**-30, about half a millisecond: the steps in which time counts."""
_ONE = 2**62


def _factors() -> tuple[int, ...]:
    """What is left of _ONE after 2**n ticks, by n, to twice 2**8 half-lives. By whole roots: alike on every machine."""
    halved, found = _ONE // 2, []
    factor = halved
    for _ in range(_TICKS):
        factor = isqrt(factor * _ONE)
        found.append(factor)
    found.reverse()
    for _ in range(9):
        found.append(halved)
        halved = halved * halved // _ONE
    return tuple(found)


_FACTORS = _factors()


def left_after(elapsed_s: float) -> int:
    """What is left of _ONE after that time."""
    ticks = min(int(elapsed_s / HALF_LIFE_S * 2**_TICKS), 2 ** len(_FACTORS) - 1)
    left = _ONE
    for number, factor in enumerate(_FACTORS):
        if ticks >> number & 1:
            left = left * factor // _ONE
    return left


class Tenants:
    """The tenants by name. *changed* is told of records, *used* of what was held of late; *at* is the entry's time.

    *waiting* and *waiting_bytes* are those of each user's waiting jobs, kept current by their owner.
    """

    def __init__(
        self,
        changed: Callable[[str, TenantRecord | None, str], None],
        used: Callable[[str, TenantUseRecord | None, str], None],
        at: Callable[[], float],
        waiting: Mapping[str, int],
        waiting_bytes: WaitingBytes,
        revoke_keys: Callable[[str, float], None],
    ) -> None:
        self.records: dict[str, TenantRecord] = {}
        self.uses: dict[str, TenantUseRecord] = {}
        self._changed = changed
        self._use_changed = used
        self._at = at
        self._waiting = waiting
        self._waiting_bytes = waiting_bytes
        self._revoke_keys = revoke_keys
        self._held: dict[str, dict[str, int]] = {}

    def load(self, records: list[TenantRecord], uses: list[TenantUseRecord]) -> None:
        """Load what a snapshot held; for a new, empty object, before its allocations."""
        self.records.update((record["tenant"], record) for record in records)
        self.uses.update((use["tenant"], use) for use in uses)

    # -- commands

    @applies(PutTenant)
    def put(self, command: PutTenant, entry: EntryContext) -> TenantAnswer:
        """Carry out ``put_tenant``. Raises WrongState for one to be created that is there, NotFound for one to be set
        that is not, WrongState at the bound."""
        name, before = command.tenant, self.records.get(command.tenant)
        live = before is not None and before["removed_at"] is None
        if command.create and live:
            raise WrongState(f"there is a tenant {name} already", asked=name, hint="actorgrid tenant set changes it")
        if not command.create and not live:
            raise no_tenant(name, self.records)
        if before is None and len(self.records) >= TENANTS_MAX:
            raise WrongState("the ledger holds its maximum of tenants", found=f"{TENANTS_MAX} tenants")
        record: TenantRecord = {
            "tenant": name,
            "weight_milli": command.weight_milli,
            "guarantee": dict(command.guarantee),
            "limits": dict(command.limits),
            "made_at": entry.at if before is None or command.create else before["made_at"],
            "removed_at": None,
        }
        self.records[name] = record
        self._changed(name, record, "created" if command.create else "set")
        if before is None:
            self._accrue(name)  # what it holds already counts from now on
        return {"tenant": record, "previous": before}

    @applies(RemoveTenant)
    def remove(self, command: RemoveTenant, entry: EntryContext) -> TenantAnswer:
        """Carry out ``remove_tenant``; a second time changes nothing. Raises NotFound."""
        name, before = command.tenant, self.records.get(command.tenant)
        if before is None:
            raise no_tenant(name, self.records)
        if before["removed_at"] is not None:
            return {"tenant": before, "previous": before}
        record = self.records[name] = TenantRecord(**{**before, "removed_at": entry.at})
        self._changed(name, record, "removed")
        self._revoke_keys(name, entry.at)
        removed = [each for each in self.records.values() if each["removed_at"] is not None]
        if len(removed) > REMOVED_MAX:
            oldest = min(removed, key=lambda each: (each["removed_at"] or 0.0, each["tenant"]))["tenant"]
            del self.records[oldest]
            self._changed(oldest, None, "forgotten")
            if self.uses.pop(oldest, None) is not None:
                self._use_changed(oldest, None, "")
        return {"tenant": record, "previous": before}

    # -- the guard

    def check_key(self, tenant: str) -> None:
        """Raises WrongState for a key of a removed tenant."""
        self._refuse_removed(tenant, "a key")

    def check_submit(self, jobs: Iterable[JobRecord]) -> None:
        """Raises WrongState for work of a removed tenant, QuotaExceeded for a job that could never run, QueueFull."""
        if not self.records:
            return
        more: dict[str, tuple[int, int]] = {}
        for job in jobs:
            tenant = tenant_of(job.get("user_id", "local"))
            self.check_whole(tenant, job["resources"], f"job {job['job_id']}")
            count, size = more.get(tenant, (0, 0))
            more[tenant] = count + 1, size + job_bytes(job)
        for tenant, (count, size) in more.items():
            limits = self._limits(tenant)
            for name, asked, waiting in (
                (JOBS_WAITING, count, self._sum(tenant, self._waiting)),
                (WAITING_BYTES, size, self._sum(tenant, self._waiting_bytes.of)),
            ):
                if name in limits and waiting + asked > limits[name]:
                    raise QueueFull(
                        f"tenant {tenant} may not have that much waiting",
                        asked=f"{asked} more ({name})",
                        found=f"{waiting} of {limits[name]}",
                        hint=f"wait for some to start, or cancel some: actorgrid tenant show {tenant}",
                    )

    def check_whole(self, tenant: str, resources: ResourcesRecord, what: str) -> None:
        """Raises QuotaExceeded when *what* asks for more than *tenant* may ever hold, WrongState for a removed one."""
        self._refuse_removed(tenant, what)
        amounts = asked_amounts(resources)
        for name, limit in self._limits(tenant).items():
            asked = amount_under(name, amounts)
            if asked > limit:
                raise QuotaExceeded(
                    f"{what} asks for more than tenant {tenant} may hold at once",
                    asked=f"{asked} ({name})",
                    found=f"a limit of {limit}",
                    hint=f"ask for less, or have the limit raised: actorgrid tenant show {tenant}",
                )

    def check_grant(self, user: str, charge: Mapping[str, int]) -> None:
        """Raises WrongState for a removed tenant's, QuotaExceeded when *charge* is more than its limits leave."""
        if not self.records or not user:
            return
        tenant = tenant_of(user)
        self._refuse_removed(tenant, "room")
        limits, held = self._limits(tenant), self._held.get(tenant, {})
        for name, limit in limits.items():
            asked, used = amount_under(name, charge), amount_under(name, held)
            if asked and used + asked > limit:
                raise QuotaExceeded(
                    f"the limits of tenant {tenant} do not leave that much",
                    asked=f"{asked} ({name})",
                    found=f"{used} of {limit} in use",
                    hint=f"wait for work of {tenant} to end, or have the limit raised: actorgrid tenant show {tenant}",
                )

    # -- what is held

    def take(self, allocation: AllocationRecord) -> None:
        """Count an allocation."""
        self._add(allocation, 1)

    def give(self, allocation: AllocationRecord) -> None:
        """Stop counting an allocation."""
        self._add(allocation, -1)

    def rows(self) -> list[TenantUsage]:
        """Rows to show, by name: tenants with a record, with something held, or with jobs waiting."""
        names = {*self.records, *self._held, *map(tenant_of, self._waiting)}
        return [
            {
                "tenant": name,
                "record": self.records.get(name),
                "used": dict(self._held.get(name, {})),
                "of_late": {each: mean // MEAN_SCALE for each, mean in self._means(name).items()},
                "jobs_waiting": self._sum(name, self._waiting),
                "waiting_bytes": self._sum(name, self._waiting_bytes.of),
            }
            for name in sorted(names)
        ]

    # -- inside

    def _limits(self, tenant: str) -> dict[str, int]:
        record = self.records.get(tenant)
        return {} if record is None else record["limits"]

    def _refuse_removed(self, tenant: str, what: str) -> None:
        record = self.records.get(tenant)
        if record is not None and record["removed_at"] is not None:
            raise WrongState(
                f"tenant {tenant} was removed",
                asked=f"{what} of {tenant}",
                hint=f"actorgrid tenant create {tenant} lets it work again",
            )

    @staticmethod
    def _sum(tenant: str, by_user: Mapping[str, int]) -> int:
        return sum(amount for user, amount in by_user.items() if tenant_of(user) == tenant)

    def _add(self, allocation: AllocationRecord, sign: int) -> None:
        if not allocation["user_id"]:
            return
        tenant = tenant_of(allocation["user_id"])
        self._accrue(tenant)
        held = self._held.setdefault(tenant, {})
        for name, amount in charge_in(allocation).items():
            held[name] = held.get(name, 0) + sign * amount
            if not held[name]:
                del held[name]
        if not held:
            del self._held[tenant]

    def _accrue(self, tenant: str) -> None:
        """Count what *tenant* held until this entry, if it has a record."""
        if tenant not in self.records:
            return
        before = self.uses.get(tenant)
        if before is not None and self._at() <= before["at"]:
            return
        use: TenantUseRecord = {"tenant": tenant, "at": self._at(), "means": self._means(tenant)}
        self.uses[tenant] = use
        self._use_changed(tenant, use, "")

    def _means(self, tenant: str) -> dict[str, int]:
        use = self.uses.get(tenant)
        if use is None:
            return {}
        left = left_after(max(0.0, self._at() - use["at"]))
        held, means = self._held.get(tenant, {}), use["means"]
        found = {
            name: (means.get(name, 0) * left + held.get(name, 0) * MEAN_SCALE * (_ONE - left)) // _ONE
            for name in sorted(means.keys() | held.keys())
        }
        return {name: mean for name, mean in found.items() if mean}


def charge_in(allocation: AllocationRecord) -> Mapping[str, int]:
    """The amounts that an allocation counts as; of one from before there were tenants, without the models."""
    found = allocation.get("charge")
    if found is not None:
        return found
    count = len(allocation["gpu_indexes"])
    amounts = {
        CPU: allocation["cpu_milli"],
        MEMORY: allocation["memory_mib"],
        GPU: count * allocation["gpu_milli"],
        GPU_MEMORY: count * allocation["gpu_memory_mib"],
    }
    return {name: amount for name, amount in amounts.items() if amount}


def asked_amounts(resources: ResourcesRecord) -> dict[str, int]:
    """What *resources* take wherever they are; of a model only where they take no other."""
    members = resources.get("gang", 1)
    count = members * resources.get("gpu_count", 0)
    found = {
        CPU: members * resources.get("cpu_milli", 0),
        MEMORY: members * resources.get("memory_mib", 0),
        GPU: count * resources.get("gpu_milli", 0),
        GPU_MEMORY: count * resources.get("gpu_memory_mib", 0),
    }
    models = resources.get("gpu_models") or ()
    if len(models) == 1:
        found[OF_MODEL + models[0]] = found[GPU]
    return {name: amount for name, amount in found.items() if amount}


def no_tenant(name: str, known: Mapping[str, TenantRecord]) -> NotFound:
    """The refusal of a name that no tenant has."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return NotFound(
        f"there is no tenant {name}",
        asked=name,
        found=f"{len(known)} tenant(s)",
        hint=f"did you mean {close[0]}?" if close else "actorgrid tenant list shows them",
    )
