"""A cluster of many hosts in one process: real cores, ledgers, scheduler and codec; what its leader spends is counted.

Five hosts vote and hold the ledger; the others learn. A learner here holds a core and its log, and looks only for what
is granted to it: a thousand ledgers would not fit one machine, and each costs its host what it costs a voter. Messages
travel as bytes, and arrive at once. Time is virtual: a tick is 50 ms.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from actorgrid.actors.consensus.affected_hosts import affected_hosts
from actorgrid.actors.consensus.apply import apply_entry
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.ledger.commands import EndAttempt, RegisterHost, StartAttempt, SubmitJobs
from actorgrid.actors.ledger.entry_codec import encode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.codec import MessageEncoder, decode_message
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import ConfState, Entry, HardState, Message, RaftConfig, RaftSnapshot, Ready
from actorgrid.actors.raft.storage.memory import MemoryStorage

VOTERS = 5
GPUS = 10
TICK_S = 0.05
TICKS_A_S = round(1 / TICK_S)
LOG_KEPT = 100
COMPACT_EVERY = 400
GRANTS_AT_ONCE = 64
RUNS_TICKS = TICKS_A_S
FILLED = 0.8
POLICY = "completion"
SHARES = (1000, 1000, 500, 250)
TERM = 2
"""The one in which node 1 leads."""


def host_name(node: int) -> str:
    """Its name in the ledger; none is part of another."""
    return f"host-{node:05d}"


class Host:
    """A host that learns, or votes and holds the *ledger*."""

    def __init__(self, node: int, founding: RaftSnapshot, ledger: Ledger | None) -> None:
        self.node = node
        self.name = host_name(node).encode()
        self.ledger = ledger
        self.storage = MemoryStorage()
        self.storage.apply_snapshot(RaftSnapshot(founding.index, founding.term, founding.conf_state, b""))
        self.storage.set_hard_state(HardState(founding.term, 0, founding.index))
        self.core = RaftCore(RaftConfig(node, founding.index), self.storage, random.Random(node))
        self.granted: list[int] = []
        """The indexes of entries that name this host, as they are applied."""

    def carry_out(self, ready: Ready) -> list[Outcome]:
        """Store and apply."""
        self.storage.append(ready.entries)
        if ready.hard_state is not None:
            self.storage.set_hard_state(ready.hard_state)
        outcomes = [outcome for entry in ready.committed if (outcome := self._apply(entry)) is not None]
        self.core.advance(ready)
        return outcomes

    def _apply(self, entry: Entry) -> Outcome | None:
        if self.name in entry.data:
            self.granted.append(entry.index)
        return None if self.ledger is None else apply_entry(self.ledger, entry).outcome

    def compact(self) -> None:
        """Keep the log short."""
        applied = self.core.status().applied
        if applied - self.storage.first_index() > COMPACT_EVERY:
            self.storage.create_snapshot(applied, self.storage.initial_state()[1], b"")
            self.storage.compact(applied - LOG_KEPT)


class Town:
    """*hosts* hosts of ten GPUs each, most of them given out; node 1 leads."""

    def __init__(self, hosts: int) -> None:
        nodes = range(1, hosts + 1)
        self._dice = random.Random(hosts)
        self.ticks = 0
        self.spent_ns: Counter[str] = Counter()
        """CPU time of the leader by part; what a part calls of another counts there."""
        self.sent: Counter[str] = Counter()
        """Messages of the leader by kind, and ``bytes``."""
        self.received = 0
        self.decisions = 0
        self.heard_late_ticks: list[int] = []
        """For each grant, how many ticks after its commit its host had it."""
        self._parts: list[str] = []
        self._jobs: dict[str, Any] = {}
        self._allocations: dict[str, Any] = {}
        self._job_count = 0
        self._ends: dict[int, list[tuple[int, str, list[int]]]] = {}
        self._wire: deque[tuple[int, bytes]] = deque()
        self._encoder = MessageEncoder()
        self._granted_at: dict[int, tuple[int, int, str, list[int]]] = {}
        ledger, self._scheduler = Ledger(), CoordinatorCore(host_name(1), 1, POLICY, 100_000, time.perf_counter_ns)
        members = ConfState(tuple(nodes[:VOTERS]), tuple(nodes[VOTERS:]))
        founding = self._founded(ledger, members)
        self.hosts = {
            node: Host(
                node, founding, (ledger if node == 1 else Ledger.restore(founding.data)) if node <= VOTERS else None
            )
            for node in nodes
        }
        self.leader = self.hosts[1]
        self.leader.core.campaign()
        self.rest()
        self.run(2 * TICKS_A_S)
        self.forget()

    def forget(self) -> None:
        """Count from here on."""
        self.committed_at_start = self.leader.core.status().commit
        self.spent_ns.clear()
        self.sent.clear()
        self.received = self.decisions = 0
        self.heard_late_ticks.clear()

    # -- before the cluster begins

    def _founded(self, ledger: Ledger, members: ConfState) -> RaftSnapshot:
        ledger.pass_over(1, 1)
        for node in (*members.voters, *members.learners):
            self._apply_alone(ledger, RegisterHost(_record(node), at=0.0))
        self._scheduler.load(self._jobs, self._allocations, ledger.hosts, 0.0)
        for _ in range(int(FILLED * GPUS * len(ledger.hosts)) // 8):
            self._apply_alone(ledger, SubmitJobs([self._job(8000, 8)], at=0.0))
        while grants := self._scheduler.schedule(0.0, GRANTS_AT_ONCE):
            for grant in grants:
                self._apply_alone(ledger, {"v": 1, "at": 0.0, **grant.command(1)})
        return RaftSnapshot(ledger.index, 1, members, ledger.snapshot())

    def _apply_alone(self, ledger: Ledger, command: dict[str, Any]) -> None:
        outcome = ledger.apply(ledger.index + 1, command, "", 0)
        assert outcome.error is None, outcome.error
        self._ledger(outcome)

    def _job(self, gpu_milli: int, count: int) -> dict[str, Any]:
        self._job_count += 1
        each = gpu_milli // count
        resources = {"gpus": gpu_milli / 1000, "gpu_count": count, "gpu_milli": each, "cpu_milli": 500}
        return {"job_id": f"job-{self._job_count}", "resources": resources, "retries_left": 1}

    # -- time

    @property
    def now_s(self) -> float:
        """Virtual."""
        return self.ticks * TICK_S

    def run(self, ticks: int, *, reads: bool = False, jobs_a_tick: int = 0) -> None:
        """*reads*: each host reads once a second, as for its lease. Jobs come on any host, run a second, and end."""
        for _ in range(ticks):
            self.ticks += 1
            for host in self.hosts.values():
                if host is not self.leader:
                    host.core.tick()
            with self._spends("raft"):
                self.leader.core.tick()
            self.rest()
            if reads:
                for node in range(1 + self.ticks % TICKS_A_S, len(self.hosts) + 1, TICKS_A_S):
                    self._as_host(node, lambda host: host.core.read_index(b"%d" % self.ticks))
            for node, attempt, token in self._ends.pop(self.ticks, ()):
                self._propose(node, EndAttempt(attempt, token, "succeeded", at=self.now_s))
            for _ in range(jobs_a_tick):
                job = self._job(SHARES[self._job_count % len(SHARES)], 1)
                self._propose(self._dice.randrange(1, len(self.hosts) + 1), SubmitJobs([job], at=self.now_s))
            self.rest()
            if self.ticks % TICKS_A_S == 0:
                for host in self.hosts.values():
                    host.compact()

    def rest(self) -> None:
        """Carry out and deliver all there is now."""
        while True:
            for host in self.hosts.values():
                self._pump(host)
            if not self._wire:
                return
            while self._wire:
                to, body = self._wire.popleft()
                self._deliver(self.hosts[to], body)

    def _deliver(self, host: Host, body: bytes) -> None:
        if host is self.leader:
            self.received += 1
            with self._spends("raft"):
                host.core.step(decode_message(body))
                self._pump(host)
        else:
            host.core.step(decode_message(body))
            self._pump(host)

    def _as_host(self, node: int, act: Any) -> None:
        host = self.hosts[node]
        if host is self.leader:
            with self._spends("raft"):
                act(host)
        else:
            act(host)
        self._pump(host)

    def _propose(self, node: int, command: dict[str, Any]) -> None:
        self._as_host(node, lambda host: host.core.propose(encode_entry(command, "", 0)))

    # -- carrying out

    def _pump(self, host: Host) -> None:
        while host.core.has_ready():
            if host is self.leader:
                with self._spends("raft"):
                    self._lead(host.core.ready())
                continue
            ready = host.core.ready()
            self._send(MessageEncoder(), ready.messages)
            self._send(MessageEncoder(), ready.persisted_messages)
            host.carry_out(ready)
            self._act(host)

    def _send(self, encoder: MessageEncoder, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self._wire.append((message.to, encoder.encode(message)))

    def _lead(self, ready: Ready) -> None:
        before = len(self._wire)
        self._send(self._encoder, ready.messages)
        self._send(self._encoder, ready.persisted_messages)
        for message in (*ready.messages, *ready.persisted_messages):
            self.sent[message.kind] += 1
        self.sent["bytes"] += sum(len(self._wire[at][1]) for at in range(before, len(self._wire)))
        with self._spends("apply"):
            outcomes = self.leader.carry_out(ready)
        for outcome in outcomes:
            assert outcome.error is None, outcome.error
            for name in affected_hosts(outcome.changes):
                self.leader.core.hurry(int(name[5:]), outcome.index)
            self._ledger(outcome)
            with self._spends("schedule"):
                self._scheduler.changed(outcome.changes, self.now_s)
        if outcomes:
            with self._spends("schedule"):
                grants = self._scheduler.schedule(self.now_s, GRANTS_AT_ONCE)
            self.decisions += len(grants)
            for grant in grants:
                command = replace(grant.command(TERM), at=self.now_s)
                self.leader.core.propose(encode_entry(command, "", 0))
        self._act(self.leader)

    def _ledger(self, outcome: Outcome) -> None:
        for kind, id, record in outcome.changes:
            kept = {"job": self._jobs, "allocation": self._allocations}.get(kind)
            if kept is None:
                continue
            final = record is None or (kind == "job" and record["ended_at"] is not None)
            if final:
                kept.pop(id, None)
            else:
                kept[id] = record
            if kind == "allocation" and record is not None and self.ticks:
                self._granted_at[outcome.index] = (self.ticks, int(record["host"][5:]), id, list(record["token"]))

    def _act(self, host: Host) -> None:
        """What a host does with what it learned was granted to it."""
        granted, host.granted = host.granted, []
        for index in granted:
            at, node, attempt, token = self._granted_at.get(index, (0, 0, "", []))
            if node == host.node:
                del self._granted_at[index]
                self.heard_late_ticks.append(self.ticks - at)
                host.core.propose(encode_entry(StartAttempt(attempt, token, at=self.now_s), "", 0))
                self._ends.setdefault(self.ticks + RUNS_TICKS, []).append((node, attempt, token))

    # -- counting

    @contextmanager
    def _spends(self, part: str) -> Iterator[None]:
        now = time.thread_time_ns()
        if self._parts:
            self.spent_ns[self._parts[-1]] += now - self._began
        self._parts.append(part)
        self._began = now
        try:
            yield
        finally:
            now = time.thread_time_ns()
            self.spent_ns[self._parts.pop()] += now - self._began
            self._began = now


def _record(node: int) -> dict[str, Any]:
    name = host_name(node)
    devices = [
        {"uuid": f"GPU-{name}-{index}", "index": index, "model": "H100", "memory_mib": 81_920} for index in range(GPUS)
    ]
    return {"host_id": name, "incarnation": 1, "cpu_milli": 96_000, "memory_mib": 1_000_000, "devices": devices}
