"""What is cleared away behind work that could not do it itself."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from actorgrid.actors.work import housekeeping
from actorgrid.actors.work.housekeeping import SOCKET_AGE_S, remove_dead_sockets


def test_only_sockets_without_a_listener_go_and_only_when_they_are_old(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        living.bind(str(tmp_path / "living"))
        living.listen()
        dead.bind(str(tmp_path / "dead"))
    with socket.socket(socket.AF_UNIX) as living:
        (tmp_path / "living").unlink()
        living.bind(str(tmp_path / "living"))
        living.listen()
        assert remove_dead_sockets(tmp_path) == 0
        later = time.time() + SOCKET_AGE_S + 1
        assert remove_dead_sockets(tmp_path, later) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["living"]
        assert remove_dead_sockets(tmp_path, later) == 0


def test_folders_of_dead_creators_of_actors_are_removed(tmp_path: Path) -> None:
    later = time.time() + 2 * SOCKET_AGE_S
    dead, empty, foreign, other = (tmp_path / name for name in ("u00000001", "u00000002", "u00000003", "kept"))
    for folder in (dead, empty, foreign, other):
        folder.mkdir()
    (dead / "owner").touch()
    (dead / "0123456789abcdef.end").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(foreign / "actor"))
        listener.listen(1)
        assert remove_dead_sockets(tmp_path) == 0, "they are young"
        assert remove_dead_sockets(tmp_path, later) == 2
        assert not dead.exists() and not empty.exists() and foreign.exists() and other.exists()
    assert remove_dead_sockets(tmp_path, later) == 1
    assert not foreign.exists()


def test_a_folder_that_goes_while_it_is_looked_at_is_nobodys(tmp_path: Path) -> None:
    assert not housekeeping._remove_dead_actors(tmp_path / "u00000001", time.time())


def test_the_folder_of_a_creator_that_lives_stays(tmp_path: Path) -> None:
    folder = tmp_path / "u00000001"
    folder.mkdir()
    words = ["import fcntl,os,sys", "fd=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)", "fcntl.lockf(fd,fcntl.LOCK_EX)"]
    code = ";".join([*words, "print('locked',flush=True)", "sys.stdin.read()"])
    holder = [sys.executable, "-S", "-c", code, str(folder / "owner")]  # a lock is of a process
    later = time.time() + 2 * SOCKET_AGE_S
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as creator:
        assert creator.stdout is not None and creator.stdout.readline()
        assert remove_dead_sockets(tmp_path, later) == 0 and folder.exists()
    assert remove_dead_sockets(tmp_path, later) == 1 and not folder.exists()
