"""The tree over audit records: known vectors, every proof of many sizes, and forged ones refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.merkle_proofs import is_consistent, is_included, leaf_hash
from actorgrid.actors.security import audit_tree
from actorgrid.actors.security.audit_tree import EMPTY, GrowingRoot, MerkleTree

# The eight leaves and roots of RFC 6962's reference implementation (certificate-transparency, merkletree tests).
LEAVES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def no_leaves(chunk: int) -> Sequence[bytes]:
    raise AssertionError(f"chunk {chunk} is read")


def tree_of(count: int) -> MerkleTree:
    tree = MerkleTree([], no_leaves)
    for number in range(count):
        tree.add(leaf_hash(b"%d" % number))
    return tree


def test_the_roots_are_those_of_the_reference() -> None:
    tree, growing = MerkleTree([], no_leaves), GrowingRoot()
    assert tree.root().hex() == growing.root.hex() == EMPTY.hex()
    for record, root in zip(LEAVES, ROOTS, strict=True):
        tree.add(leaf_hash(record))
        growing.add(leaf_hash(record))
        assert tree.root().hex() == growing.root.hex() == root


def test_every_proof_of_forty_records_holds_and_no_other() -> None:
    tree = tree_of(40)
    for size in range(1, 41):
        root = tree.root(size)
        for index in range(size):
            leaf, proof = leaf_hash(b"%d" % index), tree.inclusion(index, size)
            assert is_included(leaf, index, size, proof, root)
            assert not is_included(leaf_hash(b"x"), index, size, proof, root)
            assert not is_included(leaf, index + 1, size, proof, root)
            assert not is_included(leaf, index, size, [*proof, leaf], root)
            assert not proof or not is_included(leaf, index, size, proof[1:], root)
        for first in range(1, size + 1):
            grown, before = tree.consistency(first, size), tree.root(first)
            assert is_consistent(first, size, before, root, grown)
            assert first == size or not is_consistent(first, size, leaf_hash(b"x"), root, grown)
            assert first == size or not is_consistent(first, size, before, before, grown)
            assert not is_consistent(first, size, before, root, [*grown, before])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_tree, "CHUNK_BITS", 3)
    monkeypatch.setattr(audit_tree, "CHUNK", 8)


@pytest.mark.usefixtures("small_chunks")
def test_roots_of_whole_chunks_stand_for_their_records() -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(60)]
    tree = MerkleTree([], lambda chunk: leaves[chunk * 8 : chunk * 8 + 8])
    for number, leaf in enumerate(leaves, 1):
        tree.add(leaf)
        growing = GrowingRoot()
        for chunk in tree.roots:
            growing.add_subtree(chunk, 3)
        for last in tree.last:
            growing.add(last)
        plain = GrowingRoot()
        for each in leaves[:number]:
            plain.add(each)
        assert tree.root() == growing.root == plain.root and tree.size == growing.size == number
    for size in range(1, 61):
        assert all(is_included(leaves[at], at, size, tree.inclusion(at, size), tree.root(size)) for at in range(size))
        for first in range(1, size + 1):
            assert is_consistent(first, size, tree.root(first), tree.root(size), tree.consistency(first, size))


@given(size=st.integers(2, 300), data=st.data())
def test_a_tree_with_another_record_shares_no_proof(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    honest, forged = tree_of(size), MerkleTree([], no_leaves)
    for number in range(size):
        forged.add(leaf_hash(b"forged" if number == index else b"%d" % number))
    first = data.draw(st.integers(1, size))
    if index < first < size:
        assert not is_consistent(first, size, honest.root(first), forged.root(), forged.consistency(first, size))
    assert not is_included(leaf_hash(b"%d" % index), index, size, forged.inclusion(index, size), forged.root())
