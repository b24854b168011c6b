"""The joining host's way to a member: addresses as people write them, and what stands there instead of a member."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from actorgrid.actors.ledger.join_tokens import make_token
from actorgrid.actors.security.join_client import MemberAddress, join, read_member
from actorgrid.actors.security.join_messages import Capabilities, JoinWelcome
from actorgrid.actors.security.keys import new_private_key
from actorgrid.errors import BadRequest, HostUnreachable


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu-1", MemberAddress("gpu-1", 7403)),
        ("gpu-1:9001", MemberAddress("gpu-1", 9001)),
        ("10.0.0.1", MemberAddress("10.0.0.1", 7403)),
        ("fd00::1", MemberAddress("fd00::1", 7403)),
        ("[fd00::1]:9001", MemberAddress("fd00::1", 9001)),
    ],
)
def test_a_member_is_written_as_people_write_it(text: str, found: MemberAddress) -> None:
    assert read_member(text) == found
    assert read_member(str(found)) == found


@pytest.mark.parametrize("text", ["", ":7401", "gpu-1:", "gpu-1:http", "gpu-1:0", "gpu-1:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_member(text)


def visit(port: int) -> JoinWelcome:
    token, _ = make_token("c1", "ab" * 32, bytes(5), bytes(16), 0.0)
    said: list[str] = []
    asked = Capabilities(1000, 1024, ("127.0.0.1",))
    return join(MemberAddress("127.0.0.1", port), token, "host-b", new_private_key(), lambda _: asked, said.append)


def test_nobody_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HostUnreachable, match="no member"):
        visit(port)


def test_a_server_that_is_no_member_is_named() -> None:
    def talk(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        with listener, listener.accept()[0] as connection:
            answer(connection)

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=talk, args=(listener, lambda connection: connection.sendall(b"SSH-2.0-x\r\n")))
    thread.start()
    with pytest.raises(HostUnreachable):
        visit(port)
    thread.join()
