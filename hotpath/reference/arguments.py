"""What one call asks of the engine: amounts, checked, and where the members may go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import index as as_index
from typing import Any

from actorgrid.errors import BadRequest

from ..closeness import closeness_number
from ..records import MAX_GANG, WHOLE_GPU_MILLI, Share
from .score_table import MemberNeeds

Within = dict[str, frozenset[int]]


def number(value: Any, what: str) -> int:
    """A whole number of *what*, 0 or more; anything else is a BadRequest."""
    try:
        found = as_index(value)
    except TypeError:
        raise BadRequest(f"{what}={value!r} is not a whole number", asked=f"{what}={value!r}") from None
    if not 0 <= found < 2**53:
        raise BadRequest(f"{what}={value} is out of range", asked=f"{what}={value}", hint="amounts are 0 to 2**53")
    return found


def member_needs(
    cpu: Any,
    memory: Any,
    gpu_count: Any,
    gpu_milli: Any,
    gpu_memory: Any,
    models: Collection[str],
    topology: str = "",
) -> MemberNeeds:
    """What one member asks for; all that ask for no device are alike. Raises BadRequest."""
    milli, count = number(gpu_milli, "gpu_milli"), number(gpu_count, "gpu_count")
    amounts = number(cpu, "cpu_milli"), number(memory, "memory_mib")
    device_memory = number(gpu_memory, "gpu_memory_mib")
    if not 1 <= milli <= WHOLE_GPU_MILLI:
        raise BadRequest(
            f"gpu_milli={milli} is not a share of a GPU",
            asked=f"gpu_milli={milli}",
            hint="give 1 to 1000 and say how many with gpu_count",
        )
    near = closeness_number(topology)
    if not count:
        return MemberNeeds(*amounts, 0, WHOLE_GPU_MILLI, 0, frozenset())
    return MemberNeeds(*amounts, count, milli, device_memory, frozenset(models), near if count > 1 else 0)


def gang_size(gang: Any) -> int:
    """How many members; 1 to MAX_GANG. Raises BadRequest."""
    size = number(gang, "gang")
    if not 1 <= size <= MAX_GANG:
        raise BadRequest(
            f"gang={size} is out of range", asked=f"gang={size}", hint=f"a gang has 1 to {MAX_GANG} members"
        )
    return size


class Limits:
    """Where the members of one call may go, and would like to."""

    __slots__ = ("exclude", "racks", "within")

    def __init__(self, exclude: Collection[str], racks: Collection[str], within: Iterable[Share]) -> None:
        self.exclude, self.racks = frozenset(exclude), frozenset(racks)
        self.within: Within = {}
        for name, indexes in within:
            self.within[name] = self.within.get(name, frozenset()) | frozenset(indexes)
