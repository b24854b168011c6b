"""Tree heads as texts that anybody can check: C2SP's tlog-checkpoint, a signed note with an Ed25519 signature.

    actorgrid/audit/HOST_ID
    SIZE
    ROOT (base 64)

    — NAME SIGNATURE (base 64, behind four bytes that name the key)

A key is written ``NAME+ID+KEY`` as notes do (https://c2sp.org/signed-note).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from actorgrid.errors import AuditBroken

if TYPE_CHECKING:
    # Loaded by whoever signs or verifies: of a host alone that is its door and nobody else.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519 = b"\1"
ORIGIN = "actorgrid/audit/"
NOTE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree head: of whose log, how many records, their root."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def verifier_key(name: str, key: Ed25519PublicKey) -> str:
    """The text by which others know a key."""
    raw = ED25519 + key.public_bytes_raw()
    return f"{name}+{_key_id(name, raw).hex()}+{base64.b64encode(raw).decode()}"


def sign(head: Checkpoint, key: Ed25519PrivateKey) -> str:
    """The note of a tree head."""
    raw = ED25519 + key.public_key().public_bytes_raw()
    signature = _key_id(head.origin, raw) + key.sign(head.body.encode())
    return f"{head.body}\n— {head.origin} {base64.b64encode(signature).decode()}\n"


def read_note(text: str, verifier: str) -> Checkpoint:
    """The tree head of a note. Raises AuditBroken for one that is none, or that this key did not sign."""
    from cryptography.exceptions import InvalidSignature

    name, key = _read_verifier(verifier)
    body, _, signatures = text.partition("\n\n")
    lines = body.split("\n")
    if len(text) > NOTE_MAX or len(lines) != 3 or not lines[1].isdecimal() or len(lines[1]) > 19:
        raise AuditBroken("that is no checkpoint", asked=text[:80])
    try:
        root = base64.b64decode(lines[2], validate=True)
    except binascii.Error:
        root = b""
    head = Checkpoint(lines[0], int(lines[1]), root)
    if len(root) != 32 or head.origin != name or head.body != body + "\n":
        raise AuditBroken("that is no checkpoint of this log", asked=text[:80], found=f"the key is {name}'s")
    raw = ED25519 + key.public_bytes_raw()
    for line in signatures.splitlines():
        mark, _, rest = line.partition(" ")
        signer, _, packed = rest.partition(" ")
        if mark != "—" or signer != name:
            continue
        try:
            signature = base64.b64decode(packed, validate=True)
            if signature[:4] == _key_id(name, raw):
                key.verify(signature[4:], head.body.encode())
                return head
        except (binascii.Error, InvalidSignature):
            continue
    raise AuditBroken(
        "the checkpoint is not signed by the key", asked=f"{head.origin}, {head.size} records", found=name
    )


def notes_in(text: str) -> list[str]:
    """The notes in a file of several: each ends with its signatures and an empty line."""
    found: list[str] = []
    parts = text.split("\n\n")
    for at in range(0, len(parts) - 1, 2):
        found.append(f"{parts[at].strip()}\n\n{parts[at + 1].strip()}\n")
    return found


def notes_of(notes: Iterable[str], origin: str) -> list[str]:
    """Of *notes* those of one log."""
    return [note for note in notes if note.partition("\n")[0] == origin]


def _key_id(name: str, raw: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + raw).digest()[:4]


def _read_verifier(text: str) -> tuple[str, Ed25519PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    parts = text.strip().split("+", 2)
    try:
        raw = base64.b64decode(parts[2], validate=True) if len(parts) == 3 else b""
    except binascii.Error:
        raw = b""
    if len(raw) != 33 or raw[:1] != ED25519 or parts[1] != _key_id(parts[0], raw).hex():
        raise AuditBroken("that is no key of a log", asked=text[:80], found="NAME+ID+KEY", hint="actorgrid audit key")
    return parts[0], Ed25519PublicKey.from_public_bytes(raw[1:])
