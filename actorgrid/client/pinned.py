"""TLS to a host known by its CA's fingerprint alone: trust exactly that CA."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from urllib.parse import urlsplit

from actorgrid.errors import BadRequest, HostUnreachable, WrongToken

TIMEOUT_S = 10.0


def context_for(url: str, fingerprint: str) -> ssl.SSLContext:
    """A context that trusts the CA with that SHA-256 fingerprint, which the host presents in its chain.

    Nothing secret is sent while the CA is fetched; the connections made with the context verify against it.
    Raises BadRequest, HostUnreachable, or WrongToken when the host presents no such CA.
    """
    parts = urlsplit(url)
    wanted = fingerprint.lower().replace(":", "").removeprefix("sha256")
    if parts.scheme != "https" or not parts.hostname:
        raise BadRequest("a CA fingerprint is for https", asked=url)
    if len(wanted) != 64 or set(wanted) - set("0123456789abcdef"):
        raise BadRequest("not a SHA-256 fingerprint", asked=fingerprint, hint="64 hexadecimal digits")
    for certificate in _chain(parts.hostname, parts.port or 443):
        if hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), wanted):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # one CA, one cluster: any of its hosts is who we asked for
            context.load_verify_locations(cadata=certificate)
            return context
    raise WrongToken(
        "the host does not present the CA we were told to trust",
        asked=fingerprint,
        hint="compare with the fingerprint the cluster shows; do not go on if they differ",
    )


def _chain(host: str, port: int) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as plain:
            with context.wrap_socket(plain, server_hostname=host) as secured:
                inner = secured._sslobj  # type: ignore[attr-defined]
                return [
                    ssl.PEM_cert_to_DER_cert(certificate.public_bytes())
                    for certificate in inner.get_unverified_chain() or ()
                ]
    except OSError as error:
        raise HostUnreachable(f"no TLS there: {error}", asked=f"{host}:{port}") from error
