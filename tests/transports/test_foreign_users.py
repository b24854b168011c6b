"""Sockets and users: the kernel says who is on the other end, and another user is refused before a byte is read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from actorgrid.errors import PeerGone
from actorgrid.transports.unix import handshake
from actorgrid.transports.unix.mesh import Mesh, listen

KEY = b"k" * 32
NOBODY = 65534
CONNECT = """
import socket
import sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.settimeout(60)
connection.connect(sys.argv[1])
print(len(connection.recv(100)))
"""
LISTEN = """
import socket
import sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen(8)
print("listening", flush=True)
listener.settimeout(60)
connection, _ = listener.accept()
connection.settimeout(60)
print(len(connection.recv(100)))
"""


def turn(mesh: Mesh, until: Callable[[], bool]) -> None:
    deadline = monotonic() + 60
    while not until():
        assert monotonic() < deadline
        mesh.poll(0.01)


def as_user(uid: int, script: str, path: Path) -> subprocess.Popen[str]:
    """A stranger's process: it becomes that user after its start, as our Python may lie where they cannot read."""
    become = f"import os, socket; os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
    command = [sys.executable, "-I", "-c", become + script, str(path)]
    return subprocess.Popen(command, env={}, stdout=subprocess.PIPE, text=True)


def open_folder() -> Path:
    """Sockets with the file permissions of a careless administrator: only the check of the user is left."""
    folder = Path(tempfile.mkdtemp(prefix="agx-", dir="/tmp"))
    folder.chmod(0o777)
    return folder


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_who_reaches_an_actors_socket_is_refused_without_a_word() -> None:
    folder = open_folder()
    mesh = Mesh(folder, KEY, "b")
    try:
        (folder / "b").chmod(0o777)
        with as_user(NOBODY, CONNECT, folder / "b") as stranger:
            turn(mesh, lambda: mesh.incoming.refused == 1)
            assert stranger.communicate(timeout=60)[0] == "0\n"
        assert not mesh.inbox
    finally:
        mesh.close()
        folder.rmdir()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_socket_that_another_user_put_there_is_sent_nothing() -> None:
    folder = open_folder()
    mesh = Mesh(folder, KEY, "a")
    try:
        with as_user(NOBODY, LISTEN, folder / "fake") as stranger:
            assert stranger.stdout is not None and stranger.stdout.readline() == "listening\n"
            with pytest.raises(PeerGone, match="another user"):
                mesh.post("fake", 0, b"secret")
            assert stranger.communicate(timeout=60)[0] == "0\n"
    finally:
        mesh.close()
        (folder / "fake").unlink(missing_ok=True)
        folder.rmdir()


def test_a_peer_whose_user_is_not_ours_is_refused_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(tmp_path, KEY, "b")
    monkeypatch.setattr(handshake, "peer_uid", lambda _connection: os.geteuid() + 1)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(str(tmp_path / "b"))
            turn(mesh, lambda: mesh.incoming.refused == 1)
            assert connection.recv(100) == b""
        with listen(tmp_path / "other"), pytest.raises(PeerGone, match="another user"):
            mesh.post("other", 0, b"x")
    finally:
        mesh.close()
