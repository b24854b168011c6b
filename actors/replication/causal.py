"""Dots and causal contexts: which events a replica has seen.

A *dot* names one event: (replica, counter), counters counting from 1 without gaps. A *causal context* is a set of
dots, kept small: a version vector for the gapless part and a cloud of single dots beyond it, compacted whenever a
gap closes. A dot that is in a context and not in the store beside it *is* the tombstone of that event, so removals
leave nothing behind but a counter (Almeida, Shoker, Baquero: Delta State Replicated Data Types, section 7).

A replica is (host id, incarnation). Who lost entries (an empty disk, an old backup) must come back under a new
incarnation: counters used again would name other events by the same dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from actorgrid.errors import MalformedBody
from actorgrid.hotpath import ContextParts

Replica = tuple[str, int]
Dot = tuple[Replica, int]


class CausalContext(ContextParts):
    """A set of dots. ``len`` counts the dots; memory and encoding grow with replicas and gaps only."""

    __slots__ = ()

    _vector: dict[Replica, int]
    _cloud: dict[Replica, set[int]]

    def __init__(self, dots: Iterable[Dot] = ()) -> None:
        self._vector = {}
        self._cloud = {}
        for dot in dots:
            self.add(dot)

    def __contains__(self, dot: Dot) -> bool:
        replica, counter = dot
        if counter <= self._vector.get(replica, 0):
            return True
        beyond = self._cloud.get(replica)
        return beyond is not None and counter in beyond

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """How many dots are in; ``len`` of it has no room for what a hostile host may claim."""
        return sum(self._vector.values()) + sum(map(len, self._cloud.values()))

    def __iter__(self) -> Iterator[Dot]:
        for replica, highest in self._vector.items():
            for counter in range(1, highest + 1):
                yield replica, counter
        for replica, beyond in self._cloud.items():
            for counter in beyond:
                yield replica, counter

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CausalContext):
            return NotImplemented
        return self._vector == other._vector and self._cloud == other._cloud

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CausalContext(vector={self._vector}, cloud={self._cloud})"

    @property
    def vector(self) -> dict[Replica, int]:
        """The version vector: for each replica, the counter up to which all dots are in. Not to be changed."""
        return self._vector

    def beyond(self, replica: Replica) -> frozenset[int]:
        """The counters of a replica that are in beyond a gap."""
        return frozenset(self._cloud.get(replica, ()))

    def next_dot(self, replica: Replica) -> Dot:
        """The dot of *replica*'s next event; only the replica itself may ask."""
        counter = self._vector.get(replica, 0)
        beyond = self._cloud.get(replica)
        return replica, (max(beyond) if beyond else counter) + 1

    def add(self, dot: Dot) -> None:
        """Put one dot in."""
        replica, counter = dot
        highest = self._vector.get(replica, 0)
        if counter <= highest:
            return
        if counter > highest + 1:
            self._cloud.setdefault(replica, set()).add(counter)
            return
        self._vector[replica] = counter
        if replica in self._cloud:
            self._compact(replica)

    def join(self, other: CausalContext) -> None:
        """Become the union of both."""
        for replica, highest in other._vector.items():
            if highest > self._vector.get(replica, 0):
                self._vector[replica] = highest
                if replica in self._cloud:
                    self._compact(replica)
        if other._cloud:
            for replica, beyond in list(other._cloud.items()):
                for counter in list(beyond):
                    self.add((replica, counter))

    def discard(self, dot: Dot) -> None:
        """Take one dot out, if it is in: for dots of which nobody need be told any more (``retirement``)."""
        replica, counter = dot
        highest = self._vector.get(replica, 0)
        if counter <= highest:
            beyond = self._cloud.setdefault(replica, set())
            beyond.update(range(counter + 1, highest + 1))
            if counter > 1:
                self._vector[replica] = counter - 1
            else:
                del self._vector[replica]
        elif replica in self._cloud:
            self._cloud[replica].discard(counter)
        if not self._cloud.get(replica, True):
            del self._cloud[replica]

    def restrict(self, replica: Replica, counters: Iterable[int]) -> bool:
        """Make *counters* all that is in of a replica; whether it was anything else."""
        before = self._vector.pop(replica, 0), self._cloud.pop(replica, None)
        for counter in sorted(counters):
            self.add((replica, counter))
        return before != (self._vector.get(replica, 0), self._cloud.get(replica))

    def copy(self) -> CausalContext:
        """An independent copy; costs one pass over replicas and gaps."""
        twin = CausalContext()
        twin._vector = dict(self._vector)
        twin._cloud = {replica: set(beyond) for replica, beyond in self._cloud.items()}
        return twin

    def replicas(self) -> set[Replica]:
        """Every replica with a dot in here."""
        return set(self._vector) | set(self._cloud)

    def to_plain(self, number: dict[Replica, int]) -> list[Any]:
        """Sorted lists for encoding; *number* gives each replica's place in the message's table."""
        vector = sorted([number[replica], highest] for replica, highest in self._vector.items())
        cloud = sorted([number[replica], sorted(beyond)] for replica, beyond in self._cloud.items())
        return [vector, cloud]

    @classmethod
    def from_plain(cls, plain: Any, replicas: list[Replica]) -> CausalContext:
        """The reverse of :meth:`to_plain`. Raises MalformedBody."""
        context = cls()
        try:
            vector, cloud = plain
            for number, highest in vector:
                context._vector[replicas[check_count(number, 0)]] = check_count(highest, 1)
            for number, beyond in cloud:
                for counter in beyond:
                    context.add((replicas[check_count(number, 0)], check_count(counter, 1)))
        except (TypeError, ValueError, LookupError) as error:
            raise MalformedBody(f"not a causal context: {error}") from error
        return context

    def _compact(self, replica: Replica) -> None:
        beyond = self._cloud[replica]
        highest = self._vector.get(replica, 0)
        while highest + 1 in beyond:
            highest += 1
        self._vector[replica] = highest
        rest = {counter for counter in beyond if counter > highest}
        if rest:
            self._cloud[replica] = rest
        else:
            del self._cloud[replica]


def check_count(value: Any, least: int) -> int:
    """*value* if it is an int from *least* to 2**63 - 1. Raises MalformedBody."""
    if type(value) is not int or not least <= value < 2**63:
        raise MalformedBody(f"{value!r} is not a count from {least} up")
    return value


def replica_from_plain(plain: Any) -> Replica:
    """(host id, incarnation) out of a decoded list. Raises MalformedBody."""
    if (
        isinstance(plain, list)
        and len(plain) == 2
        and isinstance(plain[0], str)
        and len(plain[0]) <= 256
        and type(plain[1]) is int
        and 0 <= plain[1] < 2**63
    ):
        return plain[0], plain[1]
    raise MalformedBody(f"{plain!r} is not a replica id (host id, incarnation)")
