"""Fair share between tenants: who of several goes first, what a guarantee gives, what of it is only lent.

A tenant's *share* is its dominant one (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): of each resource what
it holds, plus what it has held of late, by what there is; the largest of these, by the tenant's weight. What it has
held of late is a mean that forgets half every HALF_LIFE_S: without it, who comes once a week has half of a cluster in
its day beside one who was always there. Resources are the devices of each model, device memory (a whole device is all
of its memory), CPUs and memory, so that nobody is charged with nothing for what others cannot have meanwhile.

A *guarantee* comes first: a job that is within what its tenant was guaranteed ranks before all that are not. What a
tenant leaves of its guarantee is lent. Of its running jobs those are *protected* that fit into the guarantee beside the
protected ones that began before them; the others are on what was lent, and may be stopped for a job within a
guarantee. So nobody is stopped in a circle: a job that others were stopped for is protected, the end of jobs that are
not protected takes the protection from none, and whoever is protected is stopped for nobody. While no job comes or
ends, there are at most as many reclaims as jobs.

No I/O and no clock: time comes in by ``advance``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.tenant_records import CPU, GPU, GPU_MEMORY, MEMORY, OF_MODEL
from actorgrid.demand import Demand
from actorgrid.hotpath.records import WHOLE_GPU_MILLI, Shares

HALF_LIFE_S: Final = 7 * 86_400.0
RANK_EVERY_S: Final = 10.0
"""How often all are ranked anew for what they have held of late; what they hold counts at once."""
BEYOND_GUARANTEE: Final = 1e6
"""Added to the share of what is not within a guarantee, so that it ranks after all that is."""

Amounts = Mapping[str, int]
"""By resource, as ``ledger/tenant_records.py`` calls them; models by the engine's names."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What a tenant is given: its *weight* beside others, its *guarantee*, and its *limits*. Of a *removed* one
    nothing starts."""

    weight: float = 1.0
    guarantee: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    removed: bool = False


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What a node has: *devices* by index, each with its model and MiB of memory; 0: there is none of that index."""

    cpu_milli: int
    memory_mib: int
    devices: tuple[tuple[str, int], ...] = ()


NO_TERMS: Final = TenantTerms()


class TenantReport(TypedDict):
    """How a tenant stands with one of its waiting jobs."""

    tenant: str
    """Its name."""
    weight: float
    """Its weight."""
    share: float
    """Its dominant share, held and of late, by its weight."""
    resource: str
    """Of which it has most."""
    used: dict[str, int]
    """The amounts that it holds."""
    guarantee: dict[str, int]
    """The amounts that it is guaranteed."""
    within_guarantee: bool
    """Whether the job is within that."""
    limit: str
    """The limit that keeps it aside; ``removed``: the tenant was removed; empty: none."""
    limit_amount: int | None
    """How much that limit allows."""
    ahead: int
    """How many tenants with waiting jobs have a smaller share."""


class FairShare:
    """Keeps what tenants are given, hold and have held. In force only where somebody set terms for a tenant.

    What is held is kept by id, so that hearing of a start or an end twice changes nothing.
    """

    def __init__(self) -> None:
        self.terms: Mapping[str, TenantTerms] = {}
        self.capacity: dict[str, int] = {}
        self._counted: dict[str, int] = {}  # of devices each model counts by itself
        self._nodes: Mapping[str, NodeSize] = {}
        self._now = 0.0
        self._holds: dict[str, tuple[str, dict[str, int]]] = {}
        self._ids: dict[str, dict[str, None]] = {}  # by tenant, in the order of their starts
        self._used: dict[str, dict[str, int]] = {}
        self._past: dict[str, dict[str, float]] = {}
        self._past_at: dict[str, float] = {}
        self._protected: dict[str, frozenset[str]] = {}
        self._shares: dict[str, float] = {}  # as of when they were last asked for

    @property
    def in_force(self) -> bool:
        """Whether tenants are told apart at all."""
        return bool(self.terms)

    def group(self, user: str) -> str:
        """The tenant that *user* counts for; ``""`` where tenants are not told apart, and for nobody."""
        return tenant_of(user) if self.terms and user else ""

    # -- what is told

    def set_terms(self, terms: Mapping[str, TenantTerms]) -> None:
        """Give tenants *terms*, by name; others have a weight of 1, no guarantee and no limits."""
        self.terms = dict(terms)
        self._protected.clear()
        self._shares.clear()

    def set_nodes(self, nodes: Mapping[str, NodeSize]) -> None:
        """Share out what these *nodes* have, by name."""
        self._nodes = nodes
        self._shares.clear()
        self.capacity = {}
        for node in nodes.values():
            _add(self.capacity, CPU, node.cpu_milli)
            _add(self.capacity, MEMORY, node.memory_mib)
            for model, memory_mib in (each for each in node.devices if each[1]):
                _add(self.capacity, GPU, WHOLE_GPU_MILLI)
                _add(self.capacity, OF_MODEL + model, WHOLE_GPU_MILLI)
                _add(self.capacity, GPU_MEMORY, memory_mib)
        self._counted = {name: amount for name, amount in self.capacity.items() if amount and name != GPU}

    def set_past(self, past: Mapping[str, tuple[float, Mapping[str, float]]]) -> None:
        """What tenants have held of late: by tenant the time of that, and the mean by resource."""
        self._past = {tenant: dict(means) for tenant, (_, means) in past.items()}
        self._past_at = {tenant: at for tenant, (at, _) in past.items()}
        self._shares.clear()

    def advance(self, now: float) -> None:
        """Let it be *now*; the clock may be set back, and then nothing is counted until it is as late again."""
        self._now = max(self._now, now)

    def weigh_past(self) -> None:
        """Have what tenants held until now count in their shares; else that of each is weighed when it holds other
        amounts."""
        self._shares.clear()

    # -- what is held

    def hold(self, id: str, user: str, demand: Demand, shares: Shares) -> str:
        """Count what *id* holds, by *demand*, on *shares*; gives the tenant whose it is."""
        self.free(id)
        if not user:
            return ""
        tenant = tenant_of(user)
        self._accrue(tenant)
        amounts = self.charge(demand, shares)
        self._holds[id] = tenant, amounts
        self._ids.setdefault(tenant, {})[id] = None
        used = self._used.setdefault(tenant, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount
        self._protected.pop(tenant, None)
        self._shares.pop(tenant, None)
        return tenant

    def free(self, id: str) -> str:
        """Stop counting *id*; gives its tenant, ``""`` when it held nothing."""
        tenant, amounts = self._holds.pop(id, ("", {}))
        if not tenant:
            return ""
        self._accrue(tenant)
        del self._ids[tenant][id]
        used = self._used[tenant]
        for name, amount in amounts.items():
            _add(used, name, -amount)
        if not self._ids[tenant]:
            del self._ids[tenant], self._used[tenant]
            if tenant not in self.terms:
                del (
                    self._past[tenant],
                    self._past_at[tenant],
                )  # nobody asked that it be known: of those there may be any number
        self._protected.pop(tenant, None)
        self._shares.pop(tenant, None)
        return tenant

    def clear(self) -> None:
        """Count nothing for anybody now; what was held of late stands."""
        for tenant in list(self._used):
            self._accrue(tenant)
        self._holds.clear()
        self._ids.clear()
        self._used.clear()
        self._protected.clear()
        self._shares.clear()

    def used(self, tenant: str) -> dict[str, int]:
        """The amounts that *tenant* holds."""
        return dict(self._used.get(tenant, ()))

    def charge(self, demand: Demand, shares: Shares) -> dict[str, int]:
        """The amounts that *demand* takes on *shares*."""
        members = max(1, len(shares))
        found = {CPU: members * demand.cpu_milli, MEMORY: members * demand.memory_mib}
        milli, of_device_mib = demand.gpu_milli, demand.gpu_memory_mib
        whole = milli >= WHOLE_GPU_MILLI
        for name, indexes in shares:
            devices = self._nodes[name].devices if name in self._nodes else ()
            for index in indexes:
                model, memory_mib = devices[index] if index < len(devices) else ("", 0)
                of_model = OF_MODEL + model
                found[GPU] = found.get(GPU, 0) + milli
                found[of_model] = found.get(of_model, 0) + milli
                found[GPU_MEMORY] = found.get(GPU_MEMORY, 0) + max(memory_mib if whole else 0, of_device_mib)
        return {name: amount for name, amount in found.items() if amount}

    def asked(self, demand: Demand, models: tuple[str, ...] = ()) -> dict[str, int]:
        """What *demand* would take wherever it went; of a model only where it takes no other one of *models*."""
        devices = demand.gang * demand.gpu_count
        found = {
            GPU: devices * demand.gpu_milli,
            GPU_MEMORY: devices * demand.gpu_memory_mib,
            CPU: demand.gang * demand.cpu_milli,
            MEMORY: demand.gang * demand.memory_mib,
        }
        models = models or demand.gpu_models
        if len(models) == 1:
            found[OF_MODEL + models[0]] = found[GPU]
        return {name: amount for name, amount in found.items() if amount}

    # -- who goes first

    def share(self, tenant: str) -> float:
        """The dominant share of *tenant*, held and of late, by its weight; as of when it was last weighed."""
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = self.dominant(tenant)[1]
        return share

    def dominant(self, tenant: str) -> tuple[str, float]:
        """The resource of which *tenant* has most, and its share; ``("", 0.0)``: it has and had nothing."""
        held: Mapping[str, float] = self._used.get(tenant, {})
        if past := self._of_late(tenant):
            held = {**past, **{name: amount + past.get(name, 0.0) for name, amount in held.items()}}
        best, most, counted = "", 0.0, self._counted
        for name, amount in held.items():
            if name in counted:
                part = amount / counted[name]
                if part > most or (part == most and name < best):
                    best, most = name, part
        return best, most / self.terms.get(tenant, NO_TERMS).weight

    def past(self, tenant: str) -> dict[str, float]:
        """The means of what *tenant* held of late, as of now."""
        return dict(self._of_late(tenant))

    def ranks(self, tenant: str) -> Callable[[Demand], float]:
        """Where jobs of *tenant* stand among those of others as it holds now, by what each demands: lower goes first.
        One number where nothing is guaranteed to it."""
        if not tenant:
            return lambda _demand: 0.0
        share = self.share(tenant)
        beyond = share + BEYOND_GUARANTEE
        if not self.guarantees(tenant):
            return lambda _demand: beyond
        return lambda demand: share if self.within_guarantee(tenant, demand) else beyond

    def within_guarantee(self, tenant: str, demand: Demand, ahead: Iterable[Demand] = ()) -> bool:
        """Whether *tenant* may have *demand* under its guarantee, beside what it holds and what is kept *ahead*.

        Of what the guarantee does not name anything may be asked; but a demand that asks for nothing that it names is
        not within it.
        """
        guarantee = self.terms.get(tenant, NO_TERMS).guarantee
        if not guarantee:
            return False
        asked = {name: amount for name, amount in self.asked(demand).items() if name in guarantee}
        used = dict(self._used.get(tenant, ()))
        for other in ahead:
            for name, amount in self.asked(other).items():
                _add(used, name, amount)
        return bool(asked) and all(used.get(name, 0) + amount <= guarantee[name] for name, amount in asked.items())

    # -- limits

    def over_limit(self, tenant: str, demand: Demand) -> str:
        """The first limit of *tenant* that *demand* would go over beside what it holds; ``""``: none.

        Where it takes several models, only as much as it needs of any counts; which are left, ``models_left`` says.
        """
        terms = self.terms.get(tenant, NO_TERMS)
        if terms.removed:
            return "removed"
        if not terms.limits:
            return ""
        used = self._used.get(tenant, {})
        for name, amount in self.asked(demand).items():
            if name in terms.limits and used.get(name, 0) + amount > terms.limits[name]:
                return name
        return ""

    def limits_models(self, tenant: str) -> bool:
        """Whether *tenant* has a limit for a model."""
        return any(name.startswith(OF_MODEL) for name in self.terms.get(tenant, NO_TERMS).limits)

    def models_left(self, tenant: str, demand: Demand, models: tuple[str, ...]) -> tuple[str, ...] | None:
        """Of *models* (none: of all there are) those of which *tenant* may have *demand*; ``None``: of each."""
        terms = self.terms.get(tenant, NO_TERMS)
        if not demand.gpu_count or not self.limits_models(tenant):
            return None
        asked = demand.gang * demand.gpu_count * demand.gpu_milli
        used = self._used.get(tenant, {})
        known = models or tuple(sorted(name[len(OF_MODEL) :] for name in self.capacity if name.startswith(OF_MODEL)))
        left = tuple(
            model
            for model in known
            if used.get(OF_MODEL + model, 0) + asked <= terms.limits.get(OF_MODEL + model, asked + (1 << 60))
        )
        return None if left == known else left

    def report(self, tenant: str, demand: Demand, waiting: Iterable[str]) -> TenantReport:
        """How *tenant* stands with a job of *demand*, among those of which jobs are *waiting*."""
        resource, share = self.dominant(tenant)
        terms = self.terms.get(tenant, NO_TERMS)
        limit = self.over_limit(tenant, demand)
        return {
            "tenant": tenant,
            "weight": terms.weight,
            "share": share,
            "resource": resource,
            "used": self.used(tenant),
            "guarantee": dict(terms.guarantee),
            "within_guarantee": self.within_guarantee(tenant, demand),
            "limit": limit,
            "limit_amount": terms.limits.get(limit),
            "ahead": sum(self.share(each) < share for each in waiting),
        }

    # -- what is lent

    def guarantees(self, tenant: str) -> bool:
        """Whether anything is guaranteed to *tenant*."""
        return bool(self.terms.get(tenant, NO_TERMS).guarantee)

    def protected(self, tenant: str) -> frozenset[str]:
        """The running jobs of *tenant* that its guarantee covers: in the order of their starts, as many as fit in."""
        found = self._protected.get(tenant)
        if found is None:
            guarantee = self.terms.get(tenant, NO_TERMS).guarantee
            taken: dict[str, int] = {}
            chosen = []
            for id in self._ids.get(tenant, ()) if guarantee else ():
                amounts = {name: amount for name, amount in self._holds[id][1].items() if name in guarantee}
                if amounts and all(taken.get(name, 0) + amount <= guarantee[name] for name, amount in amounts.items()):
                    chosen.append(id)
                    for name, amount in amounts.items():
                        _add(taken, name, amount)
            found = self._protected[tenant] = frozenset(chosen)
        return found

    def lends(self, tenant: str) -> bool:
        """Whether anybody but *tenant* runs something on what was lent."""
        return any(len(self.protected(each)) < len(ids) for each, ids in self._ids.items() if each != tenant)

    def may_reclaim(self, tenant: str, victim: str) -> bool:
        """Whether the running *victim* is another tenant's, on what was lent to it."""
        whose = self._holds.get(victim, ("", {}))[0]
        return whose not in ("", tenant) and victim not in self.protected(whose)

    # -- of late

    def _of_late(self, tenant: str) -> dict[str, float]:
        means = self._past.get(tenant, {})
        elapsed = self._now - self._past_at.get(tenant, self._now)
        if elapsed <= 0:
            return means
        left = 0.5 ** (elapsed / HALF_LIFE_S)
        used = self._used.get(tenant, {})
        found = {name: mean * left for name, mean in means.items()}
        for name, amount in used.items():
            found[name] = found.get(name, 0.0) + amount * (1.0 - left)
        return found

    def _accrue(self, tenant: str) -> None:
        """Count what *tenant* has held until now."""
        at = self._past_at.get(tenant)
        if at is None:
            self._past[tenant] = {}
        elif at != self._now:
            self._past[tenant] = self._of_late(tenant)
        else:
            return  # of a pass that starts many, all but the first
        self._past_at[tenant] = self._now


def _add(to: dict[str, int], name: str, amount: int) -> None:
    left = to.get(name, 0) + amount
    if left:
        to[name] = left
    else:
        to.pop(name, None)
