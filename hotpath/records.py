"""Plain records the kernels take and give; the same objects whether compiled or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from actorgrid.configs.placement_policy import POLICIES
from actorgrid.errors import BadRequest, UnknownPolicy

WHOLE_GPU_MILLI = 1000
MAX_GANG = 4096
MAX_GPUS_PER_NODE = 16_384
SETS_OF_MODELS_MAX = 1024

Share = tuple[str, tuple[int, ...]]
Shares = tuple[Share, ...]


class Placement(NamedTuple):
    """A placement: its id, and the node and GPUs of each gang member."""

    id: int | str
    shares: Shares


@dataclass(frozen=True, slots=True)
class TypicalTask:
    """One kind of task of the mix that fragments are weighed against; ``weight`` is its share of the arrivals."""

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
    nvlink: tuple[int, ...] | None = None
    near: tuple[str, ...] | None = None


class Snapshot(NamedTuple):
    """All nodes at one moment. ``version`` grows with every change, so that equal ones show the same."""

    version: int
    nodes: tuple[NodeView, ...]
    allocated_gpu_milli: int
    capacity_gpu_milli: int


def policy_number(policy: str) -> int:
    """The position of *policy* in POLICIES. Raises UnknownPolicy, which lists what there is."""
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


def check_devices(name: str, gpu_count: int, devices: Iterable[tuple[str, int]]) -> None:
    """Check that a node can have such devices. Raises BadRequest."""
    listed = list(devices)
    if max(gpu_count, len(listed)) > MAX_GPUS_PER_NODE:
        raise BadRequest(
            f"node {name!r} has {max(gpu_count, len(listed))} GPUs", hint=f"at most {MAX_GPUS_PER_NODE} per node"
        )
    for model, memory_mib in listed:
        if not isinstance(model, str) or not isinstance(memory_mib, int) or memory_mib < 0:
            raise BadRequest(
                f"node {name!r} has a device that cannot be",
                asked=f"({model!r}, {memory_mib!r})",
                hint="a device is (model, memory_mib)",
            )


def device_domains(
    name: str, count: int, numa: tuple[int, ...] | None, nvlink: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Which devices are close, as numbers from 0 in order of first sight: by NVLink group if told, else by NUMA node.

    Raises BadRequest when either does not name one number for each device.
    """
    for what, numbers in (("numa", numa), ("nvlink", nvlink)):
        if numbers is not None and (len(numbers) != count or not all(isinstance(number, int) for number in numbers)):
            raise BadRequest(
                f"{what} of node {name!r} does not fit its {count} GPUs",
                asked=f"{what}={numbers!r}",
                hint="give one number for each GPU",
            )
    close = nvlink if nvlink is not None else numa if numa is not None else (0,) * count
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(number, len(seen)) for number in close)
