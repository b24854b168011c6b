"""States of the network after beginnings of texts, so that a text that begins like an earlier one is not read again."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from .network import NetworkState

BLOCK = 32
"""Bytes from one state that is kept to the next."""
CACHE_BYTES = 64 * 1024 * 1024
"""What all states may take; the one that was used longest ago goes first."""
_OVERHEAD = 600
"""What an entry takes beside its arrays, about."""


class PrefixDigest:
    """The name of a text's beginning: a chain of digests, one for each block."""

    __slots__ = ("_part", "name")

    def __init__(self) -> None:
        self.name = b""
        """Of all whole blocks so far."""
        self._part = bytearray()

    def take(self, data: bytes) -> bool:
        """Take *data* in, which reaches no further than to the end of a block; whether it reached that."""
        self._part += data
        assert len(self._part) <= BLOCK, "a block at a time"
        if len(self._part) < BLOCK:
            return False
        self.name = blake2b(self._part, digest_size=16, key=self.name).digest()
        self._part.clear()
        return True


class StateCache:
    """States by the names of what came before them, CACHE_BYTES at most."""

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._states: OrderedDict[bytes, NetworkState] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def longest(self, text: bytes) -> tuple[int, NetworkState | None, PrefixDigest]:
        """How much of the beginning of *text* is known, the state after that, and its name to go on from. At least one
        byte is left over, since the odds of what follows come with the last byte."""
        digest, found = PrefixDigest(), PrefixDigest()
        known, state = 0, None
        for first in range(0, len(text) - BLOCK, BLOCK):
            digest.take(text[first : first + BLOCK])
            there = self._states.get(digest.name)
            if there is None:
                break
            self._states.move_to_end(digest.name)
            known, state = first + BLOCK, there
            found.name = digest.name
        return known, state, found

    def put(self, name: bytes, state: NetworkState) -> None:
        """Keep *state*, which is not changed any more, under the name of what came before it."""
        if name in self._states:
            self._states.move_to_end(name)
            return
        self._states[name] = state
        self.size_bytes += state.size_bytes + _OVERHEAD
        while self.size_bytes > self._bytes_max:
            _, gone = self._states.popitem(last=False)
            self.size_bytes -= gone.size_bytes + _OVERHEAD
