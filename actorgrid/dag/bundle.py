"""The file with what the steps of a graph run: parts, each behind its own SHA-256, and the client's environment.

A part is opaque here: what a client pickled, which only workers read. It is named by where it begins and how long it
is, its digest included. The environment stands at the end. The file is a payload like any other: kept, spread and
brought to hosts by the digest of the whole.
"""

from __future__ import annotations

import hashlib

from actorgrid.errors import TaskFailed

DIGEST_BYTES = 32


class BundleWriter:
    """Gathers parts. Equal parts are kept once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        self.size = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Add a part; gives where it begins, and its length with its digest."""
        digest = hashlib.sha256(part).digest()
        place = self._known.get(digest)
        if place is None:
            place = self._known[digest] = self.size, DIGEST_BYTES + len(part)
            self._parts += [digest, part]
            self.size += place[1]
        return place

    def content(self) -> bytes:
        """All parts, one after the other."""
        return b"".join(self._parts)


def read_part(bundle: bytes | memoryview, offset: int, size: int) -> bytes:
    """A part of a bundle. Raises TaskFailed for bytes that are not what they were."""
    part = bytes(bundle[offset + DIGEST_BYTES : offset + size])
    digest = bytes(bundle[offset : offset + DIGEST_BYTES])
    if size <= DIGEST_BYTES or hashlib.sha256(part).digest() != digest:
        raise TaskFailed(
            "the file with what the graph's steps run is damaged",
            asked=f"{size} bytes from {offset} on",
            found=f"{len(bundle)} bytes in all",
            hint="submit the graph again",
        )
    return part
