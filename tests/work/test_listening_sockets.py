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
    def refuse(_family: socket.AddressFamily) -> list[listening_sockets.ListeningSocket]:
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
