"""Progress of one member: what its leader knows of its log, and how much it has on the way to it.

Three states, as in etcd's core: *probe* sends one append and waits until the logs' common point is found;
*replicate* sends on without waiting, up to the limits of what may be on the way; *snapshot* sends chunks of a
snapshot, because the entries the member needs are compacted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from .messages import RaftConfig
from .snapshots import OutgoingSnapshot

ProgressState = Literal["probe", "replicate", "snapshot"]


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A member as its leader sees it. ``damaged``: its log is shorter than what it acknowledged; it is refused.
    ``paused``: a probe is on its way, or nobody is there to take a snapshot: nothing more is sent before an answer.
    ``quiet_ticks``: how long it was not heard of."""

    match: int
    next: int
    state: ProgressState
    active: bool
    damaged: bool
    inflight: int
    quiet_ticks: int
    paused: bool = False


class Progress:
    """What a leader knows of one member. Bound: ``inflight_messages_max`` records, and one reference to a snapshot."""

    __slots__ = (
        "_config",
        "_inflight",
        "acknowledged",
        "commit",
        "damaged",
        "heard_tick",
        "inflight_bytes",
        "match",
        "match_sequence",
        "next",
        "outgoing",
        "paused",
        "poked",
        "sent_commit",
        "state",
    )

    def __init__(self, config: RaftConfig, last_index: int, now_tick: int) -> None:
        self._config = config
        self.match = 0
        self.next = last_index + 1
        self.state: ProgressState = "probe"
        self.heard_tick = now_tick  # of the leadership, when it was last heard of; a new member counts as heard
        self.damaged = False
        self.paused = False  # a probe is on the way
        self.poked = True  # an append is due, even an empty one
        self.sent_commit = 0
        self.commit = 0  # the highest commit index that it said it knows
        self.acknowledged = 0  # the highest sequence number answered
        self.match_sequence = 0  # the last number given out when *match* was learned
        self.outgoing: OutgoingSnapshot | None = None
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append on the way
        self.inflight_bytes = 0

    def become_probe(self, next_index: int) -> None:
        """Look for the common point from *next_index* on."""
        self.state, self.next = "probe", next_index
        # An append is due even where there is nothing to send: its answer is what says where the logs agree.
        self.paused, self.poked = False, True
        self._forget()

    def become_replicate(self) -> None:
        """Send on without waiting: the logs agree up to ``match``."""
        self.state, self.next, self.paused = "replicate", self.match + 1, False
        self._forget()

    def become_snapshot(self, outgoing: OutgoingSnapshot) -> None:
        """Send *outgoing*, and entries after it."""
        self._forget()
        self.state, self.outgoing, self.paused = "snapshot", outgoing, False

    def become_damaged(self) -> None:
        """Stop counting on the member: its log is shorter than what it acknowledged."""
        # Its match was counted towards commits; left in place it would be counted again, for entries that are gone.
        self.become_probe(1)
        self.damaged, self.match, self.poked = True, 0, False

    def _forget(self) -> None:
        self.outgoing = None
        self._inflight.clear()
        self.inflight_bytes = 0

    @property
    def full(self) -> bool:
        """Whether as much is on the way as may be."""
        return (
            len(self._inflight) >= self._config.inflight_messages_max
            or self.inflight_bytes >= self._config.inflight_bytes_max
        )

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note that an append that ends at *last_index* is on the way; an empty one has no bytes and no record."""
        # Taken to arrive, before any answer: that is what lets the next one go without waiting (``full`` bounds it).
        if self.state == "replicate" and last_index >= self.next:
            self._inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes
            self.next = last_index + 1
        elif self.state == "probe":
            self.paused = True

    def arrived(self, index: int) -> None:
        """Note that everything up to *index* arrived."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]

    def free_one(self) -> None:
        """Let one more append go although as much is on the way as may be: the oldest may be lost."""
        if self._inflight:
            self.inflight_bytes -= self._inflight.popleft()[1]

    @property
    def unanswered(self) -> bool:
        """Whether something was sent, and no answer says that it came."""
        return bool(self.paused or self._inflight or self.outgoing or self.sent_commit > self.commit)

    def quiet_ticks(self, now_tick: int) -> int:
        """Ticks since the member was last heard of."""
        return now_tick - self.heard_tick

    def status(self, now_tick: int, active: bool) -> PeerStatus:
        """A copy of what the leader knows of this member."""
        return PeerStatus(
            self.match,
            self.next,
            self.state,
            active and not self.damaged,
            self.damaged,
            len(self._inflight),
            self.quiet_ticks(now_tick),
            self.paused,
        )
