"""Consensus: the ledger's process. An entry is committed once a majority of the voters' disks have it.

Commands that wait in the mailbox go to the log together, with one fdatasync; each is answered after it was committed
and applied, and after the subscribers were told. ``replica.py`` is the ledger on this host: core, log and state. This
file ties it to messages and clocks, and does what only a leader does: it ends lock leases and puts digests into the
log.

Start refuses with LogCorrupted (damaged files), LogFailed (the disk failed a write in this boot) or DiskFull (not even
the new term can be recorded); the host then stays down.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, ClassVar

from actorgrid.actors.ledger.command import Command, read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import CompareDigest, ExpireLock
from actorgrid.actors.ledger.entry_codec import decode_entry, encode_entry
from actorgrid.actors.ledger.messages import (
    HandOver,
    LedgerSnapshot,
    Propose,
    Proposed,
    Query,
    QueryArguments,
    Subscribe,
)
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.query_answers import FilesInUse, HostsHeard, LedgerStatus
from actorgrid.actors.ledger.snapshot import FORMAT
from actorgrid.actors.raft.messages import NO_NODE, Dropped, DroppedLater, Message
from actorgrid.errors import ActorGridError, LedgerRefused, StorageError
from actorgrid.supervisors.gc_pause import collection_paused
from actorgrid.supervisors.runtime import Timer, Waiter
from actorgrid.supervisors.server import Server, handles

from ..security.messages import MaterialChanged
from .admission import Admission, refuse_here
from .affected_hosts import affected_hosts
from .apply import AppliedEntry
from .departures import Departures
from .disk_space import DiskSpace
from .electorate_policy import heir, next_step, successor
from .figures import CommitTimes, ledger_figures, nodes_sent_to
from .last_contact import LastContact
from .lock_leases import LockLeases
from .queries import Queries
from .reads import LinearizableReads
from .refused_snapshots import RefusedSnapshots
from .replica import Replica
from .stalls import Stalls
from .subscribers import Subscribers
from .voter_inquiries import NEWCOMER_HINT
from .waiting_proposals import WaitingProposals, not_leader, not_taken

if TYPE_CHECKING:
    from .raft_links import RaftLinks

HOUSEKEEPING_S = 1.0
TICK_S, LONE_TICK_S = 0.05, 1.0
"""Length of the core's tick: a voter campaigns after 10 to 19 of silence. The second is for a host that is alone."""
CATCH_UP_S, WAITS_S = 8.0, 60.0
"""How long a start waits for a leader; and a proposal for its commit: its caller has repeated it several times then."""
LOOK_S, HAND_OVER_S = 0.25, 2.0  # between two looks at who is away; for another host to lead when this one stops
ABSENT_S = 2.0
"""A host that was not heard of for so long gets no new work."""
SILENT_S = 30.0
"""A voter that was not heard of for so long may lose its vote to a host that is there."""
PIECES_A_TURN = 4  # of a snapshot, between two looks at the mailbox: 4,000 records, some 30 ms
ONLY_VOTER = 1  # the node of a host that is alone


class Consensus(Server):
    """The server of the ledger: takes proposals, queries and subscriptions, and is the only way to it."""

    name = "consensus"
    # A snapshot of 100,000 jobs is restored in one go.
    max_handler_s: ClassVar[float] = 30.0

    async def start(self) -> None:
        """Recover the state from disk and begin a new term; what is on the disk is applied when this returns."""
        performance = self.host.settings.performance
        self._failed: ActorGridError | None = None
        self._waiting = WaitingProposals()
        self._gathered = 0
        self._reads = LinearizableReads(
            lambda context: self._replica.read_index(context), lambda: self._replica.ledger.index
        )
        self._pump_timer: Timer | None = None
        self._subscribers = Subscribers(self, lambda: self._replica.ledger.counts)
        self._commits_total = 0
        self._refused_total: Counter[str] = Counter()
        self._commit_times = CommitTimes()
        self._lock_leases = LockLeases(self.runtime, lambda: self._leading and self._failed is None, self._expire_lock)
        self._leading = False
        self._ready = Waiter()
        self._snapshot_under_way = False
        self._links: RaftLinks | None = None
        self._last_contact = LastContact()
        self._stalls = Stalls()
        self._contacts: dict[int, float] = {}  # by node: when anything of it came, whoever leads
        self._absent: dict[str, float] = {}
        self._admission = Admission(
            lambda: self._replica.ledger,
            lambda node: self._replica.votes(node),
            lambda message: self._replica.step(message),
            lambda host_id, why: self.log.warning("proposals of host %s are not taken: %s", host_id, why),
        )
        self._unreadable_total = 0
        self._refused_snapshots = RefusedSnapshots()
        self._departures = Departures(self, self._is_led, lambda: not self._ready.done, self.failed)
        plan = self.host.voter
        with collection_paused():
            self._replica = Replica(
                self.host.paths.ledger_dir,
                ONLY_VOTER if plan is None else plan.node,
                self.host.boot_id,
                performance,
                self,
                self.runtime.in_place,
                plan is None or plan.founding,
                self.host.newest_grant,
                plan and plan.told,
            )
            self._disk_space = DiskSpace(self._replica, self.host.paths, self.host.settings)
            self._queries = Queries(self._replica.ledger, self._replica.history)
            self._snapshot_due = self._replica.snapshot_index + performance.ledger_snapshot_every
            self.runtime.watch(self._replica.fileno(), self._replica.collect)
            if plan is not None:  # before the replica starts: what it says to the other voters goes out by these
                from .raft_links import RaftLinks  # TLS and X.509 come with it: 5 MB that a host alone does without

                self._links = RaftLinks(self, plan, self._replica, self._departures.refused, self._step)
            self._replica.start()
        self.every(LONE_TICK_S if plan is None else TICK_S, self._replica.tick)
        self.every(HOUSEKEEPING_S, self._keep_house)
        if plan is not None:
            self.every(LOOK_S, self._look_around)
            self.spawn(self._catch_up())
        try:
            await self._ready
        except ActorGridError:
            self._close(keep=False)
            raise

    async def _catch_up(self) -> None:
        """Be ready once this host has what was committed, or after a time without a leader: then as it is."""
        deadline = self.runtime.monotonic() + CATCH_UP_S
        while not self._ready.done and self._failed is None:
            try:
                await self._linearizable()
            except ActorGridError as error:
                if self.runtime.monotonic() <= deadline:
                    await self.sleep(TICK_S)
                    continue
                refused = self._departures.replaced()
                if refused is not None:
                    self.failed(refused)
                    return
                hint = f"; {NEWCOMER_HINT}" if self._replica.lacks_electorate else ""
                self.log.warning("starting without a leader of the ledger: %s%s", error, hint)
            self._ready.set(None)

    def stop(self, reason: str) -> None:
        """Commit what waits, keep a snapshot, let go of the files."""
        self._pump()
        self._close(keep=True)

    def _close(self, keep: bool) -> None:
        self._failed = self._failed or StorageError("the ledger is stopped")
        self.runtime.unwatch(self._replica.fileno())
        if self._links is not None:
            self._links.close()
        self._replica.close(keep)

    def _keep_house(self) -> None:
        if self._failed is None:
            self._replica.write_history()
            if self._disk_space.look():
                self.log.warning("there is room on the disk again: new work is accepted")
            self._choose_voters()
            self._stalls.look(self.runtime.monotonic(), self._replica.status())
            if self._links is not None and not self._is_led():
                # Any voter may say who leads, or that this host is no member any more.
                self._links.seek()
            self._give_up()

    def _give_up(self) -> None:
        """Let go of proposals that were lost on their way to a leader: whoever waited has asked again, or left."""
        oldest = self.runtime.monotonic() - WAITS_S
        self._waiting.give_up(oldest, not_leader("no leader answered"))
        self._reads.give_up(oldest, not_leader("no leader answered"))

    # -- what the replica tells

    def applied(self, done: AppliedEntry) -> None:
        """See ``ReplicaListener``."""
        outcome = done.outcome
        if outcome.error is not None:
            self._refused_total[outcome.error.code] += 1
        self._commits_total += self._ready.done
        if self._leading and self._links is not None:
            for host_id in affected_hosts(outcome.changes):
                member = self._replica.ledger.members.get(host_id)
                if member is not None:
                    self._replica.hurry(int(member["node"]))
        for kind, name, record in outcome.changes:
            if kind == "lock" and self._leading:
                self._lock_leases.changed(name, record)
            elif kind == "member" and self._links is not None:
                self._links.member_changed(name, record is None)
        if done.unreadable:
            self._unreadable(outcome)
        command = done.command
        self._subscribers.tell(outcome, command.get("at", 0.0), command.get("type", "new_term"))
        for since in self._waiting.applied((done.session, done.seq), outcome):
            self._commit_times.note(self.runtime.monotonic() - since)
        if self._leading:
            self._put_digest(outcome.index)
        if outcome.index >= self._snapshot_due and not self._snapshot_under_way:
            self.spawn(self._snapshot())

    def carried_out(self) -> None:
        """See ``ReplicaListener``: those who follow hear of it before those who proposed it."""
        # In this order: whoever is answered may ask another server next, and that one must not know less.
        self._subscribers.flush()
        self._waiting.answer()
        self._reads.release()
        self._admission.applied()

    def _unreadable(self, outcome: Outcome) -> None:
        """Note an entry that is no command. A leader looks at what it appends: one was of another mind."""
        self._unreadable_total += 1
        if self._unreadable_total == 1:  # a start applies them all again, and there may be many
            text = "entry %d is no command, and nothing comes of it: %s; actorgrid ledger verify names all"
            self.log.error(text, outcome.index, outcome.error)

    def restored(self) -> None:
        """See ``ReplicaListener``: whoever follows has to start over."""
        self._queries = Queries(self._replica.ledger, self._replica.history)
        if self._links is not None:
            self._links.members_changed()
        self._subscribers.lose_all(self._replica.ledger.index)

    def led(self, term: int) -> None:
        """See ``ReplicaListener``."""
        self.log.info("this host leads the ledger in term %d", term)
        self._leading = True
        self._lock_leases.lead(self._replica.ledger.locks)
        self._last_contact.begin()
        self._look_around()  # before anybody places work
        self._tell_leadership()
        plan = self.host.voter
        if plan is not None and plan.founds is not None and not self._replica.ledger.members:
            self._put(replace(plan.founds, at=time()))
        self._ready.set(None)

    def not_leading(self) -> None:
        """See ``ReplicaListener``: what was proposed here may be lost, or be committed by the next leader."""
        self._admission.drop()
        if self._leading:
            self._leading = False
            self._absent = {}
            self._tell_leadership()
            self._subscribers.tell_between(("absent", "", {}))
        self._abandon(not_leader())

    def followed(self, leader: int) -> None:
        """See ``ReplicaListener``: what was sent to the leader before may be lost; who waits asks again, at once."""
        self._abandon(not_leader("another host leads now" if leader else "nobody is known to lead"))
        if self._links is not None and leader:
            self._links.keep([leader])
        self._tell_leadership()

    def send(self, messages: tuple[Message, ...]) -> None:
        """See ``ReplicaListener``."""
        assert self._links is not None, f"there is nobody to send to, and yet: {messages[0]}"
        self._links.send(messages)

    def _tell_leadership(self) -> None:
        """Tell the subscribers who leads, in order with what the ledger holds."""
        self._subscribers.tell_between(("leader", "", (self._leader_host(), self._leading)))

    def _is_led(self) -> bool:
        return self._replica.leader != NO_NODE

    def _leader_host(self) -> str | None:
        if self._leading:
            return str(self.host.host_id)
        return self._host_of(self._replica.leader)

    def _host_of(self, node: int) -> str | None:
        members = self._replica.ledger.members
        return next((str(host_id) for host_id, record in members.items() if record["node"] == node), None)

    def snapshot_refused(self, error: LedgerRefused, sender: int) -> None:
        """See ``ReplicaListener``: this host goes on with the state it has, and its start without a leader's."""
        host_id, index = self._host_of(sender) or f"node {sender}", self._replica.ledger.index
        self._refused_snapshots.refused(host_id, f"{error.message}: {error.found}", self.runtime.monotonic(), index)
        self.log.error("from host %s: %s", host_id, error)
        if not self._ready.done and not index:
            self.failed(error)  # it has just joined: there is nothing to go on with
        self._ready.set(None)

    def failed(self, error: ActorGridError) -> None:
        """See ``ReplicaListener``: tell those who wait, and die."""
        self._failed = error
        self._abandon(error)
        if not self._ready.done:
            self._ready.fail(error)
            return
        self.log.critical("%s", error)
        self.runtime.crash(error)

    def _abandon(self, error: ActorGridError) -> None:
        self._waiting.abandon(error)
        self._reads.abandon(error)

    # -- what only a leader does

    def _put_digest(self, index: int) -> None:
        """Let the other voters compare their state of *index* with ours."""
        digest = self._replica.ledger.digest_marks.marks.get(index)
        if digest is not None:
            self._put(CompareDigest(index, digest, FORMAT, at=time()))

    def _expire_lock(self, name: str, owner: str, renewals: int) -> None:
        self._put(ExpireLock(name, owner, renewals, self._replica.ledger.term, at=time()))

    def _step(self, host_id: str, message: Message) -> None:
        """Take a message of another host."""
        now = self.runtime.boottime()
        self._contacts[message.sender] = now
        if self._leading:
            self._last_contact.message(message.kind, message.sender, now)
        if message.kind == "propose":
            self._admission.came(host_id, message, self._replica.committed_at_most)
        else:
            self._replica.step(message)

    def _look_around(self) -> None:
        """Tell who is away, and since when. Everybody is, to a new leader, before he has answered it."""
        members = self._replica.ledger.members
        if not self._leading or not members:
            return
        status = self._replica.status()
        most, heard = ABSENT_S / TICK_S, self._heard()
        here = {node for node, progress in status.progress.items() if progress.match and progress.quiet_ticks <= most}
        here.add(status.node)
        absent = {host_id: at for host_id, at in heard.items() if members[host_id]["node"] not in here}
        if absent.keys() != self._absent.keys():
            self._absent = absent
            self._subscribers.tell_between(("absent", "", dict(absent)))

    def _heard(self) -> dict[str, float]:
        nodes = {host_id: int(record["node"]) for host_id, record in self._replica.ledger.members.items()}
        return self._last_contact.of(nodes, self._replica.node, self.runtime.boottime())

    async def _hosts_heard(self) -> HostsHeard:
        """Who was heard of when, as the leader knows it that a majority has confirmed after ``as_of``."""
        as_of = self.runtime.boottime()
        await self._linearizable()
        if not self._leading:
            raise not_leader()
        return {"as_of": as_of, "heard": self._heard()}

    def _choose_voters(self) -> None:
        """Bring the voters into line with the members, a step at a time."""
        members = self._replica.ledger.members
        if not self._leading or not members:
            return
        status = self._replica.status()
        silent = status.silent(SILENT_S / TICK_S)
        voter_sites = frozenset(filter(None, self.host.settings.cluster.voter_sites.split(",")))
        around = (members, status.config, status.progress, status.commit, status.node, silent, voter_sites)
        next_leader = heir(*around)
        if next_leader is not None:
            self._give_leadership(next_leader)
            return
        changes = next_step(*around)
        if changes:
            taken = self._replica.change_members(changes)
            self.log.info("voters: %s: %s", changes, taken)
            self._pump_soon()

    def _give_leadership(self, to: int) -> None:
        self.log.info("handing the leadership over to node %d: %s", to, self._replica.hand_over(to))
        self._pump_soon()

    @handles(HandOver)
    async def _hand_over(self, _request: HandOver) -> dict[str, Any]:
        to = successor(self._replica.status(), ABSENT_S / TICK_S) if self._leading else None
        if to is not None:
            self._give_leadership(to)
            deadline = self.runtime.monotonic() + HAND_OVER_S
            while (self._leading or self._leader_host() is None) and self.runtime.monotonic() < deadline:
                await self.sleep(TICK_S)
        return {"leader": self._leader_host()}

    def _put(self, command: Command) -> None:
        """Propose a command of our own; one that is lost with the leadership is not missed."""
        self._replica.propose(encode_entry(command, "", 0))
        self._pump_soon()

    @handles(MaterialChanged)
    def _material_changed(self, _message: MaterialChanged) -> None:
        if self._links is not None:
            self._links.renew()

    # -- proposals

    @handles(Propose)
    async def _propose(self, request: Propose) -> Proposed:
        if self._failed is not None:
            raise self._failed
        earlier = self._replica.ledger.repeated(request.session, request.seq)
        if earlier is not None:
            return self._proposed(earlier)
        try:
            payload = encode_entry(request.command, request.session, request.seq)
            command = read_command(decode_entry(payload)[2])
            refuse_if_too_new(command, self._replica.ledger.members)
            # Every refusal before it is in the log: what is there is carried out, whatever its caller was told.
            votes = self._leading or self._replica.votes(self._replica.node)
            refuse_here(command, votes, self._replica.ledger.members, self._replica.members)
            self._disk_space.refuse(type(command))
            self._waiting.refuse_when_full()
            key = request.session, request.seq
            # In our own log one entry answers both; what went to another host may be lost, and twice does no harm.
            if key not in self._waiting or not self._leading:
                self._into_the_log(payload, key)
        except ActorGridError as error:
            self._refused_total[error.code] += 1
            raise
        waiter = self._waiting.add(key, self.runtime.monotonic())
        self._gathered += 1
        # A timer of no delay fires when the mailbox is empty: until then, the batch grows.
        if self._gathered >= self.host.settings.performance.ledger_batch_max:
            self._pump()
        else:
            self._pump_soon()
        return self._proposed(await waiter)

    def _into_the_log(self, payload: bytes, key: tuple[str, int]) -> None:
        taken = self._replica.propose(payload, b"%d %b" % (key[1], key[0].encode()))
        if isinstance(taken, Dropped):
            raise not_taken(taken.reason, taken=False)

    def _proposed(self, outcome: Outcome) -> Proposed:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None, "an entry has a result or an error"
        return Proposed(outcome.index, dict(outcome.result))

    def _pump_soon(self) -> None:
        if self._pump_timer is None:
            self._pump_timer = self.runtime.after(0.0, self._pump)

    def _pump(self) -> None:
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        self._gathered = 0
        if self._failed is None:
            self._reads.ask(self.runtime.monotonic(), not_leader)
            self._replica.pump()
            self._lock_leases.arm()

    # -- snapshots

    async def _snapshot(self) -> None:
        """Make a snapshot, piece by piece between other work."""
        self._snapshot_under_way = True
        self._snapshot_due = self._replica.ledger.index + self.host.settings.performance.ledger_snapshot_every
        index, members, pieces = self._replica.begin_snapshot()
        parts = []
        for piece in pieces:
            parts.append(piece)
            if len(parts) % PIECES_A_TURN == 0:
                await self.sleep(0.0)
        self._snapshot_under_way = False
        if self._failed is None and self._replica.tight is None:
            self._replica.keep_snapshot(index, members, b"".join(parts))

    # -- subscribers

    @handles(Subscribe)
    def _subscribe(self, request: Subscribe, sender: str) -> LedgerSnapshot:
        live = self._replica.ledger.live(request.jobs)
        index = self._subscribers.subscribed(sender, live.index, request.jobs)
        return replace(live, index=index, leader=self._leader_host(), leads=self._leading, absent=self._absent)

    # -- reading

    @handles(Query)
    async def _query(self, query: Query) -> Any:
        if query.kind == "hosts_heard":
            return await self._hosts_heard()
        if query.linearizable:
            await self._linearizable()
        if query.kind == "status":
            return self.status()
        if query.kind == "electorate":
            return self._replica.electors()
        if query.kind == "index":
            return self._replica.ledger.index
        if query.kind == "files_in_use":
            return await self._files_in_use(query.args)
        answer = self._queries.answer(query.kind, query.args)
        if query.kind == "counts":
            answer["commit_latency_ms"] = self._commit_times.median_ms
        return answer

    async def _files_in_use(self, args: QueryArguments) -> FilesInUse:
        """Look through all jobs, piece by piece between other work."""
        queries = self._queries
        for answer in queries.files_in_use(args):
            if answer is not None and queries is self._queries:
                return answer
            await self.sleep(0.0)
        raise not_leader("another state took this one's place meanwhile")

    async def _linearizable(self) -> None:
        """Return when this ledger holds whatever was committed when this was called. Raises NotLeader."""
        if self._failed is not None:
            raise self._failed
        read = self._reads.begin()
        self._pump_soon()
        await read

    def readable(self, context: bytes, index: int) -> None:
        """See ``ReplicaListener``."""
        self._reads.confirmed(context, index)

    def dropped(self, request: DroppedLater) -> None:
        """See ``ReplicaListener``: reads are asked anew, who proposed is told to ask again."""
        if request.kind == "read":
            self._reads.dropped(request.context, request.reason, self.runtime.monotonic(), not_leader)
            return
        seq, _, session = request.context.partition(b" ")
        key = session.decode(errors="replace"), int(seq) if seq.isdigit() and len(seq) < 20 else -1
        # An earlier try, or a later one, may have been taken all the same.
        self._waiting.fail(key, not_taken(request.reason, taken=True))

    def metrics(self) -> dict[str, float]:
        """Commits, batches, refusals by reason, how long the last 1,024 proposals from here waited, sizes."""
        return {
            **ledger_figures(self._replica, self._commit_times, self._refused_total),
            "ledger_commits_total": self._commits_total,
            "ledger_subscribers": len(self._subscribers),
            "ledger_accepts_new_work": float(self._accepts()),
            "ledger_unreadable_entries_total": self._unreadable_total,
            "ledger_snapshots_refused_total": self._refused_snapshots.total,
            "ledger_proposals_of_others_refused_total": self._admission.refused.total(),
        }

    def status(self) -> LedgerStatus:
        """The state of the ledger on this host, as ``actorgrid inspect`` shows it."""
        now = self.runtime.monotonic()
        return {
            "role": self._replica.role,
            "leader": self._leader_host(),
            "voters": list(self._replica.members.voters),
            "nodes": nodes_sent_to(self._replica),
            "contact_s": self._contact_s(),
            **self._stalls.report(now, self._replica.status(), self._waiting.since(), self._replica.ledger.members),
            "snapshot_refused": self._refused_snapshots.report(now, self._replica.ledger.index),
            "term": self._replica.ledger.term,
            "index": self._replica.ledger.index,
            "epoch": self._replica.ledger.epoch,
            "snapshot_index": self._replica.snapshot_index,
            "log_bytes": self._replica.log.size_bytes,
            "segments": self._replica.log.segment_count,
            "subscribers": self._subscribers.names,
            "free_bytes": self._disk_space.free_bytes,
            "accepts_new_work": self._accepts(),
            "waiting_job_bytes": self._replica.ledger.waiting_bytes,
            "waiting_job_bytes_most": self._replica.ledger.waiting_bytes_most,
        }

    def _contact_s(self) -> dict[str, float]:
        """By host: how long ago anything of it came. At most as many as there are members."""
        now, members = self.runtime.boottime(), self._replica.ledger.members
        nodes = {int(record["node"]): str(host_id) for host_id, record in members.items()}
        return {nodes[node]: round(now - at, 3) for node, at in self._contacts.items() if node in nodes}

    def _accepts(self) -> bool:
        return self._failed is None and self._disk_space.accepts_new_work()
