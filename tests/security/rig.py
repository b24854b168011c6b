"""A cluster's trust without a cluster: an authority, hosts of it, and TLS between two of them in memory."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass, field

from cryptography import x509

from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.actors.ledger.join_tokens import JoinToken, make_token
from actorgrid.actors.security.authority import Authority, create_authority
from actorgrid.actors.security.certificate_requests import check_request, make_request
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.trust_bundle import TrustBundle, first_bundle

NOW_S = time.time()
"""TLS looks at the real clock, so what it is to accept is made for today."""
DAY_S = 86_400.0
CLUSTER = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_CLUSTER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def new_authority(cluster_id: str = CLUSTER, now_s: float = NOW_S, generation: int = 1) -> Authority:
    return create_authority(cluster_id, new_private_key(), now_s, x509.random_serial_number(), generation)


@dataclass
class Cluster:
    """One authority, or two while it is rotated, and the tokens it gave out."""

    cluster_id: str = CLUSTER
    now_s: float = NOW_S
    authority: Authority = field(init=False)
    bundle: TrustBundle = field(init=False)
    tokens: dict[str, JoinTokenRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authority = new_authority(self.cluster_id, self.now_s)
        self.bundle = first_bundle(self.authority.certificate, self.cluster_id)

    def certificate(
        self, host_id: str, key: object = None, addresses: tuple[str, ...] = (), now_s: float | None = None
    ) -> x509.Certificate:
        request = make_request(key or new_private_key(), self.cluster_id, host_id, addresses)  # type: ignore[arg-type]
        checked = check_request(request, self.cluster_id, host_id, addresses)
        at = self.now_s if now_s is None else now_s
        return self.authority.issue(checked, at, x509.random_serial_number())

    def host(self, host_id: str, addresses: tuple[str, ...] = (), now_s: float | None = None) -> HostMaterial:
        key = new_private_key()
        return HostMaterial(key, self.certificate(host_id, key, addresses, now_s), self.bundle)

    def token(self, at: float | None = None, **options: object) -> JoinToken:
        token, record = make_token(
            self.cluster_id,
            self.bundle.signing.fingerprint,
            os.urandom(5),
            os.urandom(16),
            self.now_s if at is None else at,
            **options,  # type: ignore[arg-type]
        )
        self.tokens[token.token_id] = record
        return token

    def introduce(self) -> Authority:
        """The next generation, accepted and not signing yet."""
        new = new_authority(self.cluster_id, self.now_s, self.authority.generation + 1)
        by_old, by_new = self.authority.endorse(new.certificate), new.endorse(self.authority.certificate)
        self.bundle = self.bundle.introduce(new.certificate, by_old, by_new)
        return new

    def rotate(self) -> None:
        """The next generation signs, the old one is accepted."""
        new = self.introduce()
        self.bundle, self.authority = self.bundle.switch(), new


class End:
    """One end of TLS in memory."""

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=server_side)
        self.shaken = False

    def shake(self) -> None:
        if not self.shaken:
            try:
                self.tls.do_handshake()
                self.shaken = True
            except ssl.SSLWantReadError:
                return

    def read(self) -> bytes:
        try:
            return self.tls.read(1 << 20)
        except ssl.SSLWantReadError:
            return b""

    @property
    def peer(self) -> bytes:
        """The certificate the other end showed, DER."""
        return self.tls.getpeercert(binary_form=True) or b""


class Pair:
    """A client and a server; what one writes the other has at once."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self.server, self.client = End(server, True), End(client, False)

    def carry(self) -> None:
        self.server.incoming.write(self.client.outgoing.read())
        self.client.incoming.write(self.server.outgoing.read())

    def shake(self) -> Pair:
        """Shake hands, and read once: in TLS 1.3 a client hears only then that it was refused. Raises ssl.SSLError."""
        for _ in range(4):
            self.client.shake()
            self.carry()
            self.server.shake()
            self.carry()
        assert self.server.shaken and self.client.shaken
        self.client.read()
        return self

    def send(self, end: End, data: bytes) -> bytes:
        """What the other end reads of *data*."""
        end.tls.write(data)
        self.carry()
        return (self.client if end is self.server else self.server).read()
