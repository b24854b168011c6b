"""Quotas: how much each user may hold at once and have waiting, and how much that is now.

Part of the replicated state are the limits; what is held is derived, never stored: kept up with every allocation,
and rebuilt from them. A user without a quota of one's own has the one of ``*``, whole, where there is one; without
either, nothing is limited. Names of users are what clients call themselves.

Bound: 10,000 quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.answers import QuotaAnswer, QuotaUseRecord
from actorgrid.actors.ledger.commands import SetQuota
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.record_checks import HELD_LIMITS, LIMITS, WAITING_LIMIT
from actorgrid.actors.ledger.record_types import AllocationRecord, HeldAmounts, JobRecord, QuotaRecord, ResourcesRecord
from actorgrid.amounts import counted, mebibytes
from actorgrid.errors import NotFound, QueueFull, QuotaExceeded, WrongState

from .tenants import Tenants

QUOTAS_MAX = 10_000
EVERYONE = "*"

_WORDS = {"gpu_memory_mib": "of GPU memory", "memory_mib": "of memory"}


def amounts_of(resources: ResourcesRecord) -> dict[str, int]:
    """What one attempt or lease that asks for *resources* holds of its user's quota, with all members of a gang."""
    members = resources.get("gang", 1)
    count = members * resources.get("gpu_count", 0)
    return {
        "gpu_milli": count * resources.get("gpu_milli", 0),
        "gpu_memory_mib": count * resources.get("gpu_memory_mib", 0),
        "cpu_milli": members * resources.get("cpu_milli", 0),
        "memory_mib": members * resources.get("memory_mib", 0),
    }


def amounts_held(held: HeldAmounts) -> dict[str, int]:
    """The part of its user's quota that an allocation takes."""
    count = len(held["gpu_indexes"])
    return {
        "gpu_milli": count * held["gpu_milli"],
        "gpu_memory_mib": count * held["gpu_memory_mib"],
        "cpu_milli": held["cpu_milli"],
        "memory_mib": held["memory_mib"],
    }


def quota_of(user: str, quotas: Mapping[str, QuotaRecord]) -> QuotaRecord | None:
    """The quota that *user* is held to: one's own, else everyone's. ``None``: not limited, as is the empty user."""
    if not user:
        return None
    return quotas.get(user, quotas.get(EVERYONE))


def over(limits: Mapping[str, int | None] | None, used: Mapping[str, int], asked: Mapping[str, int]) -> list[str]:
    """The limits that *asked* would go over beside *used*. What is asked for as zero goes over none."""
    found = []
    for name in HELD_LIMITS:
        limit = None if limits is None else limits[name]
        if limit is not None and asked[name] and used[name] + asked[name] > limit:
            found.append(name)
    return found


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a user's quota lacks for a request: the limits named in *short*, and all that they were compared with."""

    user: str
    limits: QuotaRecord
    used: dict[str, int]
    asked: dict[str, int]
    short: tuple[str, ...]

    @property
    def wanted(self) -> str:
        """The amount asked for of the first limit that is short, as text."""
        return amount_text(self.short[0], self.asked[self.short[0]])

    @property
    def in_use(self) -> str:
        """The amount in use of the first limit that is short, as text: ``3 of 4 GPUs in use``."""
        name = self.short[0]
        used = mebibytes(self.used[name]) if name in _WORDS else f"{self.used[name] / 1000:g}"
        return f"{used} of {amount_text(name, limit_of(self.limits, name))} in use"

    @property
    def left(self) -> dict[str, int]:
        """The amount left of each limit that is short."""
        return {name: max(0, limit_of(self.limits, name) - self.used[name]) for name in self.short}

    @property
    def for_good(self) -> bool:
        """Whether the request would not fit the whole quota either."""
        return bool(over(cast("dict[str, int | None]", self.limits), dict.fromkeys(HELD_LIMITS, 0), self.asked))


def shortage(
    user: str, quotas: Mapping[str, QuotaRecord], resources: ResourcesRecord, allocations: Iterable[AllocationRecord]
) -> Shortage | None:
    """What the quota of *user* lacks for *resources*, with what *allocations* hold; ``None`` when it has room."""
    limits = quota_of(user, quotas)
    if limits is None:
        return None
    used = dict.fromkeys(HELD_LIMITS, 0)
    for allocation in allocations:
        if allocation["user_id"] == user:
            for name, amount in amounts_held(allocation).items():
                used[name] += amount
    return _short(user, limits, used, amounts_of(resources))


def limit_of(limits: QuotaRecord, name: str) -> int:
    """The value of one limit of a quota that has it."""
    return cast("dict[str, int]", limits)[name]


def _short(user: str, limits: QuotaRecord | None, used: dict[str, int], asked: dict[str, int]) -> Shortage | None:
    names = tuple(over(cast("dict[str, int | None] | None", limits), used, asked))
    return None if limits is None or not names else Shortage(user, limits, used, asked, names)


def amount_text(name: str, amount: int) -> str:
    """An amount of one of the limits as text: ``2.5 GPUs``, ``40 GiB of GPU memory``."""
    if name in _WORDS:
        return f"{mebibytes(amount)} {_WORDS[name]}"
    if name == WAITING_LIMIT:
        return counted(amount, "waiting job")
    noun = "GPU" if name == "gpu_milli" else "CPU"
    return f"{amount / 1000:g} {noun}{'' if amount == 1000 else 's'}"


class Quotas:
    """The limits by user, and what each user holds. *changed* is told of every quota that is another, and how.

    *waiting* is the number of each user's waiting jobs, kept current by its owner. Records are replaced, not written.
    """

    def __init__(
        self, changed: Callable[[str, QuotaRecord | None, str], None], waiting: Mapping[str, int], tenants: Tenants
    ) -> None:
        self.tenants = tenants
        self.records: dict[str, QuotaRecord] = {}
        self._changed = changed
        self._waiting = waiting
        self._used: dict[str, dict[str, int]] = {}

    def used(self, user: str) -> dict[str, int]:
        """The amounts that *user* holds now."""
        return dict(self._used.get(user) or dict.fromkeys(HELD_LIMITS, 0))

    def take(self, allocation: AllocationRecord) -> None:
        """Count an allocation."""
        self.tenants.take(allocation)
        self._add(allocation, 1)

    def give(self, allocation: AllocationRecord) -> None:
        """Stop counting an allocation."""
        self.tenants.give(allocation)
        self._add(allocation, -1)

    @applies(SetQuota)
    def set(self, command: SetQuota, _entry: EntryContext) -> QuotaAnswer:
        """Carry out ``set_quota``. Nothing that is held or waits is touched.

        Raises NotFound when there is none to remove, WrongState when there are too many.
        """
        user, limits = command.user, command.limits
        before = self.records.get(user)
        if limits is None:
            if before is None:
                raise _no_quota(user, self.records)
            del self.records[user]
        else:
            if before is None and len(self.records) >= QUOTAS_MAX:
                raise WrongState("the ledger holds its maximum of quotas", found=f"{QUOTAS_MAX} quotas")
            self.records[user] = cast("QuotaRecord", {name: limits.get(name) for name in LIMITS})
        now = self.records.get(user)
        self._changed(user, now, "gone" if now is None else "set")
        return {"user": user, "limits": now, "previous": before}

    def check_grant(self, user: str, resources: ResourcesRecord, charge: Mapping[str, int]) -> None:
        """Raises QuotaExceeded when *resources* are more than the user's quota has left, or *charge* than the tenant's
        limits have; WrongState for a tenant that was removed."""
        self.tenants.check_grant(user, charge)
        short = _short(user, quota_of(user, self.records), self.used(user), amounts_of(resources))
        if short is not None:
            raise QuotaExceeded(
                f"the quota of user {user} does not have that much left",
                asked=short.wanted,
                found=short.in_use,
                hint=f"wait for work of {user} to end, or have the quota raised (actorgrid quota)",
            )

    def check_submit(self, jobs: Iterable[JobRecord]) -> None:
        """Raises QuotaExceeded for a job that could never run, QueueFull when too many of a user or tenant would wait,
        WrongState for a tenant that was removed."""
        jobs = list(jobs)
        self.tenants.check_submit(jobs)
        more: dict[str, int] = {}
        for job in jobs:
            user = job.get("user_id", "local")
            refuse_over_whole(user, quota_of(user, self.records), job["resources"], f"job {job['job_id']}")
            more[user] = more.get(user, 0) + 1
        for user, count in more.items():
            limits = quota_of(user, self.records)
            limit = None if limits is None else limits["jobs_waiting"]
            waiting = self._waiting.get(user, 0)
            if limit is not None and waiting + count > limit:
                raise QueueFull(
                    f"user {user} may not have that many jobs waiting",
                    asked=f"{count} more",
                    found=f"{waiting} waiting of {limit}",
                    hint="wait for some to start, cancel some, or have the quota raised (actorgrid quota)",
                )

    def check_edit(self, job: JobRecord, resources: ResourcesRecord) -> None:
        """Raises QuotaExceeded when *resources* are more than *job*'s user may ever hold."""
        user = job["user_id"]
        self.tenants.check_whole(tenant_of(user), resources, f"job {job['job_id']}")
        refuse_over_whole(user, quota_of(user, self.records), resources, f"job {job['job_id']}")

    def rows(self) -> list[QuotaUseRecord]:
        """Rows to show, by user: those with a quota of their own, with something held or with jobs waiting.

        Each: ``user``, ``limits`` (``None``: not limited), ``default`` (they are everyone's), ``used``.
        """
        users = sorted({*self.records, *self._used, *self._waiting})
        return [
            {
                "user": user,
                "limits": quota_of(user, self.records),
                "default": user not in self.records and EVERYONE in self.records,
                "used": {**self.used(user), WAITING_LIMIT: self._waiting.get(user, 0)},
            }
            for user in users
        ]

    def _add(self, allocation: AllocationRecord, sign: int) -> None:
        user = allocation["user_id"]
        used = self.used(user)
        for name, amount in amounts_held(allocation).items():
            used[name] += sign * amount
            assert used[name] >= 0, f"{user} has given back more {name} than was held"
        if any(used.values()):
            self._used[user] = used
        else:
            self._used.pop(user, None)


def refuse_over_whole(user: str, limits: QuotaRecord | None, resources: ResourcesRecord, what: str) -> None:
    """Raises QuotaExceeded when *what* asks for *resources* that are more than *limits* in all."""
    short = _short(user, limits, dict.fromkeys(HELD_LIMITS, 0), amounts_of(resources))
    if short is not None:
        whole = amount_text(short.short[0], limit_of(short.limits, short.short[0]))
        raise QuotaExceeded(
            f"{what} asks for more than user {user} may hold at once",
            asked=short.wanted,
            found=f"a quota of {whole}",
            hint=f"ask for at most {whole}, or have the quota raised (actorgrid quota)",
        )


def _no_quota(user: str, known: Collection[str]) -> NotFound:
    import difflib

    close = difflib.get_close_matches(user, list(known), n=1, cutoff=0.5)
    return NotFound(
        f"user {user} has no quota of one's own",
        asked=user,
        found=f"{len(known)} quota(s)",
        hint=f"did you mean {close[0]}?" if close else "actorgrid quota lists them",
    )
