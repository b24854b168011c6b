"""A process of one host at an actor on another: real sockets and files, a net in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actorgrid.actors.links import actor_relays
from actorgrid.actors.links.actor_relays import ActorRelays
from actorgrid.actors.links.pieces import pack, unpack_fields
from actorgrid.errors import ActorDied, ActorGridError, BadRequest, NotFound, UnknownAllocation, error_from_dict
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from actorgrid.transports.peer.relay_end import ACTOR
from actorgrid.transports.user_actor_frames import (
    BEGUN,
    BEGUN_UNKNOWN,
    FarCaller,
    encode_far_caller,
    encode_far_prelude,
    parse_far_caller,
)
from tests.transports.peer_conformance import QUICK

FOLDER, ACTOR_ID, CALLER = "u01234567", "0123456789abcdef", "0123456789abcdef" * 2
WANTED = FarCaller("far", FOLDER, ACTOR_ID, CALLER, False)


class Rig:
    """Two hosts; on the second an actor is a socket that a test answers at."""

    def __init__(self, folder: Path) -> None:
        self.loop = InlineNode(real_time=True)
        self.network = FaultyNetwork(self.loop, seed=1, limits=QUICK)
        self.place = folder / "far" / FOLDER / ACTOR_ID
        self.place.parent.mkdir(parents=True)
        (folder / "near").mkdir()
        self.actor: socket.socket | None = None
        self.near, self.far = self._relays("near", folder), self._relays("far", folder)
        self.path = folder / "relay"
        self.near.listen(self.path)

    def _relays(self, name: str, folder: Path) -> ActorRelays:
        def take(stream: Stream) -> None:
            assert stream.target == ACTOR
            (self.far if name == "far" else self.near).take(stream, unpack_fields(stream.head))

        net = FaultyNet(self.network, name, on_call=lambda call: None, on_cast=lambda *told: None, on_stream=take)
        self.open_stream = net.open_stream
        return ActorRelays(self.loop, name, folder / name, net.open_stream)

    def begin_actor(self) -> None:
        self.actor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.actor.bind(str(self.place))
        self.actor.listen(4)

    def end_actor(self) -> None:
        assert self.actor is not None
        self.actor.close()
        self.actor = None

    def connect(self, said: bytes) -> socket.socket:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.setblocking(False)
        local.connect(str(self.path))
        local.send(said)
        return local

    def accepted(self) -> tuple[socket.socket, bytes, int]:
        """A connection of the actor's, what came first, and the file that came with it."""
        assert self.actor is not None
        found: list[socket.socket] = []
        came = bytearray()
        files: list[int] = []

        def accept() -> bool:
            with suppress(BlockingIOError):
                assert self.actor is not None
                found.append(self.actor.accept()[0])
            return bool(found)

        self.loop.run_until(accept)
        found[0].setblocking(False)

        def read() -> bool:
            with suppress(BlockingIOError):
                data, descriptors, _, _ = socket.recv_fds(found[0], 1000, 1)
                came.extend(data)
                files.extend(descriptors)
            return bool(files) and len(came) > len(encode_far_prelude())

        self.loop.run_until(read)
        return found[0], bytes(came), files[0]

    def all_of(self, sink: socket.socket) -> bytes:
        """What comes until the end."""
        got = bytearray()

        def ended() -> bool:
            try:
                data = sink.recv(2**16)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            got.extend(data)
            return not data

        self.loop.run_until(ended)
        return bytes(got)

    def refusal(self, wanted: FarCaller = WANTED) -> ActorGridError:
        with closing(self.connect(encode_far_caller(wanted) + b"keep")) as process:
            ((kind, record),) = FrameDecoder().feed(self.all_of(process))
        assert kind == "refused"
        return error_from_dict(record)

    def begun(self) -> int | ActorGridError:
        with closing(self.connect(encode_far_caller(WANTED._replace(asks=True)))) as process:
            answer = self.all_of(process)
        if len(answer) == BEGUN.size:
            return int(BEGUN.unpack(answer)[0])
        ((_, record),) = FrameDecoder().feed(answer)
        return error_from_dict(record)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="ag-") as folder:  # the path of a socket holds 107 bytes
        rig = Rig(Path(folder))
        yield rig
        rig.near.close()
        rig.far.close()
        if rig.actor is not None:
            rig.actor.close()


def test_what_was_begun_is_told_when_the_actor_is_gone(rig: Rig) -> None:
    rig.begin_actor()
    with closing(rig.connect(encode_far_caller(WANTED) + b"keep")) as process:
        connection, came, file = rig.accepted()
        assert came == encode_far_prelude() + b"keep"
        assert BEGUN.unpack(os.pread(file, BEGUN.size, 0))[0] == BEGUN_UNKNOWN
        assert isinstance(rig.begun(), NotFound), "before the actor has said it, nobody knows"
        os.pwrite(file, BEGUN.pack(41), 0)
        connection.send(b"kept")
        connection.close()
        rig.end_actor()
        assert rig.all_of(process) == b"kept"
    assert rig.begun() == 41
    os.close(file)
    assert isinstance(rig.refusal(), UnknownAllocation)


def test_a_caller_that_is_back_has_its_file(rig: Rig) -> None:
    rig.begin_actor()
    for number in (1, 2):
        with closing(rig.connect(encode_far_caller(WANTED) + b"keep")):
            connection, _, file = rig.accepted()
            if number == 2:
                assert BEGUN.unpack(os.pread(file, BEGUN.size, 0))[0] == 1
            os.pwrite(file, BEGUN.pack(number), 0)
            os.close(file)
            connection.close()
    assert rig.begun() == 2


def test_what_became_of_an_actor_is_told(rig: Rig) -> None:
    gone = rig.refusal()
    assert isinstance(gone, UnknownAllocation) and gone.details["actor_folder"] is True
    missing = rig.refusal(WANTED._replace(folder="uba987654"))
    assert isinstance(missing, UnknownAllocation) and missing.details["actor_folder"] is False
    (rig.place.parent / (ACTOR_ID + ".at")).write_text("third")
    elsewhere = rig.refusal()
    assert isinstance(elsewhere, UnknownAllocation) and elsewhere.details["actor_at"] == "third"
    (rig.place.parent / "owner").touch()
    assert isinstance(rig.refusal(), ActorDied), "its creator has let go of the lock"
    (rig.place.parent / (ACTOR_ID + ".end")).write_bytes(msgpack.packb(ActorDied("of old age").to_dict()))
    assert "of old age" in rig.refusal().message
    (rig.place.parent / (ACTOR_ID + ".end")).write_bytes(b"\xc1")
    assert isinstance(rig.refusal(), ActorDied)


@pytest.mark.timeout(20)
def test_what_was_put_in_the_place_of_its_files_holds_nobody_up(rig: Rig) -> None:
    for suffix in (".end", ".at"):
        os.mkfifo(rig.place.parent / f"{ACTOR_ID}{suffix}")
    assert isinstance(rig.refusal(), UnknownAllocation)


def test_a_creator_that_lives_has_its_actor_begun_again(rig: Rig) -> None:
    words = ["import fcntl,os,sys", "fd=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)", "fcntl.lockf(fd,fcntl.LOCK_EX)"]
    code = ";".join([*words, "print('locked',flush=True)", "sys.stdin.read()"])
    holder = [sys.executable, "-S", "-c", code, str(rig.place.parent / "owner")]  # a lock is of a process
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as creator:
        assert creator.stdout is not None and creator.stdout.readline()
        assert isinstance(rig.refusal(), UnknownAllocation)
    assert isinstance(rig.refusal(), ActorDied)


def test_a_host_that_is_not_there_is_said_to_be(rig: Rig) -> None:
    error = rig.refusal(WANTED._replace(host_id="nobody"))
    assert not isinstance(error, ActorDied)


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"\xff \xff \xff \xff call\n",
        b"x" * 512,
        b"far u../../../ 0123456789abcdef " + CALLER.encode() + b" call\n",
        b"far u01234567 ../owner " + CALLER.encode() + b" call\n",
        b"far u01234567 0123456789abcdef short call\n",
        b"far u01234567 0123456789abcdef " + CALLER.encode() + b" kill\n",
    ],
    ids=range(7),
)
def test_who_names_no_actor_is_told_so_and_hung_up_on(rig: Rig, said: bytes) -> None:
    with closing(rig.connect(said)) as process:
        ((kind, _),) = FrameDecoder().feed(rig.all_of(process))
    assert kind == "refused"
    assert not len(rig.near) and not len(rig.far)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {**WANTED._asdict(), "folder": "../work"},
        {**WANTED._asdict(), "actor_id": "0123456789abcde/"},
        {**WANTED._asdict(), "caller": ""},
        {**WANTED._asdict(), "host_id": 7},
    ],
    ids=range(5),
)
def test_a_member_that_names_paths_is_refused(rig: Rig, head: dict[str, Any]) -> None:
    ended: list[ActorGridError | None] = []
    stream = rig.open_stream("near", ACTOR, pack(head))
    stream.attach(lambda data: None, ended.append)
    rig.loop.run_until(lambda: bool(ended))
    assert isinstance(ended[0], BadRequest)


def test_files_of_callers_are_bounded_and_those_in_use_stay(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_relays, "FILES_MAX", 2)
    rig.begin_actor()
    with closing(rig.connect(encode_far_caller(WANTED) + b"keep")):
        connection, _, file = rig.accepted()
        os.pwrite(file, BEGUN.pack(5), 0)
        for number in range(4):
            other = WANTED._replace(caller=f"{number:032x}")
            with closing(rig.connect(encode_far_caller(other) + b"keep")):
                second, _, spare = rig.accepted()
                os.close(spare)
                second.close()
            rig.loop.run_until(lambda: len(rig.far) == 1)
        assert len(rig.far._files) == 2
        assert rig.begun() == 5
        os.close(file)
        connection.close()


def test_a_line_is_read_as_it_was_written() -> None:
    for wanted in (WANTED, WANTED._replace(asks=True)):
        line = encode_far_caller(wanted)
        assert parse_far_caller(line + b"rest") == (wanted, b"rest")
        assert parse_far_caller(line[:-1]) is None


def test_the_door_of_the_actors_own_host_comes_by_the_same_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.place = rig.place.parents[2] / "near" / FOLDER / ACTOR_ID
    rig.place.parent.mkdir()
    wanted = WANTED._replace(host_id="near")
    assert isinstance(rig.refusal(wanted), UnknownAllocation), "it is not there yet"
    rig.begin_actor()
    with closing(rig.connect(encode_far_caller(wanted) + b"keep")) as process:
        connection, came, file = rig.accepted()
        assert came == encode_far_prelude() + b"keep"
        os.pwrite(file, BEGUN.pack(3), 0)
        # More than sockets hold, both ways at once: what one side does not take is not read of the other.
        much = os.urandom(3_000_000)
        got = {process: bytearray(), connection: bytearray()}
        left = {process: memoryview(much), connection: memoryview(much[::-1])}

        def moved() -> bool:
            for sock, data in left.items():
                with suppress(BlockingIOError):
                    left[sock] = data[sock.send(data) :] if data else data
                with suppress(BlockingIOError):
                    got[sock] += sock.recv(2**16)
            return len(got[process]) == len(got[connection]) == len(much)

        rig.loop.run_until(moved)
        assert bytes(got[connection]) == much and bytes(got[process]) == much[::-1]
        assert len(rig.near) == 1
        monkeypatch.setattr(actor_relays, "STREAMS_MAX", 1)
        assert "maximum" in rig.refusal(wanted._replace(caller="f" * 32)).message
        process.shutdown(socket.SHUT_WR)
        assert rig.all_of(connection) == b"", "its end is told"
        connection.send(b"last")
        connection.close()
        assert rig.all_of(process) == b"last"
        rig.loop.run_until(lambda: not len(rig.near))
        os.close(file)
    with closing(rig.connect(encode_far_caller(wanted._replace(asks=True)))) as process:
        assert BEGUN.unpack(rig.all_of(process))[0] == 3
