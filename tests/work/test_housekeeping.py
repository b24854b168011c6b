"""What is cleared away behind work that could not do it itself."""

import socket
import time
from pathlib import Path

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
