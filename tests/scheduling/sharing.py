"""Random instances of tenants with more work than there is room, and what a fair division of it owes each of them.

Of dominant resource fairness Ghodsi et al. (NSDI 2011) show for divisible demands: each has at least what an equal part
of everything would give it (sharing incentive), nobody would rather have another's (no envy), and nobody can have more
without another having less (Pareto). Jobs come whole, so the first two hold up to one largest job. What is left where
no job of a tenant fits any more goes to whoever it is enough for, with many small ones perhaps: that is nobody's envy,
as to leave it empty would give the tenant nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from actorgrid.actors.ledger.tenant_records import CPU, GPU_MEMORY, MEMORY, OF_MODEL
from actorgrid.actors.scheduling.fair_share import NodeSize, TenantTerms
from actorgrid.actors.scheduling.request import Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.demand import Demand
from actorgrid.hotpath import PlacementEngine

_GPU = OF_MODEL + "H100"


@dataclass(frozen=True)
class SharingInstance:
    """One large node, and a kind of job of each tenant, of which it has more than fit; by tenant its weight."""

    node: NodeSize
    demands: dict[str, Demand]
    weights: dict[str, int]


def random_instance(seed: int) -> SharingInstance:
    """The instance of *seed*: two to five tenants, weights 1 to 3, jobs of whole GPUs, of CPUs, of memory."""
    dice = random.Random(seed)
    gpus = dice.choice((8, 16))
    node = NodeSize(1000 * dice.randrange(32, 129), 1024 * dice.randrange(64, 257), (("H100", 80_000),) * gpus)
    names = [f"t{number}" for number in range(dice.randrange(2, 6))]
    demands = {
        name: Demand(
            cpu_milli=1000 * dice.randrange(1, 9),
            memory_mib=1024 * dice.randrange(1, 17),
            gpu_count=dice.choice((0, 0, 1, 1, 2)),
        )
        for name in names
    }
    return SharingInstance(node, demands, {name: dice.randrange(1, 4) for name in names})


def shares_broken(instance: SharingInstance) -> list[str]:
    """What the scheduler's division of *instance* owes somebody, in words; empty: nothing."""
    node = instance.node
    engine = PlacementEngine("best_fit")
    engine.add_node(
        "n",
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        gpu_count=len(node.devices),
        gpu_model="H100",
        gpu_memory_mib=80_000,
    )
    scheduler = Scheduler(engine, "priority")
    terms = {name: TenantTerms(weight=float(weight)) for name, weight in instance.weights.items()}
    scheduler.share(terms, 0.0, nodes={"n": node})
    there = {
        CPU: node.cpu_milli,
        MEMORY: node.memory_mib,
        _GPU: 1000 * len(node.devices),
        GPU_MEMORY: 80_000 * len(node.devices),
    }
    takes = {name: _amounts(demand) for name, demand in instance.demands.items()}
    for name, demand in instance.demands.items():
        for number in range(1 + min(there[each] // amount for each, amount in takes[name].items())):
            scheduler.submit(Request(f"{name}-{number}", demand, tenant=f"ann@{name}"), 0.0)
    counts, left = dict.fromkeys(instance.demands, 0), dict(there)
    while_it_fitted = {name: dict(counts) for name in counts}
    while started := [each for each in scheduler.schedule(0.0, 1000) if isinstance(each, Start)]:
        for start in started:
            fitted = [name for name, amounts in takes.items() if _fits(amounts, left)]
            begun = start.request.id.partition("-")[0]
            counts[begun] += 1
            for each, amount in takes[begun].items():
                left[each] -= amount
            while_it_fitted.update({name: dict(counts) for name in fitted})
    total = sum(instance.weights.values())
    found = []
    for name, amounts in takes.items():
        part = instance.weights[name] / total
        owed = int(min(there[each] * part / amount for each, amount in amounts.items()))
        # What the last of each of the others took beyond its part may be as much as its job.
        over = max(
            amounts_of.get(each, 0) / amount for each, amount in amounts.items() for amounts_of in takes.values()
        )
        if counts[name] + 1 + over < owed:
            found.append(f"{name} has {counts[name]} jobs, an equal part would give {owed}")
        if _fits(amounts, left):
            found.append(f"another job of {name} fits")
        for other, count in while_it_fitted[name].items():
            scale = instance.weights[name] / instance.weights[other]
            # Without the last job of the other: before that one, it had no more than was its due.
            wished = min((count - 1) * scale * takes[other].get(each, 0) / amount for each, amount in amounts.items())
            if counts[name] + 1 < int(wished):
                found.append(f"{name} has {counts[name]} jobs, with what {other} has it would have {wished:g}")
    return found


def _fits(amounts: dict[str, int], left: dict[str, int]) -> bool:
    return all(left[each] >= amount for each, amount in amounts.items())


def _amounts(demand: Demand) -> dict[str, int]:
    found = {CPU: demand.cpu_milli, MEMORY: demand.memory_mib}
    if demand.gpu_count:
        found |= {_GPU: 1000 * demand.gpu_count, GPU_MEMORY: 80_000 * demand.gpu_count}
    return found
