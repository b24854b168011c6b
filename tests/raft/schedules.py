"""Random schedules: everything a network, disks and people can do to a cluster, from one seed; then a calm end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.raft.cluster import Cluster

NODES = (1, 2, 3, 4, 5)
WIRE_MAX = 200
CALM_ROUNDS = 120


class Schedule:
    """One seed's run of a cluster that begins with the voters 1 to 3, sometimes fewer; up to 5 may join."""

    def __init__(self, seed: int, **cluster: Any) -> None:
        self.random = random.Random(seed)
        founders = self.random.choice(((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2), (1,)))
        self.cluster = Cluster(
            founders,
            seed=seed,
            durable_machine=self.random.random() < 0.5,
            through_bytes=True,
            message_entries_max=self.random.choice((1, 3, 1024)),
            inflight_messages_max=self.random.choice((1, 2, 256)),
            election_ticks=self.random.choice((2, 4, 10)),
            apply_bytes_max=self.random.choice((1, 2**20)),
            **cluster,
        )
        for number in NODES[len(founders) :]:
            self.cluster.add(number)
        self.count = 0
        self.reads_in_calm = self.random.random() < 0.5  # a later read may set free one that was forgotten
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        choices: list[tuple[Callable[[], None], float]] = [
            (self.deliver, 40),
            (self.begin, 22),
            (self.finish, 22),
            (self.tick, self.random.choice((3, 8, 20))),
            (self.propose, 5),
            (self.crash, self.random.choice((0, 0.3))),
            (self.restart, 0.6),
            (self.partition, self.random.choice((0, 0.4))),
            (self.change, self.random.choice((0, 1))),
            (self.compact, self.random.choice((0, 0.5))),
            (self.read, self.random.choice((3, 15))),
            (self.transfer, 0.4),
            (self.campaign, 0.4),
            (self.unreachable, 0.3),
            (self.rest, self.random.choice((0, 1))),
        ]
        self.actions = [action for action, _ in choices]
        self.weights = [weight for _, weight in choices]

    def run(self, steps: int) -> None:
        """*steps* random actions, then calm, in which the cluster must come to agree."""
        if self.random.random() < 0.7:
            self.cluster.elect(1)
        for _ in range(steps):
            self.random.choices(self.actions, self.weights)[0]()
        self.calm()

    def someone(self) -> int:
        return self.random.choice(list(self.cluster.nodes))

    def deliver(self) -> None:
        wire = self.cluster.wire
        if len(wire) > WIRE_MAX:
            del wire[: WIRE_MAX // 2]
        if not wire:
            return
        # Mostly in order, sometimes not; sometimes twice; sometimes never.
        at = self.random.randrange(len(wire)) if self.random.random() < 0.3 else 0
        message = wire[at] if self.random.random() < 0.1 else wire.pop(at)
        if self.random.random() >= self.loss:
            self.cluster.deliver(message)

    def rest(self) -> None:
        """Some of the nodes come to agree among themselves, while some time passes."""
        some = self.random.sample(sorted(self.cluster.nodes), self.random.randint(1, len(self.cluster.nodes)))
        for number in some:
            self.cluster.tick(number, self.random.choice((0, 1, 5)))
        self.cluster.stabilize(*some)

    def begin(self) -> None:
        number = self.someone()
        if self.cluster.nodes[number].under_way is None:
            self.cluster.begin(number)

    def finish(self) -> None:
        waiting = [number for number, node in self.cluster.nodes.items() if node.under_way is not None]
        if waiting:
            self.cluster.finish(self.random.choice(waiting))

    def tick(self) -> None:
        self.cluster.tick(self.someone())

    def propose(self) -> None:
        self.count += 1
        self.cluster.propose(self.someone(), f"{self.count}")

    def crash(self) -> None:
        if len(self.cluster.nodes) > 2:
            number = self.someone()
            if self.cluster.nodes[number].under_way is not None:
                # Nothing got as far as the disk, or all of it and no one was told, or the write is torn.
                self.random.choice((lambda _: None, self.cluster.store, self.cluster.tear))(number)
            self.cluster.crash(number)

    def restart(self) -> None:
        if self.cluster.down:
            self.cluster.restart(self.random.choice(list(self.cluster.down)))

    def partition(self) -> None:
        if self.cluster.cut:
            self.cluster.heal()
        elif self.random.random() < 0.6:
            self.cluster.isolate(self.random.choice(NODES))
        else:
            self.cluster.cut = {
                (a, b) for a in NODES for b in NODES if a != b and self.random.random() < self.random.choice((0.2, 0.5))
            }

    def change(self) -> None:
        nodes = self.random.sample(NODES, self.random.choice((0, 1, 1, 1, 2, 3)))
        changes = [(self.random.choice(("add_voter", "add_learner", "remove")), node) for node in nodes]
        transition = self.random.choice(("auto", "auto", "implicit", "explicit"))
        self.cluster.change(self.cluster.leader() or self.someone(), *changes, transition=transition)

    def compact(self) -> None:
        self.cluster.compact(self.someone(), keep=self.random.choice((0, 0, 3)))

    def read(self) -> None:
        self.count += 1
        where = self.someone() if self.random.random() < 0.5 else self.cluster.leader() or self.someone()
        self.cluster.read(where, f"read {self.count}".encode())

    def transfer(self) -> None:
        self.cluster[self.someone()].transfer_leader(self.random.choice(NODES))

    def campaign(self) -> None:
        self.cluster[self.someone()].campaign(pre_vote=self.random.random() < 0.7)

    def unreachable(self) -> None:
        self.cluster[self.someone()].report_unreachable(self.random.choice(NODES))

    def calm(self) -> None:
        """Nothing fails any more: there is a leader, it commits, and every member catches up."""
        cluster = self.cluster
        cluster.heal()
        for number in list(cluster.down):
            cluster.restart(number)
        for number, node in cluster.nodes.items():
            if node.under_way is not None:
                cluster.finish(number)
        cluster.stabilize()
        for _ in range(CALM_ROUNDS):
            cluster.tick_all()
            if self.recovered():
                self.every_read_has_ended()
                return
        raise AssertionError(f"no recovery: {[node.core.status() for node in cluster.nodes.values()]}")

    def every_read_has_ended(self) -> None:
        """Whoever asked, wherever, knows by now what became of it."""
        self.cluster.tick_all(2 * self.cluster.nodes[1].core._config.election_ticks)
        still = {number: node.open_reads for number, node in self.cluster.nodes.items() if node.open_reads}
        assert not still, f"reads that were accepted and never end: {still}"

    def recovered(self) -> bool:
        cluster = self.cluster
        leader = cluster.leader()
        if not leader:
            return False
        before = cluster[leader].status()
        if before.config.auto_leave:
            return False
        cluster.propose(leader, "calm")
        if self.reads_in_calm:
            cluster.read(leader, f"calm {before.commit}".encode())
        cluster.stabilize()
        after = cluster[leader].status()
        if after.role != "leader" or after.commit <= before.commit:
            return False
        members = {*after.config.voters, *after.config.voters_outgoing, *after.config.learners}
        assert not any(peer.damaged for peer in after.progress.values()), "nobody lost anything that was durable"
        if self.reads_in_calm:
            answers = {answer.context for answer in cluster.nodes[leader].read_states}
            assert f"calm {before.commit}".encode() in answers
        return all(cluster[number].status().applied == after.commit for number in members)
