"""Where a replica stands: what it holds durably and what is staged, what it knows of others, and how it says so.

Decides only. What it makes of what others say is anti_entropy.py's.
"""

from __future__ import annotations

from collections.abc import Iterable

from .assembly import Assembly
from .causal import Replica
from .delta_log import DeltaLog, DottedDelta
from .exchange import COUNTED, REASONS, Dice, GossipLimits, Holding, Instruction, Peer, Send, TakeNewEpoch
from .fresh import FreshDeltas
from .key_tree import KeyTree
from .packets import Message, VectorTold, encode, fragments
from .peer_choice import PeerChoice
from .retirement import NOBODY, RetiredOrigins
from .types import Crdt
from .vector_parts import RECENT_FIRST, RECENT_MAX, VectorParts
from .version_vector import MAX_ORIGINS, Vector, differing, vector_hash


class Standing:
    """Of one replica. *tree* is of its *states* in memory; *dice* decides whom it speaks to."""

    def __init__(
        self,
        me: Replica,
        vector: Vector,
        rows: Iterable[DottedDelta],
        tree: KeyTree,
        states: Holding,
        dice: Dice,
        limits: GossipLimits,
    ) -> None:
        self.me = me
        """Under which name the next local delta is made; nothing may be staged when it changes."""
        self.vector: Vector = dict(vector)
        """What is durable here. Not to be changed."""
        self.limits = limits
        self.retired = NOBODY
        """Origins of which nothing is counted here any more. Not to be changed."""
        self.known = NOBODY
        """The same as the ledger has it: whoever is not so far takes no deltas of theirs, only states."""
        self.members: frozenset[str] = frozenset((me[0],))
        self.choice = PeerChoice(me[0], dice, limits)
        self.peers: dict[str, Peer] = {}
        self.refused = dict.fromkeys(REASONS, 0)
        self.counts = dict.fromkeys(COUNTED, 0)
        self._tree = tree
        self._states_held = states
        self._dice = dice
        self._assembly = Assembly(limits.partial_peers, limits.patience_rounds)
        self.log = DeltaLog(limits.log_bytes)
        for row in rows:
            if row.sequence <= self.vector.get(row.origin, 0):
                self.log.add(row)
        self._staged: Vector = {}
        self._rows: list[list[DottedDelta]] = []
        """What is staged, in runs of one origin."""
        self._acks: dict[str, dict[Replica, None]] = {}
        self._fresh = FreshDeltas()
        self._hash: bytes | None = None
        self._parts = VectorParts(self.vector)
        self._message = 0

    # -- bytes

    def _send(self, name: str, message: Message) -> list[Instruction]:
        data = encode(message)
        self._peer(name).spent_bytes += len(data)
        self._message = (self._message + 1) % 2**31
        packets = fragments(data, self._message)
        self.counts["sent_packets"] += len(packets)
        self.counts["sent_bytes"] += sum(map(len, packets))
        return [Send(name, packet) for packet in packets]

    # -- vectors

    def _ask(self, name: str, level: int, confirm: bool = False) -> list[Instruction]:
        """Ask a peer of that level for its vector, by telling ours."""
        if self._peer(name).reads_parts and level == self.retired.level:
            return self._send_part(name, self._parts.recent(RECENT_FIRST), ask=True, confirm=confirm)
        return self._send(name, self._told(level, ask=True, confirm=confirm))

    def _answer_vector(self, name: str, level: int) -> list[Instruction]:
        """Tell our vector; to one whose vector is known, in what ours differs from it."""
        peer = self._peer(name)
        if peer.reads_parts and peer.told and level == peer.level == self.retired.level:
            origins = differing(self.vector, peer.known)
            # Of one that it has never heard of, the short id would say nothing.
            if len(origins) <= RECENT_MAX and all(origin in peer.known for origin in origins):
                return self._send_part(name, origins, ask=False)
        return self._send(name, self._told(level))

    def _send_part(
        self, name: str, origins: Iterable[Replica], *, ask: bool, confirm: bool = False, again: bool = False
    ) -> list[Instruction]:
        level, opening = self.retired.level, self.me[1]
        return self._send(name, self._parts.tell(origins, opening, level, ask=ask, confirm=confirm, again=again))

    def _told(self, level: int, ask: bool = False, repair: bool = False, confirm: bool = False) -> VectorTold:
        """Our vector, for a peer of that level: one that is not as far is told what is retired here."""
        retired = self.retired if level < self.retired.level else RetiredOrigins(self.retired.level)
        self.counts["vectors_told"] += 1
        return VectorTold(self.vector, self.me[1], ask, repair, retired, confirm, reads_parts=True)

    # -- small things

    def _stage(self, row: DottedDelta) -> None:
        self._staged[row.origin] = row.sequence
        last = self._rows[-1] if self._rows else None
        if last is not None and last[-1].origin == row.origin and last[-1].sequence + 1 == row.sequence:
            last.append(row)
        else:
            self._rows.append([row])

    def _held(self, origin: Replica) -> int:
        """The highest sequence that is staged or durable."""
        return self._staged.get(origin) or self.vector.get(origin, 0)

    def _takes(self, origin: Replica) -> bool:
        """Whether deltas of that origin are taken."""
        return origin not in self.known and self._room_for(origin)

    def _room_for(self, origin: Replica) -> bool:
        if self._held(origin):
            return True
        return len(self.vector.keys() | self._staged.keys()) < MAX_ORIGINS - 1  # one is kept for ourselves

    def _claims_ours(self, key: str, found: Crdt) -> bool:
        """Whether it has events of ours that we did not make: joined, they would stand where our next ones belong."""
        claimed = found.highest(self.me)
        return bool(claimed) and claimed > self._states_held.highest(key, found.kind, self.me)

    def _forged(self) -> list[Instruction]:
        self.refused["forged"] += 1
        if self.counts["new_epochs"] >= self.limits.new_epochs:
            return []
        self.counts["new_epochs"] += 1
        return [TakeNewEpoch()]

    def _peer(self, name: str) -> Peer:
        return self.peers.setdefault(name, Peer())

    def _vector_hash(self) -> bytes:
        if self._hash is None:
            self._hash = vector_hash(self.vector)
        return self._hash

    def _root(self) -> bytes:
        """The tree's hash, if that is known without much work."""
        return self._tree.root() if self._tree_ready else b""

    @property
    def _tree_ready(self) -> bool:
        return self._tree.waiting <= self.limits.tree_digests_a_round
