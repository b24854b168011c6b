"""A few cores in one process with a network, disks and state machines that a test drives step by step."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from actorgrid.actors.raft.codec import decode_message, encode_message
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import (
    ConfChange,
    ConfState,
    Dropped,
    DroppedLater,
    Entry,
    HardState,
    Message,
    ProposalAccepted,
    RaftConfig,
    RaftSnapshot,
    ReadState,
    Ready,
    Transition,
)
from actorgrid.actors.raft.status import Status
from actorgrid.actors.raft.storage.memory import MemoryStorage
from tests.raft.laws import Laws

STEPS_MAX = 20_000
STATE = struct.Struct("<QI")
STATE_COPIES = 8  # a snapshot is the state over and over, so that it takes several chunks


@dataclass
class Node:
    """One node: a core, what its disk holds, and a state machine that is a checksum of what it applied."""

    number: int
    core: RaftCore
    storage: MemoryStorage
    index: int = 0
    state: int = 0
    conf_state: ConfState = field(default_factory=ConfState)
    under_way: Ready | None = None
    before: Status | None = None
    read_states: list[ReadState] = field(default_factory=list)
    dropped: list[DroppedLater] = field(default_factory=list)
    open_reads: set[bytes] = field(default_factory=set)  # accepted, and neither answered nor dropped

    def snapshot_data(self) -> bytes:
        return STATE.pack(self.index, self.state) * STATE_COPIES

    def restore(self, snapshot: RaftSnapshot) -> None:
        assert len(snapshot.data) == STATE.size * STATE_COPIES, "a snapshot arrived in another length"
        self.index, self.state = STATE.unpack_from(snapshot.data)
        assert self.index == snapshot.index
        self.conf_state = snapshot.conf_state

    def log(self) -> list[Entry]:
        """What the node holds, durable or not."""
        return list(self.core._log.entries(self.core._log.first_index, self.core._log.last_index + 1, 2**40))


class Cluster:
    """Nodes by number. ``wire`` holds the messages on their way; nothing moves by itself."""

    def __init__(
        self,
        voters: Iterable[int] = (1, 2, 3),
        learners: Iterable[int] = (),
        *,
        seed: int = 0,
        core: type[RaftCore] = RaftCore,
        durable_machine: bool = False,
        through_bytes: bool = False,
        laws: Laws | None = None,
        **settings: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.kind = core
        self.settings: dict[str, Any] = {"snapshot_chunk_bytes": 20, **settings}
        self.durable_machine = durable_machine
        self.through_bytes = through_bytes
        self.laws = laws or Laws()
        self.members = ConfState(voters=tuple(voters), learners=tuple(learners))
        self.nodes: dict[int, Node] = {}
        self.down: dict[int, Node] = {}
        self.wire: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        self.drop: Callable[[Message], bool] = lambda message: False
        for number in (*self.members.voters, *self.members.learners):
            self.add(number, self.members)

    def __getitem__(self, number: int) -> RaftCore:
        return self.nodes[number].core

    # Nodes

    def add(self, number: int, members: ConfState | None = None) -> Node:
        """A node without data; one that joins later knows no members."""
        storage = MemoryStorage(members)
        self.nodes[number] = Node(number, self._core(number, storage, 0), storage, conf_state=members or ConfState())
        return self.nodes[number]

    def _core(self, number: int, storage: MemoryStorage, applied: int) -> RaftCore:
        config = RaftConfig(node=number, applied=applied, **self.settings)
        return self.kind(config, storage, random.Random(self.random.randrange(2**32)))

    def crash(self, number: int) -> None:
        """What is not stored is gone; so is what is on its way from here (it may arrive or not: here it does not)."""
        self.down[number] = self.nodes.pop(number)

    def restart(self, number: int) -> None:
        """Come back with what the disk holds; the state machine from its last snapshot unless it is durable."""
        old = self.down.pop(number, None) or self.nodes.pop(number)
        storage = old.storage
        node = Node(number, old.core, storage, old.index, old.state, old.conf_state)
        if not self.durable_machine:
            snapshot = storage.snapshot()
            node.index, node.state, node.conf_state = 0, 0, snapshot.conf_state
            if snapshot.index:
                node.restore(snapshot)
        storage.set_conf_state(node.conf_state)
        node.core = self._core(number, storage, node.index)
        self.nodes[number] = node

    def lose_tail(self, number: int) -> None:
        """The disk forgets the last entry, although it said that it was durable; the node restarts with that."""
        storage = self.nodes[number].storage
        kept = list(storage.entries(storage.first_index(), storage.last_index(), 2**40))
        hard_state = storage.hard_state
        storage._entries = kept
        storage.set_hard_state(HardState(hard_state.term, hard_state.vote, min(hard_state.commit, kept[-1].index)))
        self.restart(number)
        self.nodes[number].before = None

    def compact(self, number: int, keep: int = 0) -> None:
        """Snapshot what is applied, drop the log up to *keep* entries before that."""
        node = self.nodes[number]
        if node.index > node.storage.snapshot().index:
            node.storage.create_snapshot(node.index, node.conf_state, node.snapshot_data())
        behind = min(node.storage.snapshot().index, node.index) - keep
        if behind >= node.storage.first_index():
            node.storage.compact(behind)

    # Readys

    def begin(self, number: int) -> bool:
        """Take a Ready and send what may leave at once; false when there is none."""
        node = self.nodes[number]
        if not node.core.has_ready():
            return False
        node.under_way = node.core.ready()
        for message in node.under_way.messages:
            self.send(message)
        for answer in node.under_way.read_states:
            if answer.context in self.laws.reads:
                self.laws.answered(answer.context, answer.index)
            node.read_states.append(answer)
            node.open_reads.discard(answer.context)
        for request in node.under_way.dropped:
            node.dropped.append(request)
            node.open_reads.discard(request.context)
        return True

    def store(self, number: int) -> None:
        """Make the Ready under way durable."""
        node = self.nodes[number]
        ready = node.under_way
        assert ready is not None
        if ready.snapshot is not None:
            node.storage.apply_snapshot(ready.snapshot)
        node.storage.append(ready.entries)
        if ready.hard_state is not None:
            node.storage.set_hard_state(ready.hard_state)
        assert ready.must_sync or not (ready.entries or ready.snapshot)

    def tear(self, number: int) -> None:
        """Store some of the entries of the Ready under way, and nothing after them."""
        node = self.nodes[number]
        ready = node.under_way
        assert ready is not None
        if ready.snapshot is None and ready.entries:
            node.storage.append(ready.entries[: self.random.randint(1, len(ready.entries))])

    def finish(self, number: int) -> None:
        """Store the Ready under way, send what had to wait for that, apply, confirm."""
        self.store(number)
        self.apply(number)

    def apply(self, number: int) -> None:
        node = self.nodes[number]
        ready, node.under_way = node.under_way, None
        assert ready is not None
        for message in ready.persisted_messages:
            self.laws.sent(message)
            self.send(message)
        if ready.snapshot is not None:
            node.restore(ready.snapshot)
            self.laws.restored(number, node.index, node.state)
        for entry in ready.committed:
            assert entry.index == node.index + 1, f"node {number} applies {entry.index} after {node.index}"
            assert node.storage.term(entry.index) == entry.term, "an entry is applied before it is durable"
            node.index, node.state = entry.index, zlib.crc32(entry.data, node.state)
            if entry.kind == "conf_change":
                node.conf_state = node.core.apply_conf_change(entry)
            self.laws.applied(number, entry, node.core.status().term, node.state)
        node.core.advance(ready)
        self.look(number)

    def look(self, number: int) -> None:
        """Check the laws for a node."""
        node = self.nodes[number]
        status, log = node.core.status(), node.log()
        self.laws.wrote(log)
        self.laws.looked(status, log, node.before)
        node.before = status
        config = status.config
        alone = status.role == "leader" and config.voters == (number,) and not config.voters_outgoing
        if alone and node.under_way is None and not node.core.has_ready():
            assert not node.open_reads, f"node {number} needs nobody's answer and owes reads theirs: {node.open_reads}"
        if node.under_way is None and not node.core._log.has_unstable and node.core._log.restoring is None:
            stored = node.storage.entries(node.storage.first_index(), node.storage.last_index() + 1, 2**40)
            assert list(stored) == log, f"what node {number} believes to be durable is not what is"

    def process(self, number: int) -> bool:
        """One whole Ready."""
        if self.nodes[number].under_way is None and not self.begin(number):
            return False
        self.finish(number)
        return True

    # Network

    def send(self, message: Message) -> None:
        self.wire.append(message)

    def passes(self, message: Message) -> bool:
        return (message.sender, message.to) not in self.cut and not self.drop(message)

    def deliver(self, message: Message) -> None:
        """Give *message* to its receiver, unless the way is cut or the receiver down."""
        if message.to in self.nodes and self.passes(message):
            self.step(message)

    def step(self, message: Message) -> None:
        """Give *message* to its receiver, whatever the network says."""
        if self.through_bytes:
            message = decode_message(encode_message(message))
        self.nodes[message.to].core.step(message)
        self.look(message.to)

    def isolate(self, number: int) -> None:
        """Cut *number* off, both ways."""
        others = {*self.nodes, *self.down} - {number}
        self.cut |= {(number, other) for other in others} | {(other, number) for other in others}

    def heal(self) -> None:
        self.cut.clear()
        self.drop = lambda message: False

    def stabilize(self, *only: int) -> None:
        """Process and deliver, in order, until nothing is left to do (among *only*, or all)."""
        chosen = only or tuple(self.nodes)
        for _ in range(STEPS_MAX):
            busy = False
            for number in chosen:
                while number in self.nodes and self.process(number):
                    busy = True
            due = [message for message in self.wire if message.to in chosen]
            self.wire = [message for message in self.wire if message.to not in chosen]
            for message in due:
                busy = True
                self.deliver(message)
            if not busy:
                return
        raise AssertionError("the cluster does not come to rest")

    # What tests ask for

    def elect(self, number: int) -> None:
        """Make *number* the leader of everybody it can reach."""
        self.stabilize()  # it applies what it knows to be committed: else it does not campaign
        self[number].campaign()
        self.stabilize()
        assert self[number].status().role == "leader", self[number].status()

    def tick(self, number: int, ticks: int = 1) -> None:
        for _ in range(ticks):
            self[number].tick()

    def tick_all(self, ticks: int = 1) -> None:
        """Everybody's clock goes on, and what comes of it happens."""
        for _ in range(ticks):
            for number in list(self.nodes):
                self.tick(number)
            self.stabilize()

    def propose(self, number: int, data: bytes | str = b"x", context: bytes = b"") -> ProposalAccepted | Dropped:
        return self[number].propose(data.encode() if isinstance(data, str) else data, context)

    def change(
        self, number: int, *changes: tuple[Any, int], transition: Transition = "auto"
    ) -> ProposalAccepted | Dropped:
        return self[number].propose_conf_change([ConfChange(*change) for change in changes], transition)

    def read(self, number: int, context: bytes) -> ProposalAccepted | Dropped:
        self.laws.asked(context)
        taken = self[number].read_index(context)
        if isinstance(taken, ProposalAccepted):
            self.nodes[number].open_reads.add(context)
        return taken

    def leader(self) -> int:
        """The leader of the highest term, or 0."""
        leading = [s for s in (node.core.status() for node in self.nodes.values()) if s.role == "leader"]
        return max(leading, key=lambda status: status.term).node if leading else 0

    def data(self, number: int) -> list[str]:
        """The commands applied on *number* since its snapshot, as text."""
        node = self.nodes[number]
        kept = node.storage.entries(node.storage.first_index(), node.index + 1, 2**40)
        return [entry.data.decode() for entry in kept if entry.kind == "command" and entry.data]
