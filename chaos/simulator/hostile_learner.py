"""A member that learns, whose key and certificate are in the wrong hands: what it may say beside what it should.

Its host follows the log as any learner does, and runs no work of anybody. Beside that it sends, under its own name,
Raft messages of every kind in any term, proposals of what others alone may decide, with what it reads in the ledger,
and broken bytes. Hosts take them as they do from members (consensus/raft_links.py, consensus/admission.py), and the
checkers of every run say what came of it. Hosts that have just joined, and have no log yet that says who votes, it
tells that it leads, and brings them a state and a log of its own. What any member may do for people at its own door it
does not do here: that is no breach, and docs/trust.md says so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, get_args
from zlib import crc32

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import (
    EndAttempt,
    ExpireLock,
    GrantAttempt,
    LoseHost,
    NewTerm,
    RegisterHost,
    RemoveMember,
    StartAttempt,
    TakeSuccess,
)
from actorgrid.actors.ledger.entry_codec import encode_entry
from actorgrid.actors.ledger.record_types import NO_ALLOCATION
from actorgrid.actors.raft.codec import encode_conf_change, encode_members, encode_message
from actorgrid.actors.raft.messages import ConfChange, ConfState, Entry, Message, MessageKind, SnapshotChunk

from .agent import Agent
from .clock import MS
from .model_gateway import SimulatedModelGateway

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import SimulatedHost

EVERY_US = (5 * MS, 60 * MS)
KINDS: tuple[MessageKind, ...] = get_args(MessageKind)


class IdleAgent(Agent):
    """Of a host that takes no work: it never says that it is there."""

    def review(self) -> None:
        """Nothing."""

    def _renew_when_due(self) -> None:
        """No lease."""


class IdleModelGateway(SimulatedModelGateway):
    """Of such a host: nobody asks there for models, as the ledger has no host of that name."""

    def _ask(self) -> None:
        """Nothing."""


class HostileLearner:
    """*node* of *cluster*, for as long as faults strike."""

    def __init__(self, cluster: Cluster, node: SimulatedHost) -> None:
        self._cluster, self._node = cluster, node
        self._world = cluster.world
        self._rng = cluster.world.rng("hostile learner")
        self._again()

    def _again(self) -> None:
        self._world.clock.after(self._rng.randrange(*EVERY_US), self._act)

    def _act(self) -> None:
        if not self._world.faults_strike:
            return
        self._again()
        node = self._node
        others = [id for id, each in self._cluster.nodes.items() if each is not node and each.up]
        if not node.up or node.paused or not others:
            return
        newcomers = [id for id in others if not self._cluster.nodes[id].ledger.index]
        if newcomers and self._rng.random() < 0.5:
            to = self._rng.choice(newcomers)
            for message in self._false_leadership(to):
                self._world.network.send(node.name, f"n{to}", encode_message(message))
            return
        to, kind = self._rng.choice(others), self._rng.random()
        if kind < 0.5:
            data = self._odd_message(to)
        elif kind < 0.9:
            data = self._proposal(to)
        else:
            data = self._broken(self._odd_message(to))
        self._world.network.send(node.name, f"n{to}", data)

    def _broken(self, data: bytes) -> bytes:
        broken = bytearray(data)
        for _ in range(self._rng.randrange(1, 4)):
            broken[self._rng.randrange(len(broken))] = self._rng.randrange(256)
        return bytes(broken)

    # -- Raft

    def _odd_message(self, to: int) -> bytes:
        rng, node = self._rng, self._node
        last = node.ledger.index
        near = [max(0, last + rng.choice((-40, -2, -1, 0, 1, 2, 40, 10**6))) for _ in range(5)]
        term = max(0, node.term + rng.choice((-1, 0, 0, 0, 1, 2, 40, 2**31)))
        entries = (Entry(near[0], term, "command", encode_entry(NewTerm(term), "", 0)),) if rng.random() < 0.4 else ()
        chunk = None
        kind = rng.choice(KINDS)
        if kind == "snapshot":
            state = ConfState((node.id,), ())
            chunk = SnapshotChunk(near[0] + 1, term, state, 0, 3, rng.randrange(2**32), b"odd")
        sender = rng.choice([id for id in self._cluster.nodes]) if rng.random() < 0.2 else node.id
        return encode_message(
            Message(
                kind,
                to,
                sender,
                term,
                index=near[1],
                log_term=max(0, term + rng.choice((-1, 0, 1))),
                commit=near[2],
                entries=entries,
                hint=near[3],
                last_index=near[4],
                sequence=rng.choice((0, 1, 7, 10**6)),
                context=b"lease %d.1.%d" % (to, rng.randrange(1, 9)) if rng.random() < 0.5 else b"",
                reject=rng.random() < 0.3,
                force=rng.random() < 0.3,
                chunk=chunk,
            )
        )

    def _false_leadership(self, to: int) -> list[Message]:
        """What makes a host follow that believes it: that it leads, in a later term, and what it is to hold then."""
        rng, node = self._rng, self._node
        term = node.term + rng.choice((1, 2, 40, 2**31))
        alone = ConfState((node.id,), ())
        kind = rng.choice(("heartbeat", "append", "snapshot", "vote", "timeout_now"))
        if kind == "append":
            first = Entry(1, term, "conf_change", encode_members(alone))
            second = Entry(2, term, "command", encode_entry(NewTerm(term, at=node.now), "", 0))
            return [Message("append", to, node.id, term, commit=2, entries=(first, second), sequence=1)]
        if kind == "snapshot":
            index = node.ledger.index + 1_000
            state = node.ledger_class()
            state.index = index - 1
            state.pass_over(index, term)
            data = state.snapshot()
            size = self._world.timing.snapshot_chunk_bytes
            return [
                Message(
                    "snapshot",
                    to,
                    node.id,
                    term,
                    sequence=1 + offset,
                    chunk=SnapshotChunk(
                        index, term, alone, offset, len(data), crc32(data), data[offset : offset + size]
                    ),
                )
                for offset in range(0, len(data), size)
            ]
        if kind == "vote":
            return [Message("vote", to, node.id, term, index=10**6, log_term=term, force=True)]
        return [Message("heartbeat" if kind == "heartbeat" else "timeout_now", to, node.id, term, sequence=1)]

    # -- proposals

    def _proposal(self, to: int) -> bytes:
        rng, node = self._rng, self._node
        if rng.random() < 0.2:
            change = rng.choice(
                (ConfChange("add_voter", node.id), ConfChange("remove", rng.choice(list(self._cluster.nodes))))
            )
            entry = Entry(0, 0, "conf_change", encode_conf_change((change,), "auto"))
        else:
            command = rng.choice(COMMANDS)(node, rng)
            # Under its own session, or under that of another host: as if that had asked.
            session = rng.choice((f"{node.host_id}/hostile", f"host{to}/agent1-1", "hostile"))
            entry = Entry(0, 0, "command", encode_entry(command, session, rng.randrange(1, 1_000_000)))
        return encode_message(Message("propose", to, node.id, node.term, entries=(entry,), context=b"0 hostile"))


def _end(node: SimulatedHost, rng: Random) -> Command:
    """The end of an attempt that runs elsewhere, with its own token: what it holds would be another's, too."""
    held = list(node.ledger.allocations.items())
    id, record = rng.choice(held) if held else ("a.1", NO_ALLOCATION)
    token = list(record.get("token", (0, 1)))
    made: Callable[[], Command] = rng.choice(
        (
            lambda: EndAttempt(id, token, rng.choice(("succeeded", "lost", "failed")), at=node.now, charge=False),
            lambda: StartAttempt(id, token, at=node.now),
            lambda: TakeSuccess(id, token, at=node.now),
        )
    )
    return made()


def _grant(node: SimulatedHost, rng: Random) -> Command:
    jobs = [(id, job) for id, job in node.ledger.jobs.items() if job["state"] in ("queued", "placed", "running")]
    hosts = list(node.ledger.hosts.items())
    job_id, number = (jobs[0][0], len(jobs[0][1]["attempts"]) + 1) if jobs else ("j", 1)
    host_id, host = rng.choice(hosts) if hosts else ("host1", {"incarnation": 1})
    return GrantAttempt(job_id, number, host_id, int(host["incarnation"]), [0], node.term, at=node.now)


def _host(node: SimulatedHost, rng: Random) -> Command:
    hosts = list(node.ledger.hosts.items())
    if not hosts:
        return NewTerm(node.term + 1, at=node.now)
    host_id, host = rng.choice(hosts)
    facts = {key: host[key] for key in ("host_id", "incarnation", "cpu_milli", "memory_mib", "devices")}
    made: Callable[[], Command] = rng.choice(
        (
            lambda: RegisterHost({**facts, "state": "down"}, at=node.now),  # type: ignore[typeddict-item]
            lambda: RegisterHost({**facts, "incarnation": host["incarnation"] + 1}, at=node.now),  # type: ignore[typeddict-item]
            lambda: LoseHost(
                host_id, int(host["incarnation"]), node.ledger.index, node.now - 60, [], node.term, at=node.now
            ),
            lambda: RemoveMember(host_id, at=node.now),
        )
    )
    return made()


def _lock(node: SimulatedHost, rng: Random) -> Command:
    locks = list(node.ledger.locks.items())
    if not locks:
        return NewTerm(node.term, at=node.now)
    name, lock = rng.choice(locks)
    holder = lock["holders"][0]
    return ExpireLock(name, holder["owner"], int(holder.get("renewals", 0)), node.term, at=node.now)


COMMANDS: tuple[Callable[[SimulatedHost, Random], Command], ...] = (_end, _end, _grant, _grant, _host, _lock)
