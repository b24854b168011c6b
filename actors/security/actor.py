"""The join server: lets new hosts into the cluster, and makes and takes back the tokens they come with.

It listens on a port of its own (base port + 3), drives ``join_acceptor.py`` over its sockets, has the ledger redeem
what is right, and issues the certificate when this host has the authority's key. It keeps nothing that a restart could
lose.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from time import time
from typing import Any

from cryptography import x509

import actorgrid
from actorgrid.actors.ledger.answers import MemberAnswer, RevokeAnswer
from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.actors.ledger.join_tokens import ID_BYTES, NONCE_BYTES, SECRET_BYTES, make_token
from actorgrid.actors.ledger.query_answers import Electors
from actorgrid.errors import ActorGridError, BadRequest, KeyUnusable, Overloaded, PortInUse, WrongState
from actorgrid.supervisors.server import handles

from ..ledger.client import LEADERLESS_S, LedgerClient, LedgerFollower
from ..ledger.commands import CreateJoinToken, RedeemJoinToken, RevokeJoinToken
from ..ledger.messages import Applied, Query
from .host_material import HostMaterial, load_material
from .join_acceptor import JoinAcceptor, Redeem
from .join_connection import JoinConnection
from .join_log import JoinLog
from .join_messages import JoinWelcome
from .messages import MakeJoinToken, RenewCertificate, RotateAuthority, ShowTrust, StateVoters, TakeBackJoinToken
from .tls_contexts import join_server_context
from .trust_maintainer import TrustMaintainer
from .voters_statement import VOTERS_MAX, StatedVoters, VoterAddress, sign_voters

BACKLOG = 32
TICK_S = 0.5
COMMIT_TIMEOUT_S = 20.0
FORMER_NAME = "join_door"
"""``actorgrid inspect`` takes it too, in this version only: dashboards and scripts have it."""
LISTENS = ("raft", "calls", "join", "https")
"""What a host of a cluster has to listen for."""


class JoinServer(LedgerFollower):
    """The join server of a host; see the head of the module."""

    name = "join_server"

    def start(self) -> None:
        """Listen. Raises PortInUse, KeyUnusable and what else is wrong with the host's key and certificate."""
        folder = self.host.paths.security_dir
        enrolment = self.host.enrolment
        assert enrolment is not None, "only a host of a cluster has a join port"
        material = load_material(folder, time())
        if material is None:
            raise KeyUnusable("this host has no certificate", asked=str(folder))
        self._use(material)
        self._ledger = LedgerClient(self, lambda _: self._maintainer.look(), self._ledger_applied, jobs="none")
        self._maintainer = TrustMaintainer(
            self, self._ledger, enrolment.listens, enrolment.address, material, self._use
        )
        self._acceptor = JoinAcceptor(self._find_token, self._taken, actorgrid.__version__)
        self._connections: dict[JoinConnection, None] = {}
        self._join_log = JoinLog()
        self._listener = _listen(enrolment.address, enrolment.join_port)
        self.runtime.watch(self._listener.fileno(), self._accept)
        self.register(FORMER_NAME)
        self.every(TICK_S, self._tick)
        self.spawn(self._ledger.start())

    def _use(self, material: HostMaterial) -> None:
        self._material = material
        self._context = join_server_context(material)

    def stop(self, reason: str) -> None:
        """Close the port and every connection."""
        self.runtime.unwatch(self._listener.fileno())
        self._listener.close()
        for joining in list(self._connections):
            joining.close()

    def _ledger_applied(self, message: Applied) -> None:
        if any(kind in ("trust", "member", "leader") for kind, _, _ in message.changes):
            self._maintainer.look()

    # -- connections

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            self._note(f"a connection to the join port was lost: {error}")
            return
        try:
            exchange = self._acceptor.open(
                str(address[0]),
                self._material.bundle,
                self._material.certificate,
                os.urandom(NONCE_BYTES),
                self.runtime.monotonic(),
            )
        except Overloaded as error:
            self._note(str(error))
            connection.close()
            return
        connection.setblocking(False)
        joining = JoinConnection(
            self.runtime,
            connection,
            self._context,
            exchange,
            time,
            self._redeem,
            lambda gone: self._connections.pop(gone),
            self._note,
        )
        self._connections[joining] = None

    def _note(self, text: str) -> None:
        line = self._join_log.note(self.runtime.monotonic(), text)
        if line is not None:
            self.log.info("%s", line)

    def _tick(self) -> None:
        for joining in list(self._connections):
            joining.tick()

    def _find_token(self, token_id: str) -> JoinTokenRecord | None:
        return self._ledger.join_tokens.get(token_id)

    def _taken(self) -> dict[str, str]:
        return {
            _address(where): host_id
            for host_id, member in self._ledger.members.items()
            for where in member["addresses"].values()
        }

    # -- letting in

    def _redeem(self, joining: JoinConnection, asked: Redeem) -> None:
        self.spawn(self._answer(joining, asked))

    async def _answer(self, joining: JoinConnection, asked: Redeem) -> None:
        try:
            welcome = await self._let_in(asked)
        except ActorGridError as error:
            self._note(f"host {asked.claim.host_id} is not let in: {error}")
            joining.do(joining.exchange.refuse(error))
        else:
            self.log.info("host %s is let in as node %d", welcome.host_id, welcome.node)
            joining.do(joining.exchange.welcome(welcome))

    async def _let_in(self, asked: Redeem) -> JoinWelcome:
        authority = self._maintainer.signing
        if authority is None:
            raise self._maintainer.no_authority_key(f"let host {asked.claim.host_id} in")
        listens = asked.capabilities.listens
        for service in LISTENS:
            _check_place(service, listens.get(service, ""), asked.request.addresses)
        now_s = time()
        # Issued first: a certificate without an entry of the ledger is refused by every link.
        certificate = authority.issue(asked.request, now_s, x509.random_serial_number())
        command = RedeemJoinToken(
            asked.claim.token_id,
            asked.claim.host_id,
            listens,
            asked.request.fingerprint,
            at=now_s,
            rack=asked.capabilities.rack,
            version=asked.capabilities.software,
        )
        result: MemberAnswer = await self._ledger.propose(command, COMMIT_TIMEOUT_S)
        host_id, challenge = asked.claim.host_id, asked.claim.challenge
        stated = await self._stated(host_id, result["node"], asked.request.fingerprint, challenge)
        return JoinWelcome(
            self._material.bundle.cluster_id,
            host_id,
            result["node"],
            certificate,
            self._material.bundle,
            sign_voters(authority, stated),
            tuple(voter for voter in stated.voters if voter.host_id != host_id),
        )

    async def _stated(self, host_id: str, node: int, fingerprint: str, challenge: bytes) -> StatedVoters:
        """Who votes now, for that host."""
        electors: Electors = await self.call("consensus", Query("electorate"))
        return StatedVoters(
            self._material.bundle.cluster_id,
            host_id,
            node,
            fingerprint,
            challenge,
            electors["epoch"],
            electors["index"],
            electors["term"],
            time(),
            self._voters(electors["nodes"]),
        )

    def _voters(self, nodes: list[int]) -> tuple[VoterAddress, ...]:
        """Where those that vote are reached: the leader first."""
        leader = self._ledger.leader
        members = [member for member in self._ledger.members.values() if member["node"] in nodes]
        members.sort(key=lambda member: (member["host_id"] != leader, member["node"]))
        return tuple(
            VoterAddress(
                member["host_id"],
                member["node"],
                member["addresses"]["raft"],
                member["addresses"]["calls"],
                member["addresses"].get("https", ""),
                member["fingerprints"][-1],
            )
            for member in members[:VOTERS_MAX]
        )

    @handles(StateVoters)
    async def _state_voters(self, request: StateVoters) -> dict[str, Any]:
        authority, member = self._maintainer.signing, self._ledger.members.get(request.host_id)
        if authority is None:
            raise self._maintainer.no_authority_key(f"say who votes to {request.host_id}")
        if member is None:
            raise WrongState("who votes is stated to members only", asked=request.host_id[:80])
        node, fingerprint = member["node"], member["fingerprints"][-1]
        stated = await self._stated(request.host_id, node, fingerprint, request.challenge)
        return {"statement": sign_voters(authority, stated)}

    # -- tokens

    @handles(MakeJoinToken)
    async def _make_token(self, request: MakeJoinToken) -> dict[str, Any]:
        bundle = self._material.bundle
        token, record = make_token(
            bundle.cluster_id,
            bundle.signing.fingerprint,
            os.urandom(ID_BYTES),
            os.urandom(SECRET_BYTES),
            time(),
            ttl_s=request.ttl_s,
            uses=request.uses,
            made_by=request.by,
        )
        await self._ledger.propose(CreateJoinToken(record, at=time()), leaderless_s=LEADERLESS_S)
        fields = ("id", "expires_at", "uses_max")
        enrolment = self.host.enrolment
        assert enrolment is not None
        return {"token": token.text, "join": enrolment.listens["join"], **{name: record.get(name) for name in fields}}

    @handles(TakeBackJoinToken)
    async def _take_back(self, request: TakeBackJoinToken) -> RevokeAnswer:
        answer: RevokeAnswer = await self._ledger.propose(
            RevokeJoinToken(request.token_id, at=time()), leaderless_s=LEADERLESS_S
        )
        return answer

    # -- the cluster's trust

    @handles(ShowTrust)
    def _show_trust(self, _request: ShowTrust) -> dict[str, Any]:
        return self._maintainer.shown()

    @handles(RotateAuthority)
    async def _rotate(self, request: RotateAuthority) -> dict[str, Any]:
        return await (self._maintainer.call_off() if request.call_off else self._maintainer.rotate())

    @handles(RenewCertificate)
    def _renew(self, request: RenewCertificate) -> dict[str, Any]:
        self._maintainer.renew(request.new_key)
        return {"valid_until": self._material.identity.valid_until_s}

    # -- how we are

    def metrics(self) -> dict[str, float]:
        """Hosts let in, exchanges refused by reason, and how much time this host's certificate has left."""
        figures = {
            "join_exchanges": float(self._acceptor.exchanges),
            "join_welcomed_total": float(self._acceptor.welcomed),
            "certificate_left_seconds": self._material.identity.valid_until_s - time(),
        }
        for code, count in self._acceptor.refused.items():
            figures[f"join_refused_{code}_total"] = float(count)
        return figures

    def status(self) -> dict[str, Any]:
        """The exchanges under way, and whether this host can let anyone in."""
        return {
            "exchanges": self._acceptor.exchanges,
            "welcomed": self._acceptor.welcomed,
            "refused": dict(self._acceptor.refused),
            "has_authority_key": self._maintainer.signing is not None,
        }


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"the join port cannot be used: {error}",
            asked=f"{address}:{port}",
            hint="another base port: --port N (all of a host's ports follow it)",
        ) from None
    return listener


def _address(where: str) -> str:
    return where.rpartition(":")[0].strip("[]")


def _check_place(service: str, where: str, addresses: tuple[str, ...]) -> None:
    """Raises BadRequest unless *where* is ADDRESS:PORT, numeric, and the address one of the certificate's."""
    address, port = _address(where), where.rpartition(":")[2]
    try:
        numeric = bool(ipaddress.ip_address(address))
    except ValueError:
        numeric = False
    if not numeric or address not in addresses or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadRequest(
            f"a host of a cluster says where it listens for {service}",
            asked="ADDRESS:PORT, of an address of its own",
            found=where[:80] or "nothing",
        )
