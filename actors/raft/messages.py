"""What goes into the Raft core and what comes out: entries, messages between nodes, and ``Ready``.

Plain frozen values. Node ids are integers from 1; 0 is no node. Indexes and terms count from 1; 0 is before the
first. Time is ticks, whose length the caller chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

EntryKind = Literal["command", "conf_change"]
Role = Literal["follower", "pre_candidate", "candidate", "leader"]
ChangeKind = Literal["add_voter", "add_learner", "remove"]
Transition = Literal["auto", "implicit", "explicit"]
MessageKind = Literal[
    "pre_vote",
    "pre_vote_reply",
    "vote",
    "vote_reply",
    "append",
    "append_reply",
    "heartbeat",
    "heartbeat_reply",
    "snapshot",
    "snapshot_reply",
    "read_index",
    "read_index_reply",
    "propose",
    "timeout_now",
    "damaged",
    "propose_reply",
]
DroppedReason = Literal[
    "no_leader",
    "not_leader",
    "not_a_voter",
    "transferring",
    "too_many_uncommitted_bytes",
    "too_many_reads",
    "conf_change_pending",
    "nothing_committed_in_term",
    "invalid_conf_change",
    "unknown_node",
    "damaged",
    "leader_changed",
    "no_answer",
]
RequestKind = Literal["proposal", "read"]

NO_NODE = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    A command with no data is the one that a new leader begins its term with: it changes no state machine. The very
    first entry of a log is a conf_change that says who the members are.
    """

    index: int
    term: int
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget. ``commit`` may lag behind; ``term`` and ``vote`` may not."""

    term: int = 0
    vote: int = NO_NODE
    commit: int = 0


@dataclass(frozen=True, slots=True)
class ConfState:
    """Who is a member. ``voters_outgoing`` is empty unless the configuration is joint; every tuple is sorted.

    ``learners_next`` are voters of the outgoing half that become learners when the joint configuration is left,
    which the leader does by itself where ``auto_leave``.
    """

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False


@dataclass(frozen=True, slots=True)
class RaftSnapshot:
    """The state machine's bytes once everything up to ``index`` is applied, and the members as of that index."""

    index: int
    term: int
    conf_state: ConfState
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes ``offset`` to ``offset + len(data)`` of a snapshot. ``checksum`` is the CRC-32 of all of its data."""

    index: int
    term: int
    conf_state: ConfState
    offset: int
    total_bytes: int
    checksum: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """One message between two nodes. Fields that a kind does not name are at their defaults.

    ``term`` is the sender's, but for a pre_vote and its granting reply: there it is the term that would be
    campaigned for. ``sequence`` numbers what a leader sends in its term; replies carry it back, so that a reply is
    known to be younger than anything that happened before its number was given out.

    * pre_vote, vote: ``index`` and ``log_term`` of the last entry; ``force``: a transfer, leases do not count;
      ``commit`` and its term in ``hint``; of a pre_vote also ``sequence``: does that node vote?
    * pre_vote_reply, vote_reply: ``reject``; ``commit`` and its term in ``hint``; ``index``: the node that was asked
      for, if it votes as far as is known
    * append: ``index`` and ``log_term`` of the entry before ``entries``; ``commit``; ``sequence``
    * append_reply: ``index`` matched, or rejected with a ``hint`` (index) and ``log_term`` (its term) of where the
      logs may agree; ``last_index`` of the log; ``commit`` of the sender; ``sequence``
    * heartbeat: ``commit`` that the receiver is known to hold; ``sequence``
    * heartbeat_reply: ``last_index``; ``commit`` of the sender; ``sequence``
    * snapshot: ``chunk``; ``sequence``
    * snapshot_reply: ``index`` of the snapshot, ``hint``: bytes received so far; ``last_index``; ``sequence``
    * read_index: ``context``; ``force``: the sender understands a refusal
    * read_index_reply: ``context``, ``index``; ``reject`` with the number of the reason in ``hint``
    * propose: ``entries`` without index and term; ``context`` where a refusal is to be told
    * propose_reply: ``context``, ``reject`` with the number of the reason in ``hint``
    * timeout_now: campaign at once
    * damaged: the receiver's log is shorter than what it acknowledged; it must neither vote nor campaign
    """

    kind: MessageKind
    to: int
    sender: int
    term: int
    index: int = 0
    log_term: int = 0
    commit: int = 0
    entries: tuple[Entry, ...] = ()
    reject: bool = False
    hint: int = 0
    last_index: int = 0
    sequence: int = 0
    force: bool = False
    context: bytes = b""
    chunk: SnapshotChunk | None = None


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read asked for under ``context`` is linearizable once ``index`` is applied."""

    index: int
    context: bytes


@dataclass(frozen=True, slots=True)
class SoftState:
    """Who leads and what this node does; nothing of it is stored."""

    leader: int
    role: Role


@dataclass(frozen=True, slots=True)
class Ready:
    """What the caller has to do next, before it calls ``advance``.

    1. Send ``messages``; answer ``read_states``; both at once.
    2. Store ``snapshot``, ``entries`` (those from the first one's index on are replaced) and ``hard_state``;
       with fsync where ``must_sync``.
    3. When that is durable, send ``persisted_messages``. Never before: they are votes and acknowledgements.
    4. Restore the state machine from ``snapshot``; apply ``committed`` in order, calling ``apply_conf_change`` for
       each entry of that kind. Entries given here are durable on this node already.
    5. ``advance(ready)``.

    ``hard_state`` and ``soft_state`` are None where nothing changed. ``dropped``: what was accepted, and ended.
    """

    hard_state: HardState | None
    soft_state: SoftState | None
    entries: tuple[Entry, ...]
    snapshot: RaftSnapshot | None
    messages: tuple[Message, ...]
    persisted_messages: tuple[Message, ...]
    committed: tuple[Entry, ...]
    read_states: tuple[ReadState, ...]
    must_sync: bool
    dropped: tuple[DroppedLater, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposalAccepted:
    """The answer that a request was taken. ``forwarded``: it was only sent to the leader, and may be lost on the way.

    A proposal that was appended here is the entry of ``index`` and ``term``; one that is forwarded, and what is no
    proposal, has neither (0). The entry is committed when that index is with that term, and lost for ever when that
    index is committed with another term.
    """

    index: int = 0
    term: int = 0
    forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """The answer that a request was not taken; nothing changed."""

    reason: DroppedReason


@dataclass(frozen=True, slots=True)
class DroppedLater:
    """A request that was accepted under ``context`` is not carried out.

    A read of another reason than ``no_answer`` never is then; that one's answer may be late, and may come yet. Ask
    again under another context. A proposal was refused by the leader that it was forwarded to; no earlier one under the
    same context is meant, so it is safe to repeat only where a repetition does no harm.
    """

    kind: RequestKind
    context: bytes
    reason: DroppedReason


@dataclass(frozen=True, slots=True)
class ConfChange:
    """One change of the members. ``add_voter`` promotes a learner, ``add_learner`` demotes a voter."""

    kind: ChangeKind
    node: int


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Settings of one node; every bound of the core is here.

    ``applied`` is the last index that the state machine holds already, and the ConfState of ``initial_state`` is
    that of this index. A node campaigns after ``election_ticks`` to ``2 * election_ticks - 1`` ticks of silence.
    An append carries at most ``message_entries_max`` entries and ``message_bytes_max`` bytes (but one entry at
    least); at most ``inflight_messages_max`` of them and ``inflight_bytes_max`` bytes are on the way to a peer.
    Proposals are dropped while more than ``uncommitted_bytes_max`` wait for their commit, reads beyond
    ``reads_max``. In one tick ``learners_a_tick`` learners are sent news, and who waits for them. One Ready gives out
    at most ``apply_bytes_max`` of committed entries (but one at least). A snapshot travels in chunks of
    ``snapshot_chunk_bytes``, ``snapshot_chunks_inflight`` at a time; one of more than ``snapshot_bytes_max`` is not
    received, nor one that ``snapshot_check`` says no to: the state machine's word on its bytes, before they count. What
    it raises comes out of ``step``, and nothing of the snapshot was taken. ``electorate``: who votes, as this node was
    told when it joined, for as long as its log is older than that. With an empty log and none, it believes every
    member.
    """

    node: int
    applied: int = 0
    election_ticks: int = 10
    heartbeat_ticks: int = 1
    message_entries_max: int = 1024
    message_bytes_max: int = 2**20
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 64 * 2**20
    uncommitted_bytes_max: int = 64 * 2**20
    apply_bytes_max: int = 16 * 2**20
    reads_max: int = 4096
    learners_a_tick: int = 64
    snapshot_chunk_bytes: int = 2**20
    snapshot_chunks_inflight: int = 4
    snapshot_bytes_max: int = 2**30
    snapshot_check: Callable[[RaftSnapshot], bool] | None = None
    electorate: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert self.node > NO_NODE, "node ids count from 1"
        assert 0 < self.heartbeat_ticks < self.election_ticks, "a leader must be heard of before it is given up"
        assert self.applied >= 0, "an applied index is 0 or more"
        for name in self.__slots__:
            if name.endswith(("_max", "_bytes", "_inflight")):
                assert getattr(self, name) > 0, f"{name} is a bound of 1 or more"


class Rng(Protocol):
    """The part of ``random.Random`` that the core uses: nodes must not campaign at the same time again and again."""

    def randrange(self, stop: int, /) -> int:
        """An integer from 0 to *stop* - 1."""
        ...
