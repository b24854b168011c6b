"""The authority's key at rest on a voter, and on its way to a new one.

On disk: ``authority-GENERATION.key`` is the key wrapped (AES-256-GCM) with ``wrap.key``, 32 random bytes. Both are
0600 in a 0700 folder; ``wrap.key`` may lie elsewhere (another disk, a credential that the service manager mounts), and
only then does a copy of the data directory alone not give the authority away. docs/trust.md says what that protects.

On its way: sealed for the certificate of the voter (``sealing.py``). It is taken only when it fits the certificate of
an authority that the reader trusts already.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from actorgrid.actors.files.private_files import read_private, write_private
from actorgrid.errors import CertificateRefused, KeyUnusable

from .authority import Authority
from .sealing import NONCE_BYTES, WRAP_KEY_BYTES, seal, unseal, unwrap, wrap
from .trust_bundle import TrustBundle


def new_private_key() -> ec.EllipticCurvePrivateKey:
    """A new P-256 key, from OpenSSL's random numbers."""
    return ec.generate_private_key(ec.SECP256R1())


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The bytes of the key (PKCS #8, DER), not encrypted."""
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def read_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """The key of :func:`key_bytes`. Raises KeyUnusable for anything but a P-256 key."""
    try:
        key = load_der_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(f"the key cannot be read: {str(error)[:120]}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyUnusable("the key is of another kind", asked="EC P-256")
    return key


def ensure_wrap_key(path: Path) -> bytes:
    """The 32 bytes in *path*, made when there is no such file. Raises KeyExposed, KeyUnusable, DataDirUnusable."""
    try:
        key = read_private(path)
    except FileNotFoundError:
        key = os.urandom(WRAP_KEY_BYTES)
        write_private(path, key)
    if len(key) != WRAP_KEY_BYTES:
        raise KeyUnusable(
            f"{path} is not a wrapping key",
            asked=f"{WRAP_KEY_BYTES} bytes",
            found=f"{len(key)} bytes",
            hint="take it from a backup; or remove it and authority-*.key: another voter sends the key again",
        )
    return key


def authority_file(folder: Path, generation: int) -> Path:
    """The file in which a voter keeps the key of an authority."""
    return folder / f"authority-{generation}.key"


def store_authority(folder: Path, authority: Authority, wrap_key: bytes) -> None:
    """Store the authority's key in *folder*, wrapped. Raises DataDirUnusable, KeyExposed."""
    purpose = _purpose(authority.cluster_id, authority.generation)
    wrapped = wrap(wrap_key, os.urandom(NONCE_BYTES), key_bytes(authority.key), purpose)
    write_private(authority_file(folder, authority.generation), wrapped)


def load_authority(folder: Path, bundle: TrustBundle, generation: int, wrap_key: bytes) -> Authority | None:
    """The authority of that generation, or ``None`` when this host does not have its key.

    Raises KeyExposed, KeyUnusable, or WrongState for a generation that the bundle does not hold.
    """
    trusted = bundle.find(generation)
    path = authority_file(folder, generation)
    try:
        wrapped = read_private(path)
    except FileNotFoundError:
        return None
    try:
        key = read_key(unwrap(wrap_key, wrapped, _purpose(bundle.cluster_id, generation)))
        return Authority(bundle.cluster_id, trusted.certificate, key)
    except (KeyUnusable, CertificateRefused) as error:
        raise KeyUnusable(
            f"{path} does not give the key of the authority: {error.message}",
            asked=f"generation {generation} of {bundle.cluster_id}",
            hint="remove the file; another voter sends the key again",
        ) from error


def forget_authority(folder: Path, generation: int) -> None:
    """Remove the key of a retired authority, or of any when this host is a voter no longer. None there is no error.

    The bytes may stay on the disk; that they are wrapped is what keeps them closed.
    """
    authority_file(folder, generation).unlink(missing_ok=True)


def seal_authority(authority: Authority, voter: x509.Certificate) -> bytes:
    """Seal the authority's key for the voter with this certificate."""
    return seal(voter, key_bytes(authority.key), _purpose(authority.cluster_id, authority.generation))


def unseal_authority(key: ec.EllipticCurvePrivateKey, sealed: bytes, bundle: TrustBundle, generation: int) -> Authority:
    """The authority that another voter sealed for *key*, this host's own.

    Raises KeyUnusable when it does not open, WrongState for a generation that the bundle does not hold, and
    CertificateRefused when the key is not that of the authority which the bundle trusts.
    """
    trusted = bundle.find(generation)
    secret = unseal(key, sealed, _purpose(bundle.cluster_id, generation))
    return Authority(bundle.cluster_id, trusted.certificate, read_key(secret))


def _purpose(cluster_id: str, generation: int) -> str:
    return f"authority {cluster_id} {generation}"
