"""The typical mix as sums: how much use of a free share, or of free devices, the tasks that usually arrive have.

The measure is that of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023, section 3): a node's free GPU is
worth, to each task of the mix, what that task could take of it. Their F is the rest: what is free and of no use.
Here it is split into what a device's free share adds (``share_mass``) and what whole free devices add
(``whole_mass``), so that the engine looks a sum up instead of going through the mix. Weights are whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from actorgrid.errors import BadRequest

from .records import WHOLE_GPU_MILLI, TypicalTask

Kind = TypeVar("Kind")

POPULAR_SHARE = 0.95
MIX_WEIGHT = 4096
MIX_MAX = 250
COUNTS_MAX = 64
KINDS_MAX = 16
CPU_SHIFT_MIN = 10
CPU_BUCKETS_MAX = 128
WHOLES_MAX = 16
DEMAND_UNIT = 65_536

# Until somebody says what arrives: shares and whole devices, and enough tasks of several to keep nodes whole for them.
DEFAULT_MIX = (
    TypicalTask(2_000, 1, 250, 2.0),
    TypicalTask(4_000, 1, 500, 2.0),
    TypicalTask(8_000, 1, 1000, 4.0),
    TypicalTask(16_000, 2, 1000, 1.0),
    TypicalTask(32_000, 4, 1000, 1.0),
    TypicalTask(64_000, 8, 1000, 1.0),
)


@dataclass(frozen=True, slots=True)
class TypicalMix:
    """The sums: ``share_mass`` by [model][cpu rank][threshold rank], ``whole_mass`` by [model][cpu rank][count], flat.

    A rank is how many of ``cpus`` (or ``thresholds``) are at most what there is, from 0. ``share_demand`` is the
    weight of each size of share; ``named`` what part of the GPU asked for, in DEMAND_UNITs, names which of ``kinds``.
    """

    cpus: tuple[int, ...]
    thresholds: tuple[int, ...]
    counts: int
    kinds: dict[str, int]
    share_mass: tuple[int, ...]
    whole_mass: tuple[int, ...]
    tasks: tuple[tuple[tuple[int, int, int, int], ...], ...]
    share_demand: dict[int, int]
    named: tuple[tuple[tuple[int, ...], int], ...]


def most_popular(
    ranked: Iterable[tuple[Kind, int]], always: Callable[[Kind], bool] = lambda _kind: False
) -> dict[Kind, int]:
    """Of kinds of tasks and how often each came, the most frequent first: what makes up POPULAR_SHARE of it.

    FGD's typical mix (section 3.2 of its paper); kinds without a GPU belong to it. With those that are kept *always*
    however rare: tasks of several devices are few, and are what is lost when no node is whole any more.
    """
    counts = list(ranked)
    wanted = POPULAR_SHARE * sum(count for _, count in counts)
    kept: dict[Kind, int] = {}
    covered = 0
    for kind, count in counts:
        if covered < wanted or always(kind):
            kept[kind] = count
        covered += count
    return kept


def check_mix(tasks: Iterable[TypicalTask]) -> tuple[TypicalTask, ...]:
    """The heaviest MIX_MAX of *tasks*. Raises BadRequest for one that cannot be, or when nothing weighs anything."""
    kept = tuple(tasks)
    for task in kept:
        if (
            not 0 <= task.weight < float("inf")
            or task.cpu_milli < 0
            or task.gpu_count < 0
            or (task.gpu_count and not 1 <= task.gpu_milli <= WHOLE_GPU_MILLI)
        ):
            raise BadRequest("a typical task cannot be", asked=repr(task), hint="weights and amounts are zero or more")
    if kept and not any(task.weight > 0 for task in kept):
        raise BadRequest("no typical task has a weight", hint="a weight is the task's share of the arrivals")
    heaviest = sorted(range(len(kept)), key=lambda at: (-kept[at].weight, at))[:MIX_MAX]
    return tuple(kept[at] for at in sorted(heaviest))


def whole_weights(tasks: Sequence[TypicalTask]) -> list[int]:
    """The weights as whole numbers that add up to MIX_WEIGHT (largest remainder)."""
    total = sum(task.weight for task in tasks)
    exact = [task.weight * MIX_WEIGHT / total for task in tasks]
    weights = [int(value) for value in exact]
    missing = MIX_WEIGHT - sum(weights)
    for at in sorted(range(len(exact)), key=lambda at: (weights[at] - exact[at], at))[:missing]:
        weights[at] += 1
    return weights


def sum_up(tasks: Sequence[TypicalTask]) -> TypicalMix:
    """Compute the sums of *tasks*.

    A task of no GPU has a weight, and no use for any device. One of several shares counts as its shares one at a time.
    """
    weighed = [(task, weight) for task, weight in zip(tasks, whole_weights(tasks), strict=True) if task.gpu_count]
    cpus = tuple(sorted({task.cpu_milli for task, _ in weighed}))
    thresholds = tuple(sorted({task.gpu_milli for task, _ in weighed if _is_share(task)}))
    counts = min(COUNTS_MAX, max((task.gpu_count for task, _ in weighed if not _is_share(task)), default=0))
    share_mass: list[int] = []
    whole_mass: list[int] = []
    named = _named_models(weighed)
    served_by: list[tuple[tuple[int, int, int, int], ...]] = []
    for model in (None, *named):
        shares = [[0] * (len(thresholds) + 1) for _ in range(len(cpus) + 1)]
        wholes = [[0] * (counts + 1) for _ in range(len(cpus) + 1)]
        served = [(task, weight) for task, weight in weighed if not task.gpu_models or model in task.gpu_models]
        served_by.append(tuple((task.cpu_milli, task.gpu_count, task.gpu_milli, weight) for task, weight in served))
        for task, weight in served:
            rank = cpus.index(task.cpu_milli) + 1
            if _is_share(task):
                shares[rank][thresholds.index(task.gpu_milli) + 1] += weight
            elif task.gpu_count <= counts:
                wholes[rank][task.gpu_count] += weight
        for table, flat in ((shares, share_mass), (wholes, whole_mass)):
            below = [0] * len(table[0])
            for line in table:
                below = [sum(pair) for pair in zip(below, accumulate(line), strict=True)]
                flat += below
    kinds = {model: number for number, model in enumerate(named, start=1)}
    demand: dict[int, int] = {}
    for task, weight in weighed:
        if _is_share(task) and weight:
            demand[task.gpu_milli] = demand.get(task.gpu_milli, 0) + weight * task.gpu_count
    return TypicalMix(
        cpus,
        thresholds,
        counts,
        kinds,
        tuple(share_mass),
        tuple(whole_mass),
        tuple(served_by),
        demand,
        _named_demand(weighed, kinds),
    )


def _named_demand(
    weighed: Sequence[tuple[TypicalTask, int]], kinds: Mapping[str, int]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The part of all GPU asked for that names which kinds; models beyond KINDS_MAX are left out."""
    asked: dict[tuple[int, ...], int] = {}
    for task, weight in weighed:
        key = tuple(sorted({kinds[model] for model in task.gpu_models if model in kinds}))
        asked[key] = asked.get(key, 0) + weight * task.gpu_count * task.gpu_milli
    total = sum(asked.values())
    return tuple((key, amount * DEMAND_UNIT // total) for key, amount in sorted(asked.items()) if key and amount)


def _named_models(weighed: Sequence[tuple[TypicalTask, int]]) -> list[str]:
    mass: dict[str, int] = {}
    for task, weight in weighed:
        for model in task.gpu_models:
            mass[model] = mass.get(model, 0) + weight
    return sorted(sorted(mass, key=lambda model: (-mass[model], model))[: KINDS_MAX - 1])


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a table of expected completion. A CPU bucket is 2 ** ``cpu_shift`` thousandths of a core."""

    cpu_buckets: int
    cpu_shift: int
    wholes: int


def extent(cpu_milli: int, gpus: int) -> Extent:
    """The extent for nodes of up to this much; steps are coarse, so that it seldom changes as nodes are added."""
    wholes = 1
    while wholes < min(gpus, WHOLES_MAX):
        wholes *= 2
    shift = CPU_SHIFT_MIN
    # One more than the last whole bucket: CPU is looked up between two.
    while (cpu_milli >> shift) + 1 >= CPU_BUCKETS_MAX:
        shift += 1
    cpu_buckets = 2
    while cpu_buckets <= (cpu_milli >> shift) + 1:
        cpu_buckets *= 2
    return Extent(cpu_buckets, shift, wholes)


def _is_share(task: TypicalTask) -> bool:
    return task.gpu_milli < WHOLE_GPU_MILLI
