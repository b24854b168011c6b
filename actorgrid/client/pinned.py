"""TLS to hosts of a cluster that is known by its authority's fingerprint alone: trust exactly that authority.

The fingerprint is SHA-256 of the authority's public key, as ``actorgrid key create`` and ``status`` show it, or of its
whole certificate, as other tools print it. Several, separated by commas, while one authority takes over from another.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from actorgrid.errors import BadRequest, CertificateRefused, HostUnreachable

TIMEOUT_S = 10.0
FINGERPRINTS_MAX = 4


class PinnedAuthority:
    """The authority that a client was told to trust. Safe to use from many threads."""

    def __init__(self, fingerprint: str) -> None:
        """Raises BadRequest for what is no fingerprint."""
        self.text = fingerprint
        self._wanted = _read(fingerprint)
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None

    def after_fork(self) -> None:
        """Go on in a forked child, whose lock nobody holds."""
        self._lock = threading.Lock()

    def context(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> ssl.SSLContext:
        """What verifies *host* against the authority, and the name it is called by against its certificate.

        The first time the host is asked for its chain; nothing else is said to it. Raises OSError when there is no
        TLS, or CertificateRefused when it does not present the authority.
        """
        with self._lock:
            if self._context is not None:
                return self._context
        found = self.certificates(host, port, timeout_s)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for certificate in found:
            context.load_verify_locations(cadata=certificate)
        with self._lock:
            self._context = context
        return context

    def certificates(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> list[bytes]:
        """The authority's certificates in DER, as *host* presents them; it is asked for nothing else.

        Raises OSError when there is no TLS, or CertificateRefused when it does not present the authority.
        """
        found = [each for each in _chain(host, port, timeout_s) if self._is_wanted(each)]
        if not found:
            raise CertificateRefused(
                "the host does not present the authority that we were told to trust",
                asked=self.text,
                found=f"{host}:{port}",
                hint="compare with the fingerprint that actorgrid status shows on one of the cluster's hosts; do not"
                " go on if they differ",
            )
        return found

    def _is_wanted(self, certificate: bytes) -> bool:
        prints = [hashlib.sha256(certificate).hexdigest()]
        key = _public_key(certificate)
        if key is not None:
            prints.append(hashlib.sha256(key).hexdigest())
        return any(hmac.compare_digest(found, wanted) for found in prints for wanted in self._wanted)


def authority_pem(fingerprint: str, urls: Iterable[str]) -> str:
    """The authority's certificates in PEM, from the first host of *urls* that presents them: for programs that check
    TLS by a file. Raises BadRequest for what is no fingerprint, HostUnreachable where no host presents them."""
    pinned = PinnedAuthority(fingerprint)
    trouble = "no host has an https address"
    for url in urls:
        split = urlsplit(url)
        try:
            found = pinned.certificates(split.hostname or "", split.port or 443)
        except OSError as error:
            trouble = str(error)
            continue
        return "".join(ssl.DER_cert_to_PEM_cert(each) for each in found)
    raise HostUnreachable(
        "no host of the cluster shows its authority",
        asked=fingerprint,
        found=trouble,
        hint="actorgrid hosts says which are there",
    )


def refusal(error: ssl.SSLCertVerificationError, host: str, port: int) -> CertificateRefused:
    """The error of a client that does not believe the host it has reached."""
    hint = "if the cluster has another authority now, take its fingerprint from actorgrid status on one of its hosts"
    if "match" in error.verify_message:  # of the name or the address
        hint = "call the host by the address that actorgrid hosts shows"
    elif "expired" in error.verify_message or "not yet valid" in error.verify_message:
        hint = "check both clocks; a host whose certificate ran out needs another"
    return CertificateRefused(
        f"the host is not believed: {error.verify_message}", asked=f"{host}:{port}", found=error.reason, hint=hint
    )


def _read(fingerprint: str) -> list[str]:
    texts = [text.strip().lower().replace(":", "").removeprefix("sha256") for text in fingerprint.split(",")]
    if not 1 <= len(texts) <= FINGERPRINTS_MAX:
        raise BadRequest("too many fingerprints", found=str(len(texts)), hint=f"at most {FINGERPRINTS_MAX}")
    for text in texts:
        if len(text) != 64 or set(text) - set("0123456789abcdef"):
            raise BadRequest(
                "not a SHA-256 fingerprint", asked=fingerprint[:200], hint="sha256: and 64 hexadecimal digits"
            )
    return texts


def _chain(host: str, port: int, timeout_s: float) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), timeout_s) as plain:
        with context.wrap_socket(plain, server_hostname=host) as secured:
            inner = secured._sslobj  # type: ignore[attr-defined]
            return [
                ssl.PEM_cert_to_DER_cert(certificate.public_bytes())
                for certificate in inner.get_unverified_chain() or ()
            ]


def _public_key(certificate: bytes) -> bytes | None:
    """The SubjectPublicKeyInfo within a certificate (DER, RFC 5280 4.1); ``None`` where there is none."""
    try:
        start, _ = _inside(certificate, 0)
        at, end = _inside(certificate, start)
        if certificate[at] == 0xA0:  # the version
            at = _after(certificate, at)
        for _ in range(5):  # serial number, signature, issuer, validity, subject
            at = _after(certificate, at)
        after = _after(certificate, at)
    except IndexError:
        return None
    return certificate[at:after] if after <= end else None


def _inside(data: bytes, at: int) -> tuple[int, int]:
    """The begin and end of the content of the DER value at *at*."""
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
    return begin, begin + length


def _after(data: bytes, at: int) -> int:
    return _inside(data, at)[1]
