"""Certificates read and checked: whom one names, whether an authority of ours issued it, whether it is in its time.

TLS does these checks as well. They are made here too because a joining host has to make them before it has anything
that it could load into TLS, because what lies on disk is checked before it is used, and because the identity, a URI,
is ours to check. Chains have one step: an authority issues to hosts, and its path length of 0 forbids more.

Fingerprints are SHA-256 over the public key (SubjectPublicKeyInfo), in hex: a certificate renewed for the same key
keeps its fingerprint. A digest is SHA-256 over the whole certificate (DER), as links report it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from actorgrid.actors.ledger.names import authority_uri, read_host_uri
from actorgrid.amounts import duration
from actorgrid.errors import CertificateRefused, WrongCluster

CERTIFICATE_BYTES_MAX = 16 * 1024
GENERATIONS_MAX = 1_000_000
_PEM = b"-----BEGIN"


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """The identity in a host's certificate. Times are seconds since the epoch."""

    cluster_id: str
    host_id: str
    fingerprint: str
    digest: str
    """SHA-256 of this certificate, by which links know it."""
    generation: int
    """Of the authority that issued it."""
    valid_from_s: float
    valid_until_s: float


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn what the parser of *what* raises about its bytes into CertificateRefused."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.ExtensionNotFound,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise CertificateRefused(f"{what} cannot be read: {str(error)[:200] or type(error).__name__}") from error


def read_certificate(data: bytes) -> x509.Certificate:
    """The one certificate in *data*, PEM or DER, of at most 16 KiB. Raises CertificateRefused."""
    if len(data) > CERTIFICATE_BYTES_MAX:
        raise CertificateRefused("the certificate is too large", found=f"{len(data)} bytes")
    with refusing("the certificate"):
        if data.lstrip().startswith(_PEM):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)


def pem(certificate: x509.Certificate) -> str:
    """The certificate as text."""
    return certificate.public_bytes(Encoding.PEM).decode()


def fingerprint(holder: x509.Certificate | x509.CertificateSigningRequest | ec.EllipticCurvePrivateKey) -> str:
    """SHA-256 of the public key, 64 characters of hex. Raises CertificateRefused for a key that cannot be read."""
    with refusing("the public key"):
        key = holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()


def digest(certificate: x509.Certificate) -> str:
    """SHA-256 of the whole certificate (DER), 64 characters of hex: another one for each that is issued."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def p256_key(holder: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """The certificate's public key.

    Raises CertificateRefused unless it is on P-256, the only kind issued and sealed for.
    """
    with refusing("the public key"):
        key = holder.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        found = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.strip("_")
        raise CertificateRefused("keys of this kind are not used here", asked="EC P-256", found=found)
    return key


def generation_of(certificate: x509.Certificate, *, of_issuer: bool = False) -> int:
    """The generation of the authority that a certificate is of, or is issued by. Raises CertificateRefused."""
    with refusing("the authority's name"):
        name = certificate.issuer if of_issuer else certificate.subject
        numbers = name.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    text = str(numbers[0].value) if len(numbers) == 1 else ""
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 7 or not 1 <= int(text) <= GENERATIONS_MAX:
        raise CertificateRefused("the certificate does not say its authority's generation", found=repr(text[:40]))
    return int(text)


def identify(certificate: bytes | x509.Certificate) -> HostIdentity:
    """Whom a host's certificate names; not whether it is valid, which TLS or :func:`check_host` says.

    Raises CertificateRefused unless it has exactly one URI and that names a host.
    """
    read = read_certificate(certificate) if isinstance(certificate, bytes) else certificate
    with refusing("the certificate's names"):
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise CertificateRefused("a host's certificate has one URI", found=f"{len(uris)}")
    cluster_id, host_id = read_host_uri(uris[0])
    return HostIdentity(
        cluster_id,
        host_id,
        fingerprint(read),
        digest(read),
        generation_of(read, of_issuer=True),
        read.not_valid_before_utc.timestamp(),
        read.not_valid_after_utc.timestamp(),
    )


def addresses(certificate: x509.Certificate) -> tuple[str, ...]:
    """The IP addresses and DNS names in it, sorted. Raises CertificateRefused."""
    with refusing("the certificate's names"):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return tuple(sorted([*found, *names.get_values_for_type(x509.DNSName)]))


def check_host(
    certificate: x509.Certificate, authorities: Iterable[x509.Certificate], cluster_id: str, now_s: float
) -> HostIdentity:
    """Whom the certificate names, once one of *authorities* has issued it and now is in its time.

    Raises CertificateRefused, or WrongCluster for a certificate that names another cluster.
    """
    identity = identify(certificate)
    if identity.cluster_id != cluster_id:
        raise WrongCluster(
            "the certificate is of another cluster",
            asked=cluster_id,
            found=identity.cluster_id,
            hint="check the address",
        )
    p256_key(certificate)
    issuer = next((each for each in authorities if _issued(certificate, each)), None)
    if issuer is None:
        raise CertificateRefused(
            "no authority of this cluster issued the certificate",
            asked=f"one for host {identity.host_id}",
            found=f"signed by {certificate.issuer.rfc4514_string()[:120]}",
            hint="if the authority was changed while the host was away, let it join again with a new token",
        )
    check_time(issuer, now_s, "the authority's certificate")
    check_time(certificate, now_s, "the certificate")
    with refusing("the certificate"):
        extensions = certificate.extensions
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        purposes = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    if is_authority or not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= purposes:
        raise CertificateRefused("the certificate is not one for a host", found="another purpose")
    return identity


def check_authority(certificate: x509.Certificate, cluster_id: str) -> int:
    """The generation of an authority's own certificate, once its form is right; not whether it is trusted.

    Raises CertificateRefused or WrongCluster.
    """
    with refusing("the authority's certificate"):
        extensions = certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        permitted = extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if uris != [authority_uri(cluster_id)]:
        raise WrongCluster("the authority is another cluster's", asked=cluster_id, found=repr(uris)[:120])
    if permitted != [x509.UniformResourceIdentifier(cluster_id)]:
        raise CertificateRefused("the authority is not bound to its cluster", found="other name constraints")
    p256_key(certificate)
    if not constraints.ca or constraints.path_length != 0 or not _issued(certificate, certificate):
        raise CertificateRefused("the certificate is not that of an authority", found="other constraints or signature")
    return generation_of(certificate)


def check_time(certificate: x509.Certificate, now_s: float, what: str) -> None:
    """Raises CertificateRefused when *now_s*, seconds since the epoch, is outside of the certificate's life."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M:%S} UTC here"
    if now_s < start.timestamp():
        # Nobody issues certificates for later: what is wrong is the clock, and a new certificate would not help.
        raise CertificateRefused(
            f"this machine's clock is wrong, by {duration(start.timestamp() - now_s)} or more: {what} is not valid yet",
            asked=f"valid from {start:%Y-%m-%d %H:%M:%S} UTC",
            found=now,
            hint="set the clock (timedatectl shows it), then start again",
        )
    if now_s > end.timestamp():
        raise CertificateRefused(
            f"{what} has expired",
            asked=f"valid until {end:%Y-%m-%d %H:%M:%S} UTC",
            found=now,
            hint="check the clock; a host whose certificate ran out joins again with a new token",
        )


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
