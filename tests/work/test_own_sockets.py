"""The sockets of work that is kept apart: the doors in its folder, and who is connected to for it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation.own_sockets import (
    connect_within,
    make_door,
    make_own_sockets,
    own_folders_named,
)
from actorgrid.transports.peer_uid import uid_of_peer

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to other uids")
UID = 1_900_000_007


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def test_a_door_is_found_at_its_path_and_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "o-1"
    path.touch()  # of an agent of before there were doors
    for _ in range(2):
        door = make_door(path)
        with listening(door), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(str(path))
            assert uid_of_peer(caller) == os.geteuid()
    assert door.parent == tmp_path / "doors" and os.listdir(tmp_path / "doors") == ["o-1"]


@as_root
def test_a_uids_folder_has_the_doors_and_is_its_own_to_fill(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    make_door(tmp_path / "work" / "o-1")
    (tmp_path / "work" / "doors" / "o-1").touch()
    spec = {"at": str(tmp_path / "work"), "own": str(tmp_path / "users" / str(UID) / "sockets")}
    make_own_sockets(spec, UID)
    own = Path(spec["own"])
    assert os.readlink(own / "o-1") == "doors/o-1"
    found = own.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (0, UID, 0o1770)
    # What the work has put there is neither followed nor replaced.
    (own / "o-1").unlink()
    (own / "o-1").symlink_to("/etc/shadow")
    make_own_sockets(spec, UID)
    assert os.readlink(own / "o-1") == "/etc/shadow"


@as_root
def test_who_calls_an_actor_is_led_to_no_socket_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "users" / str(UID) / "sockets" / "a-1"
    folder.mkdir(parents=True)
    os.chown(folder, UID, UID)
    (tmp_path / "users" / "7" / "sockets").mkdir(parents=True)
    (tmp_path / "users" / "7" / "sockets" / "a-1").symlink_to(folder)
    assert list(own_folders_named(tmp_path / "users", "a-1")) == [(UID, folder)]
    with listening(tmp_path / "agents"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        (folder / "actor").symlink_to(tmp_path / "agents")
        with pytest.raises(PermissionError):
            connect_within(caller, folder, "actor", UID)
