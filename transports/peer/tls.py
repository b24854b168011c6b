"""TLS between hosts without a socket: who we are, whom we believe, and a pipe of bytes in and bytes out.

TLS 1.3 only, both sides show a certificate of the cluster's authority, and the certificate names its host as
``actorgrid://CLUSTER/host/HOST`` in a subject alternative name of kind URI (the only one of that kind). Host names and
addresses in certificates mean nothing here. Sessions are not resumed: each link checks the certificate of its day.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from actorgrid.errors import ConfigError, PeerRefused

from .limits import Refusal

TLS_HANDSHAKE_BYTE = 0x16
RECORD_BYTES_MAX = 16 * 1024

_ID = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"actorgrid://({_ID})/host/({_ID})")
_X509_EXPIRED, _X509_NOT_YET_VALID = 10, 9


def link_refused(refusal: Refusal, message: str, found: str = "", hint: str = "") -> PeerRefused:
    """The error of a link that ends for a reason that is counted: ``details["refusal"]``."""
    return PeerRefused(message, found=found, hint=hint, refusal=str(refusal))


@dataclass(frozen=True)
class PeerIdentity:
    """Who a host is, and its TLS contexts, with certificate, key and the authorities that it believes.

    Raises ConfigError when a context would let in what it must not: TLS before 1.3, a peer without a certificate, a
    session that is resumed and so looks at no certificate.
    """

    cluster_id: str
    host_id: str
    server: ssl.SSLContext
    client: ssl.SSLContext

    def __post_init__(self) -> None:
        uri = f"actorgrid://{self.cluster_id}/host/{self.host_id}"
        if not _NAME.fullmatch(uri):
            raise ConfigError("an id that cannot stand in a certificate", asked=uri, hint="it is like a DNS label")
        for context in (self.server, self.client):
            strict = context.verify_mode == ssl.CERT_REQUIRED and context.minimum_version == ssl.TLSVersion.TLSv1_3
            if not strict or context.check_hostname or (context is self.server and context.num_tickets):
                raise ConfigError(
                    "a TLS context that is not for links between hosts",
                    found=f"{context.verify_mode!r}, {context.minimum_version!r}",
                    hint="TLS 1.3, CERT_REQUIRED, no names of hosts, no tickets",
                )


class TlsPipe:
    """One TLS connection over memory: ciphertext in and out, plain text in and out.

    It holds what was fed and not read yet, and what was written and not taken yet: both are for the owner to bound.
    """

    __slots__ = ("_broken", "_in", "_object", "_out")

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=server_side)
        self._broken = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of ciphertext that ``take`` would give."""
        return self._out.pending

    def feed(self, data: bytes | memoryview) -> None:
        """Take ciphertext from the other side."""
        self._in.write(data)

    def handshake(self) -> bool:
        """Go on with the handshake as far as possible; whether it is done. Raises PeerRefused."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._broken = True
            raise _refused(error) from None
        return True

    def read(self) -> bytes | None:
        """Plain text, at most one record of it; empty when there is none now, ``None`` at the other side's end.
        Raises PeerRefused."""
        if not self._in.pending and not self._object.pending():
            return b""  # cheaper than to have OpenSSL say so, which raises
        try:
            return self._object.read(RECORD_BYTES_MAX) or None
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            return None
        except ssl.SSLError as error:
            self._broken = True
            raise _refused(error) from None

    def read_into(self, into: memoryview) -> int | None:
        """As ``read``, into *into*; gives how many bytes. Raises ssl.SSLError."""
        if not self._in.pending and not self._object.pending():
            return 0
        try:
            return self._object.read(len(into), into) or None  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            return None

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt *data* for the other side."""
        self._object.write(data)

    def take(self) -> bytes:
        """Take out all ciphertext for the other side."""
        return self._out.read()

    def finish(self, last: bytes) -> None:
        """Encrypt *last*, and say that no more comes. Where TLS failed there is nothing to say but its own alert."""
        if self._broken:
            return
        try:
            if last:
                self._object.write(last)
            self._object.unwrap()
        except ssl.SSLError:
            self._broken = True  # it waits for their end in vain, or they have ended: ours is said as far as it can be

    def proven_host(self, cluster_id: str) -> tuple[str, str]:
        """The other side's host id and its key's fingerprint, after the handshake.

        Raises PeerRefused when the certificate names no host of *cluster_id*.
        """
        raw, fields = self._object.getpeercert(binary_form=True), self._object.getpeercert()
        if raw is None or not fields:
            raise link_refused(Refusal.CERTIFICATE, "the other side showed no certificate")
        names = [str(pair[1]) for pair in fields.get("subjectAltName", ()) if pair[0] == "URI"]
        match = _NAME.fullmatch(names[0]) if len(names) == 1 else None
        if match is None or match[1] != cluster_id:
            raise link_refused(
                Refusal.WRONG_NAME,
                "the certificate does not name one host of this cluster",
                found=", ".join(names)[:200] or "no URI",
                hint=f"actorgrid://{cluster_id}/host/HOST",
            )
        return match[2], _fingerprint(raw)


def _fingerprint(certificate: bytes) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo) in hex: the same when a certificate is renewed for the key."""
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
        packed = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise link_refused(
            Refusal.CERTIFICATE, "the other side's certificate cannot be read", str(error)[:200]
        ) from None
    return hashlib.sha256(packed).hexdigest()


def _refused(error: ssl.SSLError) -> PeerRefused:
    reason = error.reason or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_X509_EXPIRED, _X509_NOT_YET_VALID):
            return link_refused(
                Refusal.EXPIRED, "the other side's certificate is not valid at this time", error.verify_message
            )
        return link_refused(Refusal.CERTIFICATE, "the other side's certificate is refused", error.verify_message)
    if "ALERT_UNKNOWN_CA" in reason:
        return link_refused(
            Refusal.REFUSED_US,
            "the other side does not believe our cluster's authority: it is of another cluster, or of ours before",
            reason,
            "where this machine was a host of that cluster and began anew, it is missing there: stop it, then actorgrid"
            " leave --host OLD-HOST --force on a member, and actorgrid up --join here with an empty --data-dir",
        )
    if "ALERT" in reason:
        return link_refused(
            Refusal.REFUSED_US,
            "the other side refused our TLS",
            reason,
            "its log says why: our certificate, or its clock",
        )
    return link_refused(Refusal.TLS, "no TLS 1.3 with certificates on both sides", reason)
