"""A Merkle tree over the ledger's records, to compare whole states by a few bytes and to find what differs.

Records of one kind fall into 256 buckets by the hash of their id; a bucket's hash covers its records, a kind's hash its
buckets, the root the kinds (Merkle, CRYPTO 1987). Only what changed since the last look is hashed again, so that a
digest costs what has happened, not what there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zlib import crc32

from actorgrid.actors.ledger.commands import CompareDigest
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.errors import LedgerDiverged

from .snapshot import FORMAT, pack

BUCKETS = 256
MARK_EVERY = 256
MARKS_KEPT = 8
HASH_AT = 1_000
HASHED_AN_ENTRY = 32
"""Records hashed in passing while over 1,000 wait, so that a large state, restored, does not stop the ledger."""
_EMPTY = b""
LATER_KINDS = frozenset(
    {
        "recovery",
        "retirement",
        "step",
        "schedule",
        "notice",
        "service",
        "secret",
        "tenant",
        "tenant_use",
        "audit_head",
    }
)
"""Kinds that came after digests: left out while there are none, as voters of before do, or the two would differ. A
record of such a kind comes by a verb that all voters know by then."""

Homes = Mapping[str, Mapping[str, Any]]


class StateDigest:
    """The digest of *homes*: kind -> id -> record. Whoever changes a record says so; records are never written into."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes
        self._changed: set[tuple[str, str]] = {(kind, id) for kind, records in homes.items() for id in records}
        self._members: dict[tuple[str, int], dict[str, bytes]] = {}
        self._buckets: dict[str, list[bytes]] = {kind: [_EMPTY] * BUCKETS for kind in homes}
        self._kinds: dict[str, str] = {}

    def changed(self, kind: str, id: str) -> None:
        """Take note that a record is new, other or gone."""
        self._changed.add((kind, id))

    @property
    def behind(self) -> int:
        """The number of records to hash before the digest is current."""
        return len(self._changed)

    def work(self, limit: int) -> None:
        """Hash up to *limit* of the records that have changed, so that a digest that is asked for later costs less."""
        self._settle(limit)

    def by_kind(self, extra: Any) -> dict[str, str]:
        """Hex digest of each kind, of *extra* (what is no record, as plain values) as "rest", and of all as "root"."""
        self._settle(len(self._changed))
        left_out = {kind for kind in LATER_KINDS if not self._homes.get(kind)}
        found = {kind: digest for kind, digest in sorted(self._kinds.items()) if kind not in left_out}
        found["rest"] = _hex(pack(extra))
        found["root"] = _hex("".join(f"{kind}={digest};" for kind, digest in found.items()).encode("ascii"))
        return found

    def _settle(self, limit: int) -> None:
        buckets: set[tuple[str, int]] = set()
        for _ in range(min(limit, len(self._changed))):
            kind, id = self._changed.pop()
            bucket = kind, crc32(id.encode("utf-8", "surrogatepass")) % BUCKETS
            buckets.add(bucket)
            members = self._members.setdefault(bucket, {})
            record = self._homes[kind].get(id)
            if record is None:
                members.pop(id, None)
            else:
                members[id] = hashlib.sha256(pack([id, record])).digest()
        for kind, number in buckets:
            members = self._members[kind, number]
            self._buckets[kind][number] = _joined(members[id] for id in sorted(members)) if members else _EMPTY
        for kind in {kind for kind, _ in buckets} | (self._homes.keys() - self._kinds.keys()):
            self._kinds[kind] = _joined(self._buckets[kind]).hex()


class DigestMarks:
    """Digests at every 256th entry, of the last 8 of them: what voters compare. Not part of the state.

    Each voter works them out by itself; the leader has its own put into the log, where the others find it. Who has no
    mark at that entry, having been restored since, says nothing.
    """

    def __init__(self) -> None:
        self.marks: dict[int, dict[str, str]] = {}

    def passed(self, index: int, state: StateDigest, rest: Callable[[], Any]) -> None:
        """Take note that the entry at *index* was applied: keep the digest where one is due."""
        if state.behind > HASH_AT:
            state.work(HASHED_AN_ENTRY)
        elif index % MARK_EVERY == 0:
            self.marks[index] = state.by_kind(rest())
            if len(self.marks) > MARKS_KEPT:
                del self.marks[next(iter(self.marks))]

    @applies(CompareDigest)
    def compare(self, command: CompareDigest, _entry: EntryContext) -> dict[str, Any]:
        """Carry out ``compare_digest``. Raises LedgerDiverged."""
        mine, theirs = self.marks.get(command.index), command.digest
        if mine is not None and command.format == FORMAT and mine != theirs:
            raise LedgerDiverged(
                "this host's ledger is not the leader's",
                asked=f"the leader's state of entry {command.index}",
                found=f"another in: {', '.join(differing(mine, theirs))}",
                hint="this voter stays down; keep its DATA_DIR/ledger for whoever looks for the cause, and add the host"
                " again with an empty one",
            )
        return {}


def differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The kinds whose digests differ, or that only one of the two has."""
    kinds = (mine.keys() | theirs.keys()) - {"root"}
    return sorted(kind for kind in kinds if mine.get(kind) != theirs.get(kind))


def _joined(hashes: Iterable[bytes]) -> bytes:
    """One hash over several parts, each preceded by its length, so that no two lists of parts are alike."""
    whole = hashlib.sha256()
    for each in hashes:
        whole.update(bytes((len(each),)))
        whole.update(each)
    return whole.digest()


def _hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
