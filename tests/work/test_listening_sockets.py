"""The sockets that listen on this host: asked of the kernel, and read in /proc, which say the same."""

from __future__ import annotations

import os
import socket

import pytest

from actorgrid.actors.work import listening_sockets
from actorgrid.actors.work.job_ports import find_port, ports_of
from actorgrid.errors import PortNotOpen


@pytest.mark.parametrize(
    ("family", "address", "reached_at"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "::1"),
    ],
)
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_socket_is_found_with_whoever_has_it(
    family: socket.AddressFamily, address: str, reached_at: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_family: socket.AddressFamily, _port: int) -> list[listening_sockets.ListeningSocket]:
        raise PermissionError

    if is_refused:
        monkeypatch.setattr(listening_sockets, "_asked", refuse)
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        found = find_port(port, [os.getpid()])
        assert (found.address, found.port, found.reached_at) == (address, port, reached_at)
        assert found.inode == os.fstat(server.fileno()).st_ino
        assert port in ports_of([os.getpid()])
        assert port not in ports_of([os.getppid()])
        with pytest.raises(PortNotOpen, match="does not listen") as raised:
            find_port(port, [])
        assert raised.value.found == "another process of its host does; it listens on none"
    with pytest.raises(PortNotOpen) as raised:
        find_port(port, [os.getpid()])
    assert "another process" not in raised.value.found


@pytest.mark.parametrize("is_refused", [False, True])
def test_of_one_port_only_who_listens_there_is_told(is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_family: socket.AddressFamily, _port: int) -> list[listening_sockets.ListeningSocket]:
        raise PermissionError

    if is_refused:
        monkeypatch.setattr(listening_sockets, "_asked", refuse)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
        assert {*ports} <= {each.port for each in listening_sockets.listening_sockets()}
        for port, server in zip(ports, (one, other), strict=True):
            found = listening_sockets.listening_sockets(port)
            assert [(each.port, each.inode) for each in found] == [(port, os.fstat(server.fileno()).st_ino)]


def test_the_kernel_is_asked_for_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)):
        port = one.getsockname()[1]
        try:
            found = listening_sockets._asked(socket.AF_INET, port)
        except OSError:
            pytest.skip("this kernel does not tell which sockets listen")
        assert [each.port for each in found] == [port]
