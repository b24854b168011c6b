"""The member's side of a join: what is asked of a new host before the ledger hears of it.

An exchange costs the cluster nothing until everything about it is right: the token is known and in its time, the
signature is that of its holder and over what came, the certificate request proves its key and asks for the host's own
names only. Then, and once, the owner is told to redeem: to have the ledger count the use and enter the host, to issue
the certificate, and to answer with ``welcome`` or ``refuse``. What is refused is counted by the error's name.

No socket, clock or dice. Bounds: 16 exchanges at a time, 4 from one address; of each one message of 128 KiB, 10 s from
the first byte of TLS until the claim is there, 30 s until the ledger has answered; few wrong tokens
(``token_rate_limit.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from cryptography import x509

from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.actors.ledger.join_tokens import NONCE_BYTES, JoinClaim, check_claim, redeem
from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    FrameTooLarge,
    MalformedBody,
    MalformedMessage,
    Overloaded,
    TrustError,
    UnknownJoinToken,
    WrongCluster,
)
from actorgrid.transports.frames import FrameDecoder

from .certificate_requests import HostRequest, check_request
from .certificates import digest
from .join_messages import (
    MESSAGE_BYTES_MAX,
    VERSION_HIGH,
    VERSION_LOW,
    Capabilities,
    JoinHello,
    JoinRefused,
    JoinWelcome,
    encode,
    read_capabilities,
    read_claim,
)
from .joiner import Close, SendBytes
from .token_rate_limit import TokenRateLimit, network_of
from .trust_bundle import TrustBundle

EXCHANGES_MAX, EXCHANGES_PER_SOURCE_MAX = 16, 4
CLAIM_TIMEOUT_S, REDEEM_TIMEOUT_S = 10.0, 30.0


@dataclass(frozen=True, slots=True)
class Redeem:
    """Have the ledger redeem the token and enter the host, issue for *request*, then call ``welcome`` or ``refuse``.

    The ledger must also refuse a host id that lives under another key's fingerprint: a token lets in new hosts, it does
    not hand over an old one's name.
    """

    claim: JoinClaim
    request: HostRequest
    capabilities: Capabilities


ExchangeInstruction = SendBytes | Close | Redeem


def examine(
    claim: JoinClaim, record: JoinTokenRecord | None, cluster_id: str, taken: Mapping[str, str]
) -> tuple[HostRequest, Capabilities]:
    """Check all of a claim that needs no ledger; gives what it asks for.

    For the door, and again for the voter that decides when the door was another host's. Raises UnknownJoinToken,
    WrongCluster, CertificateRefused, MalformedMessage.
    """
    if claim.cluster_id != cluster_id:
        raise WrongCluster("the join token is for another cluster", asked=claim.cluster_id, found=cluster_id)
    check_claim(record, claim)
    capabilities = read_capabilities(claim.capabilities)
    request = check_request(claim.request, cluster_id, claim.host_id, capabilities.addresses, taken)
    return request, capabilities


class JoinAcceptor:
    """All exchanges of one member.

    *find_token* gives the ledger's record of a token id, or ``None``; *taken* says which host (its id) has which
    address. ``refused`` counts by name of the error, ``welcomed`` the hosts let in.
    """

    def __init__(
        self,
        find_token: Callable[[str], JoinTokenRecord | None],
        taken: Callable[[], Mapping[str, str]],
        software: str = "",
    ) -> None:
        self.find_token, self.taken, self.software = find_token, taken, software
        self.token_rate_limit = TokenRateLimit()
        self.refused: Counter[str] = Counter()
        self.welcomed = 0
        self.sources: Counter[str] = Counter()

    def open(
        self, source: str, bundle: TrustBundle, certificate: x509.Certificate, nonce: bytes, now_s: float
    ) -> JoinExchange:
        """An exchange with address *source*, to whom TLS will show *certificate*. *nonce*: 32 new random bytes.

        Call it when the connection is accepted, before TLS. Raises Overloaded when there is no room: close it then.
        """
        network = network_of(source)
        if self.exchanges >= EXCHANGES_MAX or self.sources[network] >= EXCHANGES_PER_SOURCE_MAX:
            self.refused["Overloaded"] += 1
            raise Overloaded("too many hosts join at once", asked=source[:60], found=f"{self.exchanges}")
        self.sources[network] += 1
        return JoinExchange(self, source, bundle, certificate, nonce, now_s)

    @property
    def exchanges(self) -> int:
        """The number of exchanges under way."""
        return self.sources.total()

    def left(self, source: str) -> None:
        """Take note that an exchange with *source* is over."""
        network = network_of(source)
        self.sources[network] -= 1
        if not self.sources[network]:
            del self.sources[network]


class _Stage(Enum):
    NEW = "new"
    CLAIM = "claim"
    LEDGER = "ledger"
    OVER = "over"


class JoinExchange:
    """One connection, from when it was accepted. Call ``begin`` after the TLS handshake, then ``received``,
    ``tick``, ``closed``, and after a Redeem ``welcome`` or ``refuse``. ``now_s`` is of a clock that only goes forward,
    ``wall_s`` is seconds since the epoch."""

    def __init__(
        self,
        acceptor: JoinAcceptor,
        source: str,
        bundle: TrustBundle,
        certificate: x509.Certificate,
        nonce: bytes,
        now_s: float,
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self._acceptor, self._source, self._bundle, self._nonce = acceptor, source, bundle, nonce
        self._server = digest(certificate)
        self._decoder = FrameDecoder(MESSAGE_BYTES_MAX)
        self._stage = _Stage.NEW
        self._version = VERSION_LOW
        self._deadline_s = now_s + CLAIM_TIMEOUT_S

    def begin(self, now_s: float) -> list[ExchangeInstruction]:
        """Begin once TLS is up: say hello, or that too many wrong tokens came from there."""
        acceptor = self._acceptor
        self._stage = _Stage.CLAIM
        try:
            acceptor.token_rate_limit.check(self._source, now_s)
        except Overloaded as error:
            return self._end(error)
        bundle = self._bundle
        hello = JoinHello((VERSION_LOW, VERSION_HIGH), acceptor.software, bundle.cluster_id, self._nonce, bundle)
        return [SendBytes(encode(hello))]

    def received(self, data: bytes, now_s: float, wall_s: float) -> list[ExchangeInstruction]:
        """Take bytes that came through TLS."""
        if self._stage is _Stage.OVER:
            return []
        try:
            out: list[ExchangeInstruction] = []
            for frame in self._decoder.feed(data):
                if self._stage is not _Stage.CLAIM:
                    raise MalformedMessage("a joining host has one message", found=str(frame[0])[:40])
                claim, self._version = read_claim(frame, self._nonce, self._server)
                out += self._examine(claim, now_s, wall_s)
            return out
        except (UnknownJoinToken, MalformedMessage, MalformedBody, FrameTooLarge) as error:
            self._acceptor.token_rate_limit.count(self._source, now_s)
            return self._end(error)
        except TrustError as error:
            return self._end(error)

    def welcome(self, welcome: JoinWelcome) -> list[ExchangeInstruction]:
        """Answer that the ledger has let the host in.

        Nothing is sent when the exchange is over: the host comes again.
        """
        if self._stage is not _Stage.LEDGER:
            return []
        self._acceptor.welcomed += 1
        self._close()
        return [SendBytes(encode(welcome, self._version)), Close()]

    def refuse(self, error: ActorGridError) -> list[ExchangeInstruction]:
        """Answer that the ledger has not let the host in, or could not be asked."""
        return self._end(error) if self._stage is _Stage.LEDGER else []

    def tick(self, now_s: float) -> list[ExchangeInstruction]:
        """Check the time limits."""
        if self._stage is _Stage.OVER or now_s < self._deadline_s:
            return []
        if self._stage is _Stage.NEW:
            self._acceptor.refused["CallTimeout"] += 1
            self._close()
            return [Close()]
        if self._stage is _Stage.CLAIM:
            return self._end(CallTimeout("no claim came in time", found=f"{CLAIM_TIMEOUT_S:g} s"))
        return self._end(
            CallTimeout(
                "the cluster did not decide in time",
                found=f"{REDEEM_TIMEOUT_S:g} s",
                hint="has it a leader? Try again with the same token",
            )
        )

    def closed(self) -> None:
        """Take note that the connection is gone."""
        self._close()

    def _examine(self, claim: JoinClaim, now_s: float, wall_s: float) -> list[ExchangeInstruction]:
        record = self._acceptor.find_token(claim.token_id)
        request, capabilities = examine(claim, record, self._bundle.cluster_id, self._acceptor.taken())
        # The ledger looks again; here so that a token which cannot be redeemed costs no entry of the log.
        redeem(record, self._bundle.cluster_id, claim.host_id, request.fingerprint, wall_s)
        self._stage = _Stage.LEDGER
        self._deadline_s = now_s + REDEEM_TIMEOUT_S
        return [Redeem(claim, request, capabilities)]

    def _end(self, error: ActorGridError) -> list[ExchangeInstruction]:
        self._acceptor.refused[error.code] += 1
        self._close()
        return [SendBytes(encode(JoinRefused(error))), Close()]

    def _close(self) -> None:
        if self._stage is not _Stage.OVER:
            self._stage = _Stage.OVER
            self._acceptor.left(self._source)
