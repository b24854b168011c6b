"""A Merkle repair, as the replica sees it that repairs itself from a peer.

It sends the hashes of its nodes, level after level, and joins the states of the keys that differ. At the end it may
take the vector that the peer told *before* the walk began. That is sound because states only grow: wherever hashes were
equal, ours held what the peer's held when it was asked, and wherever not, the peer's state of then was joined; both
times that is no less than what it held when it told the vector. (A peer that lost its disk meanwhile did not only grow:
its answers tell.) What it took in since is not claimed, and comes as
intervals.
"""

from __future__ import annotations

from .exchange import STATE_BYTES_MAX, Holding
from .key_tree import DEPTH, KeyTree, Path, differing
from .packets import NODES_MAX, Below, Descend, Listing, States
from .retirement import NOBODY, RetiredOrigins
from .version_vector import Vector

NODES_IN_FLIGHT = NODES_MAX
"""Nodes and buckets asked of at once: an answer has up to 16 nodes of 134 B for each, or the states of a key or two."""
PATIENCE_ROUNDS = 5
"""In a round without an answer all that is open is asked again; after so many the walk is given up."""


class Walk:
    """Asks, depth first, so that what waits stays small: up to 16 nodes for each level of each node in flight."""

    def __init__(
        self,
        number: int,
        peer: str,
        opening: int | None,
        vector: Vector,
        tree: KeyTree,
        retired: RetiredOrigins = NOBODY,
    ) -> None:
        self.number = number
        self.peer = peer
        self.opening = opening
        self.vector = vector
        self.retired = retired
        """At the peer's level; what it answers at another one is passed over, and so the walk given up."""
        self.complete = True
        """Whether all that differed could be joined: otherwise the vector may not be taken."""
        self.differed = False
        """Whether anything did."""
        self._tree = tree
        self._nodes: list[Path] = [b""]
        self._buckets: list[tuple[Path, bytes]] = []
        self._asked_nodes: set[Path] = set()
        self._asked_buckets: dict[Path, bytes] = {}
        self._quiet_rounds = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing left to ask, and no answer to come."""
        return not (self._nodes or self._buckets or self._asked_nodes or self._asked_buckets)

    def belongs(self, peer: str, answer: Below | States) -> bool:
        """Whether an answer is one of this walk; if its peer began anew meanwhile, what it told before is void."""
        if (peer, answer.walk, answer.level) != (self.peer, self.number, self.retired.level):
            return False
        if self.opening is None:
            self.opening = answer.opening
        if answer.opening != self.opening:
            self.complete = False
        return True

    def ask(self) -> list[Descend | Listing]:
        """What to send now."""
        room = NODES_IN_FLIGHT - len(self._asked_nodes) - len(self._asked_buckets)
        buckets = [self._buckets.pop() for _ in range(min(room, len(self._buckets)))]
        nodes = [self._nodes.pop() for _ in range(min(room - len(buckets), len(self._nodes)))]
        self._asked_nodes.update(nodes)
        self._asked_buckets.update(buckets)
        return self._questions(nodes, buckets)

    def _questions(self, nodes: list[Path], buckets: list[tuple[Path, bytes]]) -> list[Descend | Listing]:
        found: list[Descend | Listing] = []
        if nodes:
            found.append(Descend(self.number, tuple((path, self._tree.children(path)) for path in nodes)))
        if buckets:
            listed = tuple((path, after, self._tree.listing(path)) for path, after in buckets)
            found.append(Listing(self.number, listed))
        return found

    def below(self, answer: Below) -> None:
        """The peer's nodes under some that were asked of; others are passed over."""
        for asked, nodes in answer.nodes:
            if asked not in self._asked_nodes:
                continue
            self._asked_nodes.discard(asked)
            self._quiet_rounds = 0
            for path, hashes in nodes:
                if path[:-1] != asked or not path:
                    continue
                for child in differing(path, self._tree.children(path), hashes):
                    if len(child) == DEPTH:
                        self._buckets.append((child, b""))
                    else:
                        self._nodes.append(child)

    def states(self, path: Path, after: bytes) -> bool:
        """The states of a bucket came, up to *after* (empty: all). Whether they were asked for."""
        if path not in self._asked_buckets or (after and after <= self._asked_buckets[path]):
            return False
        del self._asked_buckets[path]
        self.differed = True
        self._quiet_rounds = 0
        if after:
            self._buckets.append((path, after))
        return True

    def round(self) -> list[Descend | Listing] | None:
        """A round has passed: what to ask again. ``None``: the peer says nothing any more."""
        self._quiet_rounds += 1
        if self._quiet_rounds > PATIENCE_ROUNDS:
            return None
        if self._quiet_rounds == 1:
            return []  # something came in this round
        return self._questions(sorted(self._asked_nodes), sorted(self._asked_buckets.items()))


def answer_descend(tree: KeyTree, opening: int, level: int, question: Descend) -> Below:
    """What the peer of a walk says of nodes; it keeps nothing of it."""
    found = []
    for path, hashes in question.nodes:
        if len(path) % 2 == 0:
            children = differing(path, tree.children(path), hashes)
            found.append((path, tuple((child, tree.children(child)) for child in children)))
    return Below(question.walk, opening, tuple(found), level)


def answer_listing(
    tree: KeyTree, held: Holding, opening: int, level: int, question: Listing, packet_bytes: int, room_bytes: int
) -> list[States]:
    """Whole states for whoever walks our tree, about *packet_bytes* to a message and *room_bytes* in all: it asks again
    for what did not fit, or was lost.
    """
    found: list[States] = []
    buckets: list[tuple[bytes, bytes, tuple[tuple[str, bytes], ...]]] = []
    size = 0
    for path, after, digests in question.buckets:
        if size >= room_bytes:
            break
        states: list[tuple[str, bytes]] = []
        behind = b""
        wanted = differing_keys(tree, path, after, digests)
        for place, (key_name, key) in enumerate(wanted):
            for state in held.encoded(key):
                states.append((key, state if len(state) <= STATE_BYTES_MAX else b""))
                size += len(key) + len(state)
            if size >= packet_bytes and place + 1 < len(wanted):
                behind = key_name
                break
        buckets.append((path, behind, tuple(states)))
        if size >= packet_bytes:
            found.append(States(question.walk, opening, tuple(buckets), level))
            room_bytes -= size
            buckets, size = [], 0
    if buckets:
        found.append(States(question.walk, opening, tuple(buckets), level))
    return found


def differing_keys(tree: KeyTree, path: Path, after: bytes, listing: bytes) -> list[tuple[bytes, str]]:
    """The keys of a bucket behind *after* that the asker has not, or has otherwise, by their hash."""
    theirs = {listing[at : at + 8]: listing[at + 8 : at + 16] for at in range(0, len(listing), 16)}
    return sorted(
        (name, key) for name, (digest, key) in tree.keys(path).items() if name > after and theirs.get(name) != digest
    )
