"""Secrets closed for one reader: for a host by its certificate's key, or for this host by a key of its own.

*seal* is HPKE (RFC 9180) in base mode as ``cryptography`` has it: P-256 for the reader's key, HKDF-SHA256, AES-256-GCM.
The reader's key signs in TLS as well; ECDSA and such an encryption on one key are jointly secure (Degabriele, Lehmann,
Paterson, Smart, Strefler, "On the Joint Security of Encryption and Signature in EMV", 2012). *unseal* opens also
what a host of version 0.1 sealed, which a ledger may still hold (docs/decisions/0026).

What is sealed says nothing about who sealed it: send it over an authenticated link, and check what comes out (the key
of an authority has to fit a certificate that is trusted already, ``keys.py``).

*wrap* is AES-256-GCM under a key that the caller keeps. In both, *purpose* is bound to the text: what was closed for
one purpose opens for no other.
"""

from __future__ import annotations

from contextlib import suppress

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from actorgrid.errors import KeyUnusable

from .certificates import p256_key

WRAP_KEY_BYTES = 32
NONCE_BYTES = 12
SEALED_BYTES_MAX = 64 * 1024
_POINT_BYTES = 65
_SEAL_LABEL, _WRAP_LABEL = b"actorgrid seal 2\0", b"actorgrid wrap 1\0"
_SEAL_LABEL_0_1 = b"actorgrid seal 1\0"
_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def seal(reader: x509.Certificate, secret: bytes, purpose: str) -> bytes:
    """*secret* for whoever has the key of the *reader*'s certificate: the encapsulated key, then the text and its tag.

    Raises CertificateRefused for a certificate with another kind of key.
    """
    assert len(secret) <= SEALED_BYTES_MAX, len(secret)
    return _SUITE.encrypt(secret, p256_key(reader), info=_SEAL_LABEL + purpose.encode())


def unseal(key: ec.EllipticCurvePrivateKey, sealed: bytes, purpose: str) -> bytes:
    """Open what was sealed for the holder of *key* (P-256). Raises KeyUnusable when it was not, or was changed."""
    refusal = KeyUnusable(
        "what was sealed does not open with this host's key",
        asked=purpose[:80],
        hint="it was sealed for an earlier key of this host, or damaged: have it sent again",
    )
    if not _POINT_BYTES < len(sealed) <= SEALED_BYTES_MAX + _POINT_BYTES + 16:
        raise refusal
    # Nothing in the bytes says which form they have. Both are authenticated, so at most one opens.
    with suppress(ValueError, InvalidTag):
        return _SUITE.decrypt(sealed, key, info=_SEAL_LABEL + purpose.encode())
    try:
        return _open_0_1(key, sealed, purpose)
    except (ValueError, InvalidTag) as error:
        raise refusal from error


def wrap(wrap_key: bytes, nonce: bytes, secret: bytes, purpose: str) -> bytes:
    """*secret* for whoever has the 32 bytes *wrap_key*. *nonce*: 12 random bytes, never twice with one key."""
    assert len(wrap_key) == WRAP_KEY_BYTES and len(nonce) == NONCE_BYTES and len(secret) <= SEALED_BYTES_MAX
    return nonce + AESGCM(wrap_key).encrypt(nonce, secret, _WRAP_LABEL + purpose.encode())


def unwrap(wrap_key: bytes, wrapped: bytes, purpose: str) -> bytes:
    """Open what was wrapped with the same key for the same purpose. Raises KeyUnusable for anything else."""
    try:
        return AESGCM(wrap_key).decrypt(
            wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES : SEALED_BYTES_MAX + 64], _WRAP_LABEL + purpose.encode()
        )
    except (ValueError, InvalidTag) as error:
        raise KeyUnusable("it was wrapped with another key, or damaged", asked=purpose[:80]) from error


def _open_0_1(key: ec.EllipticCurvePrivateKey, sealed: bytes, purpose: str) -> bytes:
    """Open what 0.1 sealed: ECDH with a key used once, HKDF over both public keys and the purpose, AES-256-GCM."""
    point = sealed[:_POINT_BYTES]
    sender = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    reader = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    info = _SEAL_LABEL_0_1 + point + reader + purpose.encode()
    out = HKDF(SHA256(), WRAP_KEY_BYTES + NONCE_BYTES, None, info).derive(key.exchange(ec.ECDH(), sender))
    return AESGCM(out[:WRAP_KEY_BYTES]).decrypt(out[WRAP_KEY_BYTES:], sealed[_POINT_BYTES:], None)
