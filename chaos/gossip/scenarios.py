"""What befalls small clusters of membership cores, and what must hold at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.instructions import MemberChanged, MemberUnreachable
from actorgrid.actors.membership.packets import GOSSIP, Packet
from actorgrid.actors.membership.profiles import PROFILES
from actorgrid.actors.membership.records import ALIVE, INCARNATION_MAX, LEFT, SUSPECT
from actorgrid.actors.membership.seal import DatagramSeal
from actorgrid.actors.membership.sited_core import SitedCore
from actorgrid.chaos.simulator.rng import stream
from actorgrid.errors import BadRequest

from .simulation import GossipHost, GossipSimulation

HOSTS = 16
PROFILE = PROFILES["lan"]


@dataclass(frozen=True, slots=True)
class GossipParts:
    """What a host is made of: the real parts, or one with a bug planted in it."""

    core: type[MembershipCore] = SitedCore
    host: type[GossipHost] = GossipHost
    seal: type[DatagramSeal] = DatagramSeal


class GossipRun:
    """A simulation with a record of who was declared dead by whom, and with which witnesses."""

    def __init__(
        self, seed: int, parts: GossipParts, loss: float = 0.0, wire: bool = False, sites: int = 1, far_s: float = 0.0
    ) -> None:
        self.simulation = GossipSimulation(
            HOSTS,
            PROFILE,
            seed,
            loss=loss,
            wire=wire,
            core_class=parts.core,
            host_class=parts.host,
            seal_class=parts.seal,
            sites=sites,
        )
        self.simulation.network.far_delay_s = far_s
        self.dice = stream(seed, "scenario")
        self.names = list(self.simulation.hosts)
        self.verdicts: dict[str, tuple[str, ...]] = {}
        self.simulation.seen = self._seen
        self.simulation.run_until(2.0 + self.dice.random())

    def some(self, count: int) -> list[str]:
        """Different hosts, by chance."""
        names = list(self.names)
        self.dice.shuffle(names)
        return names[:count]

    def play(self, seconds: float) -> None:
        """Let time go on."""
        self.simulation.run_until(self.simulation.now + seconds)

    def invented(self) -> str:
        """What to say when somebody was declared dead; nothing otherwise."""
        for name, witnesses in self.verdicts.items():
            return f"{name}, which ran all the while, was declared dead by {', '.join(witnesses)}"
        return ""

    def disagreement(self) -> str:
        """What to say when not all who are up hold each other for alive, and nobody else; nothing otherwise."""
        return "" if self.simulation.agreed() else "hosts do not agree on who is alive"

    def _seen(self, host: GossipHost, event: MemberChanged | MemberUnreachable, now: float) -> None:
        if isinstance(event, MemberUnreachable):
            self.verdicts[event.record.name] = event.witnesses


def calm(seed: int, parts: GossipParts) -> str:
    """Two minutes with 3 % of all datagrams lost: nobody is declared dead."""
    run = GossipRun(seed, parts, loss=0.03)
    run.play(120)
    run.simulation.network.loss = 0.0
    run.play(30)
    return run.invented() or run.disagreement()


def one_dies(seed: int, parts: GossipParts) -> str:
    """A host dies, with 3 % lost: everybody comes to know, by several witnesses, and nobody else is declared."""
    run = GossipRun(seed, parts, loss=0.03)
    (name,) = run.some(1)
    run.simulation.kill(name)
    run.play(30)
    if set(run.verdicts) != {name}:
        return f"declared dead: {', '.join(run.verdicts) or 'nobody'}; {name} is"
    if len(run.verdicts[name]) < 2:
        return f"one witness of {name}'s death"
    run.simulation.network.loss = 0.0
    run.play(30)
    return run.disagreement()


def halves(seed: int, parts: GossipParts) -> str:
    """The cluster is split for a minute and a half; each side gives the other up; afterwards they find each other."""
    run = GossipRun(seed, parts)
    for name in run.some(HOSTS // 2):
        run.simulation.hosts[name].side = 1
    run.simulation.network.cut |= {(0, 1), (1, 0)}
    run.play(90)
    for name, host in run.simulation.hosts.items():
        other = [each.name for each in run.simulation.hosts.values() if each.side != host.side]
        if set(run.simulation.dead_at(name)) != set(other):
            return f"{name} is not dead to the other side alone"
    run.simulation.network.cut.clear()
    run.play(180)
    return run.disagreement()


def one_way(seed: int, parts: GossipParts) -> str:
    """Between some hosts and some others nothing passes, in one direction; the rest reach both: nobody is dead."""
    run = GossipRun(seed, parts)
    chosen = run.some(6)
    for number, name in enumerate(chosen):
        run.simulation.hosts[name].side = 1 + number // 3
    run.simulation.network.cut.add((1, 2))
    run.play(120)
    run.simulation.network.cut.clear()
    run.play(30)
    return run.invented() or run.disagreement()


def restarts(seed: int, parts: GossipParts) -> str:
    """Hosts start again under their names, at once or after they were given up: all know them in their new life."""
    run = GossipRun(seed, parts)
    at_once, late = run.some(2)
    first = next(name for name in run.names if name not in (at_once, late))
    for name, away_s in ((at_once, 0.5), (late, 40.0)):
        run.simulation.kill(name)
        run.play(away_s)
        run.simulation.start(name, join=[first])
    run.play(40)
    for name in (at_once, late):
        own = run.simulation.hosts[name].core.record.incarnation
        for host in run.simulation.hosts.values():
            known = host.core.table.records.get(name)
            if host.name != name and (known is None or known.incarnation != own):
                return f"{host.name} does not know {name} in its new life"
    return run.disagreement()


def accused(seed: int, parts: GossipParts) -> str:
    """One host is told of another that it is suspected, by a lie with a far too high incarnation and by a plain one."""
    run = GossipRun(seed, parts, wire=True)
    liar, hearer, subject, other = run.some(4)
    records = run.simulation.hosts[hearer].core.table.records
    for incarnation, name in ((INCARNATION_MAX, subject), (records[other].incarnation, other)):
        word = records[name]._replace(incarnation=incarnation, state=SUSPECT, by=liar)
        source = run.simulation.hosts[liar].address
        run.simulation.inject(hearer, Packet(GOSSIP, liar, 0, "", (word,)), source)
    run.play(60)
    return run.invented() or run.disagreement()


def old_words(seed: int, parts: GossipParts) -> str:
    """Words of an earlier incarnation of a host come late, to some: they change nothing."""
    run = GossipRun(seed, parts)
    (subject,) = run.some(1)
    first = next(name for name in run.names if name != subject)
    old = run.simulation.hosts[subject].core.record
    run.simulation.kill(subject)
    run.play(0.5)
    run.simulation.start(subject, join=[first])
    run.play(10)
    for name in run.some(4):
        if name != subject:
            word = old._replace(state=SUSPECT, by=first)
            source = run.simulation.hosts[first].address
            run.simulation.inject(name, Packet(GOSSIP, first, 0, "", (word,)), source)
            if run.simulation.hosts[name].core.table.records[subject].state != ALIVE:
                return f"{name} suspects {subject} by a word of its former life"
    run.play(40)
    return run.invented() or run.disagreement()


def clocks_step(seed: int, parts: GossipParts) -> str:
    """Wall clocks jump by an hour, either way, while hosts are suspected: nobody is declared dead."""
    run = GossipRun(seed, parts, loss=0.1)
    for number in range(6):
        run.play(8)
        for name in run.some(3):
            run.simulation.hosts[name].clock_s += 3600.0 if number % 2 == 0 else -3600.0
            # As a process that is scheduled: it looks at its clock soon, whatever it waited for.
            run.simulation.stand_still(name, 0.01)
    run.simulation.network.loss = 0.0
    run.play(60)
    return run.invented() or run.disagreement()


def sleepers(seed: int, parts: GossipParts) -> str:
    """Hosts stand still for half a minute, in the middle of probes: they declare nobody dead when they wake.

    They themselves may be given up meanwhile: nobody could reach them.
    """
    run = GossipRun(seed, parts)
    sleepers = run.some(4)
    for _ in range(8):
        for name in sleepers:
            # With a probe under way: what waits in its socket then are answers.
            due = max(run.simulation.now, run.simulation.hosts[name].core.deadline)
            run.simulation.at(due, partial(run.simulation.stand_still, name, 30))
        run.play(31 + run.dice.random())
    for name, witnesses in run.verdicts.items():
        if name not in sleepers:
            return f"{name}, which never slept, was declared dead by {', '.join(witnesses)}"
    run.play(120)
    return run.disagreement()


def replays(seed: int, parts: GossipParts) -> str:
    """A fifth of all datagrams come again, up to five seconds later, and a host starts again: none is taken twice."""
    run = GossipRun(seed, parts, loss=0.02, wire=True)
    run.simulation.network.played_again = 0.2
    name, first = run.some(2)
    run.play(15)
    run.simulation.kill(name)
    run.play(1)
    run.simulation.start(name, join=[first])
    run.play(30)
    run.simulation.network.played_again = run.simulation.network.loss = 0.0
    run.play(20)
    if run.simulation.taken_twice:
        return f"{run.simulation.taken_twice} datagrams were taken twice"
    return run.invented() or run.disagreement()


def farewell(seed: int, parts: GossipParts) -> str:
    """A host leaves: all know that it left, and nobody takes it for dead."""
    run = GossipRun(seed, parts, loss=0.03)
    (name,) = run.some(1)
    host = run.simulation.hosts[name]
    host.core.leave(host.time(run.simulation.now))
    run.play(10)
    run.simulation.kill(name)
    run.play(60)
    if set(run.simulation.opinions(name).values()) != {LEFT}:
        return f"not all know that {name} left"
    return run.invented()


def site_cut(seed: int, parts: GossipParts) -> str:
    """One site of three, 20 to 200 ms away, is cut off for a minute: its relays say so, and nobody is held for dead."""
    run = GossipRun(seed, parts, loss=0.05, sites=3, far_s=(0.01, 0.04, 0.1)[seed % 3])
    run.play(10)
    hosts = run.simulation.hosts.values()
    for host in hosts:
        host.side = int(host.site == "site2")
    run.simulation.network.cut |= {(0, 1), (1, 0)}
    run.play(60)
    if run.verdicts:
        return run.invented()
    for site in ("site0", "site1"):
        cores = [host.core for host in hosts if host.site == site]
        if not any(isinstance(core, SitedCore) and "site2" in core.unreached_sites for core in cores):
            return f"nobody at {site} says that site2 is not reached"
    run.simulation.network.cut.clear()
    run.play(60)
    if any(isinstance(host.core, SitedCore) and host.core.unreached_sites for host in hosts):
        return "a site is still held for unreached"
    run.simulation.network.loss = 0.0
    run.play(30)
    return run.invented() or run.disagreement()


def site_relays_die(seed: int, parts: GossipParts) -> str:
    """Of each site the relays die, and then one more: the others take their place, and all come to know."""
    run = GossipRun(seed, parts, loss=0.03, sites=3, far_s=0.04)
    run.play(10)
    hosts = run.simulation.hosts
    for site in ("site0", "site1", "site2"):
        here = [host for host in hosts.values() if host.site == site]
        relays = [host for host in here if isinstance(host.core, SitedCore) and host.core.relays_to(_next_site(site))]
        for host in relays[:2]:
            run.simulation.kill(host.name)
    run.play(30)
    name = next(host.name for host in hosts.values() if host.up)
    run.simulation.kill(name)
    run.play(30)
    run.simulation.network.loss = 0.0
    # Full states between sites: each minute, or when this many are few.
    run.play(90)
    return run.disagreement()


def _next_site(site: str) -> str:
    return {"site0": "site1", "site1": "site2", "site2": "site0"}[site]


SCENARIOS: dict[str, Callable[[int, GossipParts], str]] = {
    each.__name__: each
    for each in (
        calm,
        one_dies,
        halves,
        one_way,
        restarts,
        accused,
        old_words,
        clocks_step,
        sleepers,
        replays,
        farewell,
        site_cut,
        site_relays_die,
    )
}


def play(name: str, seed: int, parts: GossipParts | None = None) -> str:
    """Play that scenario; what was violated, or nothing. Raises BadRequest for a name that there is not."""
    if name not in SCENARIOS:
        raise BadRequest(f"there is no scenario {name!r}", asked=name, found=f"known: {', '.join(SCENARIOS)}")
    return SCENARIOS[name](seed, parts or GossipParts())
