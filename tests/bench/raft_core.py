"""The Raft core alone: three nodes in one process, in memory; ours, and PySyncObj's three nodes in the same run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from actorgrid.actors.raft.codec import decode_message, encode_message
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import ConfState, Message, RaftConfig
from actorgrid.actors.raft.storage.memory import MemoryStorage

from .figures import Figure, Skipped, latency, registry
from .peers import answer_of, python_with

BATCH = 64
BATCHES = 1_000
PEER_BATCHES = 100
VALUE = b"x" * 100
NODES = (1, 2, 3)
KEEP = 10_000
MUST = 20_000.0


class Trio:
    """Three cores that hand each other their messages; *carry* is what a message goes through on its way."""

    def __init__(self, carry: Callable[[Message], Message]) -> None:
        self.carry = carry
        members = ConfState(voters=NODES)
        self.storage = {node: MemoryStorage(members) for node in NODES}
        self.cores = {node: RaftCore(RaftConfig(node=node), self.storage[node], random.Random(node)) for node in NODES}
        self.applied = dict.fromkeys(NODES, 0)
        self.cores[1].campaign()
        self.rest()

    def rest(self) -> None:
        """Carry out Readys until there is none."""
        busy = True
        while busy:
            busy = False
            for node, core in self.cores.items():
                while core.has_ready():
                    busy = True
                    self._process(node, core)

    def _process(self, node: int, core: RaftCore) -> None:
        ready, storage = core.ready(), self.storage[node]
        storage.append(ready.entries)
        if ready.hard_state is not None:
            storage.set_hard_state(ready.hard_state)
        for entry in ready.committed:
            if entry.kind == "conf_change":
                core.apply_conf_change(entry)
        self.applied[node] += len(ready.committed)
        core.advance(ready)
        for message in (*ready.messages, *ready.persisted_messages):
            self.cores[message.to].step(self.carry(message))

    def batch(self) -> None:
        """Propose one batch and see it applied everywhere."""
        core = self.cores[1]
        for _ in range(BATCH):
            core.propose(VALUE)
        self.rest()

    def compact(self) -> None:
        """Keep the log short, as a host does."""
        for node, storage in self.storage.items():
            index = self.cores[node].status().applied
            if index - storage.first_index() > KEEP:
                storage.create_snapshot(index, ConfState(voters=NODES), b"")
                storage.compact(index - KEEP // 2)


def _measure(carry: Callable[[Message], Message]) -> tuple[float, list[float]]:
    """(committed entries per second, seconds of each batch)."""
    trio = Trio(carry)
    samples = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        trio.batch()
        samples.append(time.perf_counter() - began)
        trio.compact()
    if set(trio.applied.values()) != {BATCH * BATCHES + 1}:
        raise Skipped(f"not everything was applied everywhere: {trio.applied}")
    return BATCH * BATCHES / sum(samples), samples


def _by_bytes(message: Message) -> Message:
    return decode_message(encode_message(message))


@registry.add("raft_core")
def raft_core(runs: int) -> Iterator[Figure]:
    """Entries committed and applied on all three nodes, 64 proposed at a time; nothing else in the process."""
    plain = [_measure(lambda message: message) for _ in range(runs)]
    by_bytes = [_measure(_by_bytes) for _ in range(runs)]
    note = "3 nodes, 1 process, in memory, 100-byte values"
    yield Figure(
        "Raft core: committed entries, batches of 64", "entries/s", [rate for rate, _ in plain], True,
        must=MUST, stretch=2 * MUST, note=note,
    )  # fmt: skip
    yield latency("Raft core: a batch of 64 committed", [samples for _, samples in plain], "ms", 1e3, note=note)
    yield Figure(
        "Raft core: the same, messages as bytes", "entries/s", [rate for rate, _ in by_bytes], True,
        must=MUST, note="every message encoded and decoded",
    )  # fmt: skip


@registry.add("raft_peers")
def raft_peers(runs: int) -> Iterator[Figure]:
    """PySyncObj, three nodes in one process too; ours between its runs, so that both meet the same machine."""
    python = python_with("pysyncobj")
    script = Path(__file__).with_name("peer_pysyncobj.py")
    ours, theirs, version, setting = [], [], "", ""
    for _ in range(runs):
        ours.append(_measure(_by_bytes)[0])
        found = answer_of("PySyncObj", [python, script, PEER_BATCHES])
        theirs.append(found["rate"])
        version, setting = found["version"], found["setting"]
    title = f"PySyncObj {version}: committed entries, 64 at a time"
    yield Figure(title, "entries/s", theirs, True, note=f"3 nodes, 1 process, loopback sockets, no journal; {setting}")
    yield Figure("Raft core beside it, messages as bytes", "entries/s", ours, True, must=MUST, note="without sockets")
