"""The cluster as a planner sees it: what is free on each node now, and how many members would fit.

A shadow of the engine's nodes that can be changed in thought. The engine stays the truth: a shadow is read from
``engine.nodes()`` and then follows the scheduler's own starts and ends, so that planning costs no walk over all
devices; ``agrees`` notices GPUs that others took or added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actorgrid.hotpath import NodeView, PlacementEngine

if TYPE_CHECKING:
    from .job import Job
    from .reservation import Reservation

Devices = tuple[int, ...]


class Ask:
    """One gang's needs as the planner counts them: the engine's arguments, in the form that is fast to test."""

    __slots__ = ("count", "cpu", "device_memory", "gang", "memory", "milli", "models", "within")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.cpu: int = arguments.get("cpu_milli", 0)
        self.memory: int = arguments.get("memory_mib", 0)
        self.count: int = arguments.get("gpu_count", 0)
        self.milli: int = arguments.get("gpu_milli", 1000)
        self.device_memory: int = arguments.get("gpu_memory_mib", 0)
        self.models = frozenset(arguments.get("gpu_models", ()))
        self.gang: int = arguments.get("gang", 1)
        self.within: dict[str, frozenset[int]] = {}
        for name, indexes in arguments.get("within", ()):
            self.within[name] = self.within.get(name, frozenset()) | frozenset(indexes)


class Free:
    """What is free on a node, now or in thought. It may go below nothing in thought: then nothing fits."""

    __slots__ = ("cpu", "device_memory", "memory", "milli", "total")

    def __init__(
        self, cpu: int, memory: int, milli: list[int], device_memory: list[int], total: int | None = None
    ) -> None:
        self.cpu = cpu
        self.memory = memory
        self.milli = milli
        self.device_memory = device_memory
        self.total = sum(milli) if total is None else total

    def copy(self) -> Free:
        """Another one with the same amounts."""
        return Free(self.cpu, self.memory, self.milli[:], self.device_memory[:], self.total)

    def change(self, ask: Ask, indexes: Devices, sign: int) -> None:
        """Give back (*sign* 1) or take (-1) one member's amounts on these devices."""
        self.cpu += sign * ask.cpu
        self.memory += sign * ask.memory
        for index in indexes:
            self.milli[index] += sign * ask.milli
            self.device_memory[index] += sign * ask.device_memory
        self.total += sign * ask.milli * len(indexes)

    def lower_to(self, other: Free) -> None:
        """Keep the lesser of both, amount by amount."""
        self.cpu = min(self.cpu, other.cpu)
        self.memory = min(self.memory, other.memory)
        self.milli = [min(mine, theirs) for mine, theirs in zip(self.milli, other.milli, strict=True)]
        self.device_memory = [min(m, t) for m, t in zip(self.device_memory, other.device_memory, strict=True)]
        self.total = sum(self.milli)


class Node:
    """A node: what is free, who runs there, who has a reservation there."""

    __slots__ = ("draining", "free", "models", "name", "number", "rack", "reserved", "runs")

    def __init__(self, view: NodeView, number: int) -> None:
        self.name = view.name
        self.number = number
        self.rack = view.rack
        self.draining = view.draining
        self.models = tuple(gpu.model for gpu in view.gpus)
        self.free = Free(
            view.cpu_milli_free,
            view.memory_mib_free,
            [gpu.milli_free for gpu in view.gpus],
            [gpu.memory_mib_free for gpu in view.gpus],
        )
        self.runs: dict[str, tuple[Job, list[Devices]]] = {}
        self.reserved: dict[str, Reservation] = {}

    def slots(self, free: Free, ask: Ask) -> list[tuple[int, int]]:
        """The devices that could serve, with how many members' shares each holds: (index, shares)."""
        allowed = ask.within.get(self.name)
        found = []
        for index, milli in enumerate(free.milli):
            if milli < ask.milli or (ask.models and self.models[index] not in ask.models):
                continue
            if ask.within and (allowed is None or index not in allowed):
                continue
            shares = milli // ask.milli
            if ask.device_memory:
                shares = min(shares, free.device_memory[index] // ask.device_memory)
            if shares > 0:
                found.append((index, shares))
        return found

    def members(self, free: Free, ask: Ask, most: int) -> int:
        """How many members of *ask* fit into *free* of this node, at most *most*."""
        if self.draining or (ask.within and self.name not in ask.within):
            return 0
        if free.total < ask.count * ask.milli and min(free.milli, default=0) >= 0:
            return 0
        if ask.cpu:
            most = min(most, free.cpu // ask.cpu)
        if ask.memory:
            most = min(most, free.memory // ask.memory)
        if most <= 0:
            return 0
        if not ask.count:
            return most
        shares = [each for _, each in self.slots(free, ask)]
        if ask.count == 1:
            return min(most, sum(shares))
        # m members of c different devices each fit exactly when the devices hold m * c shares, at most m of each.
        while most and sum(min(each, most) for each in shares) < most * ask.count:
            most -= 1
        return most

    def choose(self, free: Free, ask: Ask, members: int) -> list[Devices]:
        """Devices for so many members, which are known to fit: for one member those with least left."""
        slots = self.slots(free, ask)
        chosen: list[Devices] = []
        if members == 1:
            slots.sort(key=lambda slot: (free.milli[slot[0]], slot[0]))
            return [tuple(sorted(index for index, _ in slots[: ask.count]))]
        left = dict(slots)
        for _ in range(members):
            most = sorted(left, key=lambda index: (-left[index], index))[: ask.count]
            for index in most:
                left[index] -= 1
            chosen.append(tuple(sorted(most)))
        return chosen


class Shadow:
    """All nodes, read from the engine; *running* are the jobs whose ends the scheduler will tell."""

    def __init__(self, engine: PlacementEngine, running: Iterable[Job]) -> None:
        self.nodes = {view.name: Node(view, number) for number, view in enumerate(engine.nodes())}
        self._capacity = engine.capacity_gpu_milli
        self._allocated = engine.allocated_gpu_milli
        for job in running:
            self._note(job)

    def agrees(self, engine: PlacementEngine) -> bool:
        """Whether the engine's GPUs are what this shadow thinks they are, in sum."""
        return self._capacity == engine.capacity_gpu_milli and self._allocated == engine.allocated_gpu_milli

    def started(self, job: Job) -> None:
        """*job* has taken its placement."""
        self._note(job)
        self._change(job, -1)

    def ended(self, job: Job) -> None:
        """*job* gives its placement back."""
        self._change(job, 1)
        assert job.placement is not None
        for name, _ in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].runs.pop(job.id, None)

    def rack_or_node(self, names: Iterable[str]) -> tuple[tuple[str, Devices], ...]:
        """The nodes of these names and of these racks, whole, as ``within`` has them."""
        wanted = frozenset(names)
        return tuple(
            (node.name, tuple(range(len(node.models))))
            for node in self.nodes.values()
            if node.name in wanted or node.rack in wanted
        )

    def _note(self, job: Job) -> None:
        assert job.placement is not None
        for name, indexes in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].runs.setdefault(job.id, (job, []))[1].append(indexes)

    def _change(self, job: Job, sign: int) -> None:
        assert job.placement is not None and job.ask is not None
        for name, indexes in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].free.change(job.ask, indexes, sign)
            self._allocated -= sign * job.ask.milli * len(indexes)
