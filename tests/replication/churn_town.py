"""Replicas whose hosts start again and again, and the real ledger that says which of their openings are gone: each host
has its own copy of that, and hears of news late.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from actorgrid.actors.ledger.commands import AddMember, ChangeMember, FoundCluster, RegisterHost, RemoveMember
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.links.retirements import command_of, openings_of
from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.actors.replication.messages import RetiredOpenings
from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.retirement import NOBODY, join_at, settle
from actorgrid.actors.replication.retirement_due import RetirementWatch
from actorgrid.actors.replication.types import PNCounter
from actorgrid.errors import LedgerRefused
from tests.consensus.rig import AT, host_record
from tests.replication.gossip_net import KEPT, LOST, OPERATIONS, TRUNCATED, Town, Update

RAFT = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401"}


class ChurnTown(Town):
    """A start of a host is one of its agent: its next incarnation."""

    def __init__(
        self, directory: Path, count: int, seed: int, limits: GossipLimits | None = None, at_least: int = 1
    ) -> None:
        self.ledger = Ledger()
        self.at_least = at_least
        self.incarnations: dict[str, int] = {}
        self.views: dict[str, tuple[RetiredOpenings, ...]] = {}
        self.watches: dict[str, RetirementWatch] = {}
        self.retirements = 0
        self.quiet: set[str] = set()
        """Hosts since whose start, and since the last loss of a disk, all that was under way has come or is lost."""
        super().__init__(directory, count, seed, limits)

    def _do(self, command: object) -> None:
        outcome = self.ledger.apply(self.ledger.index + 1, command)
        if outcome.error is not None:
            raise outcome.error

    def _open(self, name: str) -> StateReplica:
        if not self.incarnations:
            self._do(FoundCluster("c1", name, RAFT, name, at=AT))
        elif name not in self.incarnations:
            self._do(AddMember(name, RAFT, name, at=AT))
        self._do(ChangeMember(name, at=AT, ledger_version=5))
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self._do(RegisterHost(host_record(name, incarnation), at=AT))
        dice = random.Random(self.dice.random())
        replica = StateReplica(self.directory / name, name, incarnation, dice, self.limits)
        replica.set_members(self.names)
        self.watches[name] = replica.watch
        self.views[name] = ()
        return replica

    def hear_of_the_ledger(self, name: str) -> None:
        """The host's copy of the ledger comes up to date."""
        self.commit(name)
        self.views[name] = openings_of(self.ledger.retirements)
        self._post(name, self.hosts[name].replica.learn(self.views[name]))

    def deliver(self, commit: bool = True) -> bool:
        came = super().deliver(commit)
        if not self.wire:
            self.quiet = set(self.names)
        return came

    def restart(self, name: str, disk: str = KEPT) -> None:
        others = [other for other in self.names if other != name]
        kept = [
            update.certain and (disk == KEPT or any(self.holds(other, update) for other in others))
            for update in self.updates
        ]
        super().restart(name, disk)
        for update, certain in zip(self.updates, kept, strict=True):
            update.certain = certain  # what another one has on its disk is not lost with this one
        if disk == KEPT:
            self.quiet.discard(name)
        else:
            self.quiet.clear()

    def holds(self, name: str, update: Update) -> bool:
        """Whether the host has it on its disk."""
        gossip = self.hosts[name].replica.gossip
        origin, sequence = update.dot
        return origin in gossip.retired or sequence <= gossip.vector.get(origin, 0)

    def look(self, name: str) -> None:
        """Propose what is due by what the host knows, some minutes after its start."""
        if name not in self.quiet:
            return
        sends, found = self.hosts[name].replica.look_for_retired(self.at_least, quiet_rounds=0)
        self._post(name, sends)
        for due in found:
            try:
                self._do(replace(command_of(due, name), at=AT))
                self.retirements += 1
            except LedgerRefused:
                pass  # another was first

    def remove(self, name: str) -> None:
        """A host leaves for good."""
        self.hosts.pop(name).replica.close()
        self.names.remove(name)
        self._do(RemoveMember(name, "ann", at=AT, force=True))
        self.wire = type(self.wire)(sent for sent in self.wire if name not in sent[:2])
        self.quiet.clear()
        for host in self.hosts.values():
            host.replica.set_members(self.names)
        for update in self.updates:
            update.certain = update.certain and any(self.holds(other, update) for other in self.names)

    def settle(self, rounds: int = 60) -> int:
        self.loss, self.doubles, self.reorders, self.sides = 0.0, 0.0, False, {}
        for count in range(rounds):
            for name in self.names:
                self.hear_of_the_ledger(name)
            if self.converged():
                return count
            for name in self.names:
                self.round(name)
            while self.deliver():
                pass
        assert self.converged(), {
            name: (host.replica.gossip.retired.level, host.replica.gossip.known.level, host.replica.gossip.vector)
            for name, host in self.hosts.items()
        }
        return rounds

    def retire_all(self) -> None:
        """Let what is due be retired everywhere."""
        for _ in range(4):
            for _ in range(2):  # who is in the way is asked, and then is not
                for name in self.names:
                    self.round(name)
                while self.deliver():
                    pass
                for name in self.names:
                    self.look(name)
                while self.deliver():
                    pass
            self.settle()

    def converged(self) -> bool:
        levels = {host.replica.gossip.retired.level for host in self.hosts.values()}
        return len(levels) == 1 and super().converged()

    def check_acknowledgements(self) -> None:
        for host in self.hosts.values():
            for name, peer in host.replica.gossip.peers.items():
                other = self.hosts[name]
                if other.losses:
                    continue
                for origin, count in peer.known.items():
                    gossip = other.replica.gossip
                    assert origin in gossip.known or count <= gossip.vector.get(origin, 0), (host.name, name, origin)

    def check_vectors(self) -> None:
        for host in self.hosts.values():
            gossip, states = host.replica.gossip, host.replica.states
            for update in self.updates:
                origin, sequence = update.dot
                if sequence <= gossip.vector.get(origin, 0):
                    state = states[update.key][update.kind]
                    joined = state.copy()
                    if isinstance(joined, PNCounter):
                        join_at(joined, update.delta.copy(), NOBODY, NOBODY)  # it may be in a fold
                    else:
                        joined.join(update.delta)
                    settle(joined, update.delta, gossip.retired)
                    assert joined == state, (host.name, update)

    def names_left(self) -> int:
        """Origins that anything on any host still names, counted once."""
        found = set()
        for host in self.hosts.values():
            found |= host.replica.gossip.vector.keys()
            for kinds in host.replica.states.values():
                for state in kinds.values():
                    for part in ("_context", "_entries"):
                        held = getattr(state, part, None)
                        if part == "_context" and held is not None:
                            found |= held.replicas()
                        elif held is not None and part == "_entries" and not hasattr(state, "_context"):
                            found |= held.keys()
        return len(found)


def play_churn(town: ChurnTown, steps: int) -> None:
    """As ``play``, with many more starts, and hosts that look for what is gone and hear of it at different times."""
    dice = town.dice
    town.loss, town.doubles, town.reorders = dice.choice([0.0, 0.0, 0.2]), 0.1, dice.random() < 0.5
    disks = dice.choice([[KEPT], [KEPT, KEPT, LOST], [KEPT, KEPT, LOST, TRUNCATED]])
    for _ in range(steps):
        name = dice.choice(town.names)
        chance = dice.random()
        if chance < 0.3:
            town.mutate(name, *dice.choice(OPERATIONS), dice.randrange(1, 6))
        elif chance < 0.4:
            town.commit(name)
            town.push(name, everybody=dice.random() < 0.3)
        elif chance < 0.62:
            town.deliver(commit=dice.random() < 0.7)
        elif chance < 0.74:
            town.round(name)
        elif chance < 0.84:
            town.look(name)
        elif chance < 0.93:
            town.hear_of_the_ledger(name)
        elif chance < 0.95:
            town.sides = {host: dice.randrange(2) for host in town.names} if dice.random() < 0.5 else {}
        elif chance < 0.96:
            before, town.loss, town.sides = town.loss, 0.0, {}
            for each in town.names:
                town.round(each)
            while town.deliver():
                pass
            town.loss = before
        else:
            town.restart(name, dice.choice(disks))
            town.check_vectors()
        town.check_acknowledgements()
    town.check_vectors()
    town.settle()
    town.check_vectors()
    town.check_end()
    town.retire_all()
    town.check_end()
    for name in list(town.names):
        town.restart(name)  # what is read back from the disk is the same
    assert len(town.digests()) == 1, "a disk says other than its memory did"
    town.settle()
    town.check_end()
