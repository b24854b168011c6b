"""A worker whose client comes over a network: its connection breaks, and it comes back, also under a task that runs."""

from __future__ import annotations

import pickle
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from actorgrid.actors.work.environment import PYTHON
from actorgrid.actors.work.kept_connections import KeptConnections
from actorgrid.errors import error_from_dict
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.kept_stream import WINDOW_BYTES, Keep, KeptStream, encode_keep, take_first_frame
from actorgrid.transports.task_frames import (
    FAILED,
    OK,
    decode_failure_body,
    encode_cancel,
    encode_function,
    encode_hello,
    encode_task,
    fn_id_of,
)
from tests.client.stand_in import WorkerProcess, wait_until

PATIENCE_S = 60.0


class KeptClient:
    """The client's side of one stream, over a connection at a time."""

    def __init__(self, path: str, secret: str) -> None:
        self.path, self.secret = path, secret
        self.stream_id = secrets.token_hex(16)
        self.stream = KeptStream()
        self.frames: list[list[Any]] = []
        self._decoder = FrameDecoder()
        self._next_id = 0
        self.socket: socket.socket

    def connect(self, secret: str = "", stream_id: str = "") -> list[Any]:
        """Connect; the worker's first frame."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(self.path)
        self.socket.sendall(encode_keep(secret or self.secret, stream_id or self.stream_id, self.stream.received))
        came = bytearray()
        while (frame := take_first_frame(came)) is None:
            data = self.socket.recv(65536)
            assert data, "the worker hung up"
            came += data
        if frame[0] == "kept":
            self.stream.connect(frame[1]["received"])
            self._flush()
            self._take(bytes(came))
        else:
            self.socket.close()
        return frame

    def say(self, *frames: bytes) -> None:
        assert self.stream.write(b"".join(frames)) > 0
        self._flush()

    def call(self, function: Any, *args: Any) -> int:
        self._next_id += 1
        code = cloudpickle.dumps(function)
        task = encode_task(self._next_id, fn_id_of(code), pickle.dumps((args, {})))
        self.say(encode_function(fn_id_of(code), code), task)
        return self._next_id

    def _flush(self) -> None:
        self.socket.sendall(self.stream.out)
        self.stream.out.clear()

    def hear(self, kind: str) -> list[Any]:
        """The next frame of that kind; others are dropped."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame[0] == kind:
                    return frame
            data = self.socket.recv(65536)
            assert data, "the worker hung up"
            self._take(data)
            self._flush()

    def _take(self, data: bytes) -> None:
        came = self.stream.feed(data)
        self.stream.taken(len(came))
        self.frames += self._decoder.feed(came)

    def result(self) -> tuple[int, Any]:
        _, task_id, status, body = self.hear("result")
        assert status == OK, body
        return task_id, pickle.loads(body)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(tmp_path, 1)
    yield worker
    worker.stop()


@pytest.fixture
def client(worker: WorkerProcess) -> Iterator[KeptClient]:
    client = KeptClient(worker.path, worker.begin("session", {}))
    assert client.connect()[0] == "kept"
    client.say(encode_hello(client.secret, PYTHON, "session"))
    client.hear("welcome")
    yield client
    client.socket.close()


def _wait_for(path: str, began: str) -> str:
    import os

    from tests.client.stand_in import wait_until

    with open(began, "a") as file:
        file.write("x")
    wait_until(lambda: os.path.exists(path), 60.0)
    return path


def test_a_client_comes_back_while_a_task_runs_and_hears_its_result(client: KeptClient, tmp_path: Path) -> None:
    go, began = tmp_path / "go", tmp_path / "began"
    first = client.call(_wait_for, str(go), str(began))
    wait_until(began.exists, PATIENCE_S)
    client.socket.close()
    assert client.connect()[0] == "kept"  # the task keeps the main thread meanwhile
    second = client.call(abs, -3)
    client.socket.close()
    go.touch()
    assert client.connect()[0] == "kept"
    assert client.result() == (first, str(go))
    assert client.result() == (second, 3)
    assert began.read_text() == "x"


def test_results_wait_for_a_client_that_is_away(client: KeptClient, tmp_path: Path) -> None:
    done = tmp_path / "done"
    sent = [client.call(_leave, str(done), number) for number in range(20)]
    client.socket.close()
    wait_until(lambda: done.exists() and done.read_text().count("\n") == 20, PATIENCE_S)
    client.connect()
    assert [client.result() for _ in sent] == list(zip(sent, range(20), strict=True))
    assert done.read_text().split() == [str(number) for number in range(20)]


def _leave(path: str, number: int) -> int:
    with open(path, "a") as file:
        file.write(f"{number}\n")
    return number


def test_a_connection_that_hangs_gives_way_to_the_next(client: KeptClient) -> None:
    hanging = client.socket
    assert client.connect()[0] == "kept"
    client.call(abs, -1)
    assert client.result() == (1, 1)
    assert hanging.recv(10) == b""
    hanging.close()


def test_nobody_else_is_taken_meanwhile(client: KeptClient, worker: WorkerProcess) -> None:
    other = KeptClient(client.path, client.secret)
    for frame in (other.connect(), other.connect("wrong"), other.connect("wrong", client.stream_id)):
        assert frame[0] == "refused" and type(error_from_dict(frame[1])).__name__ == "PeerRefused"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(PATIENCE_S)
        plain.connect(client.path)
        plain.sendall(encode_hello(client.secret, PYTHON, "session"))
        assert b"refused" in plain.recv(65536)
    client.call(abs, -1)
    assert client.result() == (1, 1)
    # After the end of the one, the worker takes the next client that it is lent to, whichever way that comes.
    secret = worker.begin("another", {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(PATIENCE_S)
        plain.connect(client.path)
        plain.sendall(encode_hello(secret, PYTHON, "another"))
        assert b"welcome" in plain.recv(65536)


def test_a_wrong_secret_opens_no_stream(worker: WorkerProcess) -> None:
    client = KeptClient(worker.path, worker.begin("session", {}))
    assert type(error_from_dict(client.connect("wrong")[1])).__name__ == "WrongToken"
    assert client.connect()[0] == "kept"
    client.socket.close()


def test_a_stream_that_never_began_is_not_gone_on_with(worker: WorkerProcess) -> None:
    client = KeptClient(worker.path, worker.begin("session", {}))
    client.stream.received = 7
    assert type(error_from_dict(client.connect()[1])).__name__ == "MalformedBody"
    client.stream.received = 0
    assert client.connect()[0] == "kept"
    client.say(encode_hello(client.secret, PYTHON, "session"))
    client.hear("welcome")
    client.socket.close()


def test_a_client_that_breaks_the_protocol_is_hung_up_on(client: KeptClient) -> None:
    client.socket.sendall(b"\xff" * 20)
    assert client.socket.recv(10) == b""
    client.socket.close()
    assert client.connect()[0] == "refused"


def test_a_cancel_reaches_a_task_that_runs(client: KeptClient, tmp_path: Path) -> None:
    task_id = client.call(_sleep_on, str(tmp_path / "began"))
    wait_until((tmp_path / "began").exists, PATIENCE_S)
    client.socket.close()
    client.connect()
    client.say(encode_cancel(task_id))
    kind, ended, status, body = client.hear("result")
    assert (kind, ended, status) == ("result", task_id, FAILED)
    assert type(decode_failure_body(body)[0]).__name__ == "TaskCancelled"


async def _sleep_on(path: str) -> None:
    import asyncio
    from pathlib import Path

    Path(path).touch()
    await asyncio.sleep(3600)


def test_more_than_the_window_waits_for_who_is_away(client: KeptClient) -> None:
    sent = [client.call(bytes, 3_000_000) for _ in range(4)]
    client.socket.close()
    client.connect()
    assert [client.result() for _ in sent] == [(task_id, bytes(3_000_000)) for task_id in sent]


def test_large_results_come_while_large_arguments_wait(client: KeptClient, tmp_path: Path) -> None:
    """The worker writes before it reads on, and what confirms that lies behind what it does not read yet."""
    go, began = tmp_path / "go", tmp_path / "began"
    first = client.call(_wait_and_give, str(go), str(began), 12_000_000)
    wait_until(began.exists, PATIENCE_S)
    others = [client.call(len, bytes(1_000_000)) for _ in range(3)]
    go.touch()
    assert client.result() == (first, bytes(12_000_000))
    assert [client.result() for _ in others] == [(task_id, 1_000_000) for task_id in others]


def _wait_and_give(path: str, began: str, size: int) -> bytes:
    _wait_for(path, began)
    return bytes(size)


def test_what_the_worker_has_not_read_comes_again_over_the_next_connection(tmp_path: Path) -> None:
    kept = KeptConnections()
    ours, theirs = socket.socketpair()
    keep = Keep("secret", "ab" * 16, 0)
    inner = kept.adopt(theirs, keep)
    stream, sent = KeptStream(), secrets.token_bytes(WINDOW_BYTES)
    stream.connect(_kept(ours))
    assert stream.write(sent) == len(sent)
    ours.settimeout(PATIENCE_S)
    ours.sendall(stream.out)  # more than the pair holds: the thread reads on all the same
    for _ in range(3):
        before, (ours, theirs) = ours, socket.socketpair()
        ours.settimeout(PATIENCE_S)
        assert kept.attach(theirs, keep._replace(received=stream.received))
        taken = _kept(ours)
        assert taken < len(sent)
        stream.connect(taken)
        before.close()
        ours.sendall(stream.out)
    came = bytearray()
    inner.settimeout(PATIENCE_S)
    while len(came) < len(sent):
        came += inner.recv(1 << 20)
    assert came == sent
    inner.close()
    ours.close()


def _kept(connection: socket.socket) -> int:
    """What the first frame of a connection says that was received."""
    came = bytearray()
    while (frame := take_first_frame(came)) is None:
        came += connection.recv(1)
    assert frame[0] == "kept"
    return int(frame[1]["received"])
