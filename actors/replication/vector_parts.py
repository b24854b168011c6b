"""A version vector told by the few entries that may differ, and a hash of all the others. Decides only.

Two replicas of a large cluster differ in what was written a moment ago, and nowhere else. So who wants the other's
vector tells the entries of its own that changed last, by short ids, and the hash of the rest; if the other's rest has
the same hash, it knows the whole vector. If not, it tells its own entries of the same origins and of those that changed
last there; and if that does not do either, vectors are told whole. Hashes of entries are XORed, so what some entries
take away is taken away from both sums alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .causal import Replica
from .packets import VectorPart
from .version_vector import HASH_BYTES, Vector, entry_hash, short_id

RECENT_FIRST = 64
RECENT_MAX = 512
"""Origins that changed last: of one told first, of one told in answer to a part that did not do, and remembered."""


class VectorParts:
    """Makes parts of a vector and reads those of others. Whoever changes the vector says so here."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self._recent: dict[Replica, None] = {}
        self._sum: int | None = None
        self._by_id: dict[bytes, Replica] | None = None

    def changes(self, counts: Mapping[Replica, int]) -> None:
        """These entries are about to be set."""
        for origin, count in counts.items():
            self._recent.pop(origin, None)
            self._recent[origin] = None
            before = self._vector.get(origin)
            if before is None:
                self._by_id = None
            if self._sum is not None:
                self._sum ^= entry_hash(origin, count) ^ (0 if before is None else entry_hash(origin, before))
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def forget(self) -> None:
        """Entries were taken out."""
        self._sum = self._by_id = None
        self._recent = {origin: None for origin in self._recent if origin in self._vector}

    def recent(self, count: int) -> list[Replica]:
        """The origins that changed last."""
        return list(self._recent)[-count:]

    def tell(
        self,
        origins: Iterable[Replica],
        opening: int,
        level: int,
        *,
        ask: bool,
        confirm: bool = False,
        again: bool = False,
    ) -> VectorPart:
        """The part with the entries of *origins*; of one that is not in the vector it says so."""
        told = {origin: self._vector.get(origin, 0) for origin in origins}
        entries = tuple((short_id(origin), count) for origin, count in told.items())
        return VectorPart(entries, self._rest(told), opening, level, ask, confirm, again)

    def origins(self, part: VectorPart) -> tuple[Vector, bool]:
        """Its entries that are of origins known here, and whether that is all of them."""
        known, found = self._origins(), Vector()
        for short, count in part.entries:
            origin = known.get(short)
            if origin is not None:
                found[origin] = count
        return found, all(short in known or not count for short, count in part.entries)

    def whole(self, part: VectorPart) -> Vector | None:
        """The vector that it is a part of; ``None``: there is more that differs."""
        entries, complete = self.origins(part)
        if not complete or self._rest(entries) != part.rest:
            return None
        found = {**self._vector, **entries}
        return {origin: count for origin, count in found.items() if count}

    def _rest(self, without: Collection[Replica]) -> bytes:
        if self._sum is None:
            self._sum = 0
            for origin, count in self._vector.items():
                self._sum ^= entry_hash(origin, count)
        rest = self._sum
        for origin in without:
            if origin in self._vector:
                rest ^= entry_hash(origin, self._vector[origin])
        return rest.to_bytes(HASH_BYTES)

    def _origins(self) -> Mapping[bytes, Replica]:
        if self._by_id is None:
            self._by_id = {}
            doubled = set()
            for origin in self._vector:
                if self._by_id.setdefault(short_id(origin), origin) != origin:
                    doubled.add(short_id(origin))
            for short in doubled:
                del self._by_id[short]  # neither is known by it
        return self._by_id
