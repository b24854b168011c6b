"""What befalls a few hosts that share state, at one site or three, and what must hold at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.chaos.simulator.rng import stream

from .state_oracle import StateOracle
from .state_simulation import StateNetwork, StateParts, StateSimulation

ONE_SITE = {"": 6}
THREE_SITES = {"east": 3, "north": 3, "west": 3}
FSYNC_S = 0.004
SHORT_LOG = GossipLimits(log_bytes=800, all_at=2)
"""Three or four deltas: what is older comes by walks over the tree of keys. And few hear of news at once."""


class StateRun:
    """A simulation with its oracle and dice."""

    def __init__(
        self,
        seed: int,
        parts: StateParts,
        sites: Mapping[str, int],
        network: StateNetwork | None = None,
        limits: GossipLimits | None = None,
    ) -> None:
        self.simulation = StateSimulation(sites, seed, network, limits, parts, FSYNC_S)
        self.oracle = StateOracle(self.simulation)
        self.dice = stream(seed, "scenario")
        self.wrong = ""
        self.lost_disks: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The hosts that run."""
        return [name for name, host in self.simulation.hosts.items() if host.up]

    def at_site(self, site: str) -> list[str]:
        """The hosts of one site."""
        return [name for name, host in self.simulation.hosts.items() if host.site == site]

    def play(self, seconds: float, writes_per_s: float = 0.0, names: list[str] | None = None) -> None:
        """Let time go on, with writes of all kinds by *names*, or by all that run."""
        end = self.simulation.now + seconds
        while self.simulation.now < end and not self.wrong:
            self.simulation.run_until(min(end, self.simulation.now + (1.0 / writes_per_s if writes_per_s else 1.0)))
            self.oracle.look()
            self.wrong = self.oracle.wrong_belief(self.lost_disks)
            if writes_per_s:
                self.write(names)

    def write(self, names: list[str] | None = None) -> None:
        """One write by one of *names*."""
        able = [name for name in names or self.names if self.simulation.hosts[name].up]
        if able:
            what = (self.oracle.increment, self.oracle.add, self.oracle.add, self.oracle.remove, self.oracle.put)
            what[int(self.dice.random() * len(what))](able[int(self.dice.random() * len(able))])

    def end(self, seconds: float = 30.0) -> str:
        """Let the network be whole for so long; then what is wrong, or nothing."""
        network = self.simulation.network
        network.loss = network.doubled = 0.0
        network.cut.clear()
        self.play(seconds)
        return self.wrong or self.oracle.wrong_end()


def state_lossy(seed: int, parts: StateParts) -> str:
    """A third of all packets is lost and a tenth comes twice, while all hosts write."""
    run = StateRun(seed, parts, ONE_SITE, StateNetwork(loss=0.3, doubled=0.1), SHORT_LOG if seed % 2 else None)
    run.play(20, 5.0)
    return run.end()


def state_pair(seed: int, parts: StateParts) -> str:
    """Two hosts alone, with a third of all packets lost: nobody else brings what was lost."""
    run = StateRun(seed, parts, {"": 2}, StateNetwork(loss=0.3, doubled=0.1), SHORT_LOG if seed % 2 else None)
    run.play(20, 5.0)
    return run.end()


def state_halves(seed: int, parts: StateParts) -> str:
    """The hosts are split in two for half a minute; both sides write; then they come to hold all of it."""
    run = StateRun(seed, parts, ONE_SITE, limits=SHORT_LOG)
    run.play(3, 5.0)
    for name in run.names[::2]:
        run.simulation.hosts[name].side = 1
    run.simulation.network.cut |= {(0, 1), (1, 0)}
    run.play(30, 5.0)
    return run.end()


def state_crashes(seed: int, parts: StateParts) -> str:
    """Hosts are killed in the middle of writes and start again, some with an empty disk."""
    run = StateRun(seed, parts, ONE_SITE, StateNetwork(loss=0.1), SHORT_LOG if seed % 2 else None)
    for number in range(12):
        run.play(1.5, 20.0)
        name = run.names[int(run.dice.random() * len(run.names))]
        run.write([name])
        run.simulation.kill(name)
        run.play(0.5 + run.dice.random(), 20.0)
        if number % 3 == 2:
            run.oracle.lost_disk(name)
            run.lost_disks |= {name}
        run.simulation.restart(name, disk_lost=number % 3 == 2)
    return run.end()


def state_away(seed: int, parts: StateParts) -> str:
    """A host is away while what it has is removed and overwritten, and then comes back with the old."""
    run = StateRun(seed, parts, ONE_SITE, limits=SHORT_LOG)
    run.play(4, 5.0)
    away = run.names[int(run.dice.random() * len(run.names))]
    run.simulation.hosts[away].side = 1
    run.simulation.network.cut |= {(0, 1), (1, 0)}
    others = [name for name in run.names if name != away]
    for name in others:
        for element in list(run.oracle.shown(run.simulation.hosts[name], "members") or ())[:3]:
            run.oracle.remove(name, element)
        run.oracle.put(name)
        run.play(2, 3.0, others)
    run.play(3, 2.0, [away])
    return run.end()


def state_pauses(seed: int, parts: StateParts) -> str:
    """Hosts stand still for seconds at a time, and read late what was sent to them."""
    run = StateRun(seed, parts, ONE_SITE, StateNetwork(loss=0.1))
    for _ in range(8):
        name = run.names[int(run.dice.random() * len(run.names))]
        run.simulation.stand_still(name, 1.0 + 4.0 * run.dice.random())
        run.play(2, 8.0)
    run.play(6)
    return run.end()


def state_churn(seed: int, parts: StateParts) -> str:
    """Hosts leave for good and new ones join: what those wrote who left stays."""
    run = StateRun(seed, parts, ONE_SITE)
    for number in range(5):
        run.play(3, 5.0)
        run.play(3)  # what it wrote has come round
        run.simulation.remove(run.names[0])
        run.simulation.add(f"new-{number}", "")
    return run.end()


def state_clocks(seed: int, parts: StateParts) -> str:
    """Wall clocks jump back by an hour or ahead by most of a minute: who overwrites what it saw has the last word."""
    run = StateRun(seed, parts, ONE_SITE)
    for number in range(10):
        name = run.names[int(run.dice.random() * len(run.names))]
        run.simulation.hosts[name].clock_s = -3600.0 if number % 2 else 50.0
        run.oracle.put(name)
        run.play(0.5)
        run.simulation.hosts[name].clock_s = 0.0
        run.play(2)
        other = run.names[int(run.dice.random() * len(run.names))]
        run.oracle.put(other)
        run.play(1)
    return run.end()


def state_future(seed: int, parts: StateParts) -> str:
    """A clock ten minutes ahead writes, and is set right: nobody takes that before its time has come, then all."""
    run = StateRun(seed, parts, ONE_SITE)
    name = run.names[int(run.dice.random() * len(run.names))]
    run.simulation.hosts[name].clock_s = 600.0
    run.oracle.put(name)
    value = run.oracle.written[-1].value
    run.play(2)
    run.simulation.hosts[name].clock_s = 0.0
    others = [other for other in run.names if other != name]
    if any(run.oracle.shown(run.simulation.hosts[other], "name") == value for other in others):
        return "a value dated ten minutes ahead was taken"
    run.play(10, 2.0, others)
    run.simulation.run_until(run.simulation.now + 600.0)
    return run.end()


def state_site_cut(seed: int, parts: StateParts) -> str:
    """The lines of one site of three are cut for half a minute while all write; in it and outside each goes on."""
    run = StateRun(seed, parts, THREE_SITES, StateNetwork(loss=0.05, far_round_trip_s=(0.02, 0.08, 0.2)[seed % 3]))
    run.play(5, 5.0)
    for name in run.at_site("west"):
        run.simulation.hosts[name].side = 1
    run.simulation.network.cut |= {(0, 1), (1, 0)}
    run.play(30, 5.0)
    for site in THREE_SITES:
        values = {str(run.oracle.shown(run.simulation.hosts[name], "hits")) for name in run.at_site(site)}
        if not values - {"None"}:
            return f"nobody at {site} counts any more"
    return run.end()


def state_site_lost(seed: int, parts: StateParts) -> str:
    """One site of three is lost, disks and all, seconds after it wrote; what came over to others stays."""
    run = StateRun(seed, parts, THREE_SITES)
    run.play(5, 5.0)
    run.play(3)
    lost = list(THREE_SITES)[seed % 3]
    for name in run.at_site(lost):
        run.simulation.kill(name)
    run.play(5, 5.0)
    return run.end()


def state_relays_die(seed: int, parts: StateParts) -> str:
    """Of each site all but one host die, relays among them: what is left still comes over."""
    run = StateRun(seed, parts, THREE_SITES)
    run.play(3, 5.0)
    run.play(3)
    for site in THREE_SITES:
        names = run.at_site(site)
        keep = names[int(run.dice.random() * len(names))]
        for name in names:
            if name != keep:
                run.simulation.kill(name)
    run.play(10, 2.0)
    return run.end(60.0)


def state_trees_broken(seed: int, parts: StateParts) -> str:
    """A tenth of many hosts die, inner ones of trees; once that is known, writes go to all others without a digest."""
    run = StateRun(seed, parts, {"": 40})
    run.play(2, 2.0)
    names = run.names
    run.dice.shuffle(names)
    inner = [name for name in names if len(run.simulation.hosts[name].gossip.choice.neighbours) > 10]
    for name in inner[:4]:
        run.simulation.kill(name)
    run.simulation.tell_away()
    run.play(6)
    for name in run.names:
        run.oracle.increment(name)
    dots = [run.simulation.hosts[name].gossip.last_staged() for name in run.names]
    run.simulation.run_until(run.simulation.now + 0.4)
    for name in run.names:
        vector = run.simulation.hosts[name].gossip.vector
        missing = sum(vector.get(origin, 0) < sequence for origin, sequence in dots)
        if missing > len(dots) // 4:
            return f"{name} has heard nothing of {missing} of {len(dots)} writes"
    return run.end(10.0)


STATE_SCENARIOS: dict[str, Callable[[int, StateParts], str]] = {
    each.__name__: each
    for each in (
        state_lossy,
        state_pair,
        state_halves,
        state_crashes,
        state_away,
        state_pauses,
        state_churn,
        state_clocks,
        state_future,
        state_site_cut,
        state_site_lost,
        state_relays_die,
        state_trees_broken,
    )
}
