"""How much of the free GPU share is of no use to the tasks that usually arrive: FGD's measure, kept current.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023, section 3.2). For a node n with R free and a typical task m:
all of R is a fragment when m asks for no GPU, or n cannot hold m (CPU, number of GPUs, model); else what is free on
devices with less free than m's share. The node's figure is the mean over the mix; the cluster's is the sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from actorgrid.hotpath import TypicalTask
from actorgrid.hotpath.records import WHOLE_GPU_MILLI

from .workload import TraceNode, TraceTask

Shares = Iterable[tuple[str, tuple[int, ...]]]


class _Group:
    """Typical tasks alike but for their CPU; ``served`` is the weight of those that so much CPU is enough for."""

    def __init__(self, members: Sequence[TypicalTask]) -> None:
        first = members[0]
        self.count, self.milli, self.models = first.gpu_count, first.gpu_milli, first.gpu_models
        ordered = sorted(members, key=lambda task: task.cpu_milli)
        self.cpus = [task.cpu_milli for task in ordered]
        self.served = [0.0]
        for task in ordered:
            self.served.append(self.served[-1] + task.weight)


class _State:
    __slots__ = ("cpu", "fragment", "gpus", "model")

    def __init__(self, node: TraceNode) -> None:
        self.cpu = node.cpu_milli
        self.model = node.gpu_model
        self.gpus = [WHOLE_GPU_MILLI] * node.gpu_count
        self.fragment = 0.0


class Fragments:
    """Follows placements and releases, and knows at each moment what is free and how much of it is a fragment.

    A change costs the nodes it touches, times the distinct (count, share, models) of the mix.
    """

    def __init__(self, nodes: Iterable[TraceNode], typical: Iterable[TypicalTask]) -> None:
        groups: dict[tuple[int, int, tuple[str, ...]], list[TypicalTask]] = {}
        self._without_gpu = 0.0
        for task in typical:
            if task.gpu_count:
                groups.setdefault((task.gpu_count, task.gpu_milli, task.gpu_models), []).append(task)
            else:
                self._without_gpu += task.weight
        self._groups = [_Group(members) for members in groups.values()]
        self._nodes = {node.name: _State(node) for node in nodes}
        self.free_gpu_milli = sum(WHOLE_GPU_MILLI * len(state.gpus) for state in self._nodes.values())
        self.fragment_gpu_milli = 0.0
        for state in self._nodes.values():
            self._refresh(state)

    @property
    def share(self) -> float:
        """Fragments over what is free; 0 when nothing is free."""
        return self.fragment_gpu_milli / self.free_gpu_milli if self.free_gpu_milli else 0.0

    def placed(self, shares: Shares, task: TraceTask) -> None:
        """Note that *task* holds *shares* from now on."""
        self._change(shares, task, -1)

    def released(self, shares: Shares, task: TraceTask) -> None:
        """Note that *task* holds *shares* no longer."""
        self._change(shares, task, 1)

    def _change(self, shares: Shares, task: TraceTask, sign: int) -> None:
        touched = {}
        for name, indexes in shares:
            state = touched[name] = self._nodes[name]
            state.cpu += sign * task.cpu_milli
            for index in indexes:
                state.gpus[index] += sign * task.gpu_milli
            self.free_gpu_milli += sign * task.gpu_milli * len(indexes)
        for state in touched.values():
            self._refresh(state)

    def _refresh(self, state: _State) -> None:
        free = sum(state.gpus)
        fragment = self._without_gpu * free
        if free:
            for group in self._groups:
                usable = [milli for milli in state.gpus if milli >= group.milli]
                served = 0.0
                if len(usable) >= group.count and (not group.models or state.model in group.models):
                    served = group.served[bisect_right(group.cpus, state.cpu)]
                fragment += group.served[-1] * free - served * sum(usable)
        self.fragment_gpu_milli += fragment - state.fragment
        state.fragment = fragment
