"""A Merkle tree over the keys: finds the few that differ among many without naming the others.

A key lies in the bucket that the first four hexadecimal digits of its hash name; 16 children to a node. A bucket's hash
is of its keys' digests in order, a node's of its children's. Digests are of the states' canonical bytes, so that equal
states have equal ones on every host. They are computed of the keys that changed since, in slices
(``work``), or when they are asked for: of 100,000 keys that takes a second or two, in which nothing else could be done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

FAN_OUT = 16
DEPTH = 4
"""Of the buckets: 65,536 of them, one or two keys to each at 100,000."""
HASH_BYTES = 8
"""A wrong match, 2**-64 a comparison, hides a difference until one of the two states changes."""
NO_KEYS = bytes(HASH_BYTES)
Path = bytes
"""A nibble (0 to 15) for each level below the root."""


def key_hash(key: str) -> bytes:
    """Where the key lies, and how it is named in a listing."""
    return hashlib.blake2b(key.encode(), digest_size=HASH_BYTES).digest()


def path_of(key_digest: bytes) -> Path:
    """The bucket of a key's hash."""
    first, second = key_digest[0], key_digest[1]
    return bytes((first >> 4, first & 15, second >> 4, second & 15))


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


class KeyTree:
    """*canonical* gives the bytes of a key's states, or ``b""`` for a key that is not there."""

    def __init__(self, canonical: Callable[[str], bytes]) -> None:
        self._canonical = canonical
        self._changed: dict[str, None] = {}
        self._stale: list[set[Path]] = [set() for _ in range(DEPTH + 1)]
        """By depth, the nodes whose hash is to be computed; a bucket's keys before it, children before their node."""
        self._buckets: dict[Path, dict[bytes, tuple[bytes, str]]] = {}
        self._hashes: dict[Path, bytes] = {}

    @property
    def waiting(self) -> int:
        """Keys, buckets and nodes whose digest is to be computed."""
        return len(self._changed) + sum(map(len, self._stale))

    def touch(self, keys: Iterable[str]) -> None:
        """Their states changed."""
        self._changed.update(dict.fromkeys(keys))

    def forget_all(self) -> None:
        """Begin anew: everything may have changed."""
        self._changed.clear()
        for level in self._stale:
            level.clear()
        self._buckets.clear()
        self._hashes.clear()

    def work(self, digests_max: int) -> None:
        """Compute up to *digests_max* digests that wait, so that who asks later waits less."""
        while self._changed and digests_max > 0:
            key, _ = self._changed.popitem()
            digests_max -= 1
            name = key_hash(key)
            path = path_of(name)
            self._stale[DEPTH].add(path)
            state = self._canonical(key)
            if state:
                self._buckets.setdefault(path, {})[name] = (_hash(state), key)
            elif path in self._buckets:
                self._buckets[path].pop(name, None)
        if self._changed:
            return
        for depth in range(DEPTH, -1, -1):
            level = self._stale[depth]
            while level and digests_max > 0:
                digests_max -= 1
                path = level.pop()
                self._set(path, self._hash_of(path))
                if depth:
                    self._stale[depth - 1].add(path[:-1])
            if level:
                return

    def root(self) -> bytes:
        """The hash of everything."""
        self._settle()
        return self._hashes.get(b"", NO_KEYS)

    def children(self, path: Path) -> bytes:
        """The hashes of a node's 16 children, one after the other. *path* is shorter than ``DEPTH``."""
        self._settle()
        return b"".join(self._hashes.get(path + bytes((nibble,)), NO_KEYS) for nibble in range(FAN_OUT))

    def listing(self, path: Path) -> bytes:
        """A bucket's keys, each as its hash and its digest."""
        self._settle()
        bucket = self._buckets.get(path, {})
        return b"".join(name + bucket[name][0] for name in sorted(bucket))

    def keys(self, path: Path) -> dict[bytes, tuple[bytes, str]]:
        """A bucket's keys by their hash, with digests. Not to be changed."""
        self._settle()
        return self._buckets.get(path, {})

    def _settle(self) -> None:
        while waiting := self.waiting:
            self.work(waiting)

    def _hash_of(self, path: Path) -> bytes:
        if len(path) == DEPTH:
            listing = b"".join(name + digest for name, (digest, _key) in sorted(self._buckets.get(path, {}).items()))
            return _hash(listing) if listing else NO_KEYS
        hashes = b"".join(self._hashes.get(path + bytes((nibble,)), NO_KEYS) for nibble in range(FAN_OUT))
        return _hash(hashes) if hashes.strip(b"\0") else NO_KEYS

    def _set(self, path: Path, value: bytes) -> None:
        if value == NO_KEYS:
            self._hashes.pop(path, None)
        else:
            self._hashes[path] = value


def differing(path: Path, mine: bytes, theirs: bytes) -> list[Path]:
    """The children of a node whose hashes are not the same in both."""
    return [
        path + bytes((nibble,))
        for nibble in range(FAN_OUT)
        if mine[nibble * HASH_BYTES :][:HASH_BYTES] != theirs[nibble * HASH_BYTES :][:HASH_BYTES]
    ]
