"""A leader's side of everything, for as long as it leads: replicate, count, confirm reads, watch its quorum, hand over.

One object per leadership: it is dropped with the role, and with it everything the leader knew about its followers.
Messages are made in ``flush``, once per Ready: proposals between two Readys travel together.

Voters are sent entries as they are proposed, and a heartbeat each ``heartbeat_ticks``. Learners decide nothing: they
are sent what is committed, in one message with the commit index, so many a tick (``Turns``), and a heartbeat only so
often that each is heard of once in ``election_ticks``. So what a learner's answer costs, or a read, or a commit, does
not grow with the number of learners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from actorgrid.errors import MalformedMessage

from .codec import decode_conf_change, encode_members
from .configuration import Configuration, InvalidConfChange
from .log import RaftLog
from .messages import (
    NO_NODE,
    ConfState,
    Dropped,
    DroppedReason,
    Entry,
    EntryKind,
    Message,
    ProposalAccepted,
    RaftConfig,
    RaftSnapshot,
)
from .progress import PeerStatus, Progress
from .quorum import EVERYTHING
from .reads import PendingRead, Reads
from .replicator import Replicator
from .turns import Turns

ACTIVE_CHECKS = 2
"""A member is taken to be there while it was heard of in so many ``election_ticks``: a learner is asked once in one."""


class Leadership:
    """The leader of *term*: what it knows of every other member, and what it sends them.

    ``send`` takes messages that may leave at once.
    """

    def __init__(
        self,
        config: RaftConfig,
        term: int,
        log: RaftLog,
        configuration: Configuration,
        send: Callable[[Message], None],
    ) -> None:
        self._config = config
        self._node = config.node
        self.term = term
        self._log = log
        self._configuration = configuration
        self._send = send
        self._ticks = 0
        self._replicator = Replicator(config, term, log, send)
        # As if all had the whole log: most do, and who does not says so (Raft paper, figure 2, nextIndex).
        self.progress = {node: Progress(config, log.last_index, 0) for node in configuration.members - {config.node}}
        self._turns = Turns(config.learners_a_tick, self._learners())
        self._hurried: dict[int, int] = {}  # the entry up to which a learner is told out of turn
        self.reads = Reads(config.reads_max)
        self.established = False  # an entry of this term is committed
        # No change of the members up to here is known to be applied. To take the last entry for one is safe, and spares
        # a new leader a scan of what it has not applied yet.
        self.pending_conf_index = log.last_index
        self.uncommitted_bytes = 0
        self.transferee = NO_NODE
        self._transfer_ends = 0  # the tick at which it is given up
        self.removed_at = 0  # the index at which this leader stopped being a voter
        self._news = True  # flush may have something for every voter
        self._due: dict[int, None] = {}  # ... and for these
        self._heartbeat_due = False
        self._reads_due = False
        self._heartbeat_elapsed = self._heartbeats = 0
        # The first entry of a term commits what earlier terms left, and with it makes reads possible. The first of
        # all says who the members are: nobody who joins later could know whom the changes in the log begin from.
        # It comes last here: ``append`` counts its bytes, and notes the change that it may be, in the fields above.
        if log.last_index:
            self.append("command", b"")
        else:
            self.append("conf_change", encode_members(configuration.state()))

    @property
    def dirty(self) -> bool:
        """Whether ``flush`` may have something to send."""
        return bool(self._news or self._due or self._heartbeat_due or self._reads_due or self._turns.due)

    def _learners(self) -> list[int]:
        return [node for node in self.progress if node in self._configuration.learners]

    # Proposals

    def propose(self, kind: EntryKind, data: bytes) -> ProposalAccepted | Dropped:
        """Append an entry of *data*, or say why not."""
        reason = self.refusal(kind, data)
        return Dropped(reason) if reason else ProposalAccepted(self.append(kind, data), self.term)

    def refusal(self, kind: EntryKind, data: bytes) -> DroppedReason | None:
        """Why this cannot be proposed now."""
        # It leaves as soon as a quorum knows of its removal: what it still took might never be committed.
        if self.removed_at:
            return "not_a_voter"
        # The transferee must catch up with this log: were it to go on growing, that might never be (dissertation 3.10).
        if self.transferee != NO_NODE:
            return "transferring"
        # Without this bound a leader whose followers are slow would keep in memory all that clients can send. One alone
        # may be larger: it could never be proposed otherwise.
        bytes_after = self.uncommitted_bytes + len(data)
        if self.uncommitted_bytes and bytes_after > self._config.uncommitted_bytes_max:
            return "too_many_uncommitted_bytes"
        if kind == "command":
            return None
        return self.conf_change_refusal() or (None if self._fits(data) else "invalid_conf_change")

    def _fits(self, data: bytes) -> bool:
        """Whether *data* is a change that the present members allow; they are the same when it is applied."""
        try:
            request = decode_conf_change(data)
            if not isinstance(request, ConfState):
                self._configuration.changed(*request)
                return True
        except (InvalidConfChange, MalformedMessage):
            return False
        return False  # only the first entry of a log may say who the members are

    def conf_change_refusal(self) -> DroppedReason | None:
        """Why the members cannot be changed now.

        One change at a time, and none before this leader has committed in its own term: two leaders could else
        change from the same configuration to two whose majorities do not meet (Ongaro, raft-dev, July 2015).
        """
        if not self.established:
            return "nothing_committed_in_term"
        return "conf_change_pending" if self.pending_conf_index > self._log.applied else None

    def append(self, kind: EntryKind, data: bytes) -> int:
        """Append an entry of this term; gives its index."""
        index = self._log.last_index + 1
        self._log.append((Entry(index, self.term, kind, data),))
        self.uncommitted_bytes += len(data)
        if kind == "conf_change":
            self.pending_conf_index = index
        self._news = True
        return index

    def released(self, entries: tuple[Entry, ...]) -> None:
        """Stop counting the bytes of *entries*, which are committed and applied."""
        if self.uncommitted_bytes:
            # Of this term alone: the bytes of what earlier leaders left were never counted here.
            self.uncommitted_bytes -= sum([len(entry.data) for entry in entries if entry.term == self.term])

    # Counting

    def count(self) -> None:
        """Commit what a quorum holds durably; this node's own log counts as far as it is durable."""
        index = self._configuration.reached(self._matched())
        # In this order: what is committed may be compacted, and then nobody knows its term any more.
        if index > self._log.commit and self.countable(index) and self._log.commit_to(index):
            self._news = True
            self._turns.news()
            if not self.established:
                self.established = True
                # Not before now: until an entry of its own term is committed, a leader may not know of all that is, and
                # a read at its commit index could miss a write (dissertation 6.4, step 1).
                self.reads.committed_in_term(self._log.commit, self._replicator.sequence)
                self._reads_due = self._reads_due or self.reads.waiting

    def countable(self, index: int) -> bool:
        """Only entries of the leader's own term are committed by counting (Raft paper, section 5.4.2, figure 8)."""
        return self._log.term(index) == self.term

    def counted(self) -> Iterator[tuple[int, Progress]]:
        """The other members whose answers count: the voters."""
        for node in self._configuration.all_voters:
            progress = self.progress.get(node)
            if progress is not None:
                yield node, progress

    def _matched(self) -> dict[int, int]:
        found = {node: progress.match for node, progress in self.counted()}
        found[self._node] = self.own_match()
        return found

    def own_match(self) -> int:
        """How far this node's own log counts: as far as it is durable."""
        return self._log.stable_index

    def commit_to_tell(self, progress: Progress) -> int:
        """The commit index as far as the member is known to hold the entries: its log may differ after that."""
        return min(progress.match, self._log.commit)

    def has_quorum(self) -> bool:
        """Whether a quorum was heard of in the last ``election_ticks``."""
        most = self._config.election_ticks
        heard = {node: progress.quiet_ticks(self._ticks) <= most for node, progress in self.counted()}
        heard[self._node] = True  # counts only where it votes: ``decided`` asks for voters alone
        return self._configuration.decided(heard) is True

    # Reads

    def read(self, node: int, context: bytes) -> DroppedReason | None:
        """Take a read that *node* asks for; ``confirmed_reads`` gives it back when it may be served."""
        if self.reads.full:
            return "too_many_reads"
        if self.may_read():
            # While voters are being asked for others, this one waits for their answers: the next round is for all.
            self._reads_due = self._reads_due or not self.reads.waiting
            # With the number given out last: what was sent before this read says nothing of who leads now.
            self.reads.ask(node, context, self._log.commit, self._replicator.sequence)
        else:
            self.reads.ask_early(node, context)
        return None

    def may_read(self) -> bool:
        """Whether this leader knows the commit index: from its first commit on."""
        return self.established

    def confirmed_reads(self) -> list[PendingRead]:
        """The reads that a quorum's answers have confirmed since the last call."""
        if not self.reads.waiting:
            return []
        found = self.reads.confirmed(self.confirmed_sequence())
        for read in found:
            # Whoever asked may serve it once it has applied that index; a learner might wait for its turn until then.
            self.hurry(read.node, read.index)
        # Those asked since that round left have waited for its answers: the next round is theirs.
        self._reads_due = self._reads_due or bool(found and self.reads.waiting)
        return found

    def confirmed_sequence(self) -> int:
        """The highest number that a quorum has answered in this term."""
        answered = {node: progress.acknowledged for node, progress in self.counted()}
        answered[self._node] = EVERYTHING
        return self._configuration.reached(answered)

    # Time

    def tick(self) -> None:
        """Take one tick."""
        self._ticks += 1
        if self._ticks >= self._transfer_ends:
            # It did not take over within an election timeout: take proposals again, or nobody does (dissertation 3.10).
            self.transferee = NO_NODE
        self._turns.tick()
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._config.heartbeat_ticks:
            self._heartbeat_elapsed = 0
            self._heartbeats += 1
            self._heartbeat_due = True
        for node, progress in self.progress.items():
            outgoing = progress.outgoing
            if outgoing is not None and outgoing.tick():
                self._due[node] = None
                if outgoing.confirmed < len(outgoing.snapshot.data):
                    outgoing.again()
                else:  # all of it arrived, but not the word that it is restored: an append after it is taken if it is
                    progress.become_probe(outgoing.snapshot.index + 1)

    # Sending

    def flush(self) -> None:
        """Send every member what is due to it now."""
        heartbeat_due, self._heartbeat_due = self._heartbeat_due, False
        asked, self._reads_due = heartbeat_due or self._reads_due, False
        due, self._due = self._due, {}
        # Voters before learners: commits and reads wait for voters alone, and what is sent first is on the wire first.
        if self._news or asked:
            self._news = False
            for node, progress in self.counted():
                self._tell(node, progress, asked)
        if heartbeat_due:
            self._beat_learners()
        for node, index in list(self._hurried.items()):  # a copy: who is told is taken out
            if index <= self._log.commit:
                self._hurry_now(node, index)
        for node in due:
            self._go_on_with(node)
        for node in self._turns:
            if self._replicate(node, self.progress[node]):
                self._turns.spend()

    def _tell(self, node: int, progress: Progress, heartbeat: bool) -> None:
        """Send *node* what is due; a heartbeat where that is nothing."""
        if progress.damaged:
            # Once a heartbeat: it may be lost, or the member may have been started anew and have forgotten it.
            if heartbeat:
                self._send(Message("damaged", node, self._node, self.term))
        elif not self._replicate(node, progress) and heartbeat:
            self._replicator.send_heartbeat(node, self.commit_to_tell(progress))

    def _replicate(self, node: int, progress: Progress) -> bool:
        """Send *node* entries, chunks of a snapshot or a new commit index; true when anything was due."""
        return self._replicator.replicate(node, progress, self._last_for(node), self._is_active(progress))

    def _last_for(self, node: int) -> int:
        """The last entry that *node* is sent: a learner has no use for what is not committed."""
        return self._log.commit if node in self._configuration.learners else self._log.last_index

    def _beat_learners(self) -> None:
        """Send learners heartbeats: often to those lately heard of that owe an answer, else once in election_ticks."""
        rounds = max(1, self._config.election_ticks // self._config.heartbeat_ticks)
        for position, node in enumerate(self._turns.nodes):
            progress = self.progress[node]
            if (self._heartbeats + position) % rounds == 0 or (progress.unanswered and self._is_active(progress)):
                self._tell(node, progress, heartbeat=True)

    def _go_on_with(self, node: int) -> None:
        """Send *node*, which answered or is to be sent something again, what comes next."""
        progress = self.progress.get(node)
        if progress is None:
            return
        if node not in self._configuration.learners or progress.outgoing is not None:
            self._tell(node, progress, heartbeat=False)
        # Within the tick's budget, as all that learners are sent: else each answer would bring the next message, and
        # the number of learners would say what a commit costs.
        elif not self._turns.budget_left:
            self._turns.news()
        elif self._replicate(node, progress):
            self._turns.spend()

    def hurry(self, node: int, index: int) -> None:
        """Tell *node*, which waits for the entry of *index*, as soon as that is committed, whoever's turn it is."""
        if node in self._configuration.learners:
            self._hurried[node] = max(index, self._hurried.get(node, 0))
            if index <= self._log.commit:
                self._due[node] = None

    def _hurry_now(self, node: int, index: int) -> None:
        progress = self.progress.get(node)
        if progress is not None:
            self._tell(node, progress, heartbeat=False)
        # Who is gone, told or silent is forgotten: at most one number a learner is kept.
        if progress is None or progress.next > index or not self._is_active(progress):
            del self._hurried[node]

    def _is_active(self, progress: Progress) -> bool:
        """Whether the member was heard of lately, or is new."""
        return progress.quiet_ticks(self._ticks) <= ACTIVE_CHECKS * self._config.election_ticks

    def statuses(self) -> dict[int, PeerStatus]:
        """The status of every other member."""
        return {
            node: progress.status(self._ticks, self._is_active(progress)) for node, progress in self.progress.items()
        }

    # Replies

    def answered(self, message: Message) -> Progress | None:
        """Note a sign of life; None for who is no member, or is refused."""
        progress = self.progress.get(message.sender)
        if progress is None or progress.damaged:
            return None
        # Before anything of the answer is counted: the match of such a member stands for entries that are gone.
        if self.lost_its_log(progress, message):
            progress.become_damaged()
            self._abort_transfer_to(message.sender)
            return None
        progress.heard_tick = self._ticks
        # The greatest, not the last: answers come out of order, and an old one takes nothing back of a later one.
        progress.acknowledged = max(progress.acknowledged, message.sequence)
        progress.commit = max(progress.commit, message.commit)
        return progress

    def lost_its_log(self, progress: Progress, message: Message) -> bool:
        """Whether the sender's log is shorter than what it acknowledged.

        A reply made before the acknowledgement may say less and be right; one to a message sent after it may not.
        """
        return message.last_index < progress.match and message.sequence > progress.match_sequence

    def impossible(self, message: Message) -> bool:
        """Whether an answer says more than anybody can who was sent what this leader sent."""
        past_end = message.kind == "append_reply" and not message.reject and message.index > self._log.last_index
        return past_end or message.sequence > self._replicator.sequence

    def answer(self, message: Message) -> None:
        """Take what a member answers."""
        if message.kind == "append_reply":
            self.on_append_reply(message)
        elif message.kind == "heartbeat_reply":
            self.on_heartbeat_reply(message)
        else:
            self.on_snapshot_reply(message)

    def on_append_reply(self, message: Message) -> None:
        """Take the answer to an append: the member took it, or says from where on it may."""
        progress = self.answered(message)
        if progress is None:
            return
        if message.reject:
            self._rejected(progress, message)
        else:
            self._matched_to(message.sender, progress, message.index)

    def _rejected(self, progress: Progress, message: Message) -> None:
        if progress.state == "replicate":
            # One at or before the match is late: what was refused then has been taken since.
            if message.index > progress.match:
                progress.become_probe(progress.match + 1)
                self._due[message.sender] = None
        # Only the answer to the probe under way: one that comes late or doubled would move it twice.
        elif progress.state == "probe" and message.index == progress.next - 1:
            # A term at a time (Raft paper, end of section 5.3); at least one entry back, or the same would be refused
            # for ever; never behind the match, which is known to be there.
            agree, _ = self._log.last_with_term_up_to(message.hint, message.log_term)
            progress.become_probe(max(min(message.index, agree + 1), progress.match + 1))
            self._due[message.sender] = None

    def _matched_to(self, node: int, progress: Progress, index: int) -> None:
        assert index <= self._log.last_index, (
            f"node {node} acknowledged {index}, past this leader's last entry {self._log.last_index}"
        )
        progress.arrived(index)
        news = index > progress.match
        if news:
            progress.match, progress.match_sequence = index, self._replicator.sequence
            progress.next = max(progress.next, index + 1)
        if progress.outgoing is None:
            follows = progress.state == "probe" and index >= progress.match
        else:  # as soon as the log here continues what is there, or that snapshot is done and another is needed
            done = progress.match >= progress.outgoing.snapshot.index
            follows = done or progress.match >= self._log.first_index - 1
        if follows:
            progress.become_replicate()
        self._due[node] = None
        if news:
            if node in self._configuration.all_voters:
                self.count()
            if node == self.transferee:
                self.hand_over()

    def on_heartbeat_reply(self, message: Message) -> None:
        """Take the answer to a heartbeat: the member lives, and what was sent to it before may be lost."""
        progress = self.answered(message)
        if progress is None:
            return
        # The probe, or what fills the window, may be lost with its answers: to wait for those would be for ever.
        progress.paused = False
        if progress.full:
            progress.free_one()
        if progress.match < self._last_for(message.sender):
            progress.poked = True
            self._due[message.sender] = None

    def on_snapshot_reply(self, message: Message) -> None:
        """Take the answer to a snapshot's chunk: how much of it the member has."""
        progress = self.answered(message)
        outgoing = None if progress is None else progress.outgoing
        # Of this snapshot: bytes received of an earlier one say nothing of it.
        if outgoing is not None and message.index == outgoing.snapshot.index:
            outgoing.confirm(message.hint, message.sequence, self._replicator.sequence)
            self._due[message.sender] = None

    # What the caller tells

    def unreachable(self, node: int) -> None:
        """Find out what *node* has, as what was sent to it may be lost."""
        progress = self.progress.get(node)
        if progress is not None and progress.state == "replicate":
            progress.become_probe(progress.match + 1)
            self._due[node] = None

    def outgoing_snapshot(self, node: int) -> RaftSnapshot | None:
        """The snapshot that is on its way to *node*, if there is one."""
        progress = self.progress.get(node)
        return None if progress is None or progress.outgoing is None else progress.outgoing.snapshot

    def snapshot_sent(self, node: int, ok: bool) -> None:
        """Take note that the snapshot for *node*, brought another way, arrived (*ok*), or did not."""
        progress = self.progress.get(node)
        if progress is not None and progress.outgoing is not None:
            progress.become_probe(progress.outgoing.snapshot.index + 1 if ok else progress.match + 1)
            progress.paused = not ok  # wait for a sign of life before the next try
            self._due[node] = None

    # Members and handing over

    def reconfigure(self, configuration: Configuration) -> None:
        """Go on with another configuration."""
        self._configuration = configuration
        others = configuration.members - {self._node}
        for node in self.progress.keys() - others:
            del self.progress[node]
        # They count as heard of just now: as silent since the leadership began, a new voter would count against the
        # leader in the check of the quorum before it could have answered.
        for node in others - self.progress.keys():
            self.progress[node] = Progress(self._config, self._log.last_index, self._ticks)
        # Who votes no more cannot be elected: proposals would be dropped until the transfer is given up.
        if self.transferee not in configuration.all_voters:
            self.transferee = NO_NODE
        self._turns.reset(self._learners())
        self._news = True
        self._reads_due = self._reads_due or self.reads.waiting  # who votes since then was not asked
        self.count()  # a smaller quorum may hold more

    def may_leave(self) -> bool:
        """Whether this leader is removed, and a quorum of those who stay knows that this is committed.

        Did it go before, they might need its vote to elect the one who could tell them, and its log may be longer
        than theirs for ever.
        """
        if not self.removed_at:
            return False
        known = {node: progress.commit for node, progress in self.counted()}
        return self._configuration.reached(known) >= self.removed_at

    def transfer(self, to: int) -> DroppedReason | None:
        """Hand over to *to* instead of whom it was; no proposal is taken until that is done or given up.

        Its end is counted from when the first was asked: a caller that asks all the time must not keep this leader from
        proposals for ever. What is asked again is sent again, since it may be lost.
        """
        progress = self.progress.get(to)
        if progress is None:
            return "unknown_node"
        if progress.damaged:
            return "damaged"
        if to not in self._configuration.all_voters:
            return "not_a_voter"
        if self.transferee == NO_NODE:
            self._transfer_ends = self._ticks + self._config.election_ticks
        self.transferee = to
        self._due[to] = None
        self.hand_over()
        return None

    def hand_over(self) -> None:
        """Tell the transferee to campaign once it holds the whole log."""
        if self.progress[self.transferee].match == self._log.last_index:
            self._send(Message("timeout_now", self.transferee, self._node, self.term))

    def _abort_transfer_to(self, node: int) -> None:
        if self.transferee == node:
            self.transferee = NO_NODE
