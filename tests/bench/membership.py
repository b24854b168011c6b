"""Membership at scale: a thousand real cores on virtual time; what is found, known, sent and invented."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from actorgrid.actors.membership.packets import GOSSIP, Packet
from actorgrid.actors.membership.profiles import PROFILES, MembershipProfile
from actorgrid.actors.membership.records import SUSPECT, MemberStatus, first_incarnation
from actorgrid.actors.membership.seal import DatagramSeal, Keyring
from actorgrid.chaos.gossip.measures import Times, comparisons, deaths, joins, traffic

from .figures import Figure, percentile, registry

HOSTS = 1_000
EVENTS = 20
TEN_MINUTES_S = 600.0
DATAGRAMS = 5_000


def _times(
    name: str, runs: Sequence[Sequence[float]], must: float, must_p99: float | None, profile: str, loss: float
) -> Figure:
    everything = [sample for run in runs for sample in run]
    high = percentile(everything, 0.99)
    told = "" if must_p99 is None else f"; p99 must {must_p99:g}: {'held' if high <= must_p99 else 'MISSED'}"
    note = f"{HOSTS} hosts, {loss:.0%} lost, {len(everything)} events{told}"
    return Figure(f"{profile}: {name}", "s", [median(run) for run in runs], False, p99=high, must=must, note=note)


def _detection(
    runs: int, profile: str, loss: float, bars: tuple[float, float | None, float, float]
) -> Iterator[Figure]:
    """*bars*: first suspicion, its p99, declared, its p99."""
    found = [deaths(HOSTS, PROFILES[profile], loss, seed + 1, EVENTS) for seed in range(runs)]
    yield _times("first suspicion of a dead host", [each.first_suspicion for each in found], *bars[:2], profile, loss)
    yield _times("dead host declared", [each.declared for each in found], *bars[2:], profile, loss)
    yield _times("declared dead, to known by all", [each.known_to_all for each in found], 3.0, 3.0, profile, loss)
    missing = [float(each.missing) for each in found]
    yield Figure(f"{profile}: deaths that somebody never heard of", "deaths", missing, False, must=0.0)


@registry.add("membership")
def membership(runs: int) -> Iterator[Figure]:
    """Times of deaths and joins, traffic at rest, what a packet costs, and how fast the simulation is."""
    yield from _detection(runs, "lan", 0.0, (2.0, 6.0, 16.0, 25.0))
    yield from _detection(runs, "lan_fast", 0.0, (2.0, None, 5.0, 5.0))
    joined: list[Times] = [joins(HOSTS, PROFILES["lan"], 0.05, seed + 1, EVENTS) for seed in range(runs)]
    yield _times("a join known by all", [each.known_to_all for each in joined], 3.0, 3.0, "lan", 0.05)
    for profile in ("lan", "lan_fast"):
        for loss in (0.0, 0.05):
            yield from _traffic(profile, PROFILES[profile], loss, 30.0)
        yield from _traffic(f"{profile}, asked by link too", replace(PROFILES[profile], ask_by_link=True), 0.05, 30.0)
    yield from _packets(runs)


def _traffic(name: str, profile: MembershipProfile, loss: float, seconds: float) -> Iterator[Figure]:
    began = time.process_time()
    found = traffic(HOSTS, profile, loss, 1, seconds)
    spent = time.process_time() - began
    where = f"{name}, {loss:.0%} lost"
    yield Figure(f"{where}: datagrams a host", "1/s", [found.datagrams_per_s], False, must=20.0)
    sent = f"and {found.state_bytes_per_s:,.0f} B/s of full states"
    yield Figure(f"{where}: bytes a host, at most", "B/s", [found.datagram_bytes_per_s], False, note=sent)
    speed = f"{seconds:g} s of {HOSTS} hosts in {spent:.1f} s of CPU, the start included"
    yield Figure(f"{where}: simulated, times real time", "x", [seconds / spent], True, must=1.0, note=speed)


@registry.add("membership_ten_minutes")
def membership_ten_minutes(runs: int) -> Iterator[Figure]:
    """False deaths and suspicions in ten minutes of loss."""
    for name in ("lan", "lan_fast"):
        for loss, must in ((0.05, 0.0), (0.10, 1.0)):
            found = traffic(HOSTS, PROFILES[name], loss, 1, TEN_MINUTES_S)
            note = f"10 minutes; {found.false_suspicions} suspicions, {found.datagrams_per_s:.1f} datagrams/s"
            yield Figure(
                f"{name}, {loss:.0%} lost: false deaths", "deaths", [found.false_deaths], False, must=must, note=note
            )


@registry.add("membership_slow_hosts")
def membership_slow_hosts(runs: int) -> Iterator[Figure]:
    """Hosts that stand still for 10 s at a time: healthy ones declared dead, with Lifeguard and without."""
    for share in (0.04, 0.10):
        for name, profile in comparisons(PROFILES["lan_fast"]):
            found = traffic(HOSTS, profile, 0.0, 1, 60.0, share)
            note = (
                f"{found.false_suspicions} suspected; of the slow, {found.false_deaths_elsewhere} declared dead; "
                f"{found.datagrams_per_s:.1f} datagrams/s a host"
            )
            title = f"lan_fast, {share:.0%} slow, {name}: healthy hosts declared dead"
            must = 0.0 if name.endswith("forgiven") else None
            yield Figure(title, "deaths", [found.false_deaths], False, must=must, note=note)


def _packets(runs: int) -> Iterator[Figure]:
    """What a full datagram costs to seal and to open, and what one costs that is refused."""
    rows = [
        MemberStatus(f"host-{number:04d}", f"10.0.0.{number}:7403", first_incarnation(3) + 2, SUSPECT, "host-0007")
        for number in range(24)
    ]
    packet = Packet(GOSSIP, "a", 0, "", tuple(rows))
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        keys = Keyring(1, bytes(32))
        sender, reader, stranger = DatagramSeal("a", 1, keys), DatagramSeal("b", 1, keys), Keyring(1, bytes(31) + b"x")
        good = _sealed(found, sender, packet)
        _opened(found, "opened", reader, good)
        _opened(found, "replayed, refused", reader, good)
        forger = DatagramSeal("c", 1, stranger)
        _opened(found, "forged, refused", reader, [forger.seal(packet) for _ in range(DATAGRAMS)])
        later = DatagramSeal("a", 2**21, keys)
        _opened(found, "of a life too far ahead, refused", reader, [later.seal(packet) for _ in range(DATAGRAMS)])
        short = DatagramSeal("d", 1, keys)
        _opened(found, "truncated, refused", reader, [short.seal(packet)[:-1] for _ in range(DATAGRAMS)])
        _opened(found, "oversize, refused", reader, [each + bytes(1_400) for each in good])
    for name, samples in found.items():
        bar = 50.0 if name != "sealed" else None
        yield Figure(f"a datagram of 24 words {name}", "us", samples, False, must=bar, note="CPU time")


def _sealed(found: dict[str, list[float]], sender: DatagramSeal, packet: Packet) -> list[bytes]:
    began = time.process_time()
    made = [sender.seal(packet) for _ in range(DATAGRAMS)]
    found.setdefault("sealed", []).append((time.process_time() - began) / DATAGRAMS * 1e6)
    return made


def _opened(found: dict[str, list[float]], name: str, reader: DatagramSeal, datagrams: Sequence[bytes]) -> None:
    began = time.process_time()
    for datagram in datagrams:
        reader.open(datagram, 0.0)
    found.setdefault(name, []).append((time.process_time() - began) / len(datagrams) * 1e6)
