"""When nothing need be left of a register that ended or was removed.

It stays in memory, hidden, for as long as another host may hold an earlier write that it has to win over: until all
members are known to have everything that this host had when it ended. A member that is away holds that up; one that
comes back with an old copy is so told of the end, and not believed. Members come to that one after the other, and who
still has it gives it back to who has not; so what was forgotten is known for a while, and not kept again.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field

from .anti_entropy import AntiEntropy
from .replica import StateReplica
from .version_vector import Vector
from .view import StateView

CHECKPOINTS_MAX = 8
"""Groups of keys that wait at once; more of them join the next one."""
ASKED_AT_ONCE = 8
"""Members in the way that are asked for their vectors in one look, in turn: in a large cluster most never speak to us
by themselves."""
FORGOTTEN_MAX = 10_000
"""Of so many keys it is known that they were forgotten; of others it takes one more turn for each that has them."""


@dataclass(slots=True)
class _Checkpoint:
    vector: Vector
    keys: tuple[str, ...]
    holders: set[str] = field(default_factory=set)
    """Members that told that they hold all of it."""
    looked_round: int = -1
    """What was told before that round was looked at."""

    def all_hold(self, gossip: AntiEntropy) -> bool:
        """Whether all members are known to hold all that the vector counts, on their disks."""
        now_round = gossip.counts["rounds"]
        # What is retired by now, all members had.
        counts = gossip.retired.without(self.vector).items()
        for name, peer in gossip.peers.items():
            if not peer.told or peer.told_round < self.looked_round or name in self.holders:
                continue
            if all(peer.known.get(origin, 0) >= count for origin, count in counts):
                self.holders.add(name)
        self.looked_round = now_round
        return not self.missing(gossip)

    def missing(self, gossip: AntiEntropy) -> set[str]:
        """Members that did not."""
        return set(gossip.members - self.holders - {gossip.me[0]})


class Forgetting:
    """Groups of keys, each with what all members have to hold before they go."""

    def __init__(self) -> None:
        self._checkpoints: list[_Checkpoint] = []
        self._waiting: set[str] = set()
        self._forgotten: dict[str, bytes] = {}
        self._asked = ""

    def look(self, replica: StateReplica, view: StateView, now_us: int) -> int:
        """Forget what may go; gives how many keys. Nothing may be staged."""
        for key in view.drop_ended(now_us):
            replica.ended_in(key)
        forgotten = 0
        while self._checkpoints and self._checkpoints[0].all_hold(replica.gossip):
            done = self._checkpoints.pop(0)
            self._waiting.difference_update(done.keys)
            still = set(view.to_forget(now_us))
            for key in done.keys:
                if key in still:
                    self._forgotten[key] = _digest(replica, key)
                    self._forget(replica, view, key)
                    forgotten += 1
        while len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        fresh = [key for key in view.to_forget(now_us) if key not in self._waiting]
        if fresh and len(self._checkpoints) < CHECKPOINTS_MAX:
            self._checkpoints.append(_Checkpoint(dict(replica.gossip.vector), tuple(fresh)))
            self._waiting.update(fresh)
        return forgotten

    def to_ask(self, replica: StateReplica) -> list[str]:
        """Some of the members that are in the way, in turn, where they are too many to speak to us by themselves."""
        if not self._checkpoints or replica.gossip.choice.all_turn_to_us:
            return []
        missing = sorted(self._checkpoints[0].missing(replica.gossip))
        place = bisect_right(missing, self._asked)
        some = (missing[place:] + missing[:place])[:ASKED_AT_ONCE]
        self._asked = some[-1] if some else ""
        return some

    def came_back(self, replica: StateReplica, view: StateView, key: str) -> None:
        """The key's state changed: forget again what was forgotten before, if it is that."""
        known = self._forgotten.get(key)
        if known is not None and key in view.ended and known == _digest(replica, key):
            self._forget(replica, view, key)

    def _forget(self, replica: StateReplica, view: StateView, key: str) -> None:
        replica.forget(key)
        view.forgotten(key)


def _digest(replica: StateReplica, key: str) -> bytes:
    return hashlib.blake2b(b"".join(replica.encoded(key)), digest_size=16).digest()
