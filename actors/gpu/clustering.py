"""GpuClusteringManager: many unlike GPUs as one pool: who is there, how they are, whom to choose, how to split work.

It recommends and never gives out: what is given out is the PlacementEngine's (and behind it the ledger's) to say. With
an engine at hand, a device is recommended only if the engine would place the request on it at that moment. It owns no
clock, thread or file; samples come with their time.

Registering, removing and recording cost O(1) (a score is computed once, as its sample arrives) and O(log n) for the
extremes; what all of them read together is kept with that, and costs the same to tell at any size. Choosing and
splitting are one pass over the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from actorgrid.errors import BadRequest, DuplicateNode, UnknownNode
from actorgrid.hotpath import NodeView, PlacementEngine
from actorgrid.hotpath.records import WHOLE_GPU_MILLI
from actorgrid.models import GPUVendor

from .device import Device
from .device_score import DeviceScore, HeatLimits, score_device
from .device_words import is_one_of
from .distribution import distribute
from .running_totals import RunningTotals
from .telemetry_history import HISTORY_MAX, GpuMetrics, TelemetryHistory, aggregate

T = TypeVar("T")

DEVICES_MAX = 100_000
_VENDORS = frozenset(vendor.value for vendor in GPUVendor)


@dataclass(frozen=True, slots=True)
class ClusterDevice:
    """A registered device as it is known now. ``node`` is its node's name in the engine.

    ``metrics`` is its last sample; ``problem`` says why it is out of service, or is empty.
    """

    device: Device
    node: str
    metrics: GpuMetrics | None
    score: DeviceScore
    problem: str

    @property
    def device_id(self) -> str:
        """The device's UUID."""
        return self.device.uuid

    @property
    def available(self) -> bool:
        """Whether it may be chosen: in service and not too hot."""
        return not self.problem and not self.score.excluded

    @property
    def memory_total_bytes(self) -> int:
        """The device's memory in bytes: as its last sample says, else as it was registered."""
        said = self.metrics.memory_total_bytes if self.metrics else None
        return self.device.memory_mib << 20 if said is None else said

    @property
    def memory_free_bytes(self) -> int | None:
        """The bytes of memory that its last sample leaves free; ``None`` when that is not known."""
        used = self.metrics.memory_used_bytes if self.metrics else None
        return None if used is None else max(0, self.memory_total_bytes - used)


class GpuClusteringManager:
    """Keeps the devices of a cluster with their samples, chooses among them, and splits work among them.

    Bounds: 100,000 devices, and the last *history_per_device* samples of each.

    *engine* may be given, exchanged or taken away at any time; see :meth:`select_best_device`.
    """

    def __init__(
        self,
        engine: PlacementEngine | None = None,
        *,
        heat_limits: HeatLimits | None = None,
        history_per_device: int = HISTORY_MAX,
    ) -> None:
        self.engine = engine
        self.history = TelemetryHistory(history_per_device)
        self._heat_limits = heat_limits or HeatLimits()
        self._own_heat_limits: dict[str, HeatLimits] = {}
        self._devices: dict[str, ClusterDevice] = {}
        self._places: dict[tuple[str, int], str] = {}
        self._totals = RunningTotals()
        self._unavailable = 0

    def __len__(self) -> int:
        return len(self._devices)

    def __contains__(self, device_id: object) -> bool:
        return device_id in self._devices

    # -- devices

    def register_device(self, device: Device, node: str = "local") -> None:
        """Take in a device of any vendor, as number ``device.index`` of *node*. Until its first sample all is unknown.

        Raises DuplicateNode when the device, or another one at that place, is there already; BadRequest for a
        device without UUID, of an unknown vendor or with a negative index or memory, and over 100,000 devices.
        """
        if not device.uuid or not node:
            raise BadRequest("a device has no UUID, or no node", asked=f"{device.uuid!r} on {node!r}")
        if device.vendor not in _VENDORS:
            raise BadRequest(
                f"there is no GPU vendor {device.vendor!r}", asked=device.vendor, hint=f"one of {', '.join(GPUVendor)}"
            )
        if device.index < 0 or device.memory_mib < 0:
            raise BadRequest(
                f"device {device.uuid} has less than nothing of something",
                asked=f"index {device.index}, {device.memory_mib} MiB",
            )
        holder = device.uuid if device.uuid in self._devices else self._places.get((node, device.index))
        if holder is not None:
            raise DuplicateNode(
                f"device {holder} is registered already",
                asked=f"{device.uuid} as GPU {device.index} of {node}",
                found=f"{holder} as GPU {self._devices[holder].device.index} of {self._devices[holder].node}",
                hint="remove it first",
            )
        if len(self._devices) >= DEVICES_MAX:
            raise BadRequest("that is more devices than a manager keeps", found=f"{DEVICES_MAX} devices")
        score = score_device(None, device.memory_mib << 20, None, None, self._heat_limits)
        self._keep(ClusterDevice(device, node, None, score, ""))
        self._places[node, device.index] = device.uuid
        self._totals.enter(device)

    def remove_device(self, device_id: str) -> None:
        """Forget a device and its history. Raises UnknownNode."""
        gone = self.device(device_id)
        del self._devices[device_id]
        self._unavailable -= not gone.available
        self._totals.leave(gone.device, gone.metrics)
        self._own_heat_limits.pop(device_id, None)
        del self._places[gone.node, gone.device.index]
        self.history.forget(device_id)

    def device(self, device_id: str) -> ClusterDevice:
        """The device of that UUID. Raises UnknownNode."""
        found = self._devices.get(device_id)
        if found is None:
            raise UnknownNode(
                f"no device {device_id!r} is registered", asked=str(device_id), found=f"{len(self._devices)} devices"
            )
        return found

    def set_heat_limits(self, device_id: str, limits: HeatLimits) -> None:
        """Judge the device's heat by *limits* of its own from its next sample on. Raises UnknownNode."""
        self.device(device_id)
        self._own_heat_limits[device_id] = limits

    def list_devices(self) -> list[ClusterDevice]:
        """All devices, in the order they were registered."""
        return list(self._devices.values())

    def set_problem(self, device_id: str, problem: str) -> None:
        """Take a device out of service, saying why, or with an empty *problem* back into it. Raises UnknownNode."""
        known = self.device(device_id)
        if known.problem != problem:
            self._keep(ClusterDevice(known.device, known.node, known.metrics, known.score, problem))

    def _keep(self, known: ClusterDevice) -> None:
        before = self._devices.get(known.device_id)
        self._unavailable += (not known.available) - (before is not None and not before.available)
        self._devices[known.device_id] = known

    # -- telemetry

    def record_metrics(self, metrics: GpuMetrics) -> None:
        """Take a device's next sample. Raises UnknownNode, or BadRequest when it is older than the last one."""
        known = self.device(metrics.device_id)
        total = known.device.memory_mib << 20 if metrics.memory_total_bytes is None else metrics.memory_total_bytes
        free = None if metrics.memory_used_bytes is None else max(0, total - metrics.memory_used_bytes)
        self.history.record(metrics)
        score = score_device(
            free,
            total,
            metrics.compute_utilization_percent,
            metrics.temperature_celsius,
            self._own_heat_limits.get(metrics.device_id, self._heat_limits),
        )
        self._keep(ClusterDevice(known.device, known.node, metrics, score, known.problem))
        self._totals.replace(known.device, known.metrics, metrics)

    def get_aggregated_metrics(self, at: float | None = None) -> dict[str, Any]:
        """The figures of all devices together, from the last sample of each; with *at*, as they were at that time.

        They are those of :func:`~actorgrid.actors.gpu.telemetry_history.aggregate`, and ``devices_unavailable``.
        """
        if at is None:
            picture = self._totals.picture()
        else:
            latest = self.history.latest
            picture = aggregate((known.device, latest(id, at)) for id, known in self._devices.items())
        picture["devices_unavailable"] = self._unavailable
        return picture

    # -- choosing

    def select_best_device(
        self, min_memory_bytes: int = 0, *, gpu_milli: int = WHOLE_GPU_MILLI, gpu_models: Sequence[str] = ()
    ) -> ClusterDevice | None:
        """The available device with the best score that has *min_memory_bytes* free; ``None`` when there is none.

        Of equals, the one registered first: the same registrations and samples always give the same device. With
        ``engine`` set, only a device with *gpu_milli* thousandths and that memory free by the engine's books, on a
        node that is not draining, is recommended. Memory must be free by the readings as well, where there are
        readings; where there are none and no engine either, nobody vouches for it and the device is passed over.
        *gpu_models* are accepted as in ``actorgrid run --gpu-model``; empty: any.

        Raises BadRequest for a negative size or a share that is not 1 to 1000 thousandths.
        """
        for name, value, least, most in (
            ("min_memory_bytes", min_memory_bytes, 0, 2**60),
            ("gpu_milli", gpu_milli, 1, WHOLE_GPU_MILLI),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise BadRequest(
                    f"{name}={value!r} cannot be", asked=repr(value), hint=f"a whole number from {least} to {most}"
                )
        nodes = None if self.engine is None else {view.name: view for view in self.engine.nodes()}
        need_mib = -(-min_memory_bytes // 2**20)
        best: ClusterDevice | None = None
        best_total = 0
        for known in self._devices.values():
            total = known.score.total
            if best is not None and total <= best_total:
                continue
            if known.problem or known.score.excluded:
                continue
            if min_memory_bytes:
                free = known.memory_free_bytes
                if free is None:
                    free = 0 if nodes is None else known.memory_total_bytes
                if free < min_memory_bytes:
                    continue
            if gpu_models and not is_one_of(known.device, gpu_models):
                continue
            if nodes is not None and not _has_free(nodes, known, gpu_milli, need_mib):
                continue
            best, best_total = known, total
        return best

    # -- splitting

    def distribute_workload(
        self,
        tasks: Sequence[T],
        strategy: Literal["uniform", "capacity"] = "uniform",
        *,
        capacities: Mapping[str, float] | None = None,
        max_items_per_device: int | Mapping[str, int] | None = None,
    ) -> dict[str, list[T]]:
        """*tasks* split among the available devices; every device that takes part is named, if with an empty list.

        ``uniform``: as evenly as can be. ``capacity``: in proportion to *capacities* (by UUID; a device that is not
        named there takes no part), by default to the scores, so that idle and cool devices get more. Counts are
        exact (largest remainders), none is over *max_items_per_device* (one limit for each, or by UUID), and what a
        full device cannot take goes to the others. Each gets a run of neighbouring tasks.

        Raises RequestTooLarge when the available devices may not take them all; UnknownNode for a UUID nobody
        registered; BadRequest for another strategy, or as :func:`~actorgrid.actors.gpu.distribution.allot`.
        """
        if strategy not in ("uniform", "capacity"):
            raise BadRequest(
                f"there is no way to distribute called {strategy!r}", asked=str(strategy), hint="uniform or capacity"
            )
        if strategy == "uniform" and capacities is not None:
            raise BadRequest("a uniform split has no capacities", hint='strategy="capacity" uses them')
        available = [known for known in self._devices.values() if not known.problem and not known.score.excluded]
        weights: dict[str, float]
        if strategy == "uniform":
            weights = {known.device_id: 1 for known in available}
        elif capacities is not None:
            self._check_known(capacities)
            weights = {
                known.device_id: capacities[known.device_id] for known in available if known.device_id in capacities
            }
        else:
            weights = {known.device.uuid: known.score.total or 1 for known in available}
        if isinstance(max_items_per_device, Mapping):
            self._check_known(max_items_per_device)
            limits = {id: limit for id, limit in max_items_per_device.items() if id in weights}
        else:
            limits = {} if max_items_per_device is None else dict.fromkeys(weights, max_items_per_device)
        return distribute(tasks, weights, limits)

    def _check_known(self, named: Iterable[str]) -> None:
        for device_id in named:
            self.device(device_id)


def _has_free(nodes: Mapping[str, NodeView], known: ClusterDevice, gpu_milli: int, memory_mib: int) -> bool:
    """Whether the engine's books leave that much of the device free, on a node that takes new work."""
    view = nodes.get(known.node)
    if view is None or view.draining or known.device.index >= len(view.gpus):
        return False
    gpu = view.gpus[known.device.index]
    return gpu.milli_free >= gpu_milli and gpu.memory_mib_free >= memory_mib
