"""The cluster's certificate authority: how it begins, what it issues, and how one generation vouches for the next.

An authority is an EC P-256 key and a certificate for it that is signed by itself, lives ten years, may issue to hosts
only (path length 0), and only to hosts of its own cluster (a critical name constraint on their URI). What it issues
lives 90 days, serves both ends of a connection, and never outlives the authority.

Every voter has the key (``keys.py`` on disk, ``sealing.py`` on the way). Time and serial numbers are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from actorgrid.actors.ledger.names import authority_uri
from actorgrid.errors import CertificateRefused, WrongCluster

from .certificate_requests import HostRequest, alternative_names
from .certificates import GENERATIONS_MAX, check_authority, check_time, fingerprint, generation_of, p256_key

AUTHORITY_LIFE_S = 3650 * 86_400.0
HOST_LIFE_S = 90 * 86_400.0
CLOCK_SKEW_S = 300.0
"""Certificates are valid from this long ago: a host whose clock is a little behind can use its own at once."""
ROTATION_LEFT_S = 365 * 86_400.0
"""With less of its life left than this, an authority should be followed by the next generation."""

_ENDORSEMENT = b"actorgrid authority endorsement 1\0"


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority with its key. Raises CertificateRefused when the two do not belong together."""

    cluster_id: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __post_init__(self) -> None:
        check_authority(self.certificate, self.cluster_id)
        if fingerprint(self.key) != self.fingerprint:
            raise CertificateRefused(
                "the key is not that of the authority", asked=self.fingerprint, found=fingerprint(self.key)
            )

    def __repr__(self) -> str:
        return f"Authority({self.cluster_id!r}, generation={self.generation})"

    @property
    def generation(self) -> int:
        """1 for the cluster's first authority, one more for each that follows."""
        return generation_of(self.certificate)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the authority's key, which join tokens carry."""
        return fingerprint(self.certificate)

    def issue(self, request: HostRequest, now_s: float, serial: int) -> x509.Certificate:
        """A certificate for what was asked, from now (seconds since the epoch) for 90 days.

        *serial* is 1 to 159 random bits. Raises WrongCluster for a request of another cluster, CertificateRefused when
        the authority's own time is over or not yet come.
        """
        if request.cluster_id != self.cluster_id:
            raise WrongCluster("the request is for another cluster", asked=request.cluster_id, found=self.cluster_id)
        check_time(self.certificate, now_s, "the authority's certificate")
        until = min(_moment(now_s + HOST_LIFE_S), self.certificate.not_valid_after_utc)
        since = max(_moment(now_s - CLOCK_SKEW_S), self.certificate.not_valid_before_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, request.host_id)]))
            .issuer_name(self.certificate.subject)
            .public_key(request.public_key)
            .serial_number(serial)
            .not_valid_before(since)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            # Agreement beside signature: secrets are sealed for a host by its key (sealing.py).
            .add_extension(_key_usage(digital_signature=True, key_agreement=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                alternative_names(self.cluster_id, request.host_id, request.addresses),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(request.public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(p256_key(self.certificate)), critical=False
            )
        )
        return builder.sign(self.key, hashes.SHA256())

    def endorse(self, other: x509.Certificate) -> bytes:
        """Sign that *other*, of the same cluster, is an authority too. Raises WrongCluster."""
        check_authority(other, self.cluster_id)
        return self.key.sign(_endorsed(other), ec.ECDSA(hashes.SHA256()))


def create_authority(
    cluster_id: str, key: ec.EllipticCurvePrivateKey, now_s: float, serial: int, generation: int = 1
) -> Authority:
    """A new authority for *key*, valid from now (seconds since the epoch) for ten years.

    *serial* is 1 to 159 random bits. Raises BadRequest for an id that cannot be a cluster's.
    """
    assert 1 <= generation <= GENERATIONS_MAX, generation
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "actorgrid"),
            x509.NameAttribute(NameOID.COMMON_NAME, cluster_id),
            # Generations differ in name, so that a verifier never tries one's key on what the other issued.
            x509.NameAttribute(NameOID.SERIAL_NUMBER, str(generation)),
        ]
    )
    public_key = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(_moment(now_s - CLOCK_SKEW_S))
        .not_valid_after(_moment(now_s + AUTHORITY_LIFE_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(authority_uri(cluster_id))]), critical=False
        )
        .add_extension(
            x509.NameConstraints([x509.UniformResourceIdentifier(cluster_id)], None),
            critical=True,
        )
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return Authority(cluster_id, certificate, key)


def is_endorsed(certificate: x509.Certificate, by: x509.Certificate, endorsement: bytes) -> bool:
    """Whether *endorsement* is the signature of *by* over *certificate*."""
    try:
        p256_key(by).verify(endorsement, _endorsed(certificate), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _endorsed(certificate: x509.Certificate) -> bytes:
    return _ENDORSEMENT + certificate.public_bytes(Encoding.DER)


def _key_usage(**used: bool) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: used.get(name, False) for name in every})


def _moment(now_s: float) -> datetime:
    return datetime.fromtimestamp(int(now_s), UTC)
