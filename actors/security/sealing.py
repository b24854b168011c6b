"""Secrets closed for one reader: for a host by its certificate's key, or for this host by a key of its own.

*seal* is an integrated encryption scheme (ECIES; Abdalla, Bellare, Rogaway, "DHIES", 1999; the order of steps is that
of HPKE's base mode, RFC 9180): a key pair used once, ECDH on P-256 with the reader's key, HKDF-SHA256 over both public
keys and the purpose, AES-256-GCM. The reader's key signs in TLS as well; ECDSA and ECIES on one key are jointly secure
(Degabriele, Lehmann, Paterson, Smart, Strefler, "On the Joint Security of Encryption and Signature in EMV", 2012).

What is sealed says nothing about who sealed it: send it over an authenticated link, and check what comes out (the key
of an authority has to fit a certificate that is trusted already, ``keys.py``).

*wrap* is AES-256-GCM under a key that the caller keeps. In both, *purpose* is bound to the text: what was closed for
one purpose opens for no other.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from actorgrid.errors import KeyUnusable

from .certificates import p256_key

WRAP_KEY_BYTES = 32
NONCE_BYTES = 12
SEALED_BYTES_MAX = 64 * 1024
_POINT_BYTES = 65
_SEAL_LABEL, _WRAP_LABEL = b"actorgrid seal 1\0", b"actorgrid wrap 1\0"


def seal(reader: x509.Certificate, once: ec.EllipticCurvePrivateKey, secret: bytes, purpose: str) -> bytes:
    """*secret* for whoever has the key of the *reader*'s certificate.

    *once* is a new P-256 key that is used for nothing else and forgotten. Raises CertificateRefused for a certificate
    with another kind of key.
    """
    assert len(secret) <= SEALED_BYTES_MAX, len(secret)
    their_key = p256_key(reader)
    point = _point(once.public_key())
    key, nonce = _derive(once.exchange(ec.ECDH(), their_key), point, _point(their_key), purpose)
    return point + AESGCM(key).encrypt(nonce, secret, None)


def unseal(key: ec.EllipticCurvePrivateKey, sealed: bytes, purpose: str) -> bytes:
    """What was sealed for the holder of *key*. Raises KeyUnusable when it was not, or was changed."""
    refusal = KeyUnusable(
        "what was sealed does not open with this host's key",
        asked=purpose[:80],
        hint="it was sealed for an earlier key of this host, or damaged: have it sent again",
    )
    if not _POINT_BYTES < len(sealed) <= SEALED_BYTES_MAX + _POINT_BYTES + 16:
        raise refusal
    point = sealed[:_POINT_BYTES]
    try:
        sender = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        shared = key.exchange(ec.ECDH(), sender)
        opener, nonce = _derive(shared, point, _point(key.public_key()), purpose)
        return AESGCM(opener).decrypt(nonce, sealed[_POINT_BYTES:], None)
    except (ValueError, InvalidTag) as error:
        raise refusal from error


def wrap(wrap_key: bytes, nonce: bytes, secret: bytes, purpose: str) -> bytes:
    """*secret* for whoever has the 32 bytes *wrap_key*. *nonce*: 12 random bytes, never twice with one key."""
    assert len(wrap_key) == WRAP_KEY_BYTES and len(nonce) == NONCE_BYTES and len(secret) <= SEALED_BYTES_MAX
    return nonce + AESGCM(wrap_key).encrypt(nonce, secret, _WRAP_LABEL + purpose.encode())


def unwrap(wrap_key: bytes, wrapped: bytes, purpose: str) -> bytes:
    """What was wrapped with the same key for the same purpose. Raises KeyUnusable for anything else."""
    try:
        return AESGCM(wrap_key).decrypt(
            wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES : SEALED_BYTES_MAX + 64], _WRAP_LABEL + purpose.encode()
        )
    except (ValueError, InvalidTag) as error:
        raise KeyUnusable("it was wrapped with another key, or damaged", asked=purpose[:80]) from error


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derive(shared: bytes, sender: bytes, reader: bytes, purpose: str) -> tuple[bytes, bytes]:
    # The key is new for every message, so its nonce may come from the same derivation.
    info = _SEAL_LABEL + sender + reader + purpose.encode()
    out = HKDF(SHA256(), WRAP_KEY_BYTES + NONCE_BYTES, None, info).derive(shared)
    return out[:WRAP_KEY_BYTES], out[WRAP_KEY_BYTES:]
