"""Meshes in one process: proof before parsing, order, bounds, and what becomes of the undelivered."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from actorgrid.errors import FrameTooLarge, MailboxFull, PeerGone
from actorgrid.transports.unix import handshake, incoming, outgoing
from actorgrid.transports.unix import mesh as unix_mesh
from actorgrid.transports.unix.incoming import FRAME_BYTES_MAX, UNPROVEN_MAX
from actorgrid.transports.unix.mesh import Mesh

KEY = b"k" * 32
MakeMesh = Callable[..., Mesh]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeMesh]:
    made: list[Mesh] = []

    def mesh(name: str, key: bytes = KEY) -> Mesh:
        made.append(Mesh(tmp_path, key, name))
        return made[-1]

    yield mesh
    for each in made:
        each.close()


def turn(*meshes: Mesh, until: Callable[[], bool], what: str = "condition") -> None:
    deadline = monotonic() + 60
    while not until():
        assert monotonic() < deadline, f"{what}: not reached"
        for mesh in meshes:
            mesh.poll(0.001 if not mesh.inbox else 0)


def raw(folder: Path, name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(str(folder / name))
    return connection


def test_frames_arrive_whole_in_order_and_from_whom_they_came(make: MakeMesh) -> None:
    a, b = make("a"), make("b")
    sent = [(n % 3, bytes([n % 256]) * size) for n, size in enumerate([0, 1, 4, 5, 70_000, 3, 300_000, 2] * 40)]
    for kind, payload in sent:
        a.post("b", kind, payload)
    turn(a, b, until=lambda: len(b.inbox) == len(sent))
    assert [(kind, bytes(payload)) for _, kind, payload in b.inbox] == sent
    assert {peer for peer, _, _ in b.inbox} == {"a"} and a.pending == 0


def test_a_process_can_send_to_itself(make: MakeMesh) -> None:
    a = make("a")
    told: list[bool] = []
    a.post("a", 1, b"x", told.append)
    assert list(a.inbox) == [("a", 1, b"x")] and told == [True]


def test_a_peer_without_a_socket_is_gone_at_once(make: MakeMesh) -> None:
    with pytest.raises(PeerGone, match="no process listens as b"):
        make("a").post("b", 0, b"x")


def test_a_peer_that_dies_leaves_the_rest_undelivered_and_is_gone_next_time(make: MakeMesh) -> None:
    a, b = make("a"), make("b")
    lost: list[str] = []
    a.on_peer_lost(lost.append)
    a.post("b", 0, b"first")
    turn(a, b, until=lambda: len(b.inbox) == 1)
    told: list[bool] = []
    for _ in range(20):
        a.post("b", 0, bytes(1_000_000), told.append)
    b.close()
    turn(a, until=lambda: lost == ["b"])
    assert told.count(False) > 0 and len(told) == 20 and a.pending == 0
    with pytest.raises(PeerGone):
        a.post("b", 0, b"x")


def test_the_queue_for_one_peer_is_bounded(make: MakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "QUEUED_FRAMES_MAX", 50)
    a, b = make("a"), make("b")
    with pytest.raises(MailboxFull, match="50 messages"):
        for _ in range(51):
            a.post("b", 0, b"x")
    turn(a, b, until=lambda: len(b.inbox) == 50)
    a.post("b", 0, b"again")
    turn(a, b, until=lambda: len(b.inbox) == 51)


def test_the_queue_is_bounded_in_bytes_too(make: MakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "QUEUED_BYTES_MAX", 10_000)
    a, _b = make("a"), make("b")
    with pytest.raises(MailboxFull):
        for _ in range(3):
            a.post("b", 0, bytes(4_000))


def test_a_frame_over_the_limit_is_refused(make: MakeMesh) -> None:
    a, _b = make("a"), make("b")
    with pytest.raises(FrameTooLarge):
        a.post("b", 0, bytes(FRAME_BYTES_MAX + 1))


def test_a_wrong_key_is_refused_and_nothing_it_sent_is_received(make: MakeMesh) -> None:
    b, stranger = make("b"), make("s", b"other" * 6 + b"..")
    told: list[bool] = []
    stranger.post("b", 0, b"hello", told.append)
    turn(b, stranger, until=lambda: b.incoming.refused == 1)
    assert not b.inbox and told == []
    stranger.close()
    assert told == [False]


def test_a_listener_without_the_key_gets_nothing(make: MakeMesh, tmp_path: Path) -> None:
    a = make("a")
    told: list[bool] = []
    with unix_mesh.listen(tmp_path / "fake") as fake:
        a.post("fake", 0, b"secret", told.append)
        connection, _ = fake.accept()
        with connection:
            connection.send(handshake.greeting(os.urandom(32)))
            turn(a, until=lambda: a.outgoing.links["fake"].state == "proving")
            assert b"secret" not in connection.recv(1000)
            connection.send(os.urandom(32))
            turn(a, until=lambda: a.outgoing.links["fake"].state != "proving")
            assert connection.recv(1000) == b""
    turn(a, until=lambda: told == [False])


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("when", ["at once", "after a false claim", "after an endless name"])
def test_a_hostile_pickle_on_the_socket_has_no_effect(make: MakeMesh, tmp_path: Path, when: str) -> None:
    b, mark = make("b"), tmp_path / "executed"
    pickled = pickle.dumps(Hostile(mark))
    frame = struct.pack(">IB", len(pickled), 0) + pickled
    with raw(tmp_path, "b") as connection:
        if when == "after a false claim":
            b.poll(1)
            nonce = handshake.read_greeting(connection.recv(36))
            assert nonce is not None
            connection.send(handshake.claim(b"x" * 32, nonce, os.urandom(32), "a", "b"))
        elif when == "after an endless name":
            connection.send(bytes(64) + b"\xff")
        connection.send(frame * 20)
        turn(b, until=lambda: b.incoming.refused == 1)
        assert not b.inbox and not mark.exists()


def test_a_recorded_proof_is_worth_nothing_on_another_connection(make: MakeMesh, tmp_path: Path) -> None:
    b = make("b")
    with raw(tmp_path, "b") as first, raw(tmp_path, "b") as second:
        turn(b, until=lambda: len(b.incoming.unproven) == 2)
        nonce = handshake.read_greeting(first.recv(36))
        assert nonce is not None
        claim = handshake.claim(KEY, nonce, os.urandom(32), "a", "b")
        first.send(claim)
        turn(b, until=lambda: len(b.incoming.unproven) == 1)
        assert b.incoming.refused == 0
        second.send(claim)
        turn(b, until=lambda: b.incoming.refused == 1)


def test_a_proof_for_one_listener_is_worth_nothing_to_another() -> None:
    nonce, ours = os.urandom(32), os.urandom(32)
    claim = handshake.claim(KEY, nonce, ours, "a", "b")
    assert handshake.check_claim(KEY, nonce, claim, "b") is not None
    assert handshake.check_claim(KEY, nonce, claim, "c") is None


@pytest.mark.parametrize("name", ["", "../x", "A", "a" * 97])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    nonce = os.urandom(32)
    claim = handshake.claim(KEY, nonce, os.urandom(32), name, "b")
    assert handshake.check_claim(KEY, nonce, claim, "b") is None


def test_who_does_not_prove_itself_in_time_is_closed(
    make: MakeMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "UNPROVEN_S", 0.05)
    b = make("b")
    with raw(tmp_path, "b") as connection:
        turn(b, until=lambda: b.incoming.refused == 1)
        assert connection.recv(100) != b"" and connection.recv(100) == b""


def test_idle_strangers_do_not_keep_a_peer_out(make: MakeMesh, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    strangers = [raw(tmp_path, "b") for _ in range(UNPROVEN_MAX + 10)]
    try:
        a.post("b", 0, b"hello")
        turn(a, b, until=lambda: len(b.inbox) == 1)
        assert b.incoming.refused >= 10
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_crowd_that_dials_at_once_is_let_in_one_after_the_other(
    make: MakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One thread plays all of them: on a busy machine a round takes longer than the time that each is given to itself.
    monkeypatch.setattr(incoming, "UNPROVEN_S", 60.0)
    monkeypatch.setattr(incoming, "CROWD_S", 59.0)
    hub, crowd = make("hub"), [make(f"p{number}") for number in range(3 * UNPROVEN_MAX)]
    for peer in crowd:
        peer.post("hub", 0, peer.name.encode())
    turn(hub, *crowd, until=lambda: len(hub.inbox) == len(crowd))
    assert hub.incoming.refused == 0


def test_a_proven_peer_that_announces_too_large_a_frame_is_closed(make: MakeMesh, tmp_path: Path) -> None:
    b = make("b")
    with raw(tmp_path, "b") as connection:
        b.poll(1)
        nonce = handshake.read_greeting(connection.recv(36))
        assert nonce is not None
        connection.send(handshake.claim(KEY, nonce, os.urandom(32), "a", "b"))
        turn(b, until=lambda: not b.incoming.unproven)
        connection.recv(32)
        connection.send(struct.pack(">IB", FRAME_BYTES_MAX + 1, 0) + b"x")
        turn(b, until=lambda: not b.incoming.links)
        assert connection.recv(10) == b"" and not b.inbox


def test_watched_descriptors_are_reported_and_bad_ones_left_out(make: MakeMesh, tmp_path: Path) -> None:
    a = make("a")
    left, right = socket.socketpair()
    with left, right, open(tmp_path / "file", "wb") as regular:
        a.loop.watch_only([left.fileno(), regular.fileno()])
        a.poll(0)
        assert a.loop.readable == []
        right.send(b"x")
        turn(a, until=lambda: left.fileno() in a.loop.readable)
        a.loop.watch_only([])
        a.loop.readable = []
        a.poll(0)
        assert a.loop.readable == []


def test_interrupt_ends_a_wait(make: MakeMesh) -> None:
    a = make("a")
    a.interrupt()
    a.poll(60)


def test_closing_removes_the_socket_file(make: MakeMesh, tmp_path: Path) -> None:
    a = make("a")
    assert (tmp_path / "a").is_socket()
    a.close()
    a.close()
    assert not (tmp_path / "a").exists()
