"""One simulated host: the real RaftCore and ledger, carried out as ``Ready`` says, on a disk that may fail.

A host crashes, starts again with what its disk kept, stops for a while (and then finds its mail), and its clock may
run fast or slow. A mutant is a subclass: the classes it is made of are attributes, what it does with a Ready methods.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from actorgrid.actors.consensus.admission import Admission
from actorgrid.actors.consensus.apply import apply_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.codec import decode_message, encode_message
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import Entry, Message, RaftConfig, RaftSnapshot, Ready, SoftState
from actorgrid.actors.raft.storage.memory import MemoryStorage
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.chaos.checkers.checker import Voters
from actorgrid.errors import LogCorrupted, LogFailed, MalformedMessage, StorageError

from .agent import Agent
from .clock import MS, SECOND
from .disk import Compaction, Disk, Image, Record
from .gateway import SimulatedGateway
from .leader import LeaderDuties
from .lock_service import LockCall, LockService
from .model_gateway import SimulatedModelGateway
from .requests import ClientRequest
from .world import World

MAIL_MAX = 10_000
CUT_NOTICED_US = 5_000
CONFIGURATIONS_KEPT = 3


class SimulatedHost:
    """A host. ``core``, ``ledger``, ``gateway``, ``lock_service``, ``agent`` and ``model_gateway`` are there while it
    is up."""

    core_class: ClassVar[type[RaftCore]] = RaftCore
    ledger_class: ClassVar[type[Ledger]] = Ledger
    disk_class: ClassVar[type[Disk]] = Disk
    gateway_class: ClassVar[type[SimulatedGateway]] = SimulatedGateway
    agent_class: ClassVar[type[Agent]] = Agent
    leader_duties_class: ClassVar[type[LeaderDuties]] = LeaderDuties
    lock_service_class: ClassVar[type[LockService]] = LockService
    model_gateway_class: ClassVar[type[SimulatedModelGateway]] = SimulatedModelGateway

    core: RaftCore
    ledger: Ledger
    gateway: SimulatedGateway
    agent: Agent
    lock_service: LockService
    admission: Admission
    model_gateway: SimulatedModelGateway

    def __init__(
        self, world: World, id: int, hosts: Callable[[], Sequence[int]], founding: RaftSnapshot | None
    ) -> None:
        self.world = world
        self.id = id
        self.name = f"n{id}"
        self.host_id = f"host{id}"
        self.hosts = hosts
        self.rng = world.rng(self.name)
        self.disk = self.disk_class(world.rng(f"{self.name}/disk"))
        self.up = False
        self.paused = False
        self.boots = 0
        self.leader_duties: LeaderDuties | None = None
        self.rate = 1.0
        self.skew_us = 0
        drift = world.timing.drift
        self.pace = 1.0 + (world.rng(f"{self.name}/pace").uniform(-drift, drift) if drift else 0.0)
        self.why_down = ""
        self.role = "follower"
        self.leader = 0
        self.term = 0
        self._storing: Ready | None = None
        self._pumping = False
        self._ticks = 0
        self._leaderships: list[LeaderDuties] = []
        # An entry that is given out now may have been counted under a configuration that has changed since.
        self._voters: deque[Voters] = deque(maxlen=CONFIGURATIONS_KEPT)
        self._mail: deque[Callable[[], None]] = deque()
        self.refused: Counter[str] = Counter()
        """Messages that were not taken, by reason."""
        self.told: frozenset[int] = frozenset()
        """Who votes, as it was told when it joined; it is on its disk, and survives a crash."""
        self.told_index = 0
        """The entry as of which it was told so."""
        if founding is not None:
            self.disk.write([founding])
            self.disk.sync()
        world.network.attach(self.name, self._deliver)

    # -- what checkers see

    @property
    def durable(self) -> Image:
        """The durable content of the disk."""
        return self.disk.durable

    @property
    def trusted(self) -> bool:
        """Whether no bit flipped on the disk."""
        return not self.disk.broken

    def holds(self, index: int, term: int) -> bool:
        """Whether that entry was written, be it synced or not."""
        return self.disk.wrote(index, term)

    def runs(self, attempt_id: str) -> bool:
        """Whether a process of that attempt runs here and can answer."""
        return self.up and not self.paused and self.agent.runs(attempt_id)

    @property
    def refused_in_all(self) -> int:
        """Messages and proposals that were not taken, in this life."""
        return self.refused.total() + (self.admission.refused.total() if self.boots else 0)

    @property
    def leads(self) -> bool:
        """Whether the host believes that it leads."""
        return self.up and self.role == "leader"

    @property
    def now(self) -> float:
        """The host's wall clock, in seconds."""
        return self.world.wall(self.skew_us)

    @property
    def monotonic(self) -> float:
        """The host's monotonic clock, in seconds: as many ticks as it has counted since its boot."""
        return self._ticks * self.world.timing.tick_us / SECOND

    @property
    def boottime(self) -> float:
        """The host's CLOCK_BOOTTIME, in seconds: it goes on while the host stands still, at a pace of its own."""
        return self.world.now_us * self.pace / SECOND

    def until_us(self, boottime: float) -> int:
        """Microseconds of virtual time until the host's CLOCK_BOOTTIME has passed *at*."""
        return max(0, int((boottime - self.boottime) * SECOND / self.pace)) + MS

    # -- life and death

    def boot(self) -> bool:
        """Start with what the disk has; ``False``, with ``why_down``, when it refuses."""
        assert not self.up, f"{self.name} is up"
        try:
            image = self.disk.recover()
        except StorageError as error:
            self.why_down = error.code
            self.world.trace.add(self.name, f"stays down: {error.message}")
            return False
        self.boots += 1
        self.up, self.paused, self.why_down, self._ticks = True, False, "", 0
        self.role, self._storing = "follower", None
        self._storage = MemoryStorage()
        if image.snapshot is not None:
            self._storage.apply_snapshot(image.snapshot)
        self._storage.append(image.entries)
        if image.hard_state is not None:
            self._storage.set_hard_state(image.hard_state)
        self.ledger = self.restored(image.snapshot)
        timing = self.world.timing
        config = RaftConfig(
            node=self.id,
            applied=self.ledger.index,
            election_ticks=timing.election_ticks,
            heartbeat_ticks=timing.heartbeat_ticks,
            message_entries_max=timing.message_entries_max,
            message_bytes_max=timing.message_bytes_max,
            inflight_messages_max=timing.inflight_messages_max,
            snapshot_chunk_bytes=timing.snapshot_chunk_bytes,
            learners_a_tick=timing.learners_a_tick,
            electorate=self.told if image.last_index < self.told_index else frozenset(),
        )
        try:
            self.core = self.core_class(config, self._storage, self.rng)
        except LogCorrupted as error:
            self.disk.broken = True
            self.up, self.why_down = False, error.code
            self.world.trace.add(self.name, f"stays down: {error.message}")
            return False
        # Who else proposes here has clients of other hosts, too, so it is asked of one that is not trusted alone.
        self.admission = Admission(
            lambda: self.ledger,
            lambda node: node in self.core.status().config.voters,
            self.core.step,
            lambda host_id, why: self.world.trace.add(self.name, f"takes no proposals of {host_id}: {why}"),
        )
        self.gateway = self.gateway_class(self)
        self.lock_service = self.lock_service_class(self)
        self.world.trace.add(
            self.name,
            f"starts ({self.boots}): log to {image.last_index}, state of {self.ledger.index}, {image.hard_state}",
        )
        self.later(self.rng.randrange(self._tick_us), self._tick)
        self.agent = self.agent_class(self)
        self.model_gateway = self.model_gateway_class(self)
        self.world.tell(lambda checker: checker.restored(self, self.ledger.index, self.ledger))
        self.pump()
        return True

    def tell(self, voters: frozenset[int], index: int) -> None:
        """Tell it who votes as of that entry, signed by one that does; it counts until its log has come there."""
        self.told, self.told_index = voters, index
        if self.up:
            self.core.told_electorate(voters)

    def restored(self, snapshot: RaftSnapshot | None) -> Ledger:
        """The state machine as the disk has it."""
        return self.ledger_class() if snapshot is None else self.ledger_class.restore(snapshot.data)

    def crash(self, why: str) -> None:
        """Power off: what runs here ends, what was not synced is lost, from some point on."""
        if not self.up:
            return
        gone = self.disk.lose_unsynced()
        self.world.trace.add(self.name, f"down: {why}; {gone} unsynced records lost")
        self.why_down = why
        self.up, self.paused, self.leader_duties, self._storing = False, False, None, None
        self.role = "follower"
        self._mail.clear()
        self.agent.host_down()
        self.model_gateway.host_down()
        self.lock_service.host_down()
        self.world.tell(lambda checker: checker.resumed(self.host_id))
        for leader_duties in self._leaderships:
            leader_duties.host_down()
        self._leaderships.clear()

    def pause(self) -> None:
        """Nothing runs here until ``resume``; what arrives waits, at most 10,000 messages."""
        self.paused = self.up
        if self.up:
            self.world.tell(lambda checker: checker.suspended(self.host_id))

    def resume(self) -> None:
        """Go on, first with what has waited. Before anything, who watches a deadline looks at the clock."""
        self.paused = False
        if self.up:
            self.agent.woke()
            self.world.tell(lambda checker: checker.resumed(self.host_id))
        while self._mail and self.up and not self.paused:
            self._mail.popleft()()

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Have *action* called in this life, when the host runs."""
        life = self.boots

        def due() -> None:
            if life != self.boots or not self.up:
                return
            if not self.paused:
                action()
            elif len(self._mail) < MAIL_MAX:
                self._mail.append(action)

        self.world.clock.after(delay_us, due)

    # -- events in

    @property
    def _tick_us(self) -> int:
        return int(self.world.timing.tick_us * self.rate)

    def _tick(self) -> None:
        self.later(self._tick_us, self._tick)
        self._ticks += 1
        self.core.tick()
        if self.leader_duties is not None:
            self.leader_duties.tick()
        self.pump()

    def _deliver(self, sender: str, message: object) -> None:
        if not self.up:
            return
        if self.paused:
            if len(self._mail) < MAIL_MAX:
                self._mail.append(lambda: self._deliver(sender, message))
            return
        if isinstance(message, bytes):
            try:
                message = decode_message(message)
            except MalformedMessage as error:
                self.refused[error.code] += 1
                return
        if isinstance(message, Message):
            if sender != f"n{message.sender}":
                self.refused["of another sender"] += 1
                return
            if sender == self.world.hostile and message.kind == "propose":
                self.admission.came(f"host{message.sender}", message, self.core.committed_at_most)
                self.pump()
                return
            if self.leader_duties is not None:
                self.leader_duties.hears(message.kind, message.sender)
            self.core.step(message)
        elif isinstance(message, ClientRequest):
            self.gateway.ask(sender, message)
        elif isinstance(message, LockCall):
            self.lock_service.ask(sender, message)
        elif isinstance(message, GatewayTold) and self.leader_duties is not None:
            self.leader_duties.told(message)
        elif isinstance(message, ServiceWanted) and self.leader_duties is not None:
            self.leader_duties.wanted(message)
        self.pump()

    # -- instructions out

    def pump(self) -> None:
        """Carry out Readys until there are none, or one waits for the disk."""
        if self._pumping:
            return
        self._pumping = True
        while self.up and self._storing is None and self.core.has_ready():
            self._begin(self.core.ready())
        self._pumping = False

    def _begin(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.term = ready.hard_state.term
        if ready.soft_state is not None:
            self._role_changed(ready.soft_state)
        if self.leader_duties is not None and (self.role != "leader" or self.leader_duties.term != self.term):
            self.leader_duties = None
        records: list[Record] = [] if ready.snapshot is None else [ready.snapshot]
        records += ready.entries
        if ready.hard_state is not None:
            records.append(ready.hard_state)
        try:
            self.disk.write(records)
        except StorageError as error:
            self.crash(error.code)
            return
        if ready.entries:
            self.world.tell(lambda checker: checker.written(self, ready.entries))
        self.persist(ready)

    def persist(self, ready: Ready) -> None:
        """Send what may leave at once; make the rest durable, then go on with it."""
        self.send(ready.messages)
        for read in ready.read_states:
            self.gateway.read_ready(read)
            self.agent.read_ready(read)
            if self.leader_duties is not None:
                self.leader_duties.read_ready(read)
        for request in ready.dropped:
            self.gateway.dropped(request)
        if ready.must_sync:
            self._storing = ready
            self.later(self.disk.sync_time_us(), self._sync)
        else:
            self._stored(ready)

    def _sync(self) -> None:
        ready = self._storing
        assert ready is not None, "a sync without a Ready"
        try:
            self.disk.sync()
        except LogFailed as error:
            self.crash(error.code)
            return
        self._storing = None
        self._stored(ready)
        self.pump()

    def _stored(self, ready: Ready) -> None:
        self.send(ready.persisted_messages)
        self.finish(ready)

    def finish(self, ready: Ready) -> None:
        """Take over what is stored, apply what is committed, tell the core."""
        if ready.snapshot is not None:
            self._storage.apply_snapshot(ready.snapshot)
            self.ledger = self.ledger_class.restore(ready.snapshot.data)
            self.world.trace.add(self.name, f"takes the snapshot of {ready.snapshot.index}")
            self.world.tell(lambda checker: checker.restored(self, self.ledger.index, self.ledger))
            self.gateway.jumped()
            self.lock_service.jumped()
            self.agent.review()
        self._storage.append(ready.entries)
        if ready.hard_state is not None:
            self._storage.set_hard_state(ready.hard_state)
        if ready.committed:
            self._commit(ready.committed)
        self.core.advance(ready)
        self._keep_snapshot()
        self.admission.applied()
        if ready.committed:
            self.gateway.applied()
            self.agent.applied()
            if self.leader_duties is not None:
                self.leader_duties.applied()

    def _commit(self, committed: Sequence[Entry]) -> None:
        if self.role == "leader":
            config = self.core.status().config
            voters = tuple(frozenset(half) for half in (config.voters, config.voters_outgoing) if half)
            if voters not in self._voters:
                self._voters.append(voters)
            self.world.commits(self, committed[-1], tuple(self._voters))
        for entry in committed:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if entry.kind == "conf_change":
            before = self.core.status().config
            self.world.tell(lambda checker: checker.changes_members(self, before, entry))
            config = self.core.apply_conf_change(entry)
            self._storage.set_conf_state(config)
            self.world.trace.add(self.name, f"applies {entry.index}: {config}")
        done = apply_entry(self.ledger, entry)
        outcome = done.outcome
        if self.world.trace.keep and entry.data and entry.kind == "command":
            self.world.trace.add(self.name, f"applies {entry.index} of term {entry.term}: {_said(outcome)}")
        self.world.tell(lambda checker: checker.applied(self, entry, outcome, self.ledger))
        if done.session:
            self.gateway.outcome(done.session, done.seq, outcome)
        if self.leader_duties is not None:
            self.leader_duties.outcome(outcome)
        elif self.role == "leader" and entry.term == self.term and not entry.data:
            self.leader_duties = self.leader_duties_class(self, entry.term)
            self._leaderships.append(self.leader_duties)
        if outcome.changes:
            self.agent.changed(outcome)
            self.lock_service.changed(outcome)

    def _keep_snapshot(self) -> None:
        timing = self.world.timing
        last = self._storage.snapshot().index
        if self.ledger.index - last < timing.snapshot_every:
            return
        _, config = self._storage.initial_state()
        snapshot = self._storage.create_snapshot(self.ledger.index, config, self.ledger.snapshot())
        try:
            self.save(snapshot)
        except StorageError as error:
            self.crash(error.code)
            return
        first = self._storage.first_index()
        if snapshot.index - timing.log_kept >= first:
            self._storage.compact(snapshot.index - timing.log_kept)

    def save(self, snapshot: RaftSnapshot) -> None:
        """Put state and index on the disk as one."""
        self.disk.write([Compaction(snapshot)])
        self.world.tell(lambda checker: checker.restored(self, snapshot.index, self.ledger))

    def send(self, messages: Sequence[Message]) -> None:
        """Hand messages to the network; one time in four, the transport notices a cut, and tells the core."""
        network = self.world.network
        for message in messages:
            self.world.sent(self, message)
            receiver = f"n{message.to}"
            if not network.passes(self.name, receiver) and self.rng.random() < 0.25:
                self.later(CUT_NOTICED_US, partial(self._unreachable, message.to))
            network.send(self.name, receiver, encode_message(message) if self.world.timing.in_bytes else message)

    def _unreachable(self, peer: int) -> None:
        self.core.report_unreachable(peer)
        self.pump()

    # -- leading

    def _role_changed(self, soft: SoftState) -> None:
        if self.role != soft.role:
            self.world.trace.add(self.name, f"is {soft.role} in term {self.term}, leader {soft.leader or 'unknown'}")
        self.role, self.leader = soft.role, soft.leader
        if soft.role != "leader":
            self.admission.drop()
        if soft.role == "leader":
            self.world.leads(self, self.term)


def _said(outcome: Outcome) -> str:
    repeated = " (again)" if outcome.repeated else ""
    return f"{outcome.error.code if outcome.error is not None else outcome.result}{repeated}"
