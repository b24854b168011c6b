"""TLS settings from a host's material: version 1.3 only, both sides checked, no session taken up again.

Names are not checked by TLS: hosts are called by their URI, which whoever owns a link reads from the peer's certificate
(``certificates.identify``) and compares with whom it meant and with the ledger.
"""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

from actorgrid.errors import KeyUnusable

from .host_material import HostMaterial


class TlsContexts(NamedTuple):
    """The contexts for links between hosts: both sides show a certificate of an authority in the bundle."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def ssl_contexts(material: HostMaterial) -> TlsContexts:
    """Contexts for links with other hosts. Make new ones when the material is another: a certificate renewed, a bundle
    changed. Raises KeyUnusable when OpenSSL does not take it."""
    server, client = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        # The form of certificates by the letter of RFC 5280: ours keep it, and so a foreign one fails early.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(cadata=material.bundle.pem)
        except (ssl.SSLError, ValueError) as error:
            raise KeyUnusable(f"TLS does not take the trust bundle: {error}") from error
        _load(context, material.pem)
    return TlsContexts(server, client)


def join_server_context(material: HostMaterial) -> ssl.SSLContext:
    """A server that shows the host's certificate and asks for none: the join server. Raises KeyUnusable."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    _load(context, material.pem)
    return context


def https_context(material: HostMaterial) -> ssl.SSLContext:
    """A server for HTTPS, where tokens say who it is. It shows the authorities as well, so that a client that has
    nothing but a fingerprint finds the one that this names. Raises KeyUnusable."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    _load(context, material.pem + material.bundle.pem.encode())
    context.set_alpn_protocols(["http/1.1"])
    return context


def joiner_context() -> ssl.SSLContext:
    """A client that believes nothing of what the server shows: only for ``Joiner``, which checks it by the token."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        # A session taken up again would not look at the certificate again.
        context.num_tickets = 0
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    # OpenSSL reads keys from files only. One in memory, for the moment of loading, is what was checked, not what lies
    # on disk by now.
    descriptor = os.memfd_create("actorgrid-host-key", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, OSError) as error:
        raise KeyUnusable(f"TLS does not take the host's key and certificate: {error}") from error
    finally:
        os.close(descriptor)
