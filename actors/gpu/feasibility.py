"""Whether an empty cluster could serve a request at all: asked before a job is accepted, so that nothing waits for
ever."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from actorgrid.actors.ledger.field_checks import is_whole
from actorgrid.actors.ledger.record_types import DeviceRecord, HeldAmounts, HostRecord
from actorgrid.actors.ledger.records import parent_of, profiles_of, share_of
from actorgrid.demand import KNOWN_MAX, Demand
from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.errors import BadRequest, IsolationNotGiven, RequestTooLarge, TooManyGpus, UnknownGpuModel
from actorgrid.hotpath.capacity import GangNeeds, NodeCapacity
from actorgrid.hotpath.records import WHOLE_GPU_MILLI, GpuView, NodeView

from .device_closeness import most_close, near_among
from .device_words import kind_of, record_is_one_of, words_of_kind, words_of_model
from .enforcement import enough_devices, host_lacks


def model_name(device: DeviceRecord) -> str:
    """The engine's name of a device's model, with its memory: one model may come with different amounts."""
    return f"{device.get('model', '')} {device['memory_mib']} MiB"


def accepted_models(asked: Iterable[str], hosts: Iterable[HostRecord]) -> tuple[str, ...]:
    """The engine's names of all models that answer to one of *asked*; nothing asked gives nothing."""
    wanted = tuple(asked)
    if not wanted:
        return ()
    return tuple(
        sorted({model_name(device) for host in hosts for device in host["devices"] if record_is_one_of(device, wanted)})
    )


def check_feasible(demand: Demand, hosts: Iterable[HostRecord]) -> None:
    """Return when some host, with nothing else on it, has room for *demand*; of a gang, when all hosts have for all.

    Raises UnknownGpuModel, TooManyGpus (also for device memory), RequestTooLarge, or BadRequest for device
    UUIDs that do not exist; each says what exists.
    """
    hosts = [_when_put_together(host) for host in hosts]
    if demand.hosts:
        there = [host["host_id"] for host in hosts]
        hosts = [host for host in hosts if host["host_id"] in demand.hosts]
        if not hosts:
            raise BadRequest(
                "no such host", asked=", ".join(demand.hosts), found=", ".join(there[:8]), hint="actorgrid hosts"
            )
    if demand.min_isolation:
        hosts = _that_enforce(demand, hosts)
    able = [host for host in hosts if members_on(demand, host)]
    if able:
        _check_gang(demand, able)
        return
    if demand.gang == 1 and any(can_be_cut_for(demand, device) for host in hosts for device in host["devices"]):
        return
    if demand.gpu_count:
        _blame_gpus(demand, hosts)
    largest_cpu = max((host["cpu_milli"] for host in hosts), default=0)
    largest_memory = max((host["memory_mib"] for host in hosts), default=0)
    if demand.cpu_milli > largest_cpu:
        raise RequestTooLarge(
            "no host has that much CPU",
            asked=f"{demand.cpu_milli / 1000:g} CPUs",
            found=f"at most {largest_cpu / 1000:g} on one host",
            hint="ask for fewer cpus",
        )
    if demand.memory_mib > largest_memory:
        raise RequestTooLarge(
            "no host has that much memory",
            asked=f"{demand.memory_mib} MiB",
            found=f"at most {largest_memory} MiB on one host",
            hint="ask for less memory",
        )
    raise RequestTooLarge(
        "no single host has all of it",
        asked=_text(demand),
        found="; ".join(_host_text(host) for host in hosts[:5]) or "no hosts",
        hint="ask for less of one of them",
    )


def _that_enforce(demand: Demand, hosts: list[HostRecord]) -> list[HostRecord]:
    """The hosts that enforce as much as *demand* asks for, or have not said yet. Raises IsolationNotGiven for none."""
    lacks = {host["host_id"]: host_lacks(demand, host) if "kept_apart" in host else [] for host in hosts}
    able = [host for host in hosts if not lacks[host["host_id"]]]
    if able or not hosts:
        return able
    names = {host["host_id"]: host.get("hostname") or host["host_id"] for host in hosts}
    raise IsolationNotGiven(
        "no host enforces as much as that",
        asked=f"min_isolation = {demand.min_isolation}",
        found="; ".join(f"{names[id]}: {', '.join(what)}" for id, what in list(lacks.items())[:5]),
        hint="ask for less, or let a host enforce more: actorgrid doctor there says what it can",
    )


def usable_devices(demand: Demand, host: HostRecord) -> list[DeviceRecord]:
    """The host's devices of an acceptable model and, where UUIDs are given, among those."""
    return [
        device
        for device in enough_devices(demand, host["devices"])
        if device.get("cut") is not True
        and (not demand.gpu_models or record_is_one_of(device, demand.gpu_models))
        and (not demand.affinity_hard or device["uuid"] in demand.affinity_hard)
    ]


def can_be_cut_for(demand: Demand, device: DeviceRecord) -> bool:
    """Whether *device*'s host cuts it, when it is free, into an instance that will do for *demand*."""
    if demand.gpu_count != 1 or demand.affinity_hard:
        return False
    return any(is_instance_for(demand, device, profile) for profile in profiles_of(device))


def is_instance_for(demand: Demand, device: DeviceRecord, profile: str) -> bool:
    """Whether an instance of that *profile* of *device* is of a model that *demand* names."""
    model = f"{_whole_model(device)} MIG {profile}"
    return record_is_one_of(device, demand.gpu_models, model)


def _whole_model(device: DeviceRecord) -> str:
    return device.get("model", "").partition(" MIG ")[0]


def _when_put_together(host: HostRecord) -> HostRecord:
    """*host* with the GPUs that are cut for work alone as whole ones beside their instances: they will be, in time."""
    wholes = {
        parent_of(device): device
        for device in host["devices"]
        if parent_of(device) and device.get("whole_mib") and is_whole(device["whole_mib"])
    }
    if not wholes:
        return host
    first = 1 + max(device["index"] for device in host["devices"])
    devices: list[DeviceRecord] = [
        {
            **part,
            "uuid": uuid,
            "index": first + number,
            "model": _whole_model(part),
            "memory_mib": part["whole_mib"],
            "share_milli": WHOLE_GPU_MILLI,
            "cut": False,
        }
        for number, (uuid, part) in enumerate(wholes.items())
    ]
    return {**host, "devices": [*host["devices"], *devices]}


def members_on(demand: Demand, host: HostRecord, held: Iterable[HeldAmounts] = ()) -> int:
    """How many members of *demand* (1 of what is no gang) *host* has room for when nothing but *held* is there.

    What the ledger's guard allows is for the guard to say.
    """
    cpu, memory = host["cpu_milli"], host["memory_mib"]
    usable = usable_devices(demand, host)
    free = {device["index"]: [share_of(device), device["memory_mib"]] for device in usable}
    for one in held:
        cpu, memory = cpu - one["cpu_milli"], memory - one["memory_mib"]
        for index in one["gpu_indexes"]:
            if index in free:
                free[index][0] -= one["gpu_milli"]
                free[index][1] -= one["gpu_memory_mib"]
    gpus = tuple(GpuView("", milli, mib, mib) for milli, mib in free.values())
    near = near_among(usable) if demand.gpu_topology else None
    room = NodeCapacity(NodeView(host["host_id"], None, None, False, cpu, cpu, memory, memory, gpus, near=near), 0)
    return room.members(room.free, _ask_of(demand), demand.gang)


@lru_cache(maxsize=KNOWN_MAX)
def _ask_of(demand: Demand) -> GangNeeds:
    """*demand* of devices that are usable for it."""
    return GangNeeds(replace(demand, gpu_models=(), affinity_hard=()).arguments(), apart=demand.apart)


def describe(hosts: Iterable[HostRecord]) -> str:
    """What GPUs there are, for people: ``8 x H100 (80 GiB) on host-a``."""
    parts = []
    for host in hosts:
        counts: dict[tuple[str, int], int] = {}
        for device in host["devices"]:
            kind = (str(device.get("model", "")), device["memory_mib"])
            counts[kind] = counts.get(kind, 0) + 1
        name = host.get("hostname") or host["host_id"]
        parts += [f"{n} x {model} ({memory / 1024:.0f} GiB) on {name}" for (model, memory), n in counts.items()]
    return "; ".join(parts[:8]) + ("; ..." if len(parts) > 8 else "") if parts else "no GPUs"


def _check_gang(demand: Demand, able: list[HostRecord]) -> None:
    """Raise RequestTooLarge when the hosts that hold members do not hold as many as *demand* has."""
    if demand.gang == 1:
        return
    total = sum(members_on(demand, host) for host in able)
    if total >= demand.gang:
        return
    on = f"{len(able)} host{'s' if len(able) > 1 else ''}"
    most = f"ask for at most --gang {total}" if total > 1 else "run it without --gang"
    raise RequestTooLarge(
        "the cluster has no room for a gang of that size" + (", on a host for each" if demand.apart else ""),
        asked=f"{demand.gang} members, each with {_text(demand)}",
        found=f"{total} on {on}, if nothing else ran there",
        hint=f"{most}, ask for less for each member, or add hosts",
    )


def _blame_gpus(demand: Demand, hosts: list[HostRecord]) -> None:
    """Raise for the first thing about GPUs that no host can give; return when GPUs are not what is missing."""
    there = [device for host in hosts for device in host["devices"]]
    if demand.affinity_hard:
        missing = sorted(set(demand.affinity_hard) - {device["uuid"] for device in there})
        if len(missing) == len(demand.affinity_hard):
            raise BadRequest(
                "no device has such a UUID",
                asked=", ".join(missing[:5]),
                found=", ".join(device["uuid"] for device in there[:8]) or "no GPUs",
                hint="actorgrid gpus lists the devices",
            )
    if demand.gpu_models and not accepted_models(demand.gpu_models, hosts):
        raise _unknown_model(demand.gpu_models, there)
    per_host = [usable_devices(demand, host) for host in hosts]
    most = max((len(devices) for devices in per_host), default=0)
    shares = [share_of(device) for devices in per_host for device in devices]
    if shares and max(shares) < demand.gpu_milli:
        raise TooManyGpus(
            "the GPUs here are cut into instances, each of which is less than that",
            asked=f"{demand.gpu_milli / WHOLE_GPU_MILLI:g} of a GPU",
            found=describe(hosts),
            hint=f"ask for one instance by its profile, or for at most gpus={max(shares) / WHOLE_GPU_MILLI:.3f}",
        )
    of_what = f" of {', '.join(demand.gpu_models)}" if demand.gpu_models else ""
    if demand.gpu_count > most:
        raise TooManyGpus(
            f"no host has that many GPUs{of_what}" if most else f"there are no GPUs{of_what} here",
            asked=f"{demand.gpu_count} GPU{'s' if demand.gpu_count > 1 else ''}{of_what}",
            found=describe(hosts),
            hint=f"ask for at most {most}" if most else "run on a host with GPUs, or without gpus=",
        )
    largest = sorted((device["memory_mib"] for devices in per_host for device in devices), reverse=True)
    enough = max(sum(device["memory_mib"] >= demand.gpu_memory_mib for device in devices) for devices in per_host)
    if enough < demand.gpu_count:
        raise TooManyGpus(
            f"no host has {demand.gpu_count} GPU(s) with that much memory",
            asked=f"{demand.gpu_memory_mib} MiB on each",
            found=describe(hosts),
            hint=f"ask for at most {largest[0]} MiB of gpu_memory",
        )
    if demand.gpu_topology:
        _blame_topology(demand, hosts)


def _blame_topology(demand: Demand, hosts: list[HostRecord]) -> None:
    """Raise when no host has as many GPUs that are as close to each other as *demand* says."""
    roomy = {
        host.get("hostname") or host["host_id"]: [
            device
            for device in usable_devices(demand, host)
            if share_of(device) >= demand.gpu_milli and device["memory_mib"] >= demand.gpu_memory_mib
        ]
        for host in hosts
    }
    most = {name: most_close(devices, demand.gpu_topology) for name, devices in roomy.items()}
    largest = max(most.values(), default=0)
    if largest >= demand.gpu_count:
        return
    less = (
        word
        for word in GPU_TOPOLOGIES[GPU_TOPOLOGIES.index(demand.gpu_topology) + 1 :]
        if any(most_close(devices, word) >= demand.gpu_count for devices in roomy.values())
    )
    hints = [f"gpus={largest}"] * (largest > 1) + [f"gpu_topology={word}" for word in less][:1]
    raise TooManyGpus(
        f"no host has {demand.gpu_count} GPUs that are all as close to each other as {demand.gpu_topology}",
        asked=f"{demand.gpu_count} GPUs, gpu_topology={demand.gpu_topology}",
        found="; ".join(f"{count} on {name}" for name, count in list(most.items())[:8] if count > 1)
        or "no two that close",
        hint="ask for " + " or ".join(hints or ["them without gpu_topology"]) + "; actorgrid gpus --json has the links",
    )


def _unknown_model(asked: tuple[str, ...], there: list[DeviceRecord]) -> UnknownGpuModel:
    models = sorted({str(device.get("model", "")) for device in there})
    words = {word: model for model in models for word in words_of_model(model)} | {
        model.lower(): model for model in models
    }
    for device in there:
        words |= {word: word for word in words_of_kind(*kind_of(device))}
    close = difflib.get_close_matches(asked[0].lower(), list(words), n=1, cutoff=0.5)
    if close:
        hint = f"did you mean {words[close[0]]}?"
    else:
        hint = f"use one of: {', '.join(models)}" if models else "there are no GPUs here; actorgrid doctor says why"
    return UnknownGpuModel(
        f"no GPU here is a {' or '.join(asked)}",
        asked=", ".join(asked),
        found=", ".join(models) or "no GPUs",
        hint=hint,
    )


def _text(demand: Demand) -> str:
    parts = [f"{demand.gpu_count} GPUs"] if demand.gpu_count else []
    return ", ".join([*parts, f"{demand.cpu_milli / 1000:g} CPUs", f"{demand.memory_mib} MiB"])


def _host_text(host: HostRecord) -> str:
    return (
        f"{host.get('hostname') or host['host_id']}: {len(host['devices'])} GPUs, "
        f"{host['cpu_milli'] / 1000:g} CPUs, {host['memory_mib']} MiB"
    )
