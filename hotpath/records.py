"""Plain records the kernels take and give; the same objects whether compiled or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from actorgrid.errors import UnknownPolicy

POLICIES = ("best_fit", "first_fit", "packing", "spread", "random")
WHOLE_GPU_MILLI = 1000
MAX_GANG = 4096
MAX_GPUS_PER_NODE = 16_384

Share = tuple[str, tuple[int, ...]]
Shares = tuple[Share, ...]


class Placement(NamedTuple):
    """What was given out: under which id, and per gang member on which node and GPUs."""

    id: int | str
    shares: Shares


@dataclass(frozen=True, slots=True)
class TypicalTask:
    """One shape of the mix that fragments are weighed against; ``weight`` is its share of the arrivals."""

    cpu_milli: int
    gpu_count: int
    gpu_milli: int
    weight: float
    gpu_models: tuple[str, ...] = ()


class GpuView(NamedTuple):
    """One device of a node."""

    model: str
    milli_free: int
    memory_mib_free: int
    memory_mib: int


class NodeView(NamedTuple):
    """One node as the engine sees it now."""

    name: str
    rack: str | None
    numa: tuple[int, ...] | None
    draining: bool
    cpu_milli: int
    cpu_milli_free: int
    memory_mib: int
    memory_mib_free: int
    gpus: tuple[GpuView, ...]


def policy_number(policy: str) -> int:
    """Where *policy* stands in POLICIES. Raises UnknownPolicy, which lists what there is."""
    if policy not in POLICIES:
        raise UnknownPolicy(
            f"there is no placement policy {policy!r}",
            asked=policy,
            found=", ".join(POLICIES),
            hint=f"use one of: {', '.join(POLICIES)}",
        )
    return POLICIES.index(policy)


def device_list(
    gpu_count: int, gpu_model: str, gpu_memory_mib: int, devices: Iterable[tuple[str, int]]
) -> tuple[tuple[str, int], ...]:
    """A node's GPUs as (model, memory) pairs, from either way of telling them."""
    listed = tuple((str(model), int(memory_mib)) for model, memory_mib in devices)
    return listed or ((gpu_model, gpu_memory_mib),) * gpu_count
