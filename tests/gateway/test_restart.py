"""A killed gateway comes back where it was; a blob store loses and leaks nothing."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.actors.gateway.server.listener import listen, remember, remembered
from actorgrid.errors import DiskFull, StartFailed, StorageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], str]]]:
    running: list[subprocess.Popen[str]] = []

    def run(boot_id: str) -> tuple[subprocess.Popen[str], str]:
        program = str(Path(__file__).with_name("restarted_gateway.py"))
        process = subprocess.Popen(
            [sys.executable, program, str(tmp_path / "data"), boot_id],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": ""},
        )
        running.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield run
    for process in running:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def test_killed_gateway_comes_back_on_the_same_port_under_open_connections(start: Any) -> None:
    first, url = start("boot1")
    clients = [connect(url) for _ in range(5)]
    clients[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert clients[0].recv(100).startswith(b"HTTP/1.1 200")
    first.kill()
    first.wait(60)
    _second, again = start("boot1")
    assert again == url
    connect(again).close()
    for client in clients:
        client.close()


def test_another_boot_takes_any_free_port(start: Any) -> None:
    _first, url = start("boot1")
    _second, other = start("boot2")
    assert url.startswith("http://127.0.0.1:") and other.startswith("http://127.0.0.1:")
    assert url != other


def test_a_remembered_port_that_is_none_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "boot" / "gateway.port"
    assert remembered(path) is None
    remember(path, 4242)
    assert remembered(path) == 4242
    for text in ("", "x", "0", "70000"):
        path.write_text(text)
        assert remembered(path) is None


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartFailed, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_localhost_means_loopback_of_ipv4() -> None:
    with listen("localhost", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


# -- blobs


def test_drafts_of_a_killed_predecessor_are_removed_and_blobs_kept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    (digest,) = store.put_all([b"kept"])
    (tmp_path / ".incoming-dead").write_bytes(b"half")
    assert store.clear_drafts() == 1
    assert [path.name for path in tmp_path.iterdir()] == [digest]


def test_a_blob_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    (digest,) = store.put_all([b"content"])
    (tmp_path / digest).write_bytes(b"con")
    assert store.put_all([b"content"]) == [digest]
    assert (tmp_path / digest).read_bytes() == b"content"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError)]
)
def test_a_disk_that_refuses_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind) as caught:
        BlobStore(tmp_path).put_all([b"x"])
    assert type(caught.value) is kind
    assert not list(tmp_path.iterdir())


@pytest.mark.root
def test_a_really_full_disk_is_named(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        store = BlobStore(small)
        (digest,) = store.put_all([b"fits"])
        with pytest.raises(DiskFull):
            store.put_all([b"x" * 200_000])
        assert [path.name for path in small.iterdir()] == [digest]
    finally:
        subprocess.run(["umount", str(small)], check=True)
