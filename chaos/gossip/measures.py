"""Figures of membership at scale: how soon a death is suspected, declared and known, and how often one is invented."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from actorgrid.actors.membership.instructions import MemberChanged, MemberUnreachable
from actorgrid.actors.membership.profiles import MembershipProfile
from actorgrid.actors.membership.records import ALIVE, DEAD, SUSPECT
from actorgrid.chaos.simulator.rng import stream

from .simulation import GossipHost, GossipSimulation

SETTLE_S = 5.0
"""Before anything is measured: hosts begin their probes within one interval, and learn their links' times."""


@dataclass(slots=True)
class Watched:
    """What was seen of some hosts. All times are of the virtual clock."""

    suspected: dict[str, float] = field(default_factory=dict)
    declared: dict[str, float] = field(default_factory=dict)
    known_last: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, one of each for each host that died or joined. ``missing``: events that some host never heard of."""

    first_suspicion: tuple[float, ...]
    declared: tuple[float, ...]
    known_to_all: tuple[float, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What each host sent on average. ``false_*``: of hosts that ran all the while, each incarnation counted once.

    ``false_deaths_elsewhere``: of hosts that stood still, where some did.
    """

    datagrams_per_s: float
    datagram_bytes_per_s: float
    state_bytes_per_s: float
    false_suspicions: int
    false_deaths: int
    false_deaths_elsewhere: int


def deaths(hosts: int, profile: MembershipProfile, loss: float, seed: int, count: int) -> Times:
    """*count* hosts die, one after the other, half a second apart."""
    simulation = GossipSimulation(hosts, profile, seed, loss=loss)
    watched = Watched()
    names = list(simulation.hosts)
    dice = stream(seed, "deaths")
    dice.shuffle(names)
    died: dict[str, float] = {}

    def seen(host: GossipHost, event: MemberChanged | MemberUnreachable, now: float) -> None:
        name, state = event.record.name, event.record.state
        if name not in died or not isinstance(event, MemberChanged):
            return
        if state == SUSPECT:
            watched.suspected.setdefault(name, now)
        elif state == DEAD:
            watched.declared.setdefault(name, now)
            watched.known_last[name] = now

    simulation.seen = seen
    simulation.run_until(SETTLE_S)
    for name in names[:count]:
        simulation.run_until(simulation.now + dice.random())
        died[name] = simulation.now
        simulation.kill(name)
    patience = 3 * profile.probe_interval_s * (1 + profile.local_health_max)
    longest = profile.suspicion_max_multiplier * profile.suspicion_min_s(hosts)
    simulation.run_until(simulation.now + min(longest, 2 * profile.suspicion_min_s(hosts)) + patience)
    up = sum(host.up for host in simulation.hosts.values())
    full = [name for name in died if len(simulation.dead_at(name)) == up]
    return Times(
        tuple(watched.suspected[name] - at for name, at in died.items() if name in watched.suspected),
        tuple(watched.declared[name] - at for name, at in died.items() if name in watched.declared),
        tuple(watched.known_last[name] - watched.declared[name] for name in full),
        len(died) - len(full),
    )


def joins(hosts: int, profile: MembershipProfile, loss: float, seed: int, count: int) -> Times:
    """*count* new hosts join by one that is there, one after the other. Only ``known_to_all`` is filled."""
    simulation = GossipSimulation(hosts, profile, seed, loss=loss)
    watched = Watched()
    joined: dict[str, float] = {}

    def seen(host: GossipHost, event: MemberChanged | MemberUnreachable, now: float) -> None:
        name = event.record.name
        # Who joins later learns of it then.
        if name in joined and host.name not in joined and isinstance(event, MemberChanged) and event.before is None:
            watched.known_last[name] = now

    simulation.seen = seen
    simulation.run_until(SETTLE_S)
    dice = stream(seed, "joins")
    names = list(simulation.hosts)
    for number in range(count):
        simulation.run_until(simulation.now + dice.random())
        name = f"new-{number:04d}"
        joined[name] = simulation.now
        simulation.start(name, join=[names[int(dice.random() * hosts)]])
    simulation.run_until(simulation.now + 50 * profile.gossip_interval_s)
    full = [
        name
        for name in joined
        if ALIVE == max(simulation.opinions(name).values()) == min(simulation.opinions(name).values())
    ]
    return Times((), (), tuple(watched.known_last[name] - joined[name] for name in full), len(joined) - len(full))


def traffic(
    hosts: int,
    profile: MembershipProfile,
    loss: float,
    seed: int,
    seconds: float,
    slow_share: float = 0.0,
    pause_s: float = 10.0,
    run_s: tuple[float, float] = (0.001, 1.0),
) -> Traffic:
    """Nothing happens but *loss*; and *slow_share* of the hosts stand still for *pause_s*, run for a moment, and again.

    The moments are drawn from *run_s*, as often short as long: most of them end before an answer has come.
    """
    simulation = GossipSimulation(hosts, profile, seed, loss=loss)
    dice = stream(seed, "slow")
    names = list(simulation.hosts)
    dice.shuffle(names)
    slow = set(names[: round(slow_share * hosts)])
    suspected: set[tuple[str, int]] = set()
    dead: set[tuple[str, int]] = set()

    def seen(host: GossipHost, event: MemberChanged | MemberUnreachable, now: float) -> None:
        record = event.record
        if record.state == SUSPECT:
            suspected.add((record.name, record.incarnation))
        elif record.state == DEAD:
            dead.add((record.name, record.incarnation))

    simulation.seen = seen
    simulation.run_until(SETTLE_S)
    for host in simulation.hosts.values():
        host.datagrams = host.datagram_bytes = host.state_bytes = 0
    for name in sorted(slow):
        _pauses(simulation, name, SETTLE_S + 10.0 * dice.random(), SETTLE_S + seconds, pause_s, run_s)
    simulation.run_until(SETTLE_S + seconds)
    each = hosts * seconds
    every = list(simulation.hosts.values())
    return Traffic(
        sum(host.datagrams for host in every) / each,
        sum(host.datagram_bytes for host in every) / each,
        sum(host.state_bytes for host in every) / each,
        sum(name not in slow for name, _ in suspected),
        sum(name not in slow for name, _ in dead),
        sum(name in slow for name, _ in dead),
    )


def _pauses(
    simulation: GossipSimulation, name: str, start: float, end: float, pause_s: float, run_s: tuple[float, float]
) -> None:
    dice = stream(0, f"pauses/{name}")

    def pause() -> None:
        simulation.stand_still(name, pause_s)
        runs = run_s[0] * (run_s[1] / run_s[0]) ** dice.random()
        if simulation.now + pause_s + runs < end:
            simulation.at(simulation.now + pause_s + runs, pause)

    simulation.at(start, pause)


def comparisons(profile: MembershipProfile) -> Iterator[tuple[str, MembershipProfile]]:
    """The same profile as plain SWIM, with Lifeguard, and with time given to others by who stood still himself."""
    yield "SWIM", replace(profile, lifeguard=False, forgive_stalls=False)
    yield "Lifeguard", replace(profile, forgive_stalls=False)
    yield "Lifeguard, stalls forgiven", profile
