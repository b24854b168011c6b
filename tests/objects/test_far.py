"""Objects of another host's store: what is referred to and read from there, and what happens when it is gone."""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorgrid.errors import MalformedBody, ObjectLost, PeerGone
from actorgrid.objects import far, here, stored
from actorgrid.objects.far import FarSpace
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.object_frames import (
    MAX_STORE_FRAME,
    SECRET_BYTES,
    ObjectKey,
    Part,
    SpaceAbout,
    encode_hello,
    encode_question,
    far_path,
    parse_far_line,
    parse_store_frame,
)

from .rig import MIB, StoreProcess
from .test_store import array, put, used


class Wires:
    """What the agents are otherwise: leads processes of one host to the store of another."""

    def __init__(self, path: str, stores: dict[str, str]) -> None:
        self.stores = stores
        self.ends: list[socket.socket] = []
        self.opened = 0
        self.asked = 0
        self.most = 100
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(16)
        self._threads: list[threading.Thread] = []
        self._start(self._run)

    def _start(self, run: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            line = parse_far_line(near.recv(512))
            assert line is not None
            host, rest = line
            self.asked += 1
            if self.opened >= self.most:
                near.close()
                continue
            other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                other.connect(self.stores[host])
            except (KeyError, OSError):
                near.close()
                other.close()
                continue
            other.sendall(rest)
            self.opened += 1
            self.ends += [near, other]
            for source, sink in ((near, other), (other, near)):
                self._start(self._carry, source, sink)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut(self) -> None:
        """All hosts are away from now on."""
        self.stores.clear()
        self.break_off()

    def break_off(self) -> None:
        """The connections of now are lost."""
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in (self._listener, *self.ends):
            end.close()


SECRET = os.urandom(SECRET_BYTES)


@pytest.fixture
def wires(store: StoreProcess, tmp_path: Path) -> Iterator[Wires]:
    wires = Wires(far_path(str(tmp_path / "near.sock")), {"h2": store.path})
    yield wires
    wires.close()


@pytest.fixture
def far_space(wires: Wires, tmp_path: Path) -> Iterator[FarSpace]:
    space = FarSpace(str(tmp_path / "near.sock"), "h2", SECRET, SpaceAbout(home="h2"))
    yield space
    space.close()
    space.hang_up()


def read(space: FarSpace, key: ObjectKey, wait_s: float | None = None) -> Any:
    return stored.load(space, key, wait_s)


@pytest.mark.parametrize("size", [1, 70_000, 3 * MIB + 17, 20 * MIB])
def test_a_value_of_another_host_comes_whole(store: StoreProcess, far_space: FarSpace, size: int) -> None:
    with_owner = store.space(SECRET)
    held = put(with_owner, array(size))
    assert np.array_equal(read(far_space, held.key), array(size))
    with_owner.close()


def test_a_large_one_comes_over_several_streams_which_end_with_it(
    store: StoreProcess, wires: Wires, far_space: FarSpace
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(30 * MIB))
    assert np.array_equal(read(far_space, held.key), array(30 * MIB))
    assert wires.opened == 4
    assert used(owner)["processes"] <= 5
    owner.close()


def test_what_is_on_the_disk_there_comes_as_well(store: StoreProcess, far_space: FarSpace) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(100 * MIB))
    assert used(owner)["disk_bytes"] >= 100 * MIB
    assert np.array_equal(read(far_space, held.key), array(100 * MIB))
    owner.close()


def test_a_reference_from_afar_keeps_an_object_until_it_is_dropped(store: StoreProcess, far_space: FarSpace) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    key = held.key
    mine = far_space.hold(key)
    far_space.confirm()
    del held
    assert used(owner)["count"] == 1
    assert np.array_equal(read(far_space, key), array(2 * MIB))
    del mine
    far_space.confirm()
    far_space._connection.ask("sync")
    assert used(owner)["count"] == 0
    with pytest.raises(ObjectLost, match="nobody refers"):
        read(far_space, key)
    owner.close()


def test_references_from_afar_end_with_their_connection(store: StoreProcess, wires: Wires, far_space: FarSpace) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    mine = far_space.hold(held.key)
    far_space.confirm()
    del held
    assert used(owner)["count"] == 1
    wires.cut()
    done = threading.Event()
    while used(owner)["count"]:
        done.wait(0.01)
    del mine
    owner.close()


def test_what_somebody_else_keeps_is_read_over_another_connection(
    store: StoreProcess, wires: Wires, far_space: FarSpace
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    assert np.array_equal(read(far_space, held.key), array(2 * MIB))
    wires.break_off()
    assert np.array_equal(read(far_space, held.key), array(2 * MIB))
    owner.close()


def test_streams_that_are_not_to_be_had_are_done_without(
    store: StoreProcess, wires: Wires, far_space: FarSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "HELP_PATIENCE_S", 0.2)
    wires.most = 2
    owner = store.space(SECRET)
    held = put(owner, array(30 * MIB))
    assert np.array_equal(read(far_space, held.key), array(30 * MIB))
    assert wires.opened == 2
    owner.close()


def test_pieces_of_a_stream_that_was_lost_come_over_another_one(
    store: StoreProcess, far_space: FarSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(30 * MIB))
    real, lost = FarSpace.piece, []

    def piece(self: FarSpace, key: ObjectKey, offset: int, size: int) -> bytes:
        if self is not far_space and not lost:
            lost.append(offset)
            raise PeerGone("it went away")
        return real(self, key, offset, size)

    monkeypatch.setattr(FarSpace, "piece", piece)
    assert np.array_equal(read(far_space, held.key), array(30 * MIB)) and lost
    owner.close()


def test_the_store_there_knows_what_is_referred_to_before_work_ends(
    store: StoreProcess, far_space: FarSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    monkeypatch.setitem(here._far, (SECRET, "h2"), far_space)
    mine = far_space.hold(held.key)
    assert far_space._connection.unconfirmed
    here.confirm(None)
    assert not far_space._connection.unconfirmed
    del held
    assert used(owner)["count"] == 1
    del mine
    owner.close()


def test_a_space_elsewhere_names_the_host_of_its_owner(
    store: StoreProcess, wires: Wires, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_of_work", here.Whereabouts(str(tmp_path / "near.sock"), "h1"))
    secret = os.urandom(SECRET_BYTES)
    space = here.space_of(secret, "", "h2")
    assert isinstance(space, FarSpace) and space.home == "h1", "whose owner this process is"
    assert here.space_of(secret, "", "h2") is space
    other = here.space_of(secret, "h7", "h3")
    assert isinstance(other, FarSpace) and other.home == "h7"
    here.leave(space)
    assert space.closed and other.closed


def test_a_host_that_is_away_has_lost_it_by_name(
    store: StoreProcess, wires: Wires, far_space: FarSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far.FarConnection, "patience_s", 0.2)
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    wires.cut()
    with pytest.raises(ObjectLost, match="on host h2, which is not reached") as lost:
        read(far_space, held.key)
    assert lost.value.details["objects"] == [list(held.key)]
    assert "the object store of host h2 does not answer" in str(lost.value)
    asked = wires.asked
    with pytest.raises(ObjectLost, match="a moment ago"):
        read(far_space, held.key)
    assert wires.asked == asked, "it is not tried anew for each"
    owner.close()


def test_one_that_came_damaged_is_asked_for_again_and_then_refused(
    store: StoreProcess, far_space: FarSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    real, damaged = FarSpace._ask, [2]

    def ask(self: FarSpace, kind: str, *fields: Any, writable: bool = False) -> Any:
        answer = real(self, kind, *fields, writable=writable)
        if isinstance(answer, Part) and damaged[0]:
            damaged[0] -= 1
            return Part(answer.question, zlib.crc32(answer.data), b"x" + answer.data[1:])
        return answer

    monkeypatch.setattr(FarSpace, "_ask", ask)
    assert np.array_equal(read(far_space, held.key), array(2 * MIB)) and damaged == [0]
    damaged[0] = 10**6
    with pytest.raises(MalformedBody, match="damaged"):
        read(far_space, held.key)
    owner.close()


def test_who_waits_no_longer_is_told_so(store: StoreProcess, far_space: FarSpace) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    with pytest.raises(TimeoutError):
        read(far_space, held.key, 0.0)
    owner.close()


def test_who_asks_faster_than_it_reads_is_not_listened_to_meanwhile(store: StoreProcess) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(2 * MIB))
    key, pieces = list(held.key), 200  # more bytes than may be unsent to one process
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(store.path)
        stream.sendall(encode_hello() + encode_question("open", 1, 0, SECRET, SpaceAbout()._asdict()))
        stream.sendall(b"".join(encode_question("piece", 2 + n, 0, key, MIB, MIB) for n in range(pieces)))
        owner._connection.ask("sync")
        status = Path(f"/proc/{store.process.pid}/status").read_text()
        peak_kib = int(status.partition("VmHWM:")[2].split()[0])
        assert peak_kib < 120 * 1024
        decoder, parts = FrameDecoder(MAX_STORE_FRAME), 0
        while parts < pieces:
            data = stream.recv(MIB)
            assert data, "it hung up"
            for frame in decoder.feed(data):
                answer = parse_store_frame(frame)
                if isinstance(answer, Part):
                    assert answer.question == 2 + parts and zlib.crc32(answer.data) == answer.checksum
                    parts += 1
    owner.close()


def test_another_session_reads_nothing(store: StoreProcess, far_space: FarSpace) -> None:
    other = store.space(os.urandom(SECRET_BYTES))
    held = put(other, array(2 * MIB))
    with pytest.raises(ObjectLost):
        read(far_space, held.key)
    other.close()


@pytest.mark.parametrize("said", [b"\n", b"x" * 512, b"\xff\n", b"a\tb\n", b"h" * 201 + b"\n"])
def test_what_names_no_host_is_refused(said: bytes) -> None:
    with pytest.raises(MalformedBody):
        parse_far_line(said)


def test_the_line_that_names_the_host_may_come_in_parts() -> None:
    assert parse_far_line(b"h") is None
    assert parse_far_line(b"h2\nrest") == ("h2", b"rest")
