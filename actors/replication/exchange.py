"""What anti-entropy asks of its owner and tells it to do, how much at once, and what it knows of a peer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .causal import Replica
from .delta_log import LOG_BYTES, DottedDelta
from .packets import MESSAGE_BYTES_MAX, PACKET_BYTES
from .retirement import NOBODY, RetiredOrigins
from .types import Crdt
from .version_vector import Vector

STATE_BYTES_MAX = MESSAGE_BYTES_MAX - 2**16
"""Of a state that is sent whole: a larger one keeps whoever has to repair itself from taking our vector."""
REASONS = ("malformed", "version", "forged", "future", "vector_full", "too_many_fragments", "no_member")
"""For what packets, or parts of them, are refused."""
COUNTED = (
    "sent_packets",
    "sent_bytes",
    "received_packets",
    "received_bytes",
    "deltas_taken",
    "deltas_repeated",
    "states_taken",
    "gaps",
    "rounds",
    "walks",
    "walks_ended",
    "walks_given_up",
    "new_epochs",
    "deltas_retired",
    "other_levels",
    "vectors_told",
    "vectors_in_part",
    "parts_not_enough",
)


class Holding(Protocol):
    """The states of the owner, as they are in memory."""

    def encoded(self, key: str) -> list[bytes]:
        """Of a key, one for each type that it became."""

    def highest(self, key: str, kind: str, replica: Replica) -> int:
        """How far *replica* has counted in that state (``Crdt.highest``)."""


class Dice(Protocol):
    """Chance, from a seed."""

    def sample(self, population: list[str], k: int) -> list[str]:
        """*k* of them."""

    def getrandbits(self, k: int, /) -> int:
        """A number of *k* bits."""


@dataclass(frozen=True, slots=True)
class GossipLimits:
    """How much at once, and how patient."""

    digests: int = 2
    """Peers that a round begins with: of a host that holds the same as all, that is all it says."""
    all_at: int = 6
    """With up to so many other members a push goes to all of them, and nobody passes it on: with four others that is 4
    packets and 4 acknowledgements in place of 12 each. What is lost, digests find."""
    trees: int = 2
    """With more of them, over so many trees (``overlay``); what one host wrote always over the same."""
    tree_fan_out: int = 6
    """Of each host in a tree: a thousand hosts are four steps from its root."""
    rings: int = 4
    """Beside the trees: of each host two neighbours in each, to whom digests go too."""
    chance_rounds: int = 8
    """So often, on average, a digest goes to any host, by chance: whatever became of trees and rings."""
    relays: int = 2
    """Hosts of a site that speak to another site. Two, so that what is new crosses when either is gone; each more is
    one more copy of everything on the way between sites."""
    odd_rounds: int = 8
    """So often some host of a site that is no relay turns to another site, by chance: in case no relay works."""
    silent_rounds: int = 8
    """Without a word from a relay, until the next takes its place; of one here as often more as this host has more
    neighbours than a round turns to. e**-8 is the chance that none of eight words expected came."""
    relays_known: int = 4
    """Of a site's relays to another, with those that would take their place: they all know each other."""
    packet_bytes: int = PACKET_BYTES - 4096
    """Of deltas or states in one message; one that is larger goes alone, in fragments."""
    peer_bytes_a_round: int = 4 * 2**20
    """To one peer; what is beyond waits for the next round."""
    patience_rounds: int = 2
    """Rounds until an interval that is not acknowledged is sent again."""
    far_peer_bytes_a_round: int = 2**20
    """To one peer at another site: a line between sites is shared with others."""
    far_patience_rounds: int = 5
    """The same of a peer at another site: over a line of 1 Mbit/s a full packet takes half a second by itself."""
    log_bytes: int = LOG_BYTES
    partial_peers: int = 8
    """Peers whose fragments are kept at once, 16 MiB each at most; of others they are refused."""
    tree_digests_a_round: int = 2000
    """Digests of keys and nodes of the tree that are computed in a round, or at once by who needs them. While more wait
    (after a start, after a flood) no tree is told, and no walk begun or answered: the owner computes them in slices."""
    new_epochs: int = 16
    """How often in this life a replica takes a new epoch, because somebody claims more of its own than it made."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give this packet to the net; it may be lost."""

    peer: str
    packet: bytes


@dataclass(frozen=True, slots=True)
class TakeDeltas:
    """Join them, and make them durable with their dots: of one origin, one after the other."""

    rows: list[DottedDelta]
    deltas: list[Crdt]
    """Of the rows, read."""


@dataclass(frozen=True, slots=True)
class TakeState:
    """Join a whole state, and make it durable; it has no dot. ``retired``: at the level of who sent it."""

    key: str
    state: Crdt
    retired: RetiredOrigins = NOBODY


@dataclass(frozen=True, slots=True)
class TakeVector:
    """Make these counts durable, with the states that were taken before."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class TakeNewEpoch:
    """Somebody has more of our origin than we made: mutate under a new one from here on (``change_origin``)."""


@dataclass(frozen=True, slots=True)
class TakeLevel:
    """All that was missing for a later level was taken: retire its origins, once that is durable."""

    retired: RetiredOrigins


Instruction = Send | TakeDeltas | TakeState | TakeVector | TakeNewEpoch | TakeLevel


@dataclass(slots=True)
class Peer:
    """What is known of another replica."""

    known: Vector = field(default_factory=dict)
    """What it told, or acknowledged, to hold durably."""
    level: int = 0
    """Of its retirements, when it told its vector last."""
    told_round: int = 0
    """In which of our rounds it did."""
    told: bool = False
    """Whether it told all it holds: then what is not in ``known`` it has not."""
    assumed: Vector = field(default_factory=dict)
    """What it is taken to have, so that a push need not begin with an origin's first delta. Counts for nothing else:
    who has it not tells of the gap."""
    in_flight: Vector = field(default_factory=dict)
    """The last sequences of the interval set under way."""
    waited_rounds: int = 0
    backlog: dict[Replica, None] = field(default_factory=dict)
    """Origins with deltas that could not be sent while one was under way."""
    reads_parts: bool = False
    """Whether it knows ``VectorPart``."""
    spent_bytes: int = 0
    gap_told: bool = False
    """Whether it was told of a gap in this round."""

    def tell(self, vector: Vector, level: int, now_round: int) -> None:
        """It told all it holds, at that level of retirements."""
        self.known, self.assumed, self.told, self.level, self.told_round = vector, {}, True, level, now_round

    def retire(self, retired: RetiredOrigins) -> None:
        """Origins are retired here: what it has of them matters no more."""
        self.known, self.assumed = retired.without(self.known), retired.without(self.assumed)
        self.in_flight = retired.without(self.in_flight)
        self.backlog = {origin: None for origin in self.backlog if origin not in retired}

    def pass_round(self, patience_rounds: int) -> bool:
        """A round has passed. Whether so many have without an acknowledgement: what is under way is lost, and the next
        digest finds it.
        """
        self.spent_bytes = 0
        self.gap_told = False
        if not self.in_flight:
            return False
        self.waited_rounds += 1
        if self.waited_rounds < patience_rounds:
            return False
        self.in_flight, self.backlog = {}, {}
        return True
