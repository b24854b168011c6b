"""Version vectors: of each origin, how many of its deltas a replica holds, without a gap.

An *origin* is one opening of a host's store, (host id, epoch): the epoch is drawn anew each time (``new_epoch``), so
that a host which lost its journal, or was set back to a backup with its counters, never uses a number again for
something else. A dot (origin, sequence) names one delta; sequences count from 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from actorgrid.errors import MalformedBody

from .causal import Replica, check_count, replica_from_plain
from .plain import pack

Vector = dict[Replica, int]
HASH_BYTES = 16
SHORT_BYTES = 6
EPOCH_BITS = 31
"""Of chance in an epoch. With the incarnation above them it still fits 63 bits."""
MAX_ORIGINS = 4096
"""Origins in one vector. Of further ones no deltas are taken: their effects come by Merkle repair alone, which finds
them as the roots differ, and costs more. About 40 B each on the wire and in memory 150 B."""


def new_epoch(incarnation: int, chance: int) -> int:
    """What tells this opening from all others of the host: *chance* is 31 bits of dice.

    The incarnation alone would not do: it is the same for a server that is restarted within one start of its agent
    after its directory was moved away, and a backup of the whole data directory sets it back. No opening has the chance
    0: an epoch without chance stands for all openings of earlier incarnations together (``retirement``).
    """
    return (incarnation & 0xFFFF_FFFF) << EPOCH_BITS | (chance & 0x7FFF_FFFF or 1)


def vector_hash(vector: Mapping[Replica, int]) -> bytes:
    """16 bytes, equal for equal vectors only."""
    return hashlib.blake2b(pack(to_plain(vector)), digest_size=HASH_BYTES).digest()


def entry_hash(origin: Replica, count: int) -> int:
    """128 bits of one entry. Those of all entries, XORed to each other, tell vectors apart; and taking some entries
    out of two vectors takes the same out of both sums.
    """
    return int.from_bytes(_hashed(f"{origin[0]}\0{origin[1]}\0{count}", HASH_BYTES))


def short_id(origin: Replica) -> bytes:
    """6 bytes that stand for an origin between two who both know it."""
    return _hashed(f"{origin[0]}\0{origin[1]}", SHORT_BYTES)


def _hashed(text: str, size: int) -> bytes:
    # A host's id may be whatever a member made up, half of a surrogate pair too.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def to_plain(vector: Mapping[Replica, int], only: Iterable[Replica] | None = None) -> list[Any]:
    """Canonical lists for encoding: a host's id is told once, whatever number of epochs it has."""
    hosts: dict[str, list[list[int]]] = {}
    for origin in sorted(vector if only is None else only):
        count = vector.get(origin, 0)
        if count:
            hosts.setdefault(origin[0], []).append([origin[1], count])
    return [[host, epochs] for host, epochs in hosts.items()]


def from_plain(plain: Any) -> Vector:
    """The reverse of :func:`to_plain`. Raises MalformedBody."""
    vector: Vector = {}
    try:
        for host, epochs in plain:
            for epoch, count in epochs:
                vector[replica_from_plain([host, epoch])] = check_count(count, 1)
                if len(vector) > MAX_ORIGINS:
                    raise MalformedBody(f"a vector of more than {MAX_ORIGINS} origins")
    except (TypeError, ValueError, LookupError) as error:  # the last: a slice of a mapping, from Python 3.12 on
        if isinstance(error, MalformedBody):
            raise
        raise MalformedBody(f"not a version vector: {error}") from error
    return vector


def lag(mine: Mapping[Replica, int], theirs: Mapping[Replica, int]) -> list[Replica]:
    """The origins of which *theirs* has less than *mine*, in order."""
    return sorted(origin for origin, count in mine.items() if theirs.get(origin, 0) < count)


def differing(mine: Mapping[Replica, int], theirs: Mapping[Replica, int]) -> list[Replica]:
    """The origins of which the two have not the same."""
    found = [origin for origin, count in mine.items() if theirs.get(origin, 0) != count]
    return found + [origin for origin in theirs if origin not in mine]


def missing_deltas(mine: Mapping[Replica, int], theirs: Mapping[Replica, int]) -> int:
    """How many deltas of *mine* are not in *theirs*."""
    return sum(max(0, count - theirs.get(origin, 0)) for origin, count in mine.items())
