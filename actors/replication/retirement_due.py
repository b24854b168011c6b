"""When origins may be retired, and when a replica may carry that out by itself. Decides only.

A host's openings of earlier incarnations wrote their last when its agent started again. They may be retired when every
member of the ledger, those that are away too, has told a vector that has of each of them just what the host itself has:
not less, or a delta would be missing there, and not more, or the host itself lacks some, as after the loss of a disk,
and they would be passed over by everybody from then on. All of them have to be at one level, or a vector does not say
what was in the origins retired before. The host waits some minutes after its start, and counts only what was told
later: what its last opening sent, or somebody who has lost his disk since, may be under way.

The ledger then says so to all (``RetireOrigins``), in its order. A replica whose own vector has all of that retires
those origins at once. One that has not, as it was set back to a backup, or has an empty disk, gets the states of one
that did, by a walk, and with them the level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .anti_entropy import AntiEntropy
from .causal import Replica
from .exchange import Peer
from .messages import RetiredOpenings
from .retirement import FLOOR_MAX, RetiredOrigins, incarnation_of
from .version_vector import EPOCH_BITS, Vector

FINALS_MAX = 256
"""Of one retirement, as in the ledger."""
ASKED_AT_ONCE = 8
"""Members that are asked for their vectors in one look."""


def retired_by(openings: Iterable[RetiredOpenings]) -> RetiredOrigins:
    """What the ledger says is retired, and at which level."""
    found = list(openings)
    return RetiredOrigins(max((each.level for each in found), default=0), {each.host_id: each.floor for each in found})


def may_retire(openings: Iterable[RetiredOpenings], retired: RetiredOrigins, vector: Mapping[Replica, int]) -> bool:
    """Whether a replica at the level of *retired* holds all that it takes to come to the ledger's level by itself."""
    for each in openings:
        if each.level <= retired.level:
            continue
        if each.base > retired.level:
            return False  # what was retired between is in nobody's finals any more
        for origin, last in finals_of(each).items():
            if origin not in retired and vector.get(origin, 0) < last:
                return False
    return True


def finals_of(openings: RetiredOpenings) -> Vector:
    """The last sequences, by origin."""
    return {
        (openings.host_id, incarnation << EPOCH_BITS | chance): last for incarnation, chance, last in openings.finals
    }


@dataclass(frozen=True, slots=True)
class RetirementDue:
    """Openings of a host that may be retired, or the members that are in the way."""

    openings: RetiredOpenings
    blocked_by: tuple[str, ...]


class RetirementWatch:
    """Looks, now and then, whether origins may be retired: a host's own, and those of hosts that are no members."""

    def __init__(self) -> None:
        self._gone_since: dict[str, int] = {}
        self._asked = 0
        self.due: tuple[RetirementDue, ...] = ()
        """As of the last look."""

    def look(self, gossip: AntiEntropy, at_least: int, quiet_rounds: int) -> list[RetiredOpenings]:
        """What may be proposed to the ledger now, of hosts that have *at_least* so many openings left: each retirement
        is a pass over all states, on every host. What members told counts when it was told more than *quiet_rounds*
        after the start, or after the host was removed.
        """
        me, members, vector, rounds = gossip.me, gossip.members, gossip.vector, gossip.counts["rounds"]
        retired, known = gossip.retired, gossip.known
        gone = {host for host, _epoch in vector} - members
        self._gone_since = {host: self._gone_since.get(host, rounds) for host in gone}
        floors = {me[0]: (incarnation_of(me), 0)}
        if me[0] == min(members):
            floors |= {host: (FLOOR_MAX, since) for host, since in self._gone_since.items()}
        found: list[RetirementDue] = []
        for host, (floor, since) in sorted(floors.items()):
            if rounds < since + quiet_rounds:
                continue
            # A retirement that nobody could carry out, as all who could lost their disks, is said anew.
            stuck = known.level > retired.level and known.floors.get(host, 0) != retired.floors.get(host, 0)
            openings = self._openings(host, floor, vector, retired, known, stuck, 1 if floor == FLOOR_MAX else at_least)
            if openings is None:
                continue
            held = _below(host, openings.floor, vector, retired)
            blocked_by = tuple(
                name
                for name in sorted(members - {me[0]})
                if not _agrees(gossip.peers.get(name), host, openings.floor, held, retired, since + quiet_rounds)
            )
            found.append(RetirementDue(openings, blocked_by))
        self.due = tuple(found)
        return [each.openings for each in found if not each.blocked_by]

    def to_ask(self) -> list[str]:
        """Some of the members in the way, in turn: they may agree by now, and in a large cluster, or at another site,
        it is long until they speak to us by themselves.
        """
        blocking = sorted({name for each in self.due for name in each.blocked_by})
        some = blocking[self._asked : self._asked + ASKED_AT_ONCE]
        self._asked = self._asked + ASKED_AT_ONCE if some else 0
        return some

    def _openings(
        self,
        host: str,
        floor: int,
        vector: Vector,
        retired: RetiredOrigins,
        known: RetiredOrigins,
        stuck: bool,
        at_least: int,
    ) -> RetiredOpenings | None:
        held = _below(host, floor, vector, retired)
        if len(held) < at_least and not stuck:
            return None
        if len(held) > FINALS_MAX:
            floor = incarnation_of(sorted(held)[FINALS_MAX])
            held = _below(host, floor, vector, retired)
        if floor < max(2, known.floors.get(host, 0)) or not (held or stuck):
            return None
        finals = tuple(
            (incarnation_of(origin), origin[1] & ((1 << EPOCH_BITS) - 1), held[origin]) for origin in sorted(held)
        )
        return RetiredOpenings(host, floor, known.level + 1, retired.level, finals)


def _below(host: str, floor: int, vector: Mapping[Replica, int], retired: RetiredOrigins) -> Vector:
    below = RetiredOrigins(0, {host: floor})
    return {origin: count for origin, count in vector.items() if origin in below and origin not in retired}


def _agrees(peer: Peer | None, host: str, floor: int, held: Vector, retired: RetiredOrigins, after_round: int) -> bool:
    if peer is None or not peer.told or peer.told_round <= after_round or peer.level != retired.level:
        return False
    return _below(host, floor, peer.known, retired) == held
