"""Bugs planted in the shared state, one decision each turned wrong, and the scenario that catches each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.causal import CausalContext, Replica
from actorgrid.actors.replication.crdt import Crdt
from actorgrid.actors.replication.dotted import Dotted
from actorgrid.actors.replication.exchange import Instruction, Send, TakeVector
from actorgrid.actors.replication.fresh import FreshDeltas
from actorgrid.actors.replication.lww import LWWRegister
from actorgrid.actors.replication.packets import Ack
from actorgrid.actors.replication.peer_choice import PeerChoice
from actorgrid.actors.replication.retirement import RetiredOrigins
from actorgrid.actors.replication.vector_parts import VectorParts
from actorgrid.actors.replication.version_vector import HASH_BYTES, Vector

from .state_scenarios import STATE_SCENARIOS
from .state_simulation import StateHost, StateParts


class SentIsAcknowledged(AntiEntropy):
    """What was sent to a host counts as acknowledged by it."""

    def _serve(self, name: str, origins: list[Replica], repair: bool) -> list[Instruction]:
        found = super()._serve(name, origins, repair)
        peer = self._peer(name)
        peer.known.update({origin: max(upto, peer.known.get(origin, 0)) for origin, upto in peer.in_flight.items()})
        return found


class DropsAcknowledgements(AntiEntropy):
    """An acknowledgement that was dropped on its way is waited for, and nothing more is sent meanwhile."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waits: set[str] = set()

    def _serve(self, name: str, origins: list[Replica], repair: bool) -> list[Instruction]:
        if name in self._waits:
            return []
        found = super()._serve(name, origins, repair)
        if self._peer(name).in_flight:
            self._waits.add(name)
        return found

    def _ack(self, name: str, ack: Ack) -> list[Instruction]:
        self._waits.discard(name)
        return super()._ack(name, ack)


class TakesVectorsAsWalksBegin(AntiEntropy):
    """The other side's counts are taken as a walk begins, not when it has brought everything."""

    def _begin_walk(self, name: str, opening: int | None, vector: Vector, retired: RetiredOrigins) -> list[Instruction]:
        found = super()._begin_walk(name, opening, vector, retired)
        taken = {origin: count for origin, count in vector.items() if count > self._held(origin)}
        self._staged.update(taken)
        return [*found, TakeVector(taken)]


class PrunesTheSilent(AntiEntropy):
    """The counts of a host from which nothing new came are dropped, though the ledger has not removed it."""

    def round(self) -> list[Instruction]:
        """Drop counts now and then."""
        if self.counts["rounds"] % 8 == 7:
            for origin in [origin for origin in self.vector if origin != self.me]:
                del self.vector[origin]
                self.log.forget(origin)
            self._fresh = FreshDeltas()
            self._hash = None
        return super().round()


class _OneRelayForEver(PeerChoice):
    def _first(self, order: list[str]) -> list[str]:
        return order[:1]

    def begin_round(self) -> list[str]:
        return [name for name in super().begin_round() if not self.is_far(name) or self.relays_to(self.site_of(name))]


class OneRelayForEver(AntiEntropy):
    """Each site has one relay, whatever became of it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.choice = _OneRelayForEver(self.me[0], self._dice, self.limits)


class _OneTreeForEver(PeerChoice):
    def pass_on(self, host: str) -> list[str]:
        if self._overlay is None:
            return super().pass_on(host)
        return self._overlay.around(self._overlay.tree_of(host), (), ())


class OneTreeForEver(AntiEntropy):
    """News go over the edges of a tree, whoever of its hosts is gone."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.choice = _OneTreeForEver(self.me[0], self._dice, self.limits)


class _TrustingParts(VectorParts):
    def _rest(self, without: Collection[Replica]) -> bytes:
        return bytes(HASH_BYTES)


class TakesPartsForTheWhole(AntiEntropy):
    """What a part of a vector does not name is taken to be the same."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parts = _TrustingParts(self.vector)


class TellsBeforeItIsDurable(StateHost):
    """What came is acknowledged before it is on the disk."""

    def do(self, instructions: list[Instruction]) -> list[Send]:
        """And acknowledge at once."""
        taken = any(not isinstance(each, Send) for each in instructions)
        sends = super().do(instructions)
        return sends + super().do(self.gossip.committed()) if taken else sends


class OneOriginForEver(StateHost):
    """Each start of a host counts on under the same name, also when its disk is gone."""

    def new_origin(self) -> Replica:
        """Always the same."""
        return self.name, 1


class ForgetsTombstones(StateHost):
    """What was removed is not remembered: only what is there is."""

    def join(self, known: Crdt, delta: Crdt) -> Crdt:
        """Forget all that is not live, first."""
        if isinstance(known, Dotted):
            context = CausalContext()
            for dot in known._entries:
                context.add(dot)
            known._context = context
        return super().join(known, delta)


class StampsByTheWallClock(StateHost):
    """A write is dated by the wall clock alone, whatever its writer has seen."""

    def stamped(self, state: Crdt, operation: str, value: Any, now: float) -> Crdt:
        """Put as if nothing was there."""
        if not isinstance(state, LWWRegister):
            return super().stamped(state, operation, value, now)
        state._write = None
        return super().stamped(state, operation, value, now)


class TakesTheFuture(AntiEntropy):
    """A write is taken however far ahead it is dated."""

    def receive(self, name: str, packet: bytes, now_us: int) -> list[Instruction]:
        """As if it was an hour later."""
        return super().receive(name, packet, now_us + 3_600_000_000)


@dataclass(frozen=True, slots=True)
class StateMutant:
    """What is wrong, in which part, and the scenario that shows it."""

    says: str
    parts: StateParts
    scenario: str


def _mutant(part: type[AntiEntropy] | type[StateHost], scenario: str) -> StateMutant:
    parts = StateParts(host=part) if issubclass(part, StateHost) else StateParts(entropy=part)
    return StateMutant((part.__doc__ or "").strip(), parts, scenario)


STATE_MUTANTS = {
    "sent_is_acknowledged": _mutant(SentIsAcknowledged, "state_lossy"),
    "drops_acknowledgements": _mutant(DropsAcknowledgements, "state_pair"),
    "takes_vectors_as_walks_begin": _mutant(TakesVectorsAsWalksBegin, "state_crashes"),
    "prunes_the_silent": _mutant(PrunesTheSilent, "state_away"),
    "one_relay_for_ever": _mutant(OneRelayForEver, "state_relays_die"),
    "one_tree_for_ever": _mutant(OneTreeForEver, "state_trees_broken"),
    "takes_parts_for_the_whole": _mutant(TakesPartsForTheWhole, "state_lossy"),
    "tells_before_it_is_durable": _mutant(TellsBeforeItIsDurable, "state_crashes"),
    "one_origin_for_ever": _mutant(OneOriginForEver, "state_crashes"),
    "forgets_tombstones": _mutant(ForgetsTombstones, "state_away"),
    "stamps_by_the_wall_clock": _mutant(StampsByTheWallClock, "state_clocks"),
    "takes_the_future": _mutant(TakesTheFuture, "state_future"),
}


def hunt_state(name: str, seeds_max: int) -> tuple[int, str]:
    """Play the mutant's scenario from seed 1 on: the seed that caught it, and what was violated; or nothing."""
    mutant = STATE_MUTANTS[name]
    for seed in range(1, seeds_max + 1):
        violated = STATE_SCENARIOS[mutant.scenario](seed, mutant.parts)
        if violated:
            return seed, violated
    return seeds_max, ""
