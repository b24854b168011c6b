"""Figures of the shared state at scale: when a write is everywhere, what hosts and lines carry, what a cut costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from actorgrid.chaos.simulator.rng import stream

from .state_simulation import StateHost, StateNetwork, StateSimulation

SETTLE_S = 2.0
PATIENCE_S = 300.0
VALUE = "x" * 150
"""With its key, stamp and names a delta of some 200 bytes."""


def site_sizes(hosts: int, sites: int) -> dict[str, int]:
    """*hosts* over so many sites, as evenly as can be; one site has no name."""
    if sites == 1:
        return {"": hosts}
    return {f"site{number}": hosts // sites + (number < hosts % sites) for number in range(sites)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds from each write until half of the hosts had it, and all. A round is a second."""

    half: tuple[float, ...]
    everywhere: tuple[float, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class StateTraffic:
    """Bytes a second: what a host sent on average and at most, and what all sent over lines between sites."""

    host_bytes_per_s: float
    host_bytes_per_s_max: float
    line_bytes_per_s: float
    packets_per_s: float


def spread(sites: Mapping[str, int], network: StateNetwork, seed: int, writes: int) -> Spread:
    """*writes* on hosts by chance, each after the one before is everywhere."""
    simulation = StateSimulation(sites, seed, network)
    dice = stream(seed, "writes")
    names = list(simulation.hosts)
    half: list[float] = []
    everywhere: list[float] = []
    simulation.run_until(SETTLE_S)
    for _ in range(writes):
        simulation.run_until(simulation.now + dice.random())
        times = _one_write(simulation, names[int(dice.random() * len(names))])
        half += times[:1]
        everywhere += times[1:]
    return Spread(tuple(half), tuple(everywhere), writes - len(everywhere))


def _one_write(simulation: StateSimulation, name: str) -> list[float]:
    """Seconds from a write on that host until half of all hosts have it, and until all have; as far as they got it."""
    began, has, found = simulation.now, {name}, list[float]()
    half, every = (len(simulation.hosts) + 1) // 2, len(simulation.hosts)
    origin, sequence = simulation.write(name, "spread", "g_counter", "increment")

    def received(host: StateHost) -> None:
        if host.name not in has and host.gossip.vector.get(origin, 0) >= sequence:
            has.add(host.name)
            if len(has) == half:
                found.append(simulation.now - began)

    simulation.received = received
    if simulation.run_until(began + PATIENCE_S, lambda: len(has) == every):
        found.append(simulation.now - began)
    return found


def state_traffic(
    sites: Mapping[str, int], network: StateNetwork, seed: int, seconds: float, writes_per_s: float
) -> StateTraffic:
    """Some writes a second, on hosts by chance, each of one of 100 keys."""
    simulation = StateSimulation(sites, seed, network)
    dice = stream(seed, "writes")
    names = list(simulation.hosts)
    simulation.run_until(SETTLE_S)
    for host in simulation.hosts.values():
        host.sent_packets = host.sent_bytes = host.far_bytes = 0
    end = simulation.now + seconds
    while writes_per_s and simulation.now < end:
        _put(simulation, names, dice.random(), dice.random())
        simulation.run_until(min(end, simulation.now + 1.0 / writes_per_s))
    simulation.run_until(end)
    each = [host.sent_bytes / seconds for host in simulation.hosts.values()]
    return StateTraffic(
        sum(each) / len(each),
        max(each),
        sum(host.far_bytes for host in simulation.hosts.values()) / seconds,
        sum(host.sent_packets for host in simulation.hosts.values()) / len(each) / seconds,
    )


def healed_s(sites: Mapping[str, int], network: StateNetwork, seed: int, cut_s: float, writes_per_s: float) -> float:
    """One site is cut off while all write; seconds from the end of the cut until all hold the same again."""
    simulation = StateSimulation(sites, seed, network)
    dice = stream(seed, "writes")
    names = list(simulation.hosts)
    last = list(sites)[-1]
    simulation.run_until(SETTLE_S)
    for host in simulation.hosts.values():
        host.side = int(host.site == last)
    network.cut |= {(0, 1), (1, 0)}
    end = simulation.now + cut_s
    while simulation.now < end:
        _put(simulation, names, dice.random(), dice.random())
        simulation.run_until(min(end, simulation.now + 1.0 / writes_per_s))
    network.cut.clear()
    return _until_the_same(simulation)


def burst_s(sites: Mapping[str, int], network: StateNetwork, seed: int, writes: int) -> float:
    """So many writes at one site at once; seconds until all sites hold the same."""
    simulation = StateSimulation(sites, seed, network)
    dice = stream(seed, "writes")
    first = next(iter(sites))
    names = [name for name, host in simulation.hosts.items() if host.site == first]
    simulation.run_until(SETTLE_S)
    for number in range(writes):
        name = names[int(dice.random() * len(names))]
        simulation.write(name, f"burst/{number}", "lww_register", "put", VALUE)
    return _until_the_same(simulation)


def _put(simulation: StateSimulation, names: list[str], who: float, what: float) -> None:
    name, key = names[int(who * len(names))], f"key/{int(what * 100)}"
    simulation.write(name, key, "lww_register", "put", f"{simulation.now:.3f}{VALUE}"[: len(VALUE)])


def _until_the_same(simulation: StateSimulation) -> float:
    began = simulation.now
    while simulation.now < began + PATIENCE_S:
        if simulation.converged():
            return simulation.now - began
        simulation.run_until(simulation.now + 0.05)
    return float("inf")
