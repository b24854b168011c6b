"""The Raft core: elections, replication, membership and reads as decisions, without a clock, a socket or a disk.

Feed it messages (``step``), time (``tick``) and requests; carry out what ``ready`` says; confirm with ``advance``.
The same object runs under the Consensus actor and under the simulator.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014, "the paper") and Ongaro's
dissertation (2014). Beyond the paper: PreVote (dissertation 9.6), CheckQuorum and voters that keep to a leader they
hear (6.2, 4.2.3), learners, joint membership changes that take effect where they are applied (as in etcd's core),
ReadIndex (6.4), transfer of leadership (3.10).

What the caller owes: storage as ``Ready`` orders it, node ids that are never used again for a node that lost its
data, ticks at about the same rate everywhere (for progress only: safety does not rest on time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from .codec import encode_conf_change
from .configuration import Configuration
from .electorate import FROM_LEADER, Electorate, configuration_after
from .follower import Follower
from .forwarding import Forwarding
from .leadership import Leadership
from .log import RaftLog
from .messages import (
    NO_NODE,
    ConfChange,
    ConfState,
    Dropped,
    DroppedReason,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    ProposalAccepted,
    RaftConfig,
    RaftSnapshot,
    ReadState,
    Ready,
    Rng,
    Role,
    SoftState,
    Transition,
)
from .status import Status
from .storage.memory import Storage
from .votes import vote_reply, vote_request

__all__ = ["RaftCore", "Rng"]


class RaftCore:
    """The Raft core of one node. Not thread-safe: one caller at a time.

    At most one Ready is under way: ``has_ready`` is false until ``advance`` confirms it, and messages, also
    heartbeats, wait that long; everything else may be called in between.
    """

    log_class: ClassVar[type[RaftLog]] = RaftLog
    leadership_class: ClassVar[type[Leadership]] = Leadership

    def __init__(self, cfg: RaftConfig, storage: Storage, rng: Rng) -> None:
        """Start as a follower. Raises LogCorrupted when the log is shorter than what was committed."""
        hard_state, conf_state = storage.initial_state()
        self._config = cfg
        self._node = cfg.node
        self._rng = rng
        self._log = self.log_class(storage, hard_state.commit, cfg.applied)
        self._configuration = Configuration.of(conf_state)
        self._electorate = Electorate(cfg, self._configuration, self._log)
        self.refused = self._electorate.refused
        self._role: Role = "follower"
        self._leader = NO_NODE
        self._term, self._vote = self.remembered(hard_state)
        self._votes: dict[int, bool] = {}
        self._leadership: Leadership | None = None
        self._follower = Follower(cfg, self._log, self.refused)
        self._damaged = False
        self._elapsed = 0  # ticks since a leader or a candidate worth a vote was heard; of a leader, since its check
        self._timeout = 0
        self._messages: list[Message] = []
        self._persisted_messages: list[Message] = []
        self._read_states: list[ReadState] = []
        self._forwarding = Forwarding(cfg, self._messages.append)
        self._stored = hard_state  # what storage holds for certain
        self._soft = self._soft_state()  # what the caller knows
        self._under_way: Ready | None = None
        self._unapplied: deque[Entry] = deque()  # the changes of the members in the Ready under way
        self._handlers: dict[MessageKind, Callable[[Message], None]] = {
            "pre_vote": self._on_vote,
            "pre_vote_reply": self._on_vote_reply,
            "vote": self._on_vote,
            "vote_reply": self._on_vote_reply,
            "append": self._on_append,
            "append_reply": self._on_answer,
            "heartbeat": self._on_heartbeat,
            "heartbeat_reply": self._on_answer,
            "snapshot": self._on_snapshot,
            "snapshot_reply": self._on_answer,
            "read_index": self._on_read_index,
            "read_index_reply": self._on_read_index_reply,
            "propose": self._on_propose,
            "timeout_now": self._on_timeout_now,
            "damaged": self._on_damaged,
            "propose_reply": self._on_propose_reply,
        }
        # Sets the first timeout, from the dice: voters that start together must not all campaign together.
        self._follow(self._term, NO_NODE)

    def remembered(self, stored: HardState) -> tuple[int, int]:
        """Term and vote to start with: those stored. Forgetting one of them lets a node vote twice in a term.

        Where a crash kept entries of a later term and lost the term written after them, that term counts: no vote
        was given in it, since none leaves before the term is durable.
        """
        if stored.term < self._log.last_term:
            return self._log.last_term, NO_NODE
        return stored.term, stored.vote

    # Time

    def tick(self) -> None:
        """Take one tick of the caller's clock."""
        self._elapsed += 1
        if self._leadership is not None:
            self._leadership.tick()
            # CheckQuorum: a leader that a majority does not answer may have been replaced. Going on, it would take
            # proposals that can never be committed, and keep its clients from finding the other one.
            if self._elapsed >= self._config.election_ticks:
                self._elapsed = 0
                if not self._leadership.has_quorum():
                    self._follow(self._term, NO_NODE)
            return
        self._forwarding.tick()
        self._electorate.tick()
        if self._elapsed >= self._timeout:
            self.campaign()
            if self._role == "follower" and self._leader != NO_NODE:
                self._follow(self._term, NO_NODE)  # what it sends on would say that it hears its leader

    def campaign(self, pre_vote: bool = True) -> bool:
        """Ask for votes as if the leader were silent; false for a leader, and for who cannot be elected now.

        Without *pre_vote* in a new term at once, whether or not anybody would vote: for tests and tools.
        """
        if self._role == "leader" or not self._electable():
            return False
        if pre_vote:
            self._begin_pre_vote()
        else:
            self._begin_vote(force=False)
        return True

    def _electable(self) -> bool:
        """Whether this node votes and knows by whom it would be elected: no change of that is unapplied."""
        # With a change of the members still to be applied, it would count votes by a configuration whose majorities
        # need not meet those of the one after it; a snapshot that is not stored yet may bring other members too.
        return (
            not self._damaged
            and self.may_lead()
            and self._log.restoring is None
            and not self._log.conf_change_unapplied()
        )

    def may_lead(self) -> bool:
        """Whether this node is a voter; a leader that is removed, or made a learner, steps down."""
        return self._node in self._configuration.all_voters

    # Messages

    def step(self, msg: Message) -> None:
        """Take a message of a peer, in any order, any number of times."""
        if msg.to != self._node:
            self.refused["to another node"] += 1
            return
        # First, before its term is looked at: a later term alone would depose the leader, whoever says it.
        if not self._electorate.counts(msg, self._term, self._leader):
            self._messages += self._electorate.doubt(msg.sender, self._term + 1, self._log)
            return
        if msg.term > self._term:
            # Before the term is taken over: a node that was cut off comes back with a high one, and would end the
            # reign of a leader that all others hear. A transfer (*force*) is the leader's own wish.
            if msg.kind in ("vote", "pre_vote") and not msg.force and self.hears_leader():
                if msg.sequence:  # it asks for another node
                    self._messages.append(self._vote_reply(msg, max(self._term, msg.term - 1), granted=False))
                return
            # A pre-vote, and a granted one's answer, carry a term that nobody is in yet: taken over, asking whether an
            # election could be won would be as disturbing as the election. A refusal carries the refuser's own.
            if msg.kind != "pre_vote" and not (msg.kind == "pre_vote_reply" and not msg.reject):
                self._follow(msg.term, msg.sender if msg.kind in FROM_LEADER else NO_NODE)
        elif msg.term < self._term:
            # Nothing of an old term is ever carried out: its leader's quorum may have given its votes away since.
            self._answer_old_term(msg)
            return
        self._handlers[msg.kind](msg)

    def told_electorate(self, voters: frozenset[int]) -> None:
        """Take *voters* in place of ``RaftConfig.electorate``."""
        self._electorate.told(voters)

    def heeds(self, node: int) -> bool:
        """Whether *node* may lead this one, as far as it knows: for a caller that does work before ``step``."""
        return node == self._leader or self._electorate.heeds(node)

    def hears_leader(self) -> bool:
        """Whether a leader was heard so lately that votes against it are not even considered.

        A removed or partitioned node that campaigns does no harm then (dissertation 4.2.3).
        """
        return self._leader != NO_NODE and self._elapsed < self._config.election_ticks

    def _answer_old_term(self, msg: Message) -> None:
        """Tell a sender in an old term the new one: else a leader left behind would never find out."""
        if msg.kind in ("append", "heartbeat", "snapshot"):
            self._send("append_reply", msg.sender, reject=True)
        elif msg.kind in ("vote", "pre_vote"):
            self._messages.append(self._vote_reply(msg, self._term, granted=False))

    def _from_leader(self, msg: Message) -> bool:
        """Follow the sender; false for one who cannot lead, because this node does, or follows another, in the term."""
        # There is one leader a term. A second one means a voter that lied or lost its vote: obeying both would let
        # one cut what the other has committed.
        if self._role == "leader" or self._leader not in (NO_NODE, msg.sender):
            self.refused["leads in a term that another leads in"] += 1
            return False
        if self._role != "follower" or self._leader == NO_NODE:
            self._follow(self._term, msg.sender)
        # From whoever leads, whatever it says: a follower that is busy with a snapshot must not campaign meanwhile.
        self._elapsed = 0
        return True

    def _on_append(self, msg: Message) -> None:
        if self._from_leader(msg) and not self._damaged:  # what it acknowledges may be lost again
            self._reply(self._follower.append(msg))
            self._electorate.read(msg.entries)

    def _on_heartbeat(self, msg: Message) -> None:
        if self._from_leader(msg):
            self._reply(self._follower.heartbeat(msg))

    def _on_snapshot(self, msg: Message) -> None:
        if self._from_leader(msg) and not self._damaged:
            self._reply(self._follower.snapshot(msg))

    def _on_damaged(self, msg: Message) -> None:
        # Never taken back while this process lives: what it acknowledged may have been counted towards a commit, so it
        # may neither vote nor acknowledge again, whatever a later leader knows of it.
        self._damaged = self._from_leader(msg) or self._damaged

    def _on_timeout_now(self, msg: Message) -> None:
        # No pre-vote: all hear the leader that asks for this, and would refuse one.
        if self._from_leader(msg) and self._electable():
            self._begin_vote(force=True)

    def _reply(self, reply: Message | None) -> None:
        # An acknowledgement is counted towards a commit: it must not leave before what it acknowledges is durable. A
        # refusal promises nothing; the answer to a heartbeat only says that no later term was known here.
        if reply is not None:
            later = reply.kind == "append_reply" and not reply.reject
            (self._persisted_messages if later else self._messages).append(reply)

    def _on_answer(self, msg: Message) -> None:
        if self._leadership is None:
            return  # it leads no more: the answer is to a leadership that is gone
        # A match past the own log, or a number never given out, would commit or serve what nobody holds.
        if self._leadership.impossible(msg):
            self.refused["answers what was never sent"] += 1
            return
        self._leadership.answer(msg)
        self._after_reply(self._leadership)

    def _after_reply(self, leadership: Leadership) -> None:
        # Reads first: a leader that steps down drops those that are not released.
        self._release_reads()
        if leadership.may_leave():
            self._follow(self._term, NO_NODE)

    # Elections

    def _begin_pre_vote(self) -> None:
        """Ask whether an election could be won, in the term that it would be in; nothing is promised by that."""
        self._follow(self._term, NO_NODE)
        self._role = "pre_candidate"
        self._ask_votes("pre_vote", self._term + 1, force=False)
        self._count_vote(self._node, True)

    def _begin_vote(self, force: bool) -> None:
        """Campaign in a new term. Own vote and requests count from when the term is durable (see ``advance``).

        Were requests to leave earlier, a crash could leave this node in the old term with a shorter log, and the
        votes for the longer one would arrive for its next candidacy in the same term.
        """
        # In this order: to follow in the new term forgets the vote of the old one.
        self._follow(self._term + 1, NO_NODE)
        self._role, self._vote = "candidate", self._node
        self._ask_votes("vote", self._term, force)

    def _ask_votes(self, kind: MessageKind, term: int, force: bool) -> None:
        # Sorted, since a set promises no order: a run of the simulator must be the same again from its seed.
        for node in sorted(self._configuration.all_voters - {self._node}):
            request = vote_request(kind, node, self._node, term, self._log, force)
            if kind == "vote":
                self._send_persisted(request)
            else:
                self._messages.append(request)

    def _on_vote(self, msg: Message) -> None:
        """Vote, whoever asks and whatever the own configuration says: it may be older than the asker's."""
        self._learn_commit(msg)
        if msg.kind == "pre_vote":
            granted = msg.term > self._term and self.would_vote(msg)
            # A refusal is in the asker's own term, unless this node knows a later one: the term asked about is nobody's
            # yet, and a refusal in it would take the asker there. Leaves at once: nothing is promised by it.
            term = msg.term if granted else max(self._term, msg.term - 1)
            self._messages.append(self._vote_reply(msg, term, granted))
            return
        granted = self.has_vote_for(msg.sender) and self.would_vote(msg)
        if granted:
            self._vote = msg.sender
            # Only for a vote that is given. Were a refused candidate to reset the timer, one with a short log could
            # keep those with long ones, who alone can win, from ever campaigning (Raft paper, figure 2, rules for
            # followers).
            self._elapsed = 0
        # Both answers wait for the disk, as the vote and the term do: forgotten in a crash, it would be given twice.
        self._send_persisted(self._vote_reply(msg, self._term, granted))

    def _vote_reply(self, msg: Message, term: int, granted: bool) -> Message:
        return vote_reply(msg, term, self._log, granted, self._electorate.vouched(msg))

    def _learn_commit(self, msg: Message) -> None:
        """Take a commit index from whoever asks for a vote or answers, where the own log holds that entry.

        A voter that does not know that a change of the members is committed may need the vote of one that was
        removed by it, and that will not be given to its shorter log; but the answer tells it.
        """
        if self._role == "leader" or not self._electorate.knows(msg.sender):
            return
        if msg.commit > self._log.commit and self._log.matches(msg.commit, msg.hint):
            self._log.commit_to(msg.commit)
            # What is known to be committed now may be a change of the members that is not applied yet: votes counted
            # by those before it could give a majority that does not meet the one of those after it.
            if self._role != "follower" and not self._electable():
                self._follow(self._term, NO_NODE)

    def has_vote_for(self, candidate: int) -> bool:
        """Whether this term's one vote is free, or is *candidate*'s already."""
        return self._vote == candidate or (self._vote == NO_NODE and self._leader == NO_NODE)

    def would_vote(self, msg: Message) -> bool:
        """Whether the asker's log holds at least what this one does; a damaged log cannot tell."""
        return not self._damaged and self._log.up_to_date(msg.index, msg.log_term)

    def _on_vote_reply(self, msg: Message) -> None:
        self._electorate.answered(msg)
        self._learn_commit(msg)
        expected = "pre_vote_reply" if self._role == "pre_candidate" else "vote_reply"
        if self._role in ("pre_candidate", "candidate") and msg.kind == expected:
            if msg.kind == "pre_vote_reply" and not msg.reject and msg.term != self._term + 1:
                return  # granted for a campaign of before, in another term: the voter may have voted since
            self._count_vote(msg.sender, not msg.reject)

    def _count_vote(self, voter: int, granted: bool) -> None:
        # The first answer counts: messages may come doubled, and a voter's word does not change within a term.
        self._votes.setdefault(voter, granted)
        result = self._configuration.decided(self._votes)
        if result is False:
            self._follow(self._term, NO_NODE)
        elif result and self._role == "pre_candidate":
            self._begin_vote(force=False)
        elif result and self._node in self._votes:
            # Only with its own vote, which counts from when it is durable: else a crash now would let this node vote
            # for another one in the term that it has led.
            self._lead()

    def _follow(self, term: int, leader: int) -> None:
        """Become a follower in *term*."""
        assert term >= self._term, f"terms only grow: {term} after {self._term}"
        # Every read that was accepted ends: those kept as a leader go with the leadership, those sent to a leader of
        # before are not answered any more. Both before the fields below forget whom they were asked of.
        if self._leadership is not None:
            self._forwarding.drop_reads(self._leadership.reads.of(self._node), "not_leader")
        if (term, leader) != (self._term, self._leader):
            self._forwarding.leader_changed()
        # Only in a later term is the vote free again: to forget it within one would allow a second.
        if term > self._term:
            self._term, self._vote = term, NO_NODE
        self._role, self._leader = "follower", leader
        self._leadership = None
        self._votes = {}
        self._elapsed = 0
        # Anew each time: two that split the votes once would with the same timeouts split them for ever.
        self._timeout = self._config.election_ticks + self._rng.randrange(self._config.election_ticks)

    def _lead(self) -> None:
        self._role, self._leader = "leader", self._node
        self._elapsed = 0
        self._leadership = self.leadership_class(
            self._config, self._term, self._log, self._configuration, self._messages.append
        )

    # Requests

    def propose(self, data: bytes, context: bytes = b"") -> ProposalAccepted | Dropped:
        """Add a command to the log; a follower sends it to the leader.

        What is sent may be lost with the message or the leader, and then nobody can say whether it was committed. If
        the leader refuses it, and *context* is not empty, a later Ready says so under *context*.
        """
        return self._propose("command", data, context)

    def propose_conf_change(
        self, changes: Sequence[ConfChange], transition: Transition = "auto", context: bytes = b""
    ) -> ProposalAccepted | Dropped:
        """Change the members; no changes leave a joint configuration.

        ``auto``: one change takes effect by itself, several go through a joint configuration that the leader leaves
        by itself. ``implicit``, ``explicit``: joint in any case, left by itself or by a request without changes.
        """
        return self._propose("conf_change", encode_conf_change(changes, transition), context)

    def _propose(self, kind: EntryKind, data: bytes, context: bytes) -> ProposalAccepted | Dropped:
        if self._leadership is not None:
            return self._leadership.propose(kind, data)
        if self._leader == NO_NODE:
            return Dropped("no_leader")
        return self._forwarding.propose(self._leader, self._term, kind, data, context)

    def _on_propose(self, msg: Message) -> None:
        for entry in msg.entries:
            taken = self._leadership.propose(entry.kind, entry.data) if self._leadership else Dropped("not_leader")
            if isinstance(taken, Dropped):
                self._refuse(msg, taken.reason)
            elif self._leadership is not None:
                self._leadership.hurry(msg.sender, taken.index)

    def _on_propose_reply(self, msg: Message) -> None:
        if msg.sender == self._leader:
            self._forwarding.proposal_refused(msg)

    def _refuse(self, request: Message, reason: DroppedReason) -> None:
        refusal = self._forwarding.refusal(request, reason, self._term)
        if refusal is not None:
            self._messages.append(refusal)

    def read_index(self, ctx: bytes) -> ProposalAccepted | Dropped:
        """Ask for the index from which on a read is linearizable: a ReadState with *ctx* in some later Ready.

        A follower asks its leader. When no answer can come any more, a Ready says that *ctx* is dropped, at the latest
        ``2 * election_ticks`` after a follower asked: ask again with another *ctx*.
        """
        if self._leadership is not None:
            reason = self._leadership.read(self._node, ctx)
            self._release_reads()
            return Dropped(reason) if reason else ProposalAccepted()
        if self._leader == NO_NODE:
            return Dropped("no_leader")
        return self._forwarding.read(self._leader, self._term, ctx)

    def _on_read_index(self, msg: Message) -> None:
        reason = self._leadership.read(msg.sender, msg.context) if self._leadership else "not_leader"
        if reason is not None:
            self._refuse(msg, reason)
        self._release_reads()

    def _on_read_index_reply(self, msg: Message) -> None:
        answer = self._forwarding.read_answered(msg)
        if answer is not None:
            self._read_states.append(answer)

    def _release_reads(self) -> None:
        for read in () if self._leadership is None else self._leadership.confirmed_reads():
            if read.node == self._node:
                self._read_states.append(ReadState(read.index, read.context))
            else:
                self._send("read_index_reply", read.node, index=read.index, context=read.context)

    def transfer_leader(self, to: int) -> ProposalAccepted | Dropped:
        """Hand over to the voter *to*; given up after ``election_ticks``. Proposals are dropped meanwhile.

        To ask again, also for another voter, gives the one that is under way no more time.
        """
        if self._leadership is None:
            return Dropped("not_leader")
        reason = None if to == self._node else self._leadership.transfer(to)
        return Dropped(reason) if reason else ProposalAccepted()

    def report_unreachable(self, peer: int) -> None:
        """Messages to *peer* may have been lost: the leader asks it what it has before it sends on."""
        if self._leadership is not None:
            self._leadership.unreachable(peer)

    def hurry(self, peer: int, index: int) -> None:
        """Tell *peer*, which waits for the entry of *index*, before its turn among the learners."""
        if self._leadership is not None:
            self._leadership.hurry(peer, index)

    def outgoing_snapshot(self, peer: int) -> RaftSnapshot | None:
        """The snapshot that is on its way to *peer*, for a caller that brings it by its own means."""
        return None if self._leadership is None else self._leadership.outgoing_snapshot(peer)

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """Take note that a snapshot which the caller brought to *peer* by its own means arrived (*ok*), or did not."""
        if self._leadership is not None:
            self._leadership.snapshot_sent(peer, ok)

    # Ready

    def has_ready(self) -> bool:
        """Whether ``ready`` has something; false while one is under way."""
        if self._under_way is not None:
            return False
        log = self._log
        return bool(
            self._messages
            or self._persisted_messages
            or self._read_states
            or self._forwarding.dropped
            or log.has_unstable
            or log.restoring is not None
            or log.has_committed
            or (self._leadership is not None and self._leadership.dirty)
            or self._hard_state() != self._stored
            or self._soft_state() != self._soft
        )

    def ready(self) -> Ready:
        """The next Ready: what to store, send and apply. ``advance`` must confirm it before the next one."""
        assert self._under_way is None, "the last Ready is not confirmed yet"
        log = self._log
        # Messages are made here and not where entries come in: what was proposed since the Ready before travels
        # together.
        if self._leadership is not None and self._leadership.dirty:
            self._leadership.flush()
        if log.restoring is not None:
            # Not before now: changes in the Ready before this one were still to be applied to the members before them.
            self._configuration = self.members_of(log.restoring)
            self._electorate.seen(self._configuration)
        hard, soft = self._hard_state(), self._soft_state()
        entries, committed = log.unstable(), log.committed(self._config.apply_bytes_max)
        ready = Ready(
            hard_state=hard if hard != self._stored else None,
            soft_state=soft if soft != self._soft else None,
            entries=entries,
            snapshot=log.restoring,
            messages=tuple(self._messages),
            persisted_messages=tuple(self._persisted_messages),
            committed=committed,
            read_states=tuple(self._read_states),
            # A commit index alone needs no sync: one that is lost is learned, or counted, again.
            must_sync=bool(entries)
            or log.restoring is not None
            or (hard.term, hard.vote) != (self._stored.term, self._stored.vote),
            dropped=tuple(self._forwarding.dropped),
        )
        self._messages.clear()
        self._persisted_messages.clear()
        self._read_states.clear()
        self._forwarding.dropped.clear()
        # Told with this Ready; what is stored is so only when ``advance`` says it (self._stored).
        self._soft = soft
        self._unapplied.extend(entry for entry in committed if entry.kind == "conf_change")
        self._under_way = ready
        return ready

    def members_of(self, snapshot: RaftSnapshot) -> Configuration:
        """The configuration once *snapshot* is restored."""
        return Configuration.of(snapshot.conf_state)

    def apply_conf_change(self, entry: Entry) -> ConfState:
        """Apply the members' change in *entry* of the Ready under way; gives those from it on, to store with it."""
        assert self._unapplied and self._unapplied[0] is entry, (
            f"entry {entry.index} is not the next change of the members to apply"
        )
        self._unapplied.popleft()
        # Here, and not where the entry is appended, as in etcd's core and other than in dissertation 4.1: what that
        # asks of elections is in ``_electable`` and ``RaftLog.proven_commit``.
        self._configuration = configuration_after(self._configuration, entry)
        self._electorate.seen(self._configuration)
        if self._leadership is not None:
            self._leadership.reconfigure(self._configuration)
            if not self.may_lead():
                self._leadership.removed_at = entry.index  # it steps down when the others know (_after_reply)
        elif self._role != "follower" and not self.may_lead():
            self._follow(self._term, NO_NODE)
        return self._configuration.state()

    def advance(self, ready: Ready) -> None:
        """Confirm that *ready* is carried out: stored (durably where it must), sent, applied."""
        assert ready is self._under_way, "only the Ready under way can be confirmed"
        assert not self._unapplied, f"entry {self._unapplied[0].index} was not given to apply_conf_change"
        self._under_way = None
        # In this order: entries follow the snapshot that they were stored after, and what is applied is stored.
        if ready.snapshot is not None:
            self._log.restored(ready.snapshot)
        if ready.entries:
            self._log.stored(ready.entries[-1].index, ready.entries[-1].term)
        if ready.committed:
            self._log.applied_to(ready.committed[-1].index)
        if ready.hard_state is not None:
            # A candidate's own vote counts from here on, and only the vote of the present term: a Ready that was handed
            # out in an earlier one says nothing of it.
            self._stored = ready.hard_state
            if self._role == "candidate" and (self._stored.term, self._stored.vote) == (self._term, self._node):
                self._count_vote(self._node, True)
        if self._leadership is not None:
            self._leadership.released(ready.committed)
            # Not before now does its own log count as a voter's: it is durable as far as this Ready said.
            self._leadership.count()
            self._after_ready(self._leadership)

    def _after_ready(self, leadership: Leadership) -> None:
        # Of the configuration that is applied: the change out of a joint one may be appended only when this leader
        # counts by both majorities, as it does from then on.
        if self._configuration.auto_leave and leadership.conf_change_refusal() is None:
            leadership.append("conf_change", encode_conf_change((), "auto"))
        # Without an answer from anybody: its own disk or a smaller quorum may be all that a read waited for.
        self._release_reads()

    @property
    def committed_at_most(self) -> int | None:
        """The index after which nothing is committed, on a leader; else None.

        Before its first commit, the end of its log.
        """
        if self._leadership is None:
            return None
        return self._log.commit if self._leadership.established else self._log.last_index

    def status(self) -> Status:
        """A copy of what this node knows, for people and tests."""
        leadership = self._leadership
        return Status(
            node=self._node,
            role=self._role,
            term=self._term,
            vote=self._vote,
            leader=self._leader,
            commit=self._log.commit,
            applied=self._log.applied,
            first_index=self._log.first_index,
            last_index=self._log.last_index,
            config=self._configuration.state(),
            progress={} if leadership is None else leadership.statuses(),
            transferee=NO_NODE if leadership is None else leadership.transferee,
            damaged=self._damaged,
        )

    def _hard_state(self) -> HardState:
        return HardState(self._term, self._vote, self._log.commit)

    def _soft_state(self) -> SoftState:
        return SoftState(self._leader, self._role)

    def _send(self, kind: MessageKind, to: int, *, reject: bool = False, index: int = 0, context: bytes = b"") -> None:
        self._messages.append(Message(kind, to, self._node, self._term, index=index, reject=reject, context=context))

    def _send_persisted(self, message: Message) -> None:
        self._persisted_messages.append(message)
