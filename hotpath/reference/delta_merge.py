"""Batches of CRDT deltas: read and checked, then joined into states by key. Decides nothing about who may send what.

The types themselves (``actors.replication.types``) say what a delta is and how it joins. This twin asks them, one delta
after the other; the compiled one reads the canonical bytes itself, in one pass, and does the joins of small deltas in
place. Whatever it does not know to be right at once (odd encodings, nested values, rare types) it leaves to the types,
so that both accept, refuse and come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Pair = tuple[str, bytes]
"""A key, and a delta's bytes."""


class DeltaMerge:
    """*kinds* are the types by their names, *context* the class of their causal contexts, and *decode* reads one delta
    of a stranger, or raises.
    """

    def __init__(self, kinds: Mapping[str, type], context: type, decode: Callable[[bytes], Any]) -> None:
        self._kinds = dict(kinds)
        self._decode = decode

    def decode(self, pairs: Sequence[Pair], start: int = 0) -> list[Any]:
        """The deltas of *pairs* from place *start* on. Raises what *decode* raises for the first that is not right."""
        return [self._decode(data) for _key, data in pairs[start:]]

    def first_later(self, deltas: Sequence[Any], bound_us: int) -> int:
        """The place of the first delta with a write that claims a time after *bound_us*; their number, if none has."""
        for place, delta in enumerate(deltas):
            if delta.latest_us > bound_us:
                return place
        return len(deltas)

    def join(self, states: dict[str, dict[str, Any]], keys: Sequence[str], deltas: Sequence[Any]) -> None:
        """Join each delta into the state of its key and type; one that comes first becomes the state itself."""
        for key, delta in zip(keys, deltas, strict=True):
            kinds = states.setdefault(key, {})
            known = kinds.get(delta.kind)
            if known is None:
                kinds[delta.kind] = delta
            else:
                known.join(delta)


def checked_pairs(plain: Any, key_bytes_max: int) -> tuple[Pair, ...] | None:
    """A decoded list of [key, bytes] as pairs; ``None`` unless all are so, with keys of 1 to *key_bytes_max* bytes."""
    found: list[Pair] = []
    if not isinstance(plain, (list, tuple)):
        return None
    for pair in plain:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return None
        key, data = pair
        # As characters first: no more of a hostile key is encoded than a good one could have.
        if not isinstance(key, str) or not 1 <= len(key) <= key_bytes_max or not isinstance(data, bytes):
            return None
        if not key.isascii():
            try:
                size = len(key.encode())
            except UnicodeEncodeError:
                return None
            if size > key_bytes_max:
                return None
        found.append((key, data))
    return tuple(found)
