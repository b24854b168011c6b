"""The join server as it stands in the network: a real ledger behind it, strangers and guests in front, over sockets."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.files.identity import ensure_host_id
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.host.enrolment import enrol, listens
from actorgrid.actors.ledger.join_tokens import JoinToken, read_token
from actorgrid.actors.security.actor import JoinServer
from actorgrid.actors.security.join_client import MemberAddress, join
from actorgrid.actors.security.join_messages import MESSAGE_BYTES_MAX, Capabilities
from actorgrid.actors.security.joiner import Joined, Joiner, SendBytes
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.messages import MakeJoinToken, ShowTrust
from actorgrid.actors.security.tls_contexts import joiner_context
from actorgrid.configs.schema import Settings
from actorgrid.errors import (
    ActorGridError,
    JoinTokenUsed,
    UnknownJoinToken,
)
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.inspection import Inspect
from tests.consensus.rig import make_context
from tests.system.cluster_host import ADDRESS, free_base_port


class Door:
    """A member with its ledger and its door, in this process, on a real port."""

    def __init__(self, folder: Path) -> None:
        self.base_port = free_base_port()
        self.context: HostContext = make_context(folder)
        settings: Settings = self.context.settings
        settings.cluster.listen, settings.cluster.base_port = ADDRESS, self.base_port
        settings.set_origins({"cluster.base_port": "--port"})
        taken = enrol(self.context.paths, settings, None, lambda _: None)
        assert taken is not None
        self.context.host_id = ensure_host_id(self.context.paths)
        self.context.enrolment, material = taken
        self.context.voter = self.context.enrolment.plan(self.context.paths, self.context.host_id, material)
        self.node = InlineNode(real_time=True)
        self.consensus: Any = self.node.add(Consensus, self.context)
        self.door: Any = self.node.add(JoinServer, self.context)
        self.node.run_until(lambda: self.context.host_id in self.door._ledger.members, what="the cluster is founded")

    @property
    def member(self) -> MemberAddress:
        return MemberAddress(ADDRESS, self.base_port + 3)

    @property
    def index(self) -> int:
        found: int = self.consensus._replica.ledger.index
        return found

    @property
    def refused(self) -> dict[str, int]:
        found: dict[str, int] = self.door.status()["refused"]
        return found

    def token(self, uses: int = 1) -> JoinToken:
        return read_token(self.node.request("join_server", MakeJoinToken(3600.0, uses, "test"))["token"])

    def in_thread(self, work: Callable[[], Any]) -> Any:
        """What *work* gives or raises, done beside the door."""
        out: list[Any] = []

        def run() -> None:
            try:
                out.append(work())
            except ActorGridError as error:
                out.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.node.run_until(lambda: bool(out), what="the guest is done")
        thread.join()
        if isinstance(out[0], ActorGridError):
            raise out[0]
        return out[0]

    def guest(self, token: JoinToken, host_id: str = "guest") -> Joined:
        joined: Joined = self.in_thread(
            lambda: join(self.member, token, host_id, new_private_key(), lambda _: asked(self), lambda _: None)
        )
        return joined

    def close(self) -> None:
        self.door.stop("test")
        self.consensus.stop("test")
        self.node._selector.close()


def asked(door: Door, host: str = "127.0.0.9") -> Capabilities:
    return Capabilities(1000, 1024, (host,), listens(host, door.base_port), "0.1.0")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path / "data")
    yield made
    made.close()


def last_words(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    heard = b""
    try:
        while data := connection.recv(65536):
            heard += data
    except (ConnectionError, ssl.SSLError):
        pass
    return heard


def test_a_guest_is_let_in_once_and_a_used_or_unknown_token_costs_no_entry(door: Door) -> None:
    token = door.token()
    joined = door.guest(token)
    assert joined.welcome.node == 2
    assert [voter.host_id for voter in joined.stated.voters] == [door.context.host_id]
    assert 0 < joined.stated.index <= door.index
    index = door.index
    with pytest.raises(JoinTokenUsed):
        door.guest(token, "another")
    strange = JoinToken(token.cluster_id, token.authority, "zzzzzzzz", token.secret)
    with pytest.raises(UnknownJoinToken):
        door.guest(strange, "another")
    assert door.refused == {"JoinTokenUsed": 1, "UnknownJoinToken": 1}
    assert door.index <= index + 3  # the keeper's own reports, at most
    shown = door.node.request("join_server", ShowTrust())
    assert [host["node_id"] for host in shown["hosts"]] == sorted([door.context.host_id, "guest"])


def test_the_join_server_is_found_by_its_former_name_too(door: Door) -> None:
    found = [door.node.request(name, Inspect()) for name in ("join_server", "join_door")]
    assert found[0]["address"] == found[1]["address"]
    assert {said["name"] for said in found} == {"join_server"}


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(300), bytes(70_000)], ids=str
)
def test_what_is_no_tls_is_closed_unheard(door: Door, first: bytes) -> None:
    def connect() -> bytes:
        with socket.create_connection((door.member.host, door.member.port), 10) as connection:
            connection.settimeout(60)
            try:
                connection.sendall(first)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                return b""
            return last_words(connection)

    heard = door.in_thread(connect)
    assert b"actorgrid" not in heard  # an alert of TLS at most
    assert door.door.status()["exchanges"] == 0


def talk(door: Door, say: Callable[[bytes], bytes]) -> bytes:
    """A visit over TLS: *say* is given the member's hello and says what to send; gives all that comes after it."""

    def visit() -> bytes:
        with socket.create_connection((door.member.host, door.member.port), 10) as plain:
            plain.settimeout(60)
            with joiner_context().wrap_socket(plain) as tls:
                hello = tls.recv(65536)
                try:
                    tls.sendall(say(hello))
                except OSError:
                    return b""
                return last_words(tls)

    heard: bytes = door.in_thread(visit)
    return heard


def test_garbage_and_a_frame_over_the_bound_are_refused_and_counted(door: Door) -> None:
    index = door.index
    assert b"refused" in talk(door, lambda _: struct.pack(">I", 200) + b"\xc1" * 200)
    assert b"FrameTooLarge" in talk(door, lambda _: struct.pack(">I", MESSAGE_BYTES_MAX + 1))
    assert door.refused.get("FrameTooLarge") == 1 and sum(door.refused.values()) == 2
    assert door.index <= index + 3
    assert door.door.status()["exchanges"] == 0


def test_a_recorded_claim_is_of_no_use_on_another_connection(door: Door) -> None:
    token, recorded = door.token(uses=2), []

    def claim(hello: bytes, server: bytes) -> bytes:
        joiner = Joiner(token, "guest", new_private_key(), asked(door), 0.0)
        joiner.connected(server)
        (step,) = joiner.received(hello, time.time())
        assert isinstance(step, SendBytes)
        recorded.append(step.data)
        return step.data

    def first() -> bytes:
        with socket.create_connection((door.member.host, door.member.port), 10) as plain:
            plain.settimeout(60)
            with joiner_context().wrap_socket(plain) as tls:
                server = tls.getpeercert(binary_form=True)
                assert server is not None
                tls.sendall(claim(tls.recv(65536), server))
                return last_words(tls)

    assert b"welcome" in door.in_thread(first)
    index = door.index
    answer = talk(door, lambda _: recorded[0])
    assert b"refused" in answer and b"welcome" not in answer
    assert sum(door.refused.values()) == 1
    assert door.index <= index + 3
