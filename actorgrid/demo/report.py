"""What the demo's jobs did, in figures: who waited how long for what, and how the GPUs were shared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError

if TYPE_CHECKING:
    from actorgrid.actors.ledger.record_types import ResourcesRecord


@dataclass(frozen=True)
class FrameStep:
    """One finished job of the demo. Times are seconds since the epoch."""

    job_id: str
    name: str
    frame: int
    kind: str
    gpu_indexes: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    gpu_share: float
    ready_at: float
    placed_at: float
    started_at: float
    ended_at: float
    placement_us: float | None
    attempts: int
    pid: int
    device: str

    @property
    def queued_ms(self) -> float:
        """From the moment nothing but room was missing to the grant."""
        return max(0.0, self.placed_at - self.ready_at) * 1000

    @property
    def start_ms(self) -> float:
        """From the grant to the running process."""
        return max(0.0, self.started_at - self.placed_at) * 1000

    @property
    def run_ms(self) -> float:
        """Milliseconds that the step ran."""
        return (self.ended_at - self.started_at) * 1000

    def to_dict(self) -> dict[str, Any]:
        """The step as plain values, for ``--json``."""
        return {
            "job_id": self.job_id,
            "name": self.name,
            "kind": self.kind,
            "frame": self.frame,
            "gpu_indexes": list(self.gpu_indexes),
            "gpu_uuids": list(self.gpu_uuids),
            "pid": self.pid,
            "device": self.device,
            "attempts": self.attempts,
            "queued_ms": round(self.queued_ms, 3),
            "start_ms": round(self.start_ms, 3),
            "run_ms": round(self.run_ms, 3),
            "placement_us": self.placement_us,
            "ready_at": self.ready_at,
            "placed_at": self.placed_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
        }


def shortage(steps: Sequence[FrameStep], capacity: Mapping[str, int], asked: Mapping[str, Mapping[str, int]]) -> str:
    """What the jobs waited for at the moment when most of them waited, in a sentence; empty when none waited.

    *capacity*: of the host, by the names of ``binding.NAMES``; *asked*: what a job of each kind takes of them.
    """
    from actorgrid.actors.cluster.explain.binding import ResourceUse, binding

    moments = sorted({step.placed_at for step in steps})
    most, found = 0, ""
    for moment in moments:
        waiting = [step for step in steps if step.ready_at < moment < step.placed_at]
        if len(waiting) <= most:
            continue
        running = [step for step in steps if step.placed_at <= moment < step.ended_at]
        used = {name: sum(asked[step.kind].get(name, 0) for step in running) for name in capacity}
        short = binding(ResourceUse(capacity, used), [_request(asked[step.kind]) for step in waiting])
        if short is not None:
            most = len(waiting)
            found = short.text + (f"; {short.idle_gpus}" if short.idle_gpus else "")
    return found


def _request(amounts: Mapping[str, int]) -> ResourcesRecord:
    """The request of one attempt that takes *amounts*, as the ledger has it."""
    milli = amounts.get("gpu_milli", 0)
    return {
        "gpu_count": 1 if milli else 0,
        "gpu_milli": milli,
        "gpu_memory_mib": amounts.get("gpu_memory_mib", 0),
        "cpu_milli": amounts.get("cpu_milli", 0),
        "memory_mib": amounts.get("memory_mib", 0),
    }


def step_of(job: dict[str, Any], ended: dict[str, float], *, kind: str, frame: int, pid: int, device: str) -> FrameStep:
    """A step from a succeeded job. *ended* knows when each job it depended on ended, and learns when it did itself.

    Raises ActorGridError for a job that does not say where and when it ran: the demo would be showing guesses.
    """
    attempts = job.get("attempts") or []
    last = attempts[-1] if attempts else {}
    times = [last.get(name) for name in ("placed_at", "started_at", "ended_at")]
    if job["state"] != "succeeded" or None in times:
        raise ActorGridError(
            f"the record of job {job['name']} is not complete",
            asked=job["job_id"],
            found=f"state {job['state']}, placed, started and ended at {times}",
            hint="please report this",
        )
    placed_at, started_at, ended_at = (float(moment) for moment in times if moment is not None)
    resources = job["resources"]
    step = FrameStep(
        job_id=job["job_id"],
        name=job["name"],
        frame=frame,
        kind=kind,
        gpu_indexes=tuple(last.get("gpu_indexes") or ()),
        gpu_uuids=tuple(last.get("gpu_uuids") or ()),
        gpu_share=resources.get("gpu_milli", 0) / 1000 if resources.get("gpu_count") else 0.0,
        ready_at=max([float(job["submitted_at"]), *(ended[name] for name in job.get("depends_on", ()))]),
        placed_at=placed_at,
        started_at=started_at,
        ended_at=ended_at,
        placement_us=last.get("placement_latency_us"),
        attempts=len(attempts),
        pid=pid,
        device=device,
    )
    ended[step.job_id] = ended_at
    return step


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile; *values* must not be empty."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(part * len(ranked) - 1e-9) - 1)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 99th percentile and largest; ``None`` where nothing was measured."""
    if not values:
        return None
    return {
        "p50": round(percentile(values, 0.5), 3),
        "p99": round(percentile(values, 0.99), 3),
        "max": round(max(values), 3),
    }


def levels(steps: Sequence[FrameStep]) -> list[tuple[float, float, int]]:
    """(moment, GPUs allocated from then on, jobs placed from then on), in order of time."""
    changes: dict[float, tuple[float, int]] = {}
    for step in steps:
        gpus = step.gpu_share * len(step.gpu_indexes)
        for moment, sign in ((step.placed_at, 1), (step.ended_at, -1)):
            before = changes.get(moment, (0.0, 0))
            changes[moment] = (before[0] + sign * gpus, before[1] + sign)
    found: list[tuple[float, float, int]] = []
    share, jobs = 0.0, 0
    for moment in sorted(changes):
        share, jobs = share + changes[moment][0], jobs + changes[moment][1]
        found.append((moment, max(0.0, round(share, 6)), jobs))
    return found


def summary(steps: Sequence[FrameStep], gpus: int) -> dict[str, Any]:
    """The figures of the whole run."""
    began = min(step.ready_at for step in steps)
    ended = max(step.ended_at for step in steps)
    course = levels(steps)
    area = sum(share * (after - moment) for (moment, share, _), (after, _, _) in itertools.pairwise(course))
    running = sorted(
        [(step.started_at, 1) for step in steps] + [(step.ended_at, -1) for step in steps]
    )  # at one moment, ends (-1) come before starts
    at_once, most = 0, 0
    for _, change in running:
        at_once += change
        most = max(most, at_once)
    tiles = [step for step in steps if step.kind == "tile"]
    return {
        "jobs": len(steps),
        "tiles": len(tiles),
        "retried": sum(step.attempts > 1 for step in steps),
        "elapsed_s": round(ended - began, 3),
        "jobs_per_s": round(len(steps) / max(1e-9, ended - began), 2),
        "queued_ms": spread([step.queued_ms for step in steps]),
        "start_ms": spread([step.start_ms for step in steps]),
        "placement_us": spread([step.placement_us for step in steps if step.placement_us is not None]),
        "run_ms": spread([step.run_ms for step in steps]),
        "running_at_once_max": most,
        "gpus": gpus,
        "gpus_used": len({uuid for step in steps for uuid in step.gpu_uuids}),
        "gpus_allocated_peak": max((share for _, share, _ in course), default=0.0),
        "gpus_allocated_mean": round(area / max(1e-9, ended - began), 3),
        "gpu_share_max": _fullest(steps),
        "devices": sorted({step.device for step in tiles}),
    }


def _fullest(steps: Sequence[FrameStep]) -> float:
    """The most that was ever allocated of one GPU; above 1 would be two owners of one share."""
    by_gpu: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        for uuid in step.gpu_uuids:
            by_gpu.setdefault(uuid, []).extend([(step.placed_at, step.gpu_share), (step.ended_at, -step.gpu_share)])
    most = 0.0
    for changes in by_gpu.values():
        held = 0.0
        for _, change in sorted(changes):
            held += change
            most = max(most, held)
    return round(most, 6)
