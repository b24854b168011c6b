"""One replica of the shared state: its store on disk and its part in anti-entropy, kept in step.

It owns no net and no clock: packets come in with the time, and go out as ``Send``. The server beside it
(actor.py) and the simulations of the tests both drive this.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from actorgrid.errors import DiskFull
from actorgrid.supervisors.gc_pause import collection_paused

from .anti_entropy import AntiEntropy
from .causal import Replica
from .crdt import Crdt
from .dotted import Dotted
from .exchange import (
    Dice,
    GossipLimits,
    Instruction,
    Send,
    TakeDeltas,
    TakeLevel,
    TakeNewEpoch,
    TakeState,
    TakeVector,
)
from .key_tree import KeyTree
from .messages import RetiredOpenings
from .packets import compares_states, message_bytes
from .retirement import RetiredOrigins, join_at, retire, settle
from .retirement_due import RetirementWatch, may_retire, retired_by
from .store import States, StateStore
from .types import DELTAS, decode
from .version_vector import new_epoch

log = logging.getLogger("actorgrid.distributed_state")

ROOM_BYTES = 8192
HASH_AT_ONCE = 500
HASH_PAUSE_S = 0.02
"""Of the tree: some 5 ms of work in 20; that of 100,000 keys is there after some 7 s."""
KEYS_MAX = 200_000
STATES_BYTES_MAX = 256 * 2**20
"""What is taken from others: more than each host lets its own callers make, since several may have done so at once.
Beyond it, and with a full disk, packets are passed over until there is room."""


class StateReplica:
    """Opens the store, as a new origin. Raises LogCorrupted, DiskFull or LogFailed."""

    def __init__(
        self, directory: Path, host_id: str, incarnation: int, dice: Dice, limits: GossipLimits | None = None
    ) -> None:
        self._host_id = host_id
        self._incarnation = incarnation
        self._dice = dice
        self.store = StateStore(directory)
        self.watch = RetirementWatch()
        self._openings: Sequence[RetiredOpenings] = ()
        self.me: Replica = self._new_origin()
        self.changed: dict[str, None] = {}
        """Keys whose state changed since the owner last looked, in order; the owner empties it."""
        self.passed_over = 0
        """Packets that were not looked at for want of room, in memory or on the disk; they come again."""
        self._tree = KeyTree(self._canonical)
        self._tree.touch(self.store.states)
        self.gossip = AntiEntropy(
            self.me, self.store.vector, self.store.rows, self._tree, self, dice, limits or GossipLimits()
        )
        self.gossip.retire(self.store.retired, self.store.known)
        self.store.rows.clear()
        self._adopt()

    @property
    def states(self) -> States:
        """All states, as in memory."""
        return self.store.states

    def stage_local(self, key: str, delta: bytes) -> int:
        """A local mutation that ``states`` has already: durable, and told, after ``commit``. Its sequence."""
        if self.store.retired.level:
            self._settle_local(key, delta)
        row = self.gossip.local(key, delta)
        self.store.stage(key, delta, row.origin, row.sequence)
        self._touch((key,))
        return row.sequence

    def receive(self, peer: str, packet: bytes, now_us: int) -> list[Send]:
        """Take a packet in; ``commit`` soon after. Raises as ``commit``, which some packets need before."""
        sends: list[Send] = []
        if self.store.staged and compares_states(packet):
            sends += self.commit()
        if len(self.states) > KEYS_MAX or self.store.snapshot_bytes > STATES_BYTES_MAX:
            self.passed_over += 1
            return sends
        try:
            # Before anything is staged: the room has to be there when it is committed.
            self.store.reserve(2 * message_bytes(packet) + 64 * len(self.store.vector) + ROOM_BYTES)
        except DiskFull as error:
            self.passed_over += 1
            log.debug("a packet of %s is passed over: %s", peer, error)
            return sends
        with collection_paused():  # a packet of a thousand deltas makes ten times as many objects, to stay
            return sends + self._do(self.gossip.receive(peer, packet, now_us))

    def forget(self, key: str) -> None:
        """Nothing of a key is of use any more: out of memory, and of the disk with the next snapshot."""
        del self.store.states[key]
        self._tree.touch((key,))

    def ended_in(self, key: str) -> None:
        """A part of a key's state was dropped because its time was over."""
        for state in self.store.states.get(key, {}).values():
            retire(state, self.store.retired)
        self._tree.touch((key,))

    def commit(self) -> list[Send]:
        """Make all that is staged durable; what then may be told. Raises DiskFull, with memory as the disk is again, or
        LogFailed, after which nothing may be done.
        """
        try:
            self.store.commit()
        except DiskFull:
            self.roll_back()
            raise
        return self._do(self.gossip.committed())

    def roll_back(self) -> None:
        """Forget what is staged. Raises as the constructor."""
        self.gossip.rolled_back()
        self.store.reopen()
        self.gossip.retire(self.store.retired, self.store.known)
        self.store.rows.clear()
        self._tree.forget_all()
        self._tree.touch(self.store.states)
        self._adopt()

    def round(self) -> list[Send]:
        """Begin a round of anti-entropy. Raises as ``commit``."""
        return self.commit() + self._rise() + self._do(self.gossip.round())

    def push(self) -> list[Send]:
        """Offer what is new to a few."""
        return self._do(self.gossip.push())

    def offer_to_all(self, origin: Replica, sequence: int) -> list[Send]:
        """Offer what is new of one origin to all."""
        return self._do(self.gossip.offer_to_all(origin, sequence))

    def set_members(
        self, members: Iterable[str], sites: Mapping[str, str] | None = None, away: Collection[str] = ()
    ) -> None:
        """The hosts of the cluster, the sites of those that said one, and who is known to be away."""
        self.gossip.set_members(members, sites)
        self.gossip.choice.set_away(away)

    def learn(self, openings: Sequence[RetiredOpenings]) -> list[Send]:
        """What the ledger says is retired: carried out here if all of it is held. Raises as ``commit``."""
        store, sends = self.store, list[Send]()
        self._openings = openings
        known = retired_by(openings)
        if known.level > store.known.level:
            sends += self.commit()
            store.reserve(2 * store.retirement_bytes + 64 * len(known.floors) + ROOM_BYTES)
            store.stage_known(known)
            sends += self.commit()
            self.gossip.retire(store.retired, known)
            if self.me in known:
                # Set back to a backup of all its data, its incarnation too: what it wrote so far reaches nobody.
                log.warning("this host's incarnation is one that is gone for good: it goes on under a later one")
                self.me = self.gossip.me = self._new_origin()
        return sends + self.commit() + self._rise()

    def ask(self, names: Iterable[str]) -> list[Send]:
        """Ask members for their vectors."""
        return [send for name in names for send in self._do(self.gossip.ask(name))]

    def look_for_retired(self, at_least: int, quiet_rounds: int) -> tuple[list[Send], list[RetiredOpenings]]:
        """Openings that may be retired now (see ``RetirementWatch.look``), and what to ask of members in the way."""
        found = self.watch.look(self.gossip, at_least, quiet_rounds)
        return self.ask(self.watch.to_ask()), found

    def hash_some(self, digests_max: int = HASH_AT_ONCE) -> bool:
        """Compute so many digests of the tree; whether more wait."""
        self._tree.work(digests_max)
        return self._tree.waiting > 0

    def digest(self) -> bytes:
        """The hash of all states: equal on replicas that hold the same."""
        return self._tree.root()

    def close(self) -> None:
        """Let go of the files."""
        self.store.close()

    # -- for the decisions

    def encoded(self, key: str) -> list[bytes]:
        """See ``Holding``."""
        kinds = self.store.states.get(key, {})
        return [kinds[kind].to_bytes() for kind in sorted(kinds)]

    def highest(self, key: str, kind: str, replica: Replica) -> int:
        """See ``Holding``."""
        state = self.store.states.get(key, {}).get(kind)
        return 0 if state is None else state.highest(replica)

    # -- inside

    def _do(self, instructions: list[Instruction]) -> list[Send]:
        sends: list[Send] = []
        for instruction in instructions:
            match instruction:
                case Send():
                    sends.append(instruction)
                case TakeDeltas(rows, deltas):
                    keys = [row.key for row in rows]
                    DELTAS.join(self.store.states, keys, deltas)
                    if self.store.retired.level:
                        for key, delta in zip(keys, deltas, strict=True):
                            settle(self.store.states[key][delta.kind], delta, self.store.retired)
                    self._touch(keys)
                    self.store.stage_run(rows)
                case TakeState(key, state, retired):
                    self._take_state(key, state, retired)
                case TakeVector(vector):
                    self.store.stage_vector(vector)
                case TakeLevel(retired):
                    sends += self.commit() + self._retire(retired)
                case TakeNewEpoch():
                    sends += self.commit()
                    self.me = self.gossip.me = self._new_origin()
                    log.warning("another host claims deltas of this one that it did not make: it takes a new epoch")
        return sends

    def _take_state(self, key: str, state: Crdt, retired: RetiredOrigins) -> None:
        kinds = self.store.states.setdefault(key, {})
        known = kinds.get(state.kind)
        if not self.store.known.level:
            data = state.to_bytes()
            kinds[state.kind] = state if known is None else known.join(state)
            self.store.stage(key, data)
        else:
            if known is None:
                kinds[state.kind] = state
            else:
                join_at(known, state, self.store.retired, retired)
            self._stage_whole(key, kinds[state.kind].to_bytes())
        self._touch((key,))

    def _stage_whole(self, key: str, data: bytes) -> None:
        """A state that no delta tells: it may be larger than the packet that brought a part of it."""
        try:
            self.store.reserve(len(data) + 4 * len(key) + 64)
        except DiskFull:
            self.roll_back()
            raise
        self.store.stage_state(key, data)

    def _settle_local(self, key: str, delta: bytes) -> None:
        """After a mutation: ``settle``, where its state names somebody who is retired."""
        for state in self.store.states.get(key, {}).values():
            if isinstance(state, Dotted) and any(origin in self.store.retired for origin in state.context.replicas()):
                made = decode(delta)
                if made.kind == state.kind:
                    settle(state, made, self.store.retired)

    def _rise(self) -> list[Send]:
        """Come to the ledger's level, if all that it takes is held. Nothing may be staged."""
        retired, known = self.store.retired, self.store.known
        if retired.level == known.level or retired_by(self._openings).level != known.level:
            return []
        return self._retire(known) if may_retire(self._openings, retired, self.gossip.vector) else []

    def _retire(self, retired: RetiredOrigins) -> list[Send]:
        """Come to a later level; all that it takes is durable here."""
        self.store.reserve(self.store.retirement_bytes + ROOM_BYTES)
        changed = self.store.retire(retired)
        sends = self.commit()
        self.gossip.retire(self.store.retired, self.store.known)
        self._tree.touch(changed)
        log.info(
            "%d states name no openings any more that are gone, at level %d", len(changed), self.store.retired.level
        )
        return sends

    def _touch(self, keys: Sequence[str]) -> None:
        self._tree.touch(keys)
        self.changed.update(dict.fromkeys(keys))

    def _adopt(self) -> None:
        """States without a vector are of the version before, which had no dots: they count as one delta of ours, which
        no log has, so that others come for them with a walk.
        """
        if self.store.states and not self.store.vector:
            self.store.reserve(ROOM_BYTES)
            self.store.stage_vector({self.me: 1})
            self.store.commit()
            self.gossip.vector.update(self.store.vector)

    def _new_origin(self) -> Replica:
        floor = self.store.known.floors.get(self._host_id, 0)
        return self._host_id, new_epoch(max(self._incarnation, floor), self._dice.getrandbits(31))

    def _canonical(self, key: str) -> bytes:
        return b"".join(self.encoded(key))
