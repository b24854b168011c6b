"""Requests, and what a host lacks for them, as people say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actorgrid.actors.ledger.record_types import JobRecord, ResourcesRecord
from actorgrid.amounts import mebibytes


def listed(words: list[str], most: int = 5) -> str:
    """Names in one phrase, the rest counted: ``a, b and 3 more``."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def devices(resources: ResourcesRecord) -> str:
    """The devices of a request in words: ``4 whole A100s``, ``0.25 of an H100 or A100``; empty without GPUs."""
    count = int(resources.get("gpu_count", 0))
    if not count:
        return ""
    models = " or ".join(str(model).upper() for model in resources.get("gpu_models", ())) or "GPU"
    milli = int(resources.get("gpu_milli", 0)) or 1000
    if milli < 1000:
        return f"{milli / 1000:g} of {'a GPU' if models == 'GPU' else models}"
    return f"{count} whole {models}{'s' if count > 1 else ''}"


def needs(resources: ResourcesRecord) -> str:
    """Everything an attempt needs of one host: ``4 whole A100s, each with 40 GiB of its memory, and 8 CPUs``."""
    parts = []
    found = devices(resources)
    if found:
        word = resources.get("gpu_topology")
        found += f" as close to each other as {word}" if word else ""
        memory = int(resources.get("gpu_memory_mib", 0))
        each = ", each" if resources.get("gpu_count", 0) > 1 else ""
        parts.append(f"{found}{each} with {mebibytes(memory)} of GPU memory" if memory else found)
    cpus, host_memory = int(resources.get("cpu_milli", 0)), int(resources.get("memory_mib", 0))
    if cpus > 1000 or (cpus and not found):
        parts.append(f"{cpus / 1000:g} CPU{'' if cpus == 1000 else 's'}")
    if host_memory:
        parts.append(f"{mebibytes(host_memory)} of memory")
    text = " and ".join(parts) or "next to nothing"
    together = len(parts) > 1 or resources.get("gpu_count", 0) > 1
    return f"{text} on one host" if together else text


_LACKING = {
    "gpu_memory_mib": ("of GPU memory", True),
    "memory_mib": ("of memory", True),
    "cpu_milli": ("CPU", False),
}


def nearest_has(resources: ResourcesRecord, missing: Mapping[str, Any]) -> str:
    """What the nearest host offers of a request: ``has 2 free``, ``has 0.25 of one free and lacks 2 CPUs``."""
    parts = []
    short = int(missing.get("gpus", 0))
    milli = int(resources.get("gpu_milli", 0)) or 1000
    if short and "gpu_milli" in missing:
        free = int(resources.get("gpu_count", 0)) - short
        part = milli - int(missing["gpu_milli"])
        if int(resources.get("gpu_count", 0)) == 1 and part > 0:
            parts.append(f"has {part / 1000:g} of one free")
        else:
            parts.append(f"has {free or 'none'} free")
    lacking = []
    for name, amount in missing.items():
        if name in ("gpus", "gpu_milli"):
            continue
        noun, is_memory = _LACKING.get(name, (name, False))
        if is_memory:
            lacking.append(f"{mebibytes(amount)} {noun}")
        elif name == "cpu_milli":
            lacking.append(f"{amount / 1000:g} CPU{'' if amount == 1000 else 's'}")
        else:
            lacking.append(f"{amount} {noun.replace('_', ' ')}")
    if lacking:
        parts.append("lacks " + ", ".join(lacking))
    return " and ".join(parts)


CONSTRAINTS = {
    "gpu_busy": "not enough of its GPUs free",
    "gpu_count": "fewer GPUs than asked for",
    "gpu_model": "no GPU of that model",
    "gpu_memory": "not enough GPU memory free",
    "gpu_topology": "not as many GPUs free that are so close to each other",
    "cpu": "not enough CPU free",
    "memory": "not enough memory free",
    "draining": "takes nothing new (draining, down or not reached)",
    "excluded": "not among the devices asked for",
}
"""What people call the constraints the engine counts; others go by the engine's own name."""

_FULL = {
    "gpu_busy": "no such GPU free",
    "gpu_count": "too few GPUs",
    "gpu_model": "no GPU of that model",
    "gpu_topology": "no GPUs free that are so close to each other",
}


def gang_lacks(resources: ResourcesRecord, fit: Mapping[str, Any]) -> str:
    """How much of a gang fits now: ``it is a gang of 3, each with 1 whole GPU; 2 of them fit now``."""
    found = int(fit["members_that_fit"])
    count = f"{found} of them {'fits' if found == 1 else 'fit'} now" if found else "none of them fits now"
    apart = ", each on a host of its own" if resources.get("spread") else ""
    return f"it is a gang of {fit['gang']}{apart}, each with {needs(resources)}; {count}, and all start together"


def gang_hosts(resources: ResourcesRecord, fit: Mapping[str, Any], name: Callable[[str], str]) -> list[str]:
    """A phrase per host: what it has for a gang, or lacks for one member of it."""
    said = []
    for one in fit["hosts"]:
        if one["members"]:
            said.append(f"{name(one['host'])} has room for {one['members']}")
            continue
        lacks = nearest_has(resources, one["missing"]) if one["missing"] else ""
        words = [_FULL.get(word, word.replace("_", " ")) for word in one["failed"]]
        said.append(f"{name(one['host'])} {lacks or 'has room for none: ' + ', '.join(words)}")
    return said


def gang_ending(job: JobRecord) -> list[str]:
    """The sentence that a gang is ending, and because of which member."""
    attempt = job["attempts"][-1]
    ending = attempt.get("ending")
    if not ending or attempt.get("ended_at") is not None:
        return []
    member = attempt["members"][ending["rank"]]
    left = sum(each["ended_at"] is None for each in attempt["members"])
    return [f"rank {ending['rank']} ended as {member['state']}; {left} more are being stopped"]


def pairs(texts: Mapping[str, Any]) -> str:
    """Texts by name, in a line."""
    return ", ".join(f"{name}={text}" for name, text in texts.items())
