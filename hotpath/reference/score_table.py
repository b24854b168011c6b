"""How good a place a node is for one member of a request, by each policy: numbers and prose, in plain Python.

A score is 0 where the member does not fit, else 1 to 32,767; the highest wins, the first node where several have it.

* ``fgd`` loses least of the use that the typical mix has for the node's free GPUs: fragmentation gradient descent
  (Weng et al., USENIX ATC 2023). Steps are of 40 thousandths of a GPU: within a step the first node wins, which
  keeps load together; without that it is 5 points of allocation worse.
* ``completion``, the default, loses least of the node's expected completion (``completion.py``), by each device of
  the member, and pays a price for models that are short (``model_price.py``; a node whose devices are of several
  models costs none). The first node within 64 thousandths of the best is taken, in steps of 16.
* ``best_fit`` leaves least over: free thousandths of GPUs and a sixteenth of the free thousandths of cores.
* ``packing`` takes devices shared already, then nodes in use, then idle ones.
* ``spread`` takes the least loaded node: by GPUs, then CPU; for CPU work by CPU, then GPUs.
* ``first_fit`` takes the first, ``random`` any, by the dice.
* ``affinity`` puts like with like: CPU work on nodes without GPUs, shares on nodes whose devices are shared, whole
  devices on nodes where none is; then as best_fit.
* ``topology`` takes nodes where several devices are of one domain (an NVLink group, else a NUMA node), and gangs
  from one rack; then as best_fit.
* ``device_score`` takes the devices with the highest scores given by ``set_device_score``.

On the node: ``completion`` and ``fgd`` take the device where their measure is best, ``spread`` the one with most left,
``device_score`` that with the highest score, ``first_fit`` and ``random`` the first, the others those with least left.
Then, the one with least device memory (``spread``: most), then the first. Several whole devices, or one on a node
with domains, come from the domain with the fewest that has enough of them, else from the largest ones. Those that have
to be close (``near``) are a set as ``closeness.near_set`` finds it, whatever the policy.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..closeness import NearMasks, near_set
from ..records import WHOLE_GPU_MILLI, TypicalTask
from ..share_packing import share_prices
from ..typical_mix import COUNTS_MAX, MIX_WEIGHT, extent, sum_up, whole_weights
from .completion import UNIT, Shares, between, left_by, scaled_to_cpu, share_worth, whole_worth
from .model_price import model_prices, surcharge

SCORE_MAX = 32_767
SCORE_EVEN = 16_384
FGD_STEP = 40 * MIX_WEIGHT
COMPLETION_STEP = 16 * UNIT
COMPLETION_BAND = 4
CORES_OF_A_GPU = 16
BY_WORTH = ("completion", "fgd")


class Gpu:
    """One device of a node."""

    __slots__ = ("domain", "memory", "memory_free", "milli_free", "model", "score")

    def __init__(self, model: str, memory: int, domain: int) -> None:
        self.model = model
        self.memory = self.memory_free = memory
        self.milli_free = WHOLE_GPU_MILLI
        self.domain = domain
        self.score = 0


@dataclass(slots=True, eq=False)
class ScoredNode:
    """One node; ``version`` changes with everything a score depends on."""

    name: str
    cpu: int
    memory: int
    gpus: list[Gpu]
    rack: str | None
    numa: tuple[int, ...] | None
    nvlink: tuple[int, ...] | None
    near: tuple[str, ...] | None = None
    near_masks: NearMasks | None = None
    cpu_free: int = 0
    memory_free: int = 0
    draining: bool = False
    version: int = 0

    def __post_init__(self) -> None:
        self.cpu_free, self.memory_free = self.cpu, self.memory

    @property
    def milli_free(self) -> int:
        """Free thousandths of all its devices."""
        return sum(gpu.milli_free for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class MemberNeeds:
    """What one member asks for."""

    cpu: int
    memory: int
    gpu_count: int
    gpu_milli: int
    gpu_memory: int
    models: frozenset[str]
    near: int = 0
    """How close every two of its devices are to be, by the number of the word; 0: however they lie."""


class MixPrices:
    """The typical mix, and what it makes of what is free on a node."""

    def __init__(self, tasks: Sequence[TypicalTask]) -> None:
        self._tasks = [(t, w) for t, w in zip(tasks, whole_weights(tasks), strict=True) if t.gpu_count and w]
        sums = sum_up(tasks)
        self._kinds, self._tasks_of, self._named = sums.kinds, sums.tasks, sums.named
        self._share_demand = sums.share_demand
        self._extent = extent(0, 0)
        self._shares: list[Shares] = []
        self._tables: dict[int, array[int]] = {}
        self._model_prices: dict[int, int] = {}

    def cover(self, cpu_milli: int, gpus: int) -> bool:
        """Make room for nodes of up to this much; gives whether worths may be others now."""
        if extent(cpu_milli, gpus) == self._extent:
            return False
        self._extent = extent(cpu_milli, gpus)
        self._tables.clear()
        return True

    def price_models(self, nodes: Sequence[ScoredNode]) -> None:
        """Set the prices of models by what is free of them on *nodes*."""
        if not self._named:
            return
        free = dict.fromkeys(self._kinds.values(), 0)
        total = 0
        for node in nodes:
            for gpu in node.gpus:
                total += gpu.milli_free
                if gpu.model in self._kinds:
                    free[self._kinds[gpu.model]] += gpu.milli_free
        self._model_prices = model_prices(self._named, free, total)

    def surcharge(self, node: ScoredNode, needs: MemberNeeds) -> int:
        """By how much the score of *node* falls for the model that it has."""
        model = node.gpus[0].model if node.gpus else ""
        if not needs.gpu_count or any(gpu.model != model for gpu in node.gpus):
            return 0
        return surcharge(self._model_prices.get(self._kinds.get(model, 0), 0), needs.gpu_milli)

    def worth(self, policy: str, node: ScoredNode, cpu_free: int, free: Sequence[int]) -> int:
        """What is lost by a placement is the worth before less the worth after."""
        return self.use(node, cpu_free, free) if policy == "fgd" else self.completion(node, cpu_free, free)

    def use(self, node: ScoredNode, cpu_free: int, free: Sequence[int]) -> int:
        """Weight times thousandths, summed: what each task could take, if it were the next to come."""
        total = 0
        wholes = Counter(gpu.model for gpu, left in zip(node.gpus, free, strict=True) if left == WHOLE_GPU_MILLI)
        for task, weight in self._tasks:
            if task.cpu_milli > cpu_free:
                continue
            if task.gpu_milli == WHOLE_GPU_MILLI:
                for model, count in wholes.items():
                    if self._serves(task, model) and min(count, COUNTS_MAX) >= task.gpu_count:
                        total += weight * count * WHOLE_GPU_MILLI
            else:
                for gpu, left in zip(node.gpus, free, strict=True):
                    if left >= task.gpu_milli and self._serves(task, gpu.model):
                        total += weight * left
        return total

    def completion(self, node: ScoredNode, cpu_free: int, free: Sequence[int]) -> int:
        """Units that all to come would fill: partly free devices first, with the whole ones what CPU is left."""
        if not self._shares:
            prices = list(share_prices(self._share_demand, WHOLE_GPU_MILLI * UNIT).items())
            self._shares = [share_worth(tasks, prices) for tasks in self._tasks_of]
        wholes: Counter[str] = Counter()
        worth = asked = 0
        for gpu, left in zip(node.gpus, free, strict=True):
            if left == WHOLE_GPU_MILLI:
                wholes[gpu.model] += 1
            else:
                shares = self._shares[self._kinds.get(gpu.model, 0)]
                worth += shares.worth[left]
                asked += shares.cpu[left]
        total = scaled_to_cpu(worth, cpu_free, asked)
        for model, count in wholes.items():
            total += self._of_wholes(self._kinds.get(model, 0), left_by(cpu_free, asked), count)
        return total

    def _of_wholes(self, kind: int, cpu_free: int, count: int) -> int:
        size = self._extent
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = whole_worth(
                self._tasks_of[kind], self._shares[kind], size.cpu_buckets, size.cpu_shift, size.wholes, MIX_WEIGHT
            )
        start = min(count, size.wholes) * size.cpu_buckets
        worth = between(table, start, size.cpu_buckets, size.cpu_shift, cpu_free)
        return worth + max(0, count - size.wholes) * WHOLE_GPU_MILLI * UNIT

    def _serves(self, task: TypicalTask, model: str) -> bool:
        return not task.gpu_models or (model in task.gpu_models and model in self._kinds)


def clamped(score: int) -> int:
    """Within the scores there are."""
    return max(1, min(SCORE_MAX, score))


def usable(node: ScoredNode, needs: MemberNeeds, allowed: frozenset[int] | None) -> list[int] | None:
    """Indexes of the devices that could serve, or ``None`` when the node cannot."""
    if node.draining or node.cpu_free < needs.cpu or node.memory_free < needs.memory:
        return None
    if not needs.gpu_count:
        return []
    found = [
        index
        for index, gpu in enumerate(node.gpus)
        if gpu.milli_free >= needs.gpu_milli
        and gpu.memory_free >= needs.gpu_memory
        and (not needs.models or gpu.model in needs.models)
        and (allowed is None or index in allowed)
    ]
    if len(found) < needs.gpu_count or (needs.near and _near_set(node, needs, found) is None):
        return None
    return found


def _near_set(node: ScoredNode, needs: MemberNeeds, found: Sequence[int]) -> tuple[int, ...] | None:
    return near_set(node.near_masks, needs.near, sum(1 << index for index in found), needs.gpu_count)


def choose(policy: str, node: ScoredNode, needs: MemberNeeds, found: Sequence[int], mix: MixPrices) -> tuple[int, ...]:
    """The devices that a member gets, of those in *found*."""
    if not needs.gpu_count:
        return ()
    if needs.near:
        return _near_set(node, needs, found) or ()
    gpus = node.gpus
    several_domains = len({gpu.domain for gpu in gpus}) > 1
    if needs.gpu_milli == WHOLE_GPU_MILLI and several_domains and policy != "device_score":
        return _close_together(node, needs.gpu_count, found)
    order: Callable[[int], tuple[int, ...]]
    if policy in BY_WORTH and needs.gpu_count == 1:
        cpu_free = node.cpu_free - needs.cpu

        def order(index: int) -> tuple[int, ...]:
            left = [gpu.milli_free for gpu in gpus]
            left[index] -= needs.gpu_milli
            return -mix.worth(policy, node, cpu_free, left), gpus[index].memory_free, index

    elif policy == "spread":

        def order(index: int) -> tuple[int, ...]:
            return -gpus[index].milli_free, -gpus[index].memory_free, index

    elif policy == "device_score":

        def order(index: int) -> tuple[int, ...]:
            return -gpus[index].score, gpus[index].memory_free, index

    elif policy in ("first_fit", "random"):

        def order(index: int) -> tuple[int, ...]:
            return (index,)

    else:

        def order(index: int) -> tuple[int, ...]:
            return gpus[index].milli_free, gpus[index].memory_free, index

    return tuple(sorted(sorted(found, key=order)[: needs.gpu_count]))


def _close_together(node: ScoredNode, wanted: int, found: Sequence[int]) -> tuple[int, ...]:
    counts = Counter(node.gpus[index].domain for index in found)
    chosen: list[int] = []
    while len(chosen) < wanted:
        missing = wanted - len(chosen)
        enough = [domain for domain in counts if counts[domain] >= missing]
        if enough:
            domain = min(enough, key=lambda domain: (counts[domain], domain))
        else:
            domain = min(counts, key=lambda domain: (-counts[domain], domain))
        chosen += [index for index in found if node.gpus[index].domain == domain][:missing]
        del counts[domain]
    return tuple(sorted(chosen))


def score(policy: str, node: ScoredNode, needs: MemberNeeds, found: Sequence[int], mix: MixPrices) -> int:
    """How good a place *node* is, where *found* of its devices could serve."""
    taken = needs.gpu_count * needs.gpu_milli
    if policy in BY_WORTH:
        free = [gpu.milli_free for gpu in node.gpus]
        before = mix.worth(policy, node, node.cpu_free, free)
        for index in choose(policy, node, needs, found, mix):
            free[index] -= needs.gpu_milli
        loss = before - mix.worth(policy, node, node.cpu_free - needs.cpu, free)
        if policy == "fgd":
            return clamped(SCORE_EVEN - (loss - MIX_WEIGHT * taken) // FGD_STEP)
        loss -= UNIT * taken
        return clamped(SCORE_EVEN - loss // max(1, needs.gpu_count) // COMPLETION_STEP)
    if policy in ("first_fit", "random"):
        return 1
    if policy == "packing":
        shares = needs.gpu_count and needs.gpu_milli < WHOLE_GPU_MILLI
        if shares and any(node.gpus[index].milli_free < WHOLE_GPU_MILLI for index in found):
            return 3
        in_use = node.cpu_free < node.cpu or node.milli_free < WHOLE_GPU_MILLI * len(node.gpus)
        return 2 if in_use else 1
    if policy == "spread":
        capacity = WHOLE_GPU_MILLI * len(node.gpus)
        gpu_load = (capacity - node.milli_free) * 1000 // capacity if capacity else 0
        cpu_load = (node.cpu - node.cpu_free) * 1000 // node.cpu if node.cpu else 0
        first, second = (gpu_load, cpu_load) if needs.gpu_count else (cpu_load, gpu_load)
        return clamped(SCORE_MAX - first * 32 - second // 32)
    if policy == "device_score":
        chosen = choose(policy, node, needs, found, mix)
        if not chosen:
            return clamped(SCORE_MAX - ((node.cpu - node.cpu_free) * 32_000 // node.cpu if node.cpu else 0))
        return clamped(1 + sum(node.gpus[index].score for index in chosen) * 32 // len(chosen))
    left = node.milli_free - (taken if needs.gpu_count else 0) + (node.cpu_free - needs.cpu) // CORES_OF_A_GPU
    if policy == "best_fit":
        return clamped(SCORE_MAX - left)
    return clamped(max(1, SCORE_EVEN - left // 2) + (SCORE_EVEN - 1 if _suits(policy, node, needs, found) else 0))


def as_good_as(policy: str, best: int) -> int:
    """The lowest score of which the first node is taken when *best* is the highest."""
    return max(1, best - COMPLETION_BAND) if policy == "completion" else best


def _suits(policy: str, node: ScoredNode, needs: MemberNeeds, found: Sequence[int]) -> bool:
    if policy == "topology":
        if needs.gpu_count < 2:
            return True
        counts = Counter(node.gpus[index].domain for index in found)
        return max(counts.values()) >= needs.gpu_count
    if not needs.gpu_count:
        return not node.gpus
    is_shared = any(0 < gpu.milli_free < WHOLE_GPU_MILLI for gpu in node.gpus)
    return is_shared == (needs.gpu_milli < WHOLE_GPU_MILLI)
