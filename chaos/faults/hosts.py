"""Faults of hosts: crashes, also of all at once, pauses, clocks that run wrong."""

from __future__ import annotations

from random import Random

from actorgrid.chaos.simulator.clock import MS, SECOND
from actorgrid.chaos.simulator.cluster import Cluster
from actorgrid.chaos.simulator.node import SimulatedHost

from .fault import Fault, pick, set_trap
from .network import cut_for


def restart_later(cluster: Cluster, node: SimulatedHost, delay_us: int) -> None:
    """Have a host that is down start again."""

    def start() -> None:
        if not node.up:
            node.boot()

    cluster.world.clock.after(delay_us, start)


def cut_off(cluster: Cluster, node: SimulatedHost, lasts_us: int, friend: int = 0) -> None:
    """Let nothing pass between *node* and the other hosts, *friend* excepted, for a while."""
    others = [f"n{id}" for id in cluster.nodes if id not in (node.id, friend)]
    cut_for(cluster, [pair for other in others for pair in ((node.name, other), (other, node.name))], lasts_us)


class Crash(Fault):
    """A host loses power and starts again; one time in eight, all of them do."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Crash the host now, and start it later."""
        everyone = rng.random() < 0.125
        one = pick(cluster, rng)
        targets = cluster.up if everyone else [one] if one is not None else []
        for node in targets:
            node.crash("power off")
            restart_later(cluster, node, self.duration_us(rng))
        return f"{' '.join(node.name for node in targets)}"


class Pause(Fault):
    """A host stands still, then goes on and finds its mail."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Pause the host now, and resume it later."""
        node = pick(cluster, rng)
        if node is None or node.paused:
            return ""
        node.pause()
        life = node.boots

        def resume() -> None:
            if node.up and node.boots == life:
                node.resume()

        cluster.world.clock.after(self.duration_us(rng), resume)
        return node.name


class ClockSkew(Fault):
    """A host's timers run up to twice as fast or half as fast, and its wall clock jumps by up to a minute."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Make the clock wrong now, and right later."""
        node = pick(cluster, rng)
        rate, skew_us = rng.choice((0.5, 0.7, 1.5, 2.0)), rng.randrange(-60, 61) * SECOND
        if node is None:
            return ""
        node.rate, node.skew_us = rate, skew_us

        def mend() -> None:
            node.rate, node.skew_us = 1.0, 0

        cluster.world.clock.after(self.duration_us(rng), mend)
        return f"{node.name}: ticks of {rate:g} times their length, wall clock {skew_us / SECOND:+g} s"


class LeadersFall(Fault):
    """Whoever leads now or begins to in the next while is cut off or loses power, at most *within_ms* later."""

    def __init__(
        self,
        every_ms: int = 2_000,
        lasts_ms: tuple[int, int] = (200, 3_000),
        within_ms: int = 60,
        down_ms: tuple[int, int] = (200, 2_500),
    ) -> None:
        super().__init__(every_ms, lasts_ms)
        self.within_ms = within_ms
        self.down_ms = down_ms

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Set the trap."""

        def spring(node: SimulatedHost) -> None:
            after_us = rng.randrange(self.within_ms * MS)
            how = rng.choice(("crash", "crash", "alone", "one friend"))
            down_us = rng.randrange(*self.down_ms) * MS
            friend = rng.choice(sorted(cluster.nodes))

            def fall() -> None:
                if not node.up:
                    return
                cluster.world.trace.add("fault", f"LeadersFall: {node.name} {how}")
                if how == "crash":
                    node.crash("power off")
                    restart_later(cluster, node, down_us)
                    return
                cut_off(cluster, node, down_us, friend if how == "one friend" else 0)

            cluster.world.clock.after(after_us, fall)

        if cluster.leader is not None:
            spring(cluster.leader)
        set_trap(cluster, cluster.leader_hooks, spring, self.duration_us(rng))
        return "armed"


class CutOffAtCommit(Fault):
    """The next leader to find something committed is cut off from all other hosts that moment, but not from clients.

    Clients hear of the commit, its followers do not.
    """

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Set the trap; it springs once."""
        lasts_us = self.duration_us(rng)

        def spring(node: SimulatedHost) -> None:
            cluster.commit_hooks.remove(spring)
            cluster.world.trace.add("fault", f"CutOffAtCommit: {node.name}")
            cut_off(cluster, node, lasts_us)

        cluster.commit_hooks.append(spring)
        return "armed"


class OldLeader(Fault):
    """The leader's timers nearly stop and no other host hears it, but clients do: it leads on for itself."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Cut the leader off now, and bring it back later."""
        leader, lasts_us = cluster.leader, self.duration_us(rng)
        if leader is None:
            return ""
        leader.rate = 8.0
        cut_off(cluster, leader, lasts_us)

        def mend() -> None:
            leader.rate = 1.0

        cluster.world.clock.after(lasts_us, mend)
        return leader.name


class VotersBlink(Fault):
    """Whoever votes in the next while loses power a moment later, and is back before the election is over."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Set the trap; it springs for one vote in two."""

        def spring(node: SimulatedHost) -> None:
            blinks, after_us, down_us = rng.random() < 0.5, rng.randrange(4 * MS), rng.randrange(1, 30) * MS
            if not blinks:
                return

            def fall() -> None:
                if node.up:
                    node.crash("power off after its vote")
                    restart_later(cluster, node, down_us)

            cluster.world.clock.after(after_us, fall)

        set_trap(cluster, cluster.vote_hooks, spring, self.duration_us(rng))
        return "armed"
