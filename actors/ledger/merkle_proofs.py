"""Hashes of a Merkle tree that only grows, and how its proofs are checked (RFC 9162, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

PROOF_MAX = 64
"""Hashes in a proof: enough for 2**63 records."""


def leaf_hash(record: bytes) -> bytes:
    """The hash of a record."""
    return sha256(b"\0" + record).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return sha256(b"\1" + left + right).digest()


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether *proof* shows that *leaf* is record *index* of the tree of *size* records with that root (2.1.3.2)."""
    if not 0 <= index < size or len(proof) > PROOF_MAX:
        return False
    at, last, found = index, size - 1, leaf
    for part in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(part, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, part)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether *proof* shows that the second tree begins with the first (2.1.4.2)."""
    if first == second:
        return not proof and first_root == second_root
    if not 0 < first < second or not proof or len(proof) > PROOF_MAX:
        return False
    parts = list(proof)
    if first & (first - 1) == 0:
        parts.insert(0, first_root)
    at, last = first - 1, second - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    begun = ended = parts[0]
    for part in parts[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            begun, ended = node_hash(part, begun), node_hash(part, ended)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            ended = node_hash(ended, part)
        at, last = at >> 1, last >> 1
    return last == 0 and begun == first_root and ended == second_root
