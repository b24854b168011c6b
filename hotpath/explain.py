"""Why a request does not fit: the constraints each node fails, and the node that comes nearest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .closeness import closeness_number, near_masks, near_set
from .records import NodeView, Share


def explain_misfit(
    nodes: Sequence[NodeView],
    *,
    cpu_milli: int,
    memory_mib: int,
    gpu_count: int,
    gpu_milli: int,
    gpu_memory_mib: int,
    gpu_models: Collection[str],
    exclude: Collection[str],
    within: Iterable[Share],
    gpu_topology: str = "",
) -> dict[str, Any]:
    """What one gang member meets on each node.

    ``failed`` counts nodes per constraint (a node may fail several): ``draining``, ``excluded``,
    ``gpu_model``, ``gpu_count`` (too few GPUs in all), ``gpu_busy`` (enough of them, not enough free),
    ``gpu_memory``, ``gpu_topology`` (enough of them free, but not so close), ``cpu``, ``memory``.
    ``nearest`` is the node failing fewest of them, then missing
    least GPU, then least CPU; ``None`` when something fits or no node could ever serve.
    """
    allowed = {name: set(indexes) for name, indexes in within}
    number = closeness_number(gpu_topology) if gpu_count > 1 else 0
    failed: dict[str, int] = {}
    fitting = 0
    best: tuple[tuple[int, ...], dict[str, Any]] | None = None
    for order, node in enumerate(nodes):
        reasons: list[str] = []
        missing: dict[str, int] = {}
        if node.draining:
            reasons.append("draining")
        if node.name in exclude or (allowed and node.name not in allowed):
            reasons.append("excluded")
        never = bool(reasons)
        if gpu_count:
            gpus = node.gpus
            usable = [
                index
                for index, gpu in enumerate(gpus)
                if (not allowed or index in allowed.get(node.name, ())) and (not gpu_models or gpu.model in gpu_models)
            ]
            large = [index for index in usable if gpus[index].memory_mib >= gpu_memory_mib]
            open_now = [index for index in large if gpus[index].milli_free >= gpu_milli]
            roomy = [index for index in open_now if gpus[index].memory_mib_free >= gpu_memory_mib]
            if len(usable) < gpu_count:
                reasons.append("gpu_model" if gpu_models and not usable and node.gpus else "gpu_count")
                never = True
            elif len(large) < gpu_count:
                reasons.append("gpu_memory")
                never = True
                missing["gpu_memory_mib"] = gpu_memory_mib - max(gpus[index].memory_mib for index in usable)
            elif len(open_now) < gpu_count:
                reasons.append("gpu_busy")
                missing["gpus"] = gpu_count - len(open_now)
                missing["gpu_milli"] = sum(
                    gpu_milli - milli
                    for milli in sorted((gpus[index].milli_free for index in large), reverse=True)[
                        len(open_now) : gpu_count
                    ]
                )
            elif len(roomy) < gpu_count:
                reasons.append("gpu_memory")
                missing["gpus"] = gpu_count - len(roomy)
                missing["gpu_memory_mib"] = min(
                    gpu_memory_mib - gpus[index].memory_mib_free for index in open_now if index not in roomy
                )
            elif number and not _are_close(node, roomy, number, gpu_count):
                reasons.append("gpu_topology")
                never = never or not _are_close(node, large, number, gpu_count)
        if node.cpu_milli_free < cpu_milli:
            reasons.append("cpu")
            missing["cpu_milli"] = cpu_milli - node.cpu_milli_free
        if node.memory_mib_free < memory_mib:
            reasons.append("memory")
            missing["memory_mib"] = memory_mib - node.memory_mib_free
        never = never or node.cpu_milli < cpu_milli or node.memory_mib < memory_mib
        for reason in reasons:
            failed[reason] = failed.get(reason, 0) + 1
        if not reasons:
            fitting += 1
        elif not never:
            key = (
                len(reasons),
                missing.get("gpu_milli", 0),
                missing.get("gpu_memory_mib", 0),
                missing.get("cpu_milli", 0),
                missing.get("memory_mib", 0),
                order,
            )
            if best is None or key < best[0]:
                best = (key, {"node": node.name, "missing": missing})
    return {
        "total_nodes": len(nodes),
        "nodes_that_fit": fitting,
        "failed": failed,
        "nearest": None if fitting or best is None else best[1],
    }


def _are_close(node: NodeView, indexes: Sequence[int], number: int, wanted: int) -> bool:
    """Whether so many of these devices of the node are that close."""
    masks = near_masks(node.name, node.near, len(node.gpus))
    return near_set(masks, number, sum(1 << index for index in indexes), wanted) is not None
