"""A learner's own key in the wrong hands, and a host that joins: it is neither misled nor kept out."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import time
from zlib import crc32

from actorgrid.actors.consensus.raft_links import INQUIRY_TARGET, TARGET
from actorgrid.actors.consensus.voter_inquiries import Inquiry
from actorgrid.actors.host.enrolment import Enrolment, JoinOrder, enrol
from actorgrid.actors.ledger.join_tokens import JoinClaim
from actorgrid.actors.raft.codec import encode_members, encode_message
from actorgrid.actors.raft.messages import ConfState, Entry, Message, SnapshotChunk
from actorgrid.actors.security.authority import Authority
from actorgrid.actors.security.certificates import digest, fingerprint
from actorgrid.actors.security.host_material import HostMaterial, load_material
from actorgrid.actors.security.join_messages import JoinHello, JoinWelcome, encode, read_claim
from actorgrid.actors.security.tls_contexts import join_server_context
from actorgrid.actors.security.voters_statement import StatedVoters, VoterAddress, sign_voters
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.frames import FrameDecoder
from tests.processes import until
from tests.system.cluster_host import ADDRESS, ClusterHost
from tests.system.test_hostile_member import RAFT_PORT, own_net

TERM = 1_000


def material_of(host: ClusterHost) -> HostMaterial:
    found = load_material(HostPaths(host.data_dir).security_dir, time())
    assert found is not None
    return found


def take_place(host: ClusterHost, member: ClusterHost, token: str) -> Enrolment:
    """Have *host* join as its first start does, and not start."""
    paths, settings = HostPaths(host.data_dir), Settings()
    paths.make()
    settings.cluster.base_port = host.base_port
    settings.set_origins({"cluster.base_port": "--port"})
    taken = enrol(paths, settings, JoinOrder(member.door, token), lambda _: None)
    assert taken is not None
    return taken[0]


def signed_by(own: HostMaterial, stated: StatedVoters) -> bytes:
    """Who votes, signed with the key that a host which learns has: that of its certificate."""
    impostor = object.__new__(Authority)
    object.__setattr__(impostor, "key", own.key)
    object.__setattr__(impostor, "certificate", own.bundle.signing.certificate)
    return sign_voters(impostor, stated)


class FalseDoor(threading.Thread):
    """A join port with the learner's real certificate. It answers one claim as a voter would, with the certificate that
    the new host was issued before, and says that the learner votes, and nobody else."""

    def __init__(self, learner: ClusterHost, newcomer: HostMaterial, node: int) -> None:
        super().__init__()
        self.own, self.newcomer, self.node = material_of(learner), newcomer, node
        self.voter = VoterAddress(
            self.own.identity.host_id,
            2,
            f"{ADDRESS}:{learner.base_port + 2}",
            f"{ADDRESS}:{learner.base_port + 1}",
            "",
            self.own.identity.fingerprint,
        )
        self.listener = socket.create_server((ADDRESS, 0))
        self.address = f"{ADDRESS}:{self.listener.getsockname()[1]}"
        self.claims: list[JoinClaim] = []

    def run(self) -> None:
        with self.listener, self.listener.accept()[0] as plain:
            plain.settimeout(30.0)
            with join_server_context(self.own).wrap_socket(plain, server_side=True) as tls:
                bundle, nonce = self.own.bundle, os.urandom(32)
                tls.sendall(encode(JoinHello((1, 2), "0.1.0", bundle.cluster_id, nonce, bundle)))
                decoder, frames = FrameDecoder(), list[list[object]]()
                while not frames:
                    frames = decoder.feed(tls.recv(65536))
                claim, _ = read_claim(frames[0], nonce, digest(self.own.certificate))
                self.claims.append(claim)
                tls.sendall(encode(self.welcome(claim)))
                while tls.recv(65536):
                    pass

    def welcome(self, claim: JoinClaim) -> JoinWelcome:
        cluster_id, host_id = claim.cluster_id, claim.host_id
        stated = StatedVoters(
            cluster_id,
            host_id,
            self.node,
            fingerprint(self.newcomer.certificate),
            claim.challenge,
            1,
            10**6,
            TERM,
            time(),
            (self.voter,),
        )
        statement = signed_by(self.own, stated)
        return JoinWelcome(cluster_id, host_id, self.node, self.newcomer.certificate, self.own.bundle, statement)


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex((ADDRESS, port)) == 0


def lies(node: int) -> list[bytes]:
    """What leads a host astray that believes it."""
    alone, data = ConfState(voters=(2,)), b"no state at all"
    chunk = SnapshotChunk(10**6, TERM, alone, 0, len(data), crc32(data), data)
    entries = (
        Entry(1, TERM, "conf_change", encode_members(alone)),
        Entry(2, TERM, "command", b"theirs"),
    )
    messages = (
        Message("heartbeat", node, 2, TERM, sequence=1),
        Message("append", node, 2, TERM, entries=entries, commit=2, sequence=2),
        Message("snapshot", node, 2, TERM, chunk=chunk),
        Message("vote", node, 2, TERM, index=10**6, log_term=TERM, force=True),
        Message("timeout_now", node, 2, TERM),
    )
    return [encode_message(message) for message in messages]


def test_a_learner_that_answers_joins_and_says_that_it_leads_keeps_no_host_out(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    first, learner, new = make_host("a", 1).found(), make_host("b", 1), make_host("c", 1)
    learner.join(first, first.token()["token"])
    until(lambda: first.roles() == {1: "leader", 2: "learner"}, "a learner")
    ids = {node: str(host["node_id"]) for node, host in first.hosts().items()}
    learner.stop()
    token = first.token()["token"]
    place = take_place(new, first, token)
    paths = HostPaths(new.data_dir)
    assert (list(place.seeds), len(place.stated)) == ([ids[1]], 2)

    # The answer was lost; it comes again, to the learner, which has the certificate from the ledger.
    paths.cluster_file.unlink()
    door = FalseDoor(learner, material_of(new), place.node)
    door.start()
    error = new.refused(door.address, token)
    door.join()
    assert error["code"] == "StatementRefused" and "not stated by the cluster's authority" in error["message"], error
    assert len(door.claims) == 1 and not paths.cluster_file.exists()
    assert take_place(new, first, token).node == place.node

    # No voter is there when it starts, and the learner says that it leads.
    first.stop()
    new_id = material_of(new).identity.host_id
    cluster_id, key = place.cluster_id, fingerprint(material_of(new).key)
    false = StatedVoters(cluster_id, new_id, place.node, key, bytes(32), 1, 10**6, 9, 1.0, (door.voter,))
    loop = InlineNode(real_time=True)
    starting = threading.Thread(target=new.start)
    with closing(own_net(loop, learner, new, RAFT_PORT)) as raft:
        starting.start()
        # Its ports are open and it looks for a leader, for eight seconds and more, while nobody else speaks to it.
        until(lambda: listens(new.base_port + RAFT_PORT), "the new host listens")
        for _ in range(40):
            for message in lies(place.node):
                raft.cast(new_id, TARGET, message)
            raft.cast(new_id, INQUIRY_TARGET, Inquiry("stated", new_id, signed_by(door.own, false)).encode())
            loop.run_until(lambda: raft.refusals.total() > 0, 30.0, "an answer to what it says")
        first.start()
        starting.join()
        until(lambda: new.roles().get(place.node) in ("learner", "voter"), "the new host has the ledger", 60.0)
    assert first.cli_json("inspect", "consensus")["inspect"]["status"]["term"] < TERM
    assert new.cli_json("inspect", "consensus")["inspect"]["status"]["term"] < TERM
    assert new.ended("--", "true")["state"] == "succeeded"


def test_a_host_that_never_got_the_ledger_joins_again_by_a_new_token(make_host: Callable[..., ClusterHost]) -> None:
    first, new = make_host("a", 1).found(), make_host("b", 1)
    place = take_place(new, first, first.token()["token"])
    new.join(first, first.token()["token"])
    until(lambda: new.roles() == {1: "leader", place.node: "learner"}, "it has the ledger")
    new.stop()
    assert new.refused(first.door, first.token()["token"])["code"] == "WrongState"
