"""A process that can open nothing more: what it has goes on, what is new is refused by name, and it recovers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from actorgrid.errors import MailboxFull, PeerGone
from actorgrid.transports.unix.loop import UnixLoop
from actorgrid.transports.unix.mesh import Mesh
from tests.transports.test_large_messages import no_descriptor_left
from tests.transports.test_unix_mesh import MakeMesh, make, turn

__all__ = ["make"]


def test_messages_over_open_connections_still_arrive(make: MakeMesh) -> None:
    a, b = make("a"), make("b")
    a.post("b", 0, b"first")
    turn(a, b, until=lambda: len(b.inbox) == 1)
    with no_descriptor_left():
        for number in range(1_000):
            a.post("b", 0, str(number).encode())
        turn(a, b, until=lambda: len(b.inbox) == 1_001)


def test_a_new_connection_is_refused_by_name_and_works_later(make: MakeMesh) -> None:
    a, b = make("a"), make("b")
    with no_descriptor_left():
        with pytest.raises(MailboxFull, match="no descriptor for a connection to b"):
            a.post("b", 0, b"x")
        with pytest.raises(MailboxFull):
            a.connect("b")
    a.post("b", 0, b"y")
    turn(a, b, until=lambda: [payload for _, _, payload in b.inbox] == [b"y"])


def test_a_listener_rests_instead_of_spinning_and_takes_all_when_it_can(make: MakeMesh, tmp_path: Path) -> None:
    b = make("b")
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(5)]
    try:
        with no_descriptor_left():
            for caller in callers:
                caller.connect(str(tmp_path / "b"))  # the kernel keeps them; b cannot take them
            turns = 0
            while b.incoming.pauses < 3:
                b.poll(20)
                turns += 1
            assert turns <= 10, "the loop went round without a rest"
        turn(b, until=lambda: len(b.incoming.links) == len(callers))
    finally:
        for caller in callers:
            caller.close()


def test_a_link_that_is_being_redialled_waits_for_a_descriptor(make: MakeMesh) -> None:
    a, b = make("a"), make("b")
    told: list[bool] = []
    a.post("b", 0, b"x", told.append)
    link = a.outgoing.links["b"]
    with no_descriptor_left() as taken:
        a.outgoing._hang_up(link)
        taken.append(os.dup(0))  # what the connection held
        a.outgoing.redial()
        assert link.state == "connecting" and a.outgoing.links["b"] is link
    turn(a, b, until=lambda: told == [True] and len(b.inbox) == 1)


def test_a_link_that_gets_no_descriptor_in_time_is_lost(make: MakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.transports.unix.outgoing.HANDSHAKE_S", 0.0)
    a, _b = make("a"), make("b")
    told: list[bool] = []
    a.post("b", 0, b"x", told.append)
    with no_descriptor_left() as taken:
        a.outgoing._hang_up(a.outgoing.links["b"])
        taken.append(os.dup(0))
        a.outgoing.redial()
    assert told == [False] and not a.outgoing.links


def test_a_process_without_descriptors_for_its_own_loop_says_so(tmp_path: Path) -> None:
    with no_descriptor_left(), pytest.raises(OSError):
        UnixLoop()
    with pytest.raises(PeerGone):
        mesh = Mesh(tmp_path, b"k" * 32, "a")
        try:
            mesh.connect("nobody")
        finally:
            mesh.close()
