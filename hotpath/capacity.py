"""What is free on one node, and how many members of a gang fit into it: plain objects, changed in thought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .closeness import closeness_number, near_masks, near_set
from .records import WHOLE_GPU_MILLI, NodeView

Devices = tuple[int, ...]
ENDS_MAX = 20_000
"""Ends that a forecast looks at for one question; who needs more to end has no start."""


class GangNeeds:
    """One gang's needs as a planner counts them: the engine's arguments, in the form that is fast to test.

    *apart*: no two members on one node.
    """

    __slots__ = ("apart", "count", "cpu", "device_memory", "gang", "memory", "milli", "models", "near", "within")

    def __init__(self, arguments: Mapping[str, Any], *, apart: bool = False) -> None:
        self.apart = apart
        self.cpu: int = arguments.get("cpu_milli", 0)
        self.memory: int = arguments.get("memory_mib", 0)
        self.count: int = arguments.get("gpu_count", 0)
        self.milli: int = arguments.get("gpu_milli", WHOLE_GPU_MILLI)
        self.device_memory: int = arguments.get("gpu_memory_mib", 0)
        self.models = frozenset(arguments.get("gpu_models", ()))
        self.near = closeness_number(arguments.get("gpu_topology", "")) if self.count > 1 else 0
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
        """A copy with the same amounts."""
        return Free(self.cpu, self.memory, self.milli[:], self.device_memory[:], self.total)

    def change(self, needs: GangNeeds, indexes: Devices, sign: int) -> None:
        """Give back (*sign* 1) or take (-1) one member's amounts on these devices."""
        self.cpu += sign * needs.cpu
        self.memory += sign * needs.memory
        for index in indexes:
            self.milli[index] += sign * needs.milli
            self.device_memory[index] += sign * needs.device_memory
        self.total += sign * needs.milli * len(indexes)

    def lower_to(self, other: Free) -> None:
        """Lower each amount to the lesser of both."""
        self.cpu = min(self.cpu, other.cpu)
        self.memory = min(self.memory, other.memory)
        self.milli = [min(mine, theirs) for mine, theirs in zip(self.milli, other.milli, strict=True)]
        self.device_memory = [min(m, t) for m, t in zip(self.device_memory, other.device_memory, strict=True)]
        self.total = sum(self.milli)


class NodeCapacity:
    """The capacity of one node: what is free on it now, and who fits into that or into what would be free."""

    __slots__ = ("draining", "free", "models", "name", "near", "number")

    def __init__(self, view: NodeView, number: int) -> None:
        self.name = view.name
        self.number = number
        self.draining = view.draining
        self.models = tuple(gpu.model for gpu in view.gpus)
        self.near = near_masks(view.name, view.near, len(view.gpus))
        self.free = Free(
            view.cpu_milli_free,
            view.memory_mib_free,
            [gpu.milli_free for gpu in view.gpus],
            [gpu.memory_mib_free for gpu in view.gpus],
        )

    def slots(self, free: Free, needs: GangNeeds) -> list[tuple[int, int]]:
        """The devices that could serve, as (index, how many members' shares it holds)."""
        allowed = needs.within.get(self.name)
        found = []
        for index, milli in enumerate(free.milli):
            if milli < needs.milli or (needs.models and self.models[index] not in needs.models):
                continue
            if needs.within and (allowed is None or index not in allowed):
                continue
            shares = milli // needs.milli
            if needs.device_memory:
                shares = min(shares, free.device_memory[index] // needs.device_memory)
            if shares > 0:
                found.append((index, shares))
        return found

    def members(self, free: Free, needs: GangNeeds, most: int) -> int:
        """How many members of *needs* fit into *free* of this node, at most *most*."""
        if self.draining or (needs.within and self.name not in needs.within):
            return 0
        if needs.apart:
            most = min(most, 1)
        if free.total < needs.count * needs.milli and min(free.milli, default=0) >= 0:
            return 0
        if needs.cpu:
            most = min(most, free.cpu // needs.cpu)
        if needs.memory:
            most = min(most, free.memory // needs.memory)
        if most <= 0:
            return 0
        if not needs.count:
            return most
        if needs.near:
            return len(self._close(free, needs, most))
        shares = [each for _, each in self.slots(free, needs)]
        if needs.count == 1:
            return min(most, sum(shares))
        # m members of c different devices each fit exactly when the devices hold m * c shares, at most m of each.
        most = min(most, sum(shares) // needs.count)
        while most and sum(min(each, most) for each in shares) < most * needs.count:
            most -= 1
        return most

    def choose(self, free: Free, needs: GangNeeds, members: int) -> list[Devices]:
        """Devices for so many members, which are known to fit: for one member those with least left."""
        if needs.near:
            return self._close(free, needs, members)
        slots = self.slots(free, needs)
        chosen: list[Devices] = []
        if members == 1:
            slots.sort(key=lambda slot: (free.milli[slot[0]], slot[0]))
            return [tuple(sorted(index for index, _ in slots[: needs.count]))]
        left = dict(slots)
        for _ in range(members):
            most = sorted(left, key=lambda index: (-left[index], index))[: needs.count]
            for index in most:
                left[index] -= 1
            chosen.append(tuple(sorted(most)))
        return chosen

    def _close(self, free: Free, needs: GangNeeds, most: int) -> list[Devices]:
        """Devices that are as close as asked, for one member after the other, as the engine places them."""
        left = dict(self.slots(free, needs))
        chosen: list[Devices] = []
        while len(chosen) < most:
            usable = sum(1 << index for index, shares in left.items() if shares)
            found = near_set(self.near, needs.near, usable, needs.count)
            if found is None:
                break
            chosen.append(found)
            for index in found:
                left[index] -= 1
        return chosen


def all_fit(nodes: Iterable[NodeCapacity], needs: GangNeeds) -> bool:
    """Whether what is free on *nodes* has room for all members of *needs*."""
    left = needs.gang
    for node in nodes:
        left -= node.members(node.free, needs, left)
        if left <= 0:
            return True
    return False
