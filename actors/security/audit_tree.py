"""A Merkle tree over records that only grows (RFC 9162, section 2.1): roots and proofs.
``actors/ledger/merkle_proofs.py`` checks them.

Leaves are in *chunks* of ``CHUNK`` hashes. A whole chunk is a perfect subtree, so its root stands for it: what is kept
of records that were dropped is 32 bytes for each 16,384 of them, and the tree above stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from actorgrid.actors.ledger.merkle_proofs import node_hash

CHUNK_BITS = 14
CHUNK = 1 << CHUNK_BITS
HASH_BYTES = 32
EMPTY = sha256(b"").digest()


class GrowingRoot:
    """The root of leaves that come one after the other; it keeps one hash for each bit of their number."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def add(self, leaf: bytes) -> None:
        """Add a leaf's hash."""
        self.add_subtree(leaf, 0)

    def add_subtree(self, root: bytes, bits: int) -> None:
        """Add a perfect subtree of ``2**bits`` leaves; so many must divide what is there."""
        assert self.size % (1 << bits) == 0
        peaks, count = self._peaks, self.size >> bits
        while count & 1:
            root = node_hash(peaks.pop(), root)
            count >>= 1
        peaks.append(root)
        self.size += 1 << bits

    @property
    def root(self) -> bytes:
        """The root of all that were added."""
        if not self._peaks:
            return EMPTY
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node_hash(peak, root)
        return root


class MerkleTree:
    """The roots of whole chunks, and the leaves of the last one. *leaves_of* reads those of an earlier chunk.

    It may raise for one whose records were dropped; then so do the proofs that need them.
    """

    def __init__(self, roots: Iterable[bytes], leaves_of: Callable[[int], Sequence[bytes]]):
        self.roots = list(roots)
        self.last: list[bytes] = []
        self._leaves_of = leaves_of
        self._whole = GrowingRoot()
        """Of all records: its root is asked for each second in which there are any."""
        for root in self.roots:
            self._whole.add_subtree(root, CHUNK_BITS)

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self.roots) * CHUNK + len(self.last)

    def add(self, leaf: bytes) -> None:
        """Add a record's hash."""
        self._whole.add(leaf)
        self.last.append(leaf)
        if len(self.last) == CHUNK:
            self.roots.append(_root(self.last, 0, CHUNK))
            self.last = []

    def root(self, size: int | None = None) -> bytes:
        """The root of the first *size* records; of all."""
        if size is None or size == self.size:
            return self._whole.root
        assert 0 <= size < self.size
        return self._hash(0, size) if size else EMPTY

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof that record *index* is among the first *size* (2.1.3.1)."""
        assert 0 <= index < size <= self.size
        return self._path(index, 0, size)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """The proof that the tree of *second* records begins with that of *first* (2.1.4.1)."""
        assert 0 < first <= second <= self.size
        return self._subproof(first, 0, second, True)

    def _path(self, index: int, low: int, high: int) -> list[bytes]:
        if high - low == 1:
            return []
        middle = low + _split(high - low)
        if index < middle:
            return [*self._path(index, low, middle), self._hash(middle, high)]
        return [*self._path(index, middle, high), self._hash(low, middle)]

    def _subproof(self, first: int, low: int, high: int, whole: bool) -> list[bytes]:
        if first == high:
            return [] if whole else [self._hash(low, high)]
        middle = low + _split(high - low)
        if first <= middle:
            return [*self._subproof(first, low, middle, whole), self._hash(middle, high)]
        return [*self._subproof(first, middle, high, False), self._hash(low, middle)]

    def _hash(self, low: int, high: int) -> bytes:
        """The hash of a subtree. It never ends or begins inside of a chunk that it also leaves, but at the end."""
        if high - low > CHUNK:
            middle = low + _split(high - low)
            return node_hash(self._hash(low, middle), self._hash(middle, high))
        chunk = low >> CHUNK_BITS
        if high - low == CHUNK and chunk < len(self.roots):
            return self.roots[chunk]
        leaves = self.last if chunk == len(self.roots) else self._leaves_of(chunk)
        start = chunk << CHUNK_BITS
        return _root(leaves, low - start, high - start)


def _root(leaves: Sequence[bytes], low: int, high: int) -> bytes:
    level = list(leaves[low:high])
    while len(level) > 1:
        above = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0]


def _split(size: int) -> int:
    """The largest power of two below *size*."""
    return 1 << (size - 1).bit_length() - 1
