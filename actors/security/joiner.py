"""The joining side of a join: whom it believes, what it says, and when it gives up.

The new host dials a member by TLS 1.3 and shows no certificate, since it has none. It cannot check the member by TLS
either: all it knows is the authority's fingerprint in its token. So it sends nothing until the member's hello has
brought the authorities, one of them is the token's or connected to it by endorsements, and the certificate that the
member showed in TLS is issued by one of them. What follows goes to a proven member only, over the channel that the
member's key has opened; and even that member is sent a signature, not the secret (``join_tokens.py``).

What the member answers is believed as far as the authority has signed it: the certificate, and who votes
(``voters_statement.py``). A member's word alone would not do for that: any member may have the join port's address,
and the leader that the new host will believe comes out of it.

Python's ``ssl`` has no exporter of keying material (RFC 8446, 7.5) to bind the claim to the channel. It is bound to the
member's certificate and to a number the member has chosen for this exchange instead; whoever would pass it on to
another member cannot, because that one has another certificate.

No socket, clock or dice: events in, instructions out. At most 128 KiB of a message are held.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from actorgrid.actors.ledger.join_tokens import JoinClaim, JoinToken
from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    CertificateRefused,
    FrameTooLarge,
    MalformedBody,
    MalformedMessage,
    PeerGone,
    PeerRefused,
    StatementRefused,
    TrustError,
    WrongCluster,
)
from actorgrid.transports.frames import FrameDecoder

from .certificate_requests import make_request
from .certificates import digest, fingerprint, read_certificate
from .join_messages import (
    MESSAGE_BYTES_MAX,
    STATED_SINCE,
    VERSION_HIGH,
    Capabilities,
    JoinHello,
    JoinRefused,
    JoinWelcome,
    encode_claim,
    read_answer,
)
from .voters_statement import StatedVoters, check_voters

TIMEOUT_S = 60.0
"""For all of a join. The member gives up earlier (``join_acceptor.py``), and says why."""


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Send these bytes through TLS."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once everything is sent."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The join has succeeded: keep what came, then start as a member."""

    welcome: JoinWelcome
    stated: StatedVoters


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """The join is over; nothing of it is to be kept but the host's key."""

    error: ActorGridError


JoinerInstruction = SendBytes | Close | Joined | JoinFailed


class Joiner:
    """One attempt to join. Call ``connected`` after the TLS handshake, then ``received``, ``tick`` and ``closed``.

    *key* is the host's own. Keep it before the attempt begins (``host_material.ensure_host_key``): when an answer is
    lost, a token that is used up lets the same host with the same key in again. Times named ``now_s`` are of a clock
    that only goes forward, ``wall_s`` is seconds since the epoch. After Joined or JoinFailed nothing more comes out.
    """

    def __init__(
        self,
        token: JoinToken,
        host_id: str,
        key: ec.EllipticCurvePrivateKey,
        capabilities: Capabilities,
        now_s: float,
    ) -> None:
        self._token, self._host_id, self._key = token, host_id, key
        self._packed = capabilities.pack()
        self._request = make_request(key, token.cluster_id, host_id, capabilities.addresses)
        self._deadline_s = now_s + TIMEOUT_S
        self._decoder = FrameDecoder(MESSAGE_BYTES_MAX)
        self._server: bytes | None = None
        self._challenge = b""
        self._proven = False
        self._over = False

    def connected(self, server_certificate: bytes) -> list[JoinerInstruction]:
        """Begin once TLS is up with a server that showed this certificate (DER). Nothing is sent yet."""
        self._server = server_certificate
        return []

    def received(self, data: bytes, wall_s: float) -> list[JoinerInstruction]:
        """Take bytes that came through TLS."""
        if self._over:
            return []
        try:
            out: list[JoinerInstruction] = []
            for frame in self._decoder.feed(data):
                if self._over:
                    raise MalformedMessage("the member goes on after its last word", found=str(frame[0])[:40])
                out += self._answer(read_answer(frame), wall_s)
            return out
        except (TrustError, MalformedMessage, MalformedBody, FrameTooLarge, PeerRefused) as error:
            return self._fail(error)

    def tick(self, now_s: float) -> list[JoinerInstruction]:
        """Check the time limits."""
        if self._over or now_s < self._deadline_s:
            return []
        stage = "before it took the claim" if not self._proven else "after the claim was sent"
        return self._fail(
            CallTimeout(
                f"the member did not answer within {TIMEOUT_S:g} s",
                found=stage,
                hint="try again: the same token still works for this host if it had been taken",
            )
        )

    def closed(self) -> list[JoinerInstruction]:
        """Take note that the connection is gone."""
        if self._over:
            return []
        return self._fail(
            PeerGone(
                "the member closed the connection before it answered",
                hint="is it the join port of an actorgrid host? Its log says more; the same token may be tried again",
            )
        )

    def _answer(self, message: JoinHello | JoinWelcome | JoinRefused, wall_s: float) -> list[JoinerInstruction]:
        if isinstance(message, JoinRefused):
            if self._proven:
                return self._fail(message.error)
            # Anyone may have sent this: its code at most is shown, not a word of its advice.
            raise PeerRefused(
                "the member refused before it showed who it is",
                found=message.error.code,
                hint="try again in a moment, or another member",
            )
        if isinstance(message, JoinHello) and not self._proven:
            return self._claim(message, wall_s)
        if isinstance(message, JoinWelcome) and self._proven:
            return self._enter(message, wall_s)
        raise MalformedMessage("the member speaks out of turn", found=type(message).__name__)

    def _claim(self, hello: JoinHello, wall_s: float) -> list[JoinerInstruction]:
        token = self._token
        if self._server is None:
            raise MalformedMessage("there is no certificate of the member to check", hint="call connected first")
        if (hello.cluster_id, hello.bundle.cluster_id) != (token.cluster_id, token.cluster_id):
            raise WrongCluster(
                "the member is of another cluster than the token",
                asked=token.cluster_id,
                found=hello.cluster_id,
                hint="check the address, or get a token of that cluster",
            )
        hello.bundle.check_connected([token.authority])
        certificate = read_certificate(self._server)
        hello.bundle.check_host(certificate, wall_s)
        low, high = hello.versions
        if not low <= VERSION_HIGH or not high >= STATED_SINCE:
            raise PeerRefused(
                "the member and this host have no protocol version of joining in common",
                asked=f"{STATED_SINCE} to {VERSION_HIGH} ({self._host_id})",
                found=f"{low} to {high} (actorgrid {hello.software})",
                hint="upgrade the older side; in a rolling upgrade, join by a voter that is upgraded already",
            )
        self._proven = True
        claim = JoinClaim(
            token.cluster_id,
            token.token_id,
            self._host_id,
            hello.nonce,
            digest(certificate),
            self._request,
            self._packed,
        )
        self._challenge = claim.challenge
        return [SendBytes(encode_claim(claim.signed(token)))]

    def _enter(self, welcome: JoinWelcome, wall_s: float) -> list[JoinerInstruction]:
        token, mine = self._token, fingerprint(self._key)
        if (welcome.cluster_id, welcome.bundle.cluster_id) != (token.cluster_id, token.cluster_id):
            raise WrongCluster("the welcome is of another cluster", asked=token.cluster_id, found=welcome.cluster_id)
        welcome.bundle.check_connected([token.authority])
        identity = welcome.bundle.check_host(welcome.certificate, wall_s)
        if (identity.host_id, identity.fingerprint, welcome.host_id) != (self._host_id, mine, self._host_id):
            raise CertificateRefused(
                "the certificate that came is not ours",
                asked=f"host {self._host_id}, key {mine}",
                found=f"host {identity.host_id}, key {identity.fingerprint}",
            )
        stated = check_voters(welcome.statement, welcome.bundle, self._host_id, mine, [self._challenge])
        if welcome.node != stated.node:
            raise StatementRefused(
                "the member gives this host another number than the one that is signed",
                asked=str(stated.node),
                found=str(welcome.node),
            )
        self._over = True
        return [Joined(welcome, stated), Close()]

    def _fail(self, error: ActorGridError) -> list[JoinerInstruction]:
        self._over = True
        return [JoinFailed(error), Close()]
