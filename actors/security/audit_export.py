"""An exported audit log, and what can be said of it without the cluster: it is whole, in order, and as signed.

The first line of an export says of which log it is, from which record on, and the roots of the subtrees before that,
whose records were dropped. The lines behind it are the records as the log has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

from actorgrid.actors.ledger.merkle_proofs import leaf_hash
from actorgrid.errors import AuditBroken

from .audit_checkpoint import notes_of, read_note
from .audit_tree import CHUNK, CHUNK_BITS, HASH_BYTES, GrowingRoot

FORMAT = "actorgrid-audit-1"


class ExportHeader(TypedDict):
    """The first line of an export."""

    format: str
    origin: str
    """Whose log it is."""
    key: str
    """By which its heads are checked, as the host says."""
    first: int
    """The number of the first record."""
    roots: list[str]
    """Of the files before that one, in hex."""


@dataclass(frozen=True, slots=True)
class VerifiedExport:
    """What was found: so many records from *first* on; the largest head that fits, and how many heads were checked."""

    first: int
    records: int
    heads: int
    signed: int


def export_header(origin: str, verifier: str, first: int, roots: Iterable[bytes]) -> str:
    """The first line of an export that begins with record *first*, which is the first of a file of the log."""
    return json.dumps(
        {"format": FORMAT, "origin": origin, "key": verifier, "first": first, "roots": [root.hex() for root in roots]}
    )


def verify_export(lines: Iterator[bytes], notes: Iterable[str], verifier: str | None) -> VerifiedExport:
    """Check an export against signed heads, without the cluster. *verifier*: the key; ``None``: what the file says.

    Heads of other logs are passed over, so that one file may have those of all hosts. Raises AuditBroken: a record that
    is not where its number says, a head that the records do not give, one that the key did not sign, or heads that say
    of more records than there are.
    """
    header = _header(next(lines, b""))
    known = verifier or header["key"]
    origin = known.partition("+")[0]
    if origin != header["origin"]:
        raise AuditBroken("the key is of another log", asked=origin[:80], found=header["origin"][:80])
    given = list(notes)
    own = notes_of(given, origin)
    if given and not own:
        raise AuditBroken("the heads are of other logs", asked=given[0].partition("\n")[0][:80], found=origin[:80])
    heads = sorted((read_note(note, known) for note in own), key=lambda head: head.size)
    tree = GrowingRoot()
    for root in header["roots"]:
        tree.add_subtree(bytes.fromhex(root), CHUNK_BITS)
    first, checked, signed = header["first"], 0, 0
    waiting = [head for head in heads if head.size >= first]
    waiting.reverse()

    def check() -> None:
        nonlocal checked, signed
        while waiting and waiting[-1].size == tree.size:
            head = waiting.pop()
            if head.root != tree.root:
                raise AuditBroken(
                    f"the first {head.size} records are not those that were signed",
                    found="a record was changed, left out, put in or moved",
                )
            checked, signed = checked + 1, head.size

    check()
    for line in lines:
        text = line.rstrip(b"\n")
        if not text:
            continue
        if _number(text) != tree.size:
            raise AuditBroken(f"record {tree.size} is not where it belongs", found=text[:80].decode("utf-8", "replace"))
        tree.add(leaf_hash(text))
        check()
    if waiting:
        raise AuditBroken(
            "the export ends before what was signed", asked=f"{waiting[0].size} records", found=f"{tree.size}"
        )
    return VerifiedExport(first, tree.size - first, checked, signed)


def _header(line: bytes) -> ExportHeader:
    try:
        header = json.loads(line)
        whole = header["format"] == FORMAT and header["first"] == len(header["roots"]) * CHUNK
        whole = whole and all(len(bytes.fromhex(root)) == HASH_BYTES for root in header["roots"])
        whole = whole and isinstance(header["origin"], str) and isinstance(header["key"], str)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise AuditBroken("that is no export of an audit log", hint="actorgrid audit export FILE writes one")
    found: ExportHeader = header
    return found


def _number(line: bytes) -> int:
    """The number of a record; -1 for what is none. Records begin with it, so that nothing else is read."""
    digits = line[7 : line.find(b",", 7)] if line.startswith(b'{"seq":') else b""
    return int(digits) if digits.isdigit() and len(digits) < 20 else -1
