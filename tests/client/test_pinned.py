"""TLS to a host known by its CA's fingerprint alone, against a real TLS server."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actorgrid.client.http import AdminHttp
from actorgrid.client.pinned import PinnedAuthority
from actorgrid.errors import BadRequest, CertificateRefused, HostUnreachable

NOW = datetime.datetime.now(datetime.UTC)


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey, ca: bool
) -> x509.Certificate:
    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    usage = x509.KeyUsage(True, False, False, False, False, ca, ca, False, False)
    return (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(address, critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(authority, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def fingerprint(of: x509.Certificate) -> str:
    return hashlib.sha256(of.public_bytes(serialization.Encoding.DER)).hexdigest()


def key_fingerprint(of: x509.Certificate) -> str:
    key = of.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()


@dataclass
class Chain:
    """A CA and a host it vouches for."""

    ca: x509.Certificate
    files: tuple[Path, Path]

    @staticmethod
    def make(folder: Path, name: str) -> Chain:
        ca_key, host_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca = certificate(f"{name} CA", ca_key, f"{name} CA", ca_key, True)
        host = certificate("host", host_key, f"{name} CA", ca_key, False)
        pem = serialization.Encoding.PEM
        chain, secret = folder / f"{name}.pem", folder / f"{name}.key"
        chain.write_bytes(host.public_bytes(pem) + ca.public_bytes(pem))
        plain = serialization.NoEncryption()
        secret.write_bytes(host_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        return Chain(ca, (chain, secret))


class Server:
    """Answers whoever completes a handshake, until it is closed; ``use`` changes what it presents."""

    def __init__(self, chain: Chain) -> None:
        self.use(chain)
        self.got = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def use(self, chain: Chain) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*chain.files)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(60)
            try:
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    self.got += secured.recv(65536)
                    secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            except OSError:
                continue  # the other side did not like what it saw

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture
def ours(tmp_path: Path) -> Chain:
    return Chain.make(tmp_path, "ours")


@pytest.fixture
def server(ours: Chain) -> Iterator[Server]:
    server = Server(ours)
    yield server
    server.close()


def greeted(server: Server, wanted: str, token: str = "secret") -> bytes:
    http = AdminHttp(server.url, token, retry_s=0, ca_fingerprint=wanted)
    try:
        answer: bytes = http.get("/")
        return answer
    finally:
        http.close()


@pytest.mark.parametrize("spelling", ["plain", "capitals", "colons", "of the key", "one of two"])
def test_a_host_of_the_authority_with_the_fingerprint_is_trusted(server: Server, ours: Chain, spelling: str) -> None:
    wanted = fingerprint(ours.ca)
    if spelling == "capitals":
        wanted = wanted.upper()
    elif spelling == "colons":
        wanted = "SHA256:" + ":".join(wanted[at : at + 2] for at in range(0, 64, 2))
    elif spelling == "of the key":
        wanted = f"sha256:{key_fingerprint(ours.ca)}"
    elif spelling == "one of two":
        wanted = f"sha256:{'0' * 64}, sha256:{wanted}"
    assert greeted(server, wanted) == b"hello"
    assert b"Bearer secret" in server.got


def test_nothing_is_said_to_a_host_of_another_authority(server: Server, ours: Chain, tmp_path: Path) -> None:
    with pytest.raises(CertificateRefused, match="does not present"):
        greeted(server, fingerprint(Chain.make(tmp_path, "other").ca))
    with pytest.raises(CertificateRefused, match="does not present"):
        # Its own certificate is not an authority's.
        greeted(server, hashlib.sha256(ours.files[0].read_bytes()).hexdigest())
    http = AdminHttp(server.url, "secret", retry_s=0, ca_fingerprint=fingerprint(ours.ca))
    assert http.get("/") == b"hello"
    server.got = b""
    server.use(Chain.make(tmp_path, "ours"))  # an authority of the same name, whose key is another
    with pytest.raises(CertificateRefused, match="not believed"):
        http.get("/")
    http.close()
    assert server.got == b""


def test_a_host_that_is_called_by_another_name_than_its_certificate_has_is_refused(server: Server, ours: Chain) -> None:
    url = server.url.replace("127.0.0.1", "localhost")
    http = AdminHttp(url, "secret", retry_s=0, ca_fingerprint=fingerprint(ours.ca))
    with pytest.raises(CertificateRefused, match=r"localhost.*actorgrid hosts"):
        http.get("/")
    http.close()
    assert server.got == b""


@pytest.mark.parametrize("wanted", ["0" * 63, "g" * 64, "", ",".join(["0" * 64] * 5)])
def test_what_cannot_be_a_pin_is_refused_before_anyone_is_asked(wanted: str) -> None:
    with pytest.raises(BadRequest):
        PinnedAuthority(wanted)


def test_a_door_without_tls_and_a_closed_one_are_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        http = AdminHttp(f"https://127.0.0.1:{port}", "secret", retry_s=0, ca_fingerprint="0" * 64)
        with pytest.raises(HostUnreachable, match="no TLS"):
            http.get("/")
        thread.join(60)
    with pytest.raises(HostUnreachable):
        http.get("/")
    http.close()
