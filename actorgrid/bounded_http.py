"""HTTP over a socket that is connected, with a time for all of it, for threads and the command line."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from urllib.parse import SplitResult

from actorgrid.errors import BadRequest


@contextmanager
def bounded_link(
    plain: socket.socket, parts: SplitResult, context: ssl.SSLContext | None, deadline_s: float
) -> Iterator[http.client.HTTPConnection]:
    """A connection over *plain* to the host of *parts*, over TLS with *context*, that ends at *deadline_s* at the
    latest, by ``monotonic()``, and with it the socket."""
    host, sock = parts.hostname or "", plain
    if context is not None:
        sock = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    # A timeout of the socket is one of each read: who sends a byte a second would keep us.
    ender = threading.Timer(max(0.0, deadline_s - monotonic()), _end, (sock,))
    ender.daemon = True
    ender.start()
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        link = http.client.HTTPConnection(host, parts.port or (80 if context is None else 443))
        link.sock = sock
        yield link
    finally:
        ender.cancel()
        with suppress(OSError):
            sock.close()


def request_path(parts: SplitResult) -> str:
    """What is asked for of a host at that address."""
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def tls_context(ca_file: str) -> ssl.SSLContext:
    """What verifies the other side: by the authorities in *ca_file*, or by the machine's. Raises BadRequest."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise BadRequest("those are no certificates", asked=ca_file, found=str(error)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def is_here(host: str) -> bool:
    """Whether *host* is an address or the name of this machine itself, where HTTP without TLS may go."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
