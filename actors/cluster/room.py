"""Who holds the room a waiting job could use, what would free it, and what smaller request might fit. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..gpu.device import answers_to
from ..gpu.feasibility import usable_devices
from ..scheduling.queue import Shape

Record = Mapping[str, Any]

CANCELLED_MAX = 3
"""Nobody is told to cancel more jobs than this to let one start."""
OTHER_MODELS_MAX = 2


def holders(
    host: Record, allocations: Iterable[Record], jobs: Mapping[str, Record], gpus: bool
) -> list[dict[str, Any]]:
    """Who holds room on *host*: of its GPUs if *gpus*, else of any kind; lowest priority first.

    Each: ``job_id`` (or ``session_id`` of a client's lease), ``name``, ``priority``, what it holds, ``since`` and,
    where a time limit says so, ``ends_by``; times are seconds since the epoch. Of equal priority, the one that began
    last comes first: ending it wastes least.
    """
    found = []
    for held in allocations:
        if held["host"] != host["host_id"] or (gpus and not held["gpu_indexes"]):
            continue
        owner = held["owner"]
        job = jobs.get(owner.get("job_id") or "", {})
        attempt = job["attempts"][-1] if job.get("attempts") else {}
        began, limit = attempt.get("started_at"), job.get("max_execution_time_s")
        found.append(
            {
                "job_id": owner.get("job_id"),
                "session_id": owner.get("session_id"),
                "name": job.get("name") or ("a client's session" if owner.get("session_id") else ""),
                "priority": job.get("priority"),
                "gpus": held["gpu_milli"] * len(held["gpu_indexes"]) / 1000,
                "gpu_indexes": list(held["gpu_indexes"]),
                "gpu_milli": held["gpu_milli"],
                "gpu_memory_mib": held["gpu_memory_mib"],
                "cpus": held["cpu_milli"] / 1000,
                "since": held["granted_at"],
                "ends_by": began + limit if began and limit else None,
            }
        )
    found.sort(key=lambda one: (one["priority"] is None, one["priority"] or 0, -one["since"]))
    return found


def freeing(host: Record, held: list[dict[str, Any]], resources: Record, missing: int) -> list[str]:
    """The jobs to cancel so that *missing* more devices of *host* can serve *resources*; empty when no few can.

    Devices are taken that cost least: the lowest priorities, then the fewest jobs. Sessions are never named. More
    than 3 jobs are not worth naming.
    """
    shape = Shape.of(resources)
    options = []
    for device in usable_devices(shape, host):
        milli, memory = 1000, device["memory_mib"]
        on_it = [one for one in held if device["index"] in one["gpu_indexes"]]
        for one in on_it:
            milli, memory = milli - one["gpu_milli"], memory - one["gpu_memory_mib"]
        victims: list[dict[str, Any]] = []
        for one in on_it:
            if milli >= shape.gpu_milli and memory >= shape.gpu_memory_mib:
                break
            victims.append(one)
            milli, memory = milli + one["gpu_milli"], memory + one["gpu_memory_mib"]
        enough = milli >= shape.gpu_milli and memory >= shape.gpu_memory_mib
        if victims and enough and all(one["job_id"] for one in victims):
            highest = max(one["priority"] or 0 for one in victims)
            options.append((highest, len(victims), device["index"], [str(one["job_id"]) for one in victims]))
    options.sort()
    if len(options) < missing:
        return []
    named = list(dict.fromkeys(job_id for *_, ids in options[:missing] for job_id in ids))
    return named if len(named) <= CANCELLED_MAX else []


def room_by(host: Record, held: list[dict[str, Any]], resources: Record) -> float | None:
    """When at the latest *host* has devices for *resources*, by the time limits of who holds them; else ``None``."""
    shape = Shape.of(resources)
    times = []
    for device in usable_devices(shape, host):
        ends = [one["ends_by"] for one in held if device["index"] in one["gpu_indexes"]]
        if device["memory_mib"] >= shape.gpu_memory_mib and None not in ends:
            times.append(max(ends, default=0.0))
    times.sort()
    return times[shape.gpu_count - 1] if 0 < shape.gpu_count <= len(times) else None


def smaller_asks(resources: Record, report: Record, hosts: Iterable[Record]) -> list[tuple[str, dict[str, Any]]]:
    """Requests like *resources* that may fit where it does not: (what to write, resources); at most 4.

    One takes what the nearest host of *report* (the engine's ``explain``) has; the others accept another model.
    Whether one really fits, only the engine knows.
    """
    asks: list[tuple[str, dict[str, Any]]] = []
    missing = (report.get("nearest") or {}).get("missing") or {}
    changed: dict[str, Any] = {}
    words = []
    count, milli = int(resources["gpu_count"]), int(resources["gpu_milli"])
    short = int(missing.get("gpus", 0))
    if short and "gpu_milli" in missing:
        if count > 1 and count > short:
            changed |= {"gpu_count": count - short, "gpus": float(count - short)}
            words.append(f"--gpus {count - short}")
        elif count == 1 and milli > int(missing["gpu_milli"]):
            left = milli - int(missing["gpu_milli"])
            changed |= {"gpu_milli": left, "gpus": left / 1000}
            words.append(f"--gpus {left / 1000:g}")
    for name, option in (("gpu_memory_mib", "--gpu-memory"), ("cpu_milli", "--cpus"), ("memory_mib", "--memory")):
        left = int(resources[name]) - int(missing.get(name, 0))
        if name in missing and left > 0:
            changed[name] = left
            words.append(f"{option} {left / 1000:g}" if name == "cpu_milli" else f"{option} {left}MiB")
    if changed:
        asks.append((" ".join(words), {**resources, **changed}))
    asked = list(resources["gpu_models"])
    if asked:
        there = {
            str(device.get("model", "")): int(device["memory_mib"]) for host in hosts for device in host["devices"]
        }
        others = [
            model for model in sorted(there) if model and not any(answers_to(one, model, there[model]) for one in asked)
        ]
        asks += [
            (f"--gpu-model '{model}'" if " " in model else f"--gpu-model {model}", {**resources, "gpu_models": [model]})
            for model in others[:OTHER_MODELS_MAX]
        ]
    if resources["gpu_affinity"]:
        asks.append(("any device instead of those named", {**resources, "gpu_affinity": []}))
    return asks
