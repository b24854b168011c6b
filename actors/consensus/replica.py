"""One host's part in the ledger: the Raft core, the log and the state, carried out as ``Ready`` says.

The core decides, a thread makes durable (``storage/writer.py``), and what is committed is applied here; whoever owns
this passes time on (``tick``), wakes it when the log has something to say (``collect``) and hears what came of it
(``ReplicaListener``). While one Ready is on its way to the disk, proposals gather in the core, and the next takes them
all with one fdatasync.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from actorgrid.actors.files.disk_reserve import DiskReserve
from actorgrid.actors.ledger.query_answers import Electors
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import (
    NO_NODE,
    ConfChange,
    ConfState,
    Dropped,
    DroppedLater,
    Message,
    ProposalAccepted,
    RaftConfig,
    RaftSnapshot,
    Ready,
    Role,
)
from actorgrid.actors.raft.status import Status
from actorgrid.actors.raft.storage.disk import RaftStorage
from actorgrid.actors.raft.storage.durable_watermark import KnownGrant, end_lost, refuse_lost_grant
from actorgrid.actors.raft.storage.failure_marker import FailureMarker
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.raft.storage.store import Store
from actorgrid.actors.raft.storage.writer import LogWriter
from actorgrid.configs.schema import PerformanceSection
from actorgrid.errors import ActorGridError, DiskFull, LedgerRefused, LedgerTooNew, LogCorrupted, StorageError

from .apply import AppliedEntry, apply_entry
from .history import WRITE_AT_ROWS, History
from .stored_state import restore_stored
from .voter_inquiries import ToldVoters

UNCOMMITTED_BYTES_MAX = 64 * 2**20
"""Of proposals that a leader takes before they are committed: they are held in memory until then."""
MESSAGE_BYTES_MAX = 512 * 1024
"""So that a message with what is around it fits a frame between hosts."""


class ReplicaListener(Protocol):
    """What the owner of a ``Replica`` is told. Calls come from within ``start``, ``pump``, ``collect`` or ``tick``."""

    def applied(self, done: AppliedEntry) -> None:
        """Called for each entry that was applied to the ledger."""

    def carried_out(self) -> None:
        """Called once all that could be applied for now was: answer those who wait."""

    def restored(self) -> None:
        """Called when a snapshot of the leader's took the ledger's place."""

    def led(self, term: int) -> None:
        """Called when this host leads, and has applied the entry that begins its term."""

    def send(self, messages: tuple[Message, ...]) -> None:
        """Bring these messages to their nodes, or lose them."""

    def followed(self, leader: int) -> None:
        """Called when another node leads from now on, or (0) nobody knows who does."""

    def readable(self, context: bytes, index: int) -> None:
        """What ``read_index`` asked for under *context* may be read once *index* is applied; it may be already."""

    def dropped(self, request: DroppedLater) -> None:
        """What was asked under a context of ``read_index`` or ``propose`` is not carried out."""

    def not_leading(self) -> None:
        """Called when this host leads no more."""

    def snapshot_refused(self, error: LedgerRefused, sender: int) -> None:
        """Called when the snapshot that *sender* sent, as leader, is no state: nothing came of it."""

    def failed(self, error: ActorGridError) -> None:
        """Called when nothing more will be applied here, because of *error*."""


class Replica:
    """The ledger on this host: Raft core, log, snapshots and state, and what the core says is carried out on them.

    Raises LogCorrupted, LogFailed or DiskFull when what is on the disk cannot be trusted or not be opened.
    *in_place*: everything happens within the call that asks for it (see ``LogWriter``). *newest_grant*: what this host
    last acted upon, which the log must hold. *told*: who votes, as it was told when it joined.
    """

    def __init__(
        self,
        folder: Path,
        node: int,
        boot_id: str,
        performance: PerformanceSection,
        listener: ReplicaListener,
        in_place: bool = False,
        founding: bool = True,
        newest_grant: KnownGrant | None = None,
        told: ToldVoters | None = None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.node = node
        self.failure: ActorGridError | None = None
        self.role: Role = "follower"
        self.leader = NO_NODE
        self.term = 0
        self._led = 0
        self._listener = listener
        self._told = told
        self._in_place = in_place
        self.batches_total = 0
        self._under_way: Ready | None = None
        self._tried: tuple[bytes, Ledger] | None = None
        self._unfit: LedgerRefused | None = None
        self._pumping = False
        self.reserve = DiskReserve(folder / "reserve", performance.reserve_bytes)
        marker = FailureMarker(folder / "failed")
        end = marker.check(boot_id)
        self._store = self._open_store(folder / "state.db")
        try:
            self.history = History(self._store)
            self.log = SegmentLog.open(folder / "segments", performance.ledger_segment_bytes, end=end)
            try:
                founders = ConfState(voters=(node,)) if founding else ConfState()
                self._storage = RaftStorage(self.log, self._store, founders)
                marker.clear()
                self.reserve.refill(performance.min_free_bytes)
                self.members = self._storage.initial_state()[1]
                self.ledger = self._stored_state()
                # A new epoch begins with a snapshot (``ledger_backup.begin_epoch``): no entry behind it has another.
                refuse_lost_grant(newest_grant, self._storage.last_index(), self.ledger.epoch)
                config = RaftConfig(
                    node,
                    self.snapshot_index,
                    uncommitted_bytes_max=UNCOMMITTED_BYTES_MAX,
                    message_bytes_max=MESSAGE_BYTES_MAX,
                    snapshot_chunk_bytes=MESSAGE_BYTES_MAX,
                    snapshot_check=self._fits,
                    electorate=frozenset() if self._told is None or not self.lacks_electorate else self._told.nodes,
                )
                self._core = RaftCore(config, self._storage, random.Random())  # nosec B311 - who campaigns first
                self._writer = LogWriter(self._storage, marker, boot_id, self.reserve, in_place)
            except ActorGridError:
                self.log.close()
                raise
        except ActorGridError:
            self._store.close()
            raise

    def _open_store(self, path: Path) -> Store:
        try:
            return Store(path)
        except LogCorrupted:
            raise
        except StorageError:
            # SQLite needs a little room only to open its file.
            if not self.reserve.release():
                raise
            return Store(path)

    # -- running

    def start(self) -> None:
        """Apply what is known to be committed, and campaign where nobody else could."""
        self.pump()
        if self.members.voters == (self.node,) and not self.members.voters_outgoing:
            self._core.campaign()  # no need to wait for a leader to be silent
            self.pump()

    def fileno(self) -> int:
        """The descriptor to watch: call ``collect`` when it is readable."""
        return self._writer.fileno()

    def tick(self) -> None:
        """Pass one tick on to the core, and carry out what it makes of it."""
        self._core.tick()
        self.pump()

    def propose(self, payload: bytes, context: bytes = b"") -> ProposalAccepted | Dropped:
        """Add a command to the log; ``pump`` sets it going, so that several go together."""
        return self._core.propose(payload, context)

    def step(self, message: Message) -> None:
        """Take a message of another node."""
        if self.failure is None and message.to == self.node:
            try:
                self._core.step(message)
            except LedgerTooNew as error:
                # Of a snapshot, before anything of it was taken: a later version of the program can take it then.
                self._fail(error)
                return
            if self._unfit is not None:
                unfit, self._unfit = self._unfit, None
                self._listener.snapshot_refused(unfit, message.sender)
            if message.kind == "damaged" and self._core.status().damaged:
                # Nothing more is ever appended here; who waits for a read or a commit would wait for ever.
                self._fail(end_lost(self._core.status().last_index))
                return
            self.pump()

    @property
    def committed_at_most(self) -> int | None:
        """While this node leads: no entry after it is committed, whatever any host knows."""
        return self._core.committed_at_most

    @property
    def messages_refused(self) -> Mapping[str, int]:
        """Messages of other nodes that did not count, by reason."""
        return self._core.refused

    def votes(self, node: int) -> bool:
        """Whether *node* is a voter, as of what is applied here."""
        return node in self.members.voters or node in self.members.voters_outgoing

    @property
    def lacks_electorate(self) -> bool:
        """Whether the log here is older than what this host was told of who votes."""
        return self._told is not None and (self.ledger.epoch, self._storage.last_index()) < self._told.position

    def told_voters(self, told: ToldVoters) -> None:
        """Take another statement of who votes in place of the last one."""
        self._told = told
        self._core.told_electorate(told.nodes if self.lacks_electorate else frozenset())

    def electors(self) -> Electors:
        """Who votes, as of what is applied here."""
        nodes = sorted({*self.members.voters, *self.members.voters_outgoing})
        return {"nodes": nodes, "epoch": self.ledger.epoch, "index": self.ledger.index, "term": self.ledger.term}

    def heeds(self, node: int) -> bool:
        """Whether *node* may lead this one, as far as is known here."""
        return self._core.heeds(node)

    def unreachable(self, node: int) -> None:
        """Tell the core that a message to *node* was lost on this side."""
        self._core.report_unreachable(node)

    def outgoing_snapshot(self, node: int) -> RaftSnapshot | None:
        """The snapshot that is on its way to *node*; ``None`` where there is none, or this host does not lead."""
        return self._core.outgoing_snapshot(node)

    def hurry(self, node: int) -> None:
        """Tell *node*, which is to act on what was applied last, before other learners."""
        self._core.hurry(node, self.ledger.index)

    def change_members(self, changes: tuple[ConfChange, ...]) -> ProposalAccepted | Dropped:
        """Propose other voters or learners; ``pump`` sets it going."""
        return self._core.propose_conf_change(changes)

    def hand_over(self, node: int) -> ProposalAccepted | Dropped:
        """Have another voter lead in this one's place; ``pump`` sets it going."""
        return self._core.transfer_leader(node)

    def status(self) -> Status:
        """What the core knows, for people and for the policy of who votes."""
        return self._core.status()

    def read_index(self, context: bytes) -> ProposalAccepted | Dropped:
        """Ask from which index on a read is linearizable (Ongaro's dissertation, 6.4); ``pump`` sets it going."""
        return self._core.read_index(context)

    def pump(self) -> None:
        """Carry out what the core has to say, up to what must be durable first."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.failure is None and self._core.has_ready():
                ready = self._core.ready()
                # At once, beside the disk's work: they promise nothing. What does waits for ``_finish``.
                self._send(ready.messages)
                try:
                    if not self._writer.submit(ready):
                        self.batches_total += 1
                        self._under_way = ready
                        if not (self._in_place and self._collect()):
                            return
                        continue
                except StorageError as error:
                    self._fail(error)
                    return
                self._finish(ready)
        finally:
            self._pumping = False

    def collect(self) -> None:
        """Go on with what is durable now."""
        if self._collect():
            self.pump()

    def _collect(self) -> bool:
        if self.failure is not None:
            return False
        try:
            durable = self._writer.durable()
        except StorageError as error:
            self._fail(error)
            return False
        for ready in durable:
            self._under_way = None
            self._finish(ready)
        return bool(durable)

    def _send(self, messages: tuple[Message, ...]) -> None:
        if messages:
            self._listener.send(messages)

    def _finish(self, ready: Ready) -> None:
        """Carry out what waited for *ready* to be durable: votes and acknowledgements, then what is committed."""
        self._send(ready.persisted_messages)
        if ready.hard_state is not None:
            self.term = ready.hard_state.term
        # Who leads comes before what is applied: the listener acts on entries as a leader only while it is one.
        if ready.soft_state is not None:
            if self.role == "leader" != ready.soft_state.role:
                self._listener.not_leading()
            self.role = ready.soft_state.role
            if ready.soft_state.leader != self.leader:
                self.leader = ready.soft_state.leader
                if self.leader != self.node:
                    self._listener.followed(self.leader)
        if ready.snapshot is not None:
            self.ledger = self._looked_at(ready.snapshot.data)
            self.members = ready.snapshot.conf_state
            self._listener.restored()
        for entry in ready.committed:
            if entry.kind == "conf_change":
                self.members = self._core.apply_conf_change(entry)
            try:
                done = apply_entry(self.ledger, entry)
            except ActorGridError as error:
                self._listener.carried_out()
                self._fail(error)
                return
            self.history.keep(done.outcome)
            self._listener.applied(done)
            # Not before an entry of its own term is applied: until then the state here may lack what is committed.
            if self.role == "leader" and entry.term == self.term != self._led:
                self._led = entry.term
                self._listener.led(entry.term)
        if ready.committed:
            self._listener.carried_out()
        for read in ready.read_states:
            self._listener.readable(read.context, read.index)
        for request in ready.dropped:
            self._listener.dropped(request)
        # Last: from here on the core takes all of it for done, and gives out the next.
        self._core.advance(ready)
        if self.history.waiting > WRITE_AT_ROWS:
            self.write_history()

    # -- the disk

    @property
    def full(self) -> DiskFull | None:
        """The error while there is no room for what must be written next; ``retry`` tries again."""
        return self._writer.full

    @property
    def tight(self) -> DiskFull | None:
        """The error while the reserve is being used up: new work must be refused."""
        return self._writer.tight

    def retry(self) -> None:
        """Go on writing: there is room on the disk again."""
        self._writer.tight = None
        if self._writer.full is not None:
            self._writer.retry()
            if self._in_place:
                self.collect()

    def write_history(self) -> None:
        """Write the ended jobs and events that wait into the store."""
        if self.failure is None:
            try:
                self.history.write(self.ledger.index)
            except StorageError as error:
                self._fail(error)

    # -- snapshots

    @property
    def snapshot_index(self) -> int:
        """The index of the newest snapshot; 0 without one."""
        return self._storage.snapshot_index

    def begin_snapshot(self) -> tuple[int, ConfState, Iterator[bytes]]:
        """Index, members and pieces of a snapshot of the ledger as it is now; give them to ``keep_snapshot``."""
        self.write_history()  # the log that could make it again goes with the snapshot
        return self.ledger.index, self.members, self.ledger.snapshot_pieces()

    def keep_snapshot(self, index: int, members: ConfState, data: bytes) -> None:
        """Store a snapshot, and let the log behind the one before go."""
        if self.failure is None and index > self.snapshot_index:
            self._writer.keep_snapshot(RaftSnapshot(index, 0, members, data))

    def _fits(self, snapshot: RaftSnapshot) -> bool:
        """Whether a leader's bytes are a state, before they are stored: else every start would fail on them.

        Raises LedgerTooNew for those of a later version.
        """
        try:
            self._tried = snapshot.data, Ledger.restore_of_others(snapshot.data, snapshot.index)
        except LedgerRefused as error:
            self._unfit = error
            return False
        return True

    def _looked_at(self, data: bytes) -> Ledger:
        """The state that ``_fits`` has found in *data*."""
        if self._tried is not None and self._tried[0] is data:
            (_, ledger), self._tried = self._tried, None
            return ledger
        return Ledger.restore(data)  # another snapshot came, and was looked at, while this one went to the disk

    def _stored_state(self) -> Ledger:
        """The state of the snapshot on the disk. Raises LogCorrupted when that holds none, LedgerTooNew."""
        if not self.snapshot_index:
            return Ledger()
        snapshot = self._storage.snapshot()
        return restore_stored(snapshot.index, snapshot.data, self._store.received_index())

    # -- the end

    def _fail(self, error: ActorGridError) -> None:
        self.failure = error
        self._listener.failed(error)

    def close(self, keep: bool = True) -> None:
        """Let go of the files; *keep*: write what is left to write, and a snapshot where there is news."""
        if keep and self.failure is None and self.full is None and self._under_way is None:
            index, members, pieces = self.begin_snapshot()
            self.keep_snapshot(index, members, b"".join(pieces))
        self.failure = self.failure or StorageError("the ledger is stopped")
        # The writer first: its thread uses the other two, and ends only when what waits is written.
        self._writer.close()
        self.log.close()
        self._store.close()
