"""The handshake that proves who may send to an actor's socket: proof of a key that only the processes of one boot hold.

Three steps, before the first frame: the listener sends a nonce; the connector answers with its own nonce, its
name and an HMAC over both nonces and both names; the listener checks it and answers with an HMAC of its own.
So a recorded exchange is worth nothing, neither against the same listener nor against another, and nothing
that an unproven peer sent is ever parsed as more than these fixed fields. The frames that follow are not
signed: on a connected AF_UNIX stream nobody can add bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
import struct

MAGIC = b"AGX1"
NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES_MAX = 96
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
CLAIM_BYTES_MIN = NONCE_BYTES + PROOF_BYTES + 1
CLAIM_BYTES_MAX = CLAIM_BYTES_MIN + NAME_BYTES_MAX

_NAME = re.compile(rb"[a-z0-9.]{1,%d}" % NAME_BYTES_MAX)
_CREDENTIALS = struct.Struct("3i")


def new_key() -> bytes:
    """A key for one boot. It lives in memory, reaches other processes by fork alone and is never written."""
    return os.urandom(32)


def peer_uid(connection: socket.socket) -> int:
    """The user on the other end, as the kernel saw it at connect."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def greeting(nonce: bytes) -> bytes:
    """The listener's first bytes: its nonce."""
    return MAGIC + nonce


def read_greeting(data: bytes) -> bytes | None:
    """The listener's nonce, or ``None`` when it is not one of ours."""
    if len(data) != GREETING_BYTES or not data.startswith(MAGIC):
        return None
    return data[len(MAGIC) :]


def claim(key: bytes, listener_nonce: bytes, nonce: bytes, name: str, listener: str) -> bytes:
    """The connector's answer: who it is, and the proof that it has the key."""
    encoded = name.encode("ascii")
    proof = _proof(key, b"connector", listener_nonce, nonce, encoded, listener.encode("ascii"))
    return nonce + proof + bytes([len(encoded)]) + encoded


def claim_length(data: bytes) -> int | None:
    """The length in bytes of the claim that starts with *data*; ``None`` while that cannot be said."""
    return None if len(data) < CLAIM_BYTES_MIN else CLAIM_BYTES_MIN + data[CLAIM_BYTES_MIN - 1]


def check_claim(key: bytes, listener_nonce: bytes, data: bytes, listener: str) -> tuple[str, bytes] | None:
    """Check a claim: the connector's name and our own proof for it; ``None``: close the connection, say nothing."""
    nonce, proof = data[:NONCE_BYTES], data[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES]
    name = data[CLAIM_BYTES_MIN:]
    expected = _proof(key, b"connector", listener_nonce, nonce, name, listener.encode("ascii"))
    if not hmac.compare_digest(proof, expected) or not _NAME.fullmatch(name):
        return None
    return name.decode("ascii"), _proof(key, b"listener", nonce, listener_nonce, listener.encode("ascii"), name)


def check_listener(key: bytes, nonce: bytes, listener_nonce: bytes, data: bytes, listener: str, name: str) -> bool:
    """Check the listener's proof: whether it has the key too."""
    expected = _proof(key, b"listener", nonce, listener_nonce, listener.encode("ascii"), name.encode("ascii"))
    return hmac.compare_digest(data, expected)


def _proof(key: bytes, role: bytes, first: bytes, second: bytes, prover: bytes, checker: bytes) -> bytes:
    # Nonces have one length and a name holds no slash: no two different exchanges hash the same bytes.
    return hmac.digest(key, b"/".join((role, prover, checker, first + second)), hashlib.sha256)
