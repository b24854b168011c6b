"""A member with a ledger of one dictionary, a new host, and a whole join between them through TLS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from actorgrid.actors.ledger.join_tokens import JoinToken, redeem
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.join_acceptor import JoinAcceptor, JoinExchange, Redeem
from actorgrid.actors.security.join_messages import (
    Capabilities,
    JoinWelcome,
)
from actorgrid.actors.security.joiner import Close, Joined, Joiner, JoinFailed, SendBytes
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.tls_contexts import join_server_context, joiner_context
from actorgrid.actors.security.voters_statement import StatedVoters, VoterAddress, sign_voters
from actorgrid.errors import (
    ActorGridError,
    TrustError,
    error_from_dict,
)
from actorgrid.transports.frames import FrameDecoder
from tests.security.rig import NOW_S, Cluster, Pair

CAPABILITIES = Capabilities(
    cpu_milli=64_000,
    memory_mib=512 * 1024,
    addresses=("10.0.0.2", "gpu-2.example"),
    listens={"raft": "10.0.0.2:7402", "calls": "10.0.0.2:7401", "http": "10.0.0.2:7400"},
    software="0.6.0",
    rack="r1",
    devices=({"uuid": "GPU-1", "index": 0, "memory_mib": 81_920},),
    measured={"network_mib_per_s": 11_000.0},
)

ENCODING = Encoding.DER


@dataclass
class Member:
    """A member of the cluster that answers joins, with a ledger of one dictionary."""

    cluster: Cluster
    material: HostMaterial = field(init=False)
    door: JoinAcceptor = field(init=False)
    taken: dict[str, str] = field(default_factory=dict)
    wall_s: float = NOW_S
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.material = self.cluster.host("host-a", ("10.0.0.1",))
        self.door = JoinAcceptor(self.cluster.tokens.get, lambda: self.taken, "0.6.0")

    def exchange(self, source: str = "10.0.0.2") -> JoinExchange:
        return self.door.open(source, self.cluster.bundle, self.material.certificate, os.urandom(32), self.now_s)

    def redeem(self, asked: Redeem) -> JoinWelcome | ActorGridError:
        """What the ledger and the authority make of it."""
        claim, tokens = asked.claim, self.cluster.tokens
        try:
            tokens[claim.token_id] = redeem(
                tokens[claim.token_id], self.cluster.cluster_id, claim.host_id, asked.request.fingerprint, self.wall_s
            )
        except TrustError as error:
            return error
        certificate = self.cluster.authority.issue(asked.request, self.wall_s, x509.random_serial_number())
        voters = (
            VoterAddress(
                "host-a", 1, "10.0.0.1:7402", "10.0.0.1:7401", "10.0.0.1:7400", self.material.identity.fingerprint
            ),
        )
        stated = StatedVoters(
            self.cluster.cluster_id,
            claim.host_id,
            2,
            asked.request.fingerprint,
            claim.challenge,
            1,
            9,
            2,
            self.wall_s,
            voters,
        )
        statement = sign_voters(self.cluster.authority, stated)
        return JoinWelcome(
            self.cluster.cluster_id, claim.host_id, 2, certificate, self.cluster.bundle, statement, voters
        )


def new_joiner(token: JoinToken, host_id: str = "host-b", key: ec.EllipticCurvePrivateKey | None = None) -> Joiner:
    return Joiner(token, host_id, key or new_private_key(), CAPABILITIES, 0.0)


Change = Callable[[Any], Any]


def join(
    member: Member,
    joiner: Joiner,
    *,
    shows: HostMaterial | None = None,
    answer: Change = lambda given: given,
    source: str = "10.0.0.2",
) -> Joined | JoinFailed:
    """A whole join through TLS. *shows*: whose certificate the server has; *answer* changes the answer to Redeem."""
    pair = Pair(join_server_context(shows or member.material), joiner_context()).shake()
    exchange = member.exchange(source)
    assert joiner.connected(pair.client.peer) == []
    waiting: list[Any] = list(exchange.begin(member.now_s))
    for _ in range(10):
        if not waiting:
            break
        step = waiting.pop(0)
        if isinstance(step, Redeem):
            given = answer(member.redeem(step))
            waiting += exchange.welcome(given) if isinstance(given, JoinWelcome) else exchange.refuse(given)
        elif isinstance(step, SendBytes):
            for out in joiner.received(pair.send(pair.server, step.data), member.wall_s):
                if isinstance(out, Joined | JoinFailed):
                    exchange.closed()
                    return out
                if isinstance(out, SendBytes):
                    waiting += exchange.received(pair.send(pair.client, out.data), member.now_s, member.wall_s)
    raise AssertionError("the join came to no end")


def failure(outcome: Joined | JoinFailed) -> ActorGridError:
    assert isinstance(outcome, JoinFailed), outcome
    return outcome.error


def claim_for(member: Member, exchange: JoinExchange) -> bytes:
    joiner = new_joiner(member.cluster.token())
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    (hello,) = exchange.begin(member.now_s)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    assert isinstance(claim, SendBytes)
    return claim.data


def refusal(steps: list[Any]) -> ActorGridError:
    send, close = steps
    assert isinstance(close, Close)
    (frame,) = FrameDecoder().feed(send.data)
    assert frame[0] == "refused"
    return error_from_dict(frame[1])
