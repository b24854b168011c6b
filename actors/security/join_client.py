"""A new host's visit to a member, over a blocking socket with a deadline, before any server of the host runs."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from actorgrid.actors.ledger.join_tokens import JoinToken
from actorgrid.errors import BadRequest, HostUnreachable

from .join_messages import Capabilities
from .joiner import TIMEOUT_S, Close, Joined, Joiner, JoinerInstruction, JoinFailed, SendBytes
from .tls_contexts import joiner_context

JOIN_PORT = 7403
CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 64 * 1024
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """The address at which a member lets hosts in."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_member(text: str) -> MemberAddress:
    """``HOST[:PORT]``, an IPv6 address with a port in brackets. Raises BadRequest."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, str(JOIN_PORT)
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadRequest(
            "not the address of a member",
            asked=text[:120],
            found="HOST or HOST:PORT is wanted",
            hint=f"the port is the member's base port + 3, {JOIN_PORT} by default",
        )
    return MemberAddress(host, int(port))


def join(
    member: MemberAddress,
    token: JoinToken,
    host_id: str,
    key: ec.EllipticCurvePrivateKey,
    capabilities: Callable[[str], Capabilities],
    say: Callable[[str], None],
) -> Joined:
    """Ask *member* to let this host in; gives what it needs to be one.

    *capabilities* is given the address by which this host reaches the member. *say* hears how far it is, for people.
    Raises HostUnreachable when nobody listens there, and what ``Joiner`` ends with: UnknownJoinToken, JoinTokenUsed,
    JoinTokenExpired, JoinTokenRevoked, WrongCluster, CertificateRefused, StatementRefused, WrongState, CallTimeout, ...
    """
    say(f"calling {member}")
    try:
        with socket.create_connection((member.host, member.port), CONNECT_TIMEOUT_S) as plain:
            own = str(plain.getsockname()[0])
            joiner = Joiner(token, host_id, key, capabilities(own), time.monotonic())
            with joiner_context().wrap_socket(plain) as tls:
                say("the member answers; proving both sides")
                return _visit(tls, joiner, say)
    except (OSError, ssl.SSLError) as error:
        raise HostUnreachable(
            f"no member lets hosts in at {member}",
            asked=str(member),
            found=str(error)[:200],
            hint="is it up with --listen, is the port its base port + 3, does a firewall stand between?",
        ) from error


def _visit(tls: ssl.SSLSocket, joiner: Joiner, say: Callable[[str], None]) -> Joined:
    shown = tls.getpeercert(binary_form=True)
    assert shown is not None, "a server of TLS 1.3 shows a certificate"
    tls.settimeout(_POLL_S)
    deadline = time.monotonic() + TIMEOUT_S + 2 * _POLL_S
    instructions = joiner.connected(shown)
    while True:
        found = _carry_out(tls, instructions, say)
        if found is not None:
            return found
        assert time.monotonic() < deadline, "the joiner gives up in time"
        try:
            data = tls.recv(RECEIVE_BYTES)
        except TimeoutError:
            instructions = joiner.tick(time.monotonic())
            continue
        instructions = joiner.received(data, time.time()) if data else joiner.closed()


def _carry_out(tls: ssl.SSLSocket, instructions: list[JoinerInstruction], say: Callable[[str], None]) -> Joined | None:
    for instruction in instructions:
        if isinstance(instruction, SendBytes):
            say("asking to be let in")
            tls.sendall(instruction.data)
        elif isinstance(instruction, Joined):
            return instruction
        elif isinstance(instruction, JoinFailed):
            raise instruction.error
        else:
            assert isinstance(instruction, Close)
    return None
