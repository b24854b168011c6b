"""Pieces over several TLS connections: whole, checked, asked for again after a break and only then, refused by name."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import ActorGridError, MalformedBody, ObjectLost, PeerRefused, TaskCancelled
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.bulk import transfer
from actorgrid.transports.bulk.connection import PiecesConnection, dial
from actorgrid.transports.bulk.pieces import BulkPiece, PiecePlan
from actorgrid.transports.bulk.transfer import BulkFetch, serve_pieces
from actorgrid.transports.peer import link as peer_link
from actorgrid.transports.peer.net import PeerNet
from tests.processes import until
from tests.transports.peer_certificates import Authority

MIB = 2**20


class Server:
    """A host that serves the bytes it is made with, under the name ``thing``."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.data = data
        self.authority = Authority()
        self.folder = folder
        self.sent: list[int] = []
        self.connections: list[PiecesConnection] = []
        self.refused = ""
        self.asked: list[tuple[str, bytes]] = []
        self._stopped = False
        self._loop = InlineNode(real_time=True)
        self.net = PeerNet(
            self._loop,
            self.authority.identity(folder, "c1", "there"),
            ("127.0.0.1", 0),
            resolve=lambda _host_id: [],
            admit=lambda _host_id, _fingerprint: self.refused or None,
            on_call=lambda call: call.reply(b""),
            on_cast=lambda _host_id, _target, _body: None,
            on_stream=lambda stream: stream.end(),
        )
        self.net.on_pieces = self._serve
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def _run(self) -> None:
        while not self._stopped:
            self._loop.step(0.05)

    def _serve(self, host_id: str, fingerprint: str, *given: Any) -> None:
        def carry() -> None:
            connection = PiecesConnection(given[0], given[1], host_id, fingerprint, given[2])
            self.connections.append(connection)
            self.sent.append(serve_pieces(connection, self._open))

        self._threads.append(threading.Thread(target=carry, daemon=True))
        self._threads[-1].start()

    @contextmanager
    def _open(self, host_id: str, source: bytes) -> Iterator[memoryview]:
        self.asked.append((host_id, source))
        if source != b"thing":
            raise ObjectLost("there is no such thing")
        yield memoryview(self.data)

    def dial(self, host_id: str = "there") -> Callable[[], PiecesConnection]:
        identity = self.authority.identity(self.folder, "c1", "here")
        return lambda: dial(identity, [("127.0.0.1", self.net.port)], host_id, lambda _id, _key: None)

    def close(self) -> None:
        self._stopped = True
        self._threads[0].join(30)
        for connection in self.connections:
            connection.break_off()
        for thread in self._threads:
            thread.join(30)
        self.net.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, random.Random(1).randbytes(20 * MIB + 12345))
    yield made
    made.close()


def test_a_large_thing_comes_whole_over_several_connections(server: Server) -> None:
    into = memoryview(bytearray(len(server.data)))
    fetch = BulkFetch(server.dial(), b"thing", into)
    fetch.run()
    assert into == server.data
    assert fetch.streams == 3 and fetch.breaks == 0 and fetch.plan.asked_again == 0
    assert {host_id for host_id, _ in server.asked} == {"here"}


def test_after_a_break_only_the_pieces_that_were_under_way_are_asked_for_again(server: Server) -> None:
    into = memoryview(bytearray(len(server.data)))
    dialled = []

    def breaking() -> PiecesConnection:
        connection = server.dial()()
        if len(dialled) < 2:
            receive, left = connection.receive_into, [3]

            def once(view: memoryview) -> None:
                if len(view) > 1000 and not (left.__setitem__(0, left[0] - 1) or left[0]):  # type: ignore[func-returns-value]
                    connection.break_off()
                receive(view)

            connection.receive_into = once  # type: ignore[method-assign]
        dialled.append(connection)
        return connection

    fetch = BulkFetch(breaking, b"thing", into)
    fetch.run()
    assert into == server.data
    assert fetch.breaks == 2
    assert 1 <= fetch.plan.asked_again <= 2 * transfer.AHEAD


def test_a_piece_that_comes_damaged_is_asked_for_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = []

    def crc(data: Any) -> int:
        if threading.current_thread().name != "bulk" and not spoiled and len(spoiled) < 1:
            spoiled.append(True)
            return zlib.crc32(data) ^ 1
        return zlib.crc32(data)

    monkeypatch.setattr(transfer, "zlib", type("Zlib", (), {"crc32": staticmethod(crc)}))
    into = memoryview(bytearray(len(server.data)))
    fetch = BulkFetch(server.dial(), b"thing", into)
    fetch.run()
    assert into == server.data
    assert spoiled and fetch.plan.asked_again >= 1


def test_what_the_other_side_says_is_raised(server: Server) -> None:
    with pytest.raises(ObjectLost, match="no such thing"):
        BulkFetch(server.dial(), b"nothing", memoryview(bytearray(100))).run()
    with pytest.raises(MalformedBody, match="beyond the end"):
        BulkFetch(server.dial(), b"thing", memoryview(bytearray(len(server.data) + 1))).run()


def test_a_fetch_that_is_cancelled_ends_and_says_what_is_missing(server: Server) -> None:
    into = memoryview(bytearray(len(server.data)))
    fetch: BulkFetch

    def cancelling() -> PiecesConnection:
        connection = server.dial()()
        fetch.cancel()
        return connection

    fetch = BulkFetch(cancelling, b"thing", into)
    with pytest.raises(TaskCancelled):
        fetch.run()
    assert sum(piece.size for piece in fetch.plan.missing) == len(into)


def test_a_host_that_the_ledger_does_not_know_gets_no_piece(server: Server) -> None:
    server.refused = "it was removed"
    with pytest.raises(ActorGridError):
        BulkFetch(server.dial(), b"thing", memoryview(bytearray(100))).run()
    assert not server.asked


def test_a_host_at_another_address_is_not_believed(server: Server) -> None:
    with pytest.raises(PeerRefused, match="another host's"):
        server.dial("other")()


def test_a_host_of_before_refuses_the_lane_by_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "PIECES_LANE", "bulk")  # what it knows are control and bulk
    with pytest.raises(PeerRefused, match="another version"):
        server.dial()()
    # It counts when it has refused, which its caller may hear first.
    until(lambda: server.net.refusals["malformed"] == 1, "the refusal to be counted")


def test_bytes_that_are_no_question_end_the_connection_alone(server: Server) -> None:
    connection = server.dial()()
    connection.send(os.urandom(4096))
    with pytest.raises(ActorGridError):
        while True:
            frame = connection.receive_frame()
            assert frame[0] == "failed"
    connection.close()
    into = memoryview(bytearray(len(server.data)))
    BulkFetch(server.dial(), b"thing", into).run()
    assert into == server.data


@given(st.integers(0, 5000), st.lists(st.tuples(st.sampled_from(["next", "came", "lost"]), st.integers(0, 9))))
def test_every_byte_has_come_or_is_missing_and_none_is_both(size: int, events: list[tuple[str, int]]) -> None:
    plan, under_way, there = PiecePlan(size, 512), [], set()
    for what, which in events:
        if what == "next":
            piece = plan.next()
            if piece is not None:
                under_way.append(piece)
        elif under_way:
            piece = under_way.pop(which % len(under_way))
            if what == "came":
                there |= set(range(piece.offset, sum(piece)))
                plan.came(piece)
            else:
                plan.lost(piece)
    missing = {byte for piece in plan.missing for byte in range(piece.offset, sum(piece))}
    assert missing | there == set(range(size)) and not missing & there
    assert plan.is_done == (there == set(range(size)))


def test_a_piece_is_asked_for_once_unless_it_is_lost() -> None:
    plan = PiecePlan(1500, 1000)
    assert [plan.next(), plan.next(), plan.next()] == [BulkPiece(0, 1000), BulkPiece(1000, 500), None]
    plan.lost(BulkPiece(1000, 500))
    plan.lost(BulkPiece(1000, 500))
    assert [plan.next(), plan.next()] == [BulkPiece(1000, 500), None]
    assert plan.asked_again == 1
