"""Certificates for tests of links between hosts: an authority, and good and bad certificates of hosts."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from actorgrid.transports.peer.tls import PeerIdentity

DAY = timedelta(days=1)
SIDES = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)


class Authority:
    """One certificate authority."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def identity(
        self,
        folder: Path,
        cluster_id: str,
        host_id: str,
        *,
        uris: tuple[str, ...] | None = None,
        days: tuple[float, float] = (-1, 1),
        authorities: str | None = None,
        use: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> PeerIdentity:
        """A host's material; *uris*, *days* and *use* make it a bad one."""
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        now = datetime.now(UTC)
        names = (f"actorgrid://{cluster_id}/host/{host_id}",) if uris is None else uris
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host_id)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.ExtendedKeyUsage(list(use)), critical=False)
        )
        if names:
            san = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names])
            builder = builder.add_extension(san, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = folder / f"{host_id}-{serial}.pem", folder / f"{host_id}-{serial}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        contexts = [_context(kind, *paths, authorities or self.pem) for kind in SIDES]
        return PeerIdentity(cluster_id, host_id, *contexts)


def _context(kind: ssl._SSLMethod, certificate: Path, key: Path, authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if kind is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    context.load_verify_locations(cadata=authorities)
    context.load_cert_chain(certificate, key)
    return context
