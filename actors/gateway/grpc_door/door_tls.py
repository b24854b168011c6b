"""TLS of the gRPC door: the host's certificate, as HTTPS shows it, and the next one once it is there."""

from __future__ import annotations

import logging
from pathlib import Path
from time import time

import grpc
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from actorgrid.actors.security.certificates import pem
from actorgrid.actors.security.host_material import HOST_FILE, load_material
from actorgrid.errors import ActorGridError, KeyUnusable

from .door_spec import DoorSpec

log = logging.getLogger("actorgrid.grpc")


class DoorCertificate:
    """The host's certificate and key, from their files, as gRPC takes them."""

    def __init__(self, spec: DoorSpec) -> None:
        self._folder = Path(spec.security)
        self._authorities = spec.client_authorities
        self._seen: tuple[int, int] | None = None

    def configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """What is to be shown from now on; ``None``: what was shown before. Raises KeyUnusable, and what
        ``load_material`` does."""
        found = (self._folder / HOST_FILE).stat()
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._seen:
            return None
        self._seen = seen
        material = load_material(self._folder, time(), expired_too=True)
        if material is None:
            raise KeyUnusable("this host has no certificate", asked=str(self._folder))
        key = material.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = (pem(material.certificate) + material.bundle.pem).encode()
        return grpc.ssl_server_certificate_configuration([(key, chain)], self._roots())

    def next(self) -> grpc.ServerCertificateConfiguration | None:
        """As ``configuration``, for each connection that comes: one that cannot be used is logged, once."""
        try:
            return self.configuration()
        except (ActorGridError, OSError) as error:
            log.error("the gRPC door goes on with the certificate it had: %s", error)
            return None

    def _roots(self) -> bytes | None:
        if not self._authorities:
            return None
        try:
            return Path(self._authorities).read_bytes()
        except OSError as error:
            raise KeyUnusable(
                f"the authorities of clients cannot be read: {error.strerror}",
                asked=self._authorities,
                hint="grpc.client_authorities names a file of certificates in PEM",
            ) from None


def server_credentials(spec: DoorSpec) -> grpc.ServerCredentials:
    """How the door speaks TLS; with authorities of clients, both sides show a certificate. Raises KeyUnusable."""
    certificate = DoorCertificate(spec)
    try:
        first = certificate.configuration()
    except OSError as error:
        raise KeyUnusable(f"the host's certificate cannot be read: {error.strerror}", asked=spec.security) from None
    return grpc.dynamic_ssl_server_credentials(
        first, certificate.next, require_client_authentication=bool(spec.client_authorities)
    )
