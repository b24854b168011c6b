"""The sockets of work that is kept apart: a folder for each uid, in place of the host's, and the agent's doors in it.

Work finds the host's object store and relays at paths in RUNTIME_DIR/work, and has its actors' sockets in folders
there. Kept apart, it has another folder at that path, which all work of its uid on this host shares:

    DATA_DIR/users/UID/sockets/    root's, and sticky: the uid makes folders in it, and cannot remove what is root's
      doors/                       the host's own RUNTIME_DIR/work/doors is mounted on it
      o-..., o-...r, ...           links into doors

The doors are for all who can come to their folder: on the host that is the agent's user, by RUNTIME_DIR, which is 0700.
Since they are mounted with their folder, those of a store or an agent that starts again are there too.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from actorgrid.configs.paths import HostPaths
from actorgrid.transports.peer_uid import uid_of_peer

from ..apart_records import SocketsSpec

DOORS = "doors"
DOOR_MODE = 0o666
FOR_UID_MODE = 0o1770


def behind_door(path: Path) -> Path:
    """Where the socket is bound that everybody knows as *path*."""
    return path.parent / DOORS / path.name


def make_door(path: Path) -> Path:
    """Have *path* lead to its door; gives where that is to be bound, where nothing is. Raises OSError."""
    door = behind_door(path)
    door.parent.mkdir(mode=0o711, exist_ok=True)
    door.parent.chmod(0o711)
    door.unlink(missing_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(Path(DOORS, path.name))
    draft.replace(path)
    return door


def sockets_spec(paths: HostPaths, uid: int) -> SocketsSpec:
    """What the spec says of the sockets of work of *uid*."""
    return {"at": str(paths.work_sockets_dir), "own": str(paths.own_sockets_dir(uid))}


def make_own_sockets(spec: SocketsSpec, uid: int) -> None:
    """Have the folder, and the links of all doors that are there, before anything of the work runs. Raises OSError."""
    own, at = Path(spec["own"]), Path(spec["at"])
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (at / DOORS, own / DOORS):
        folder.mkdir(mode=0o711, exist_ok=True)
    for name in os.listdir(at / DOORS):
        with suppress(FileExistsError):  # ours from before; or the work's own, which harms nobody else
            os.symlink(os.path.join(DOORS, name), own / name)
    os.chown(own, 0, uid)
    own.chmod(FOR_UID_MODE)


def own_folders_named(users_dir: Path, name: str) -> Iterable[tuple[int, Path]]:
    """The folders of that name among the sockets of each uid that has one, with that uid; links are none."""
    with suppress(FileNotFoundError), os.scandir(users_dir) as entries:
        for entry in entries:
            place = Path(entry.path, "sockets", name)
            with suppress(OSError):
                found = os.lstat(place)
                if entry.name.isdigit() and stat.S_ISDIR(found.st_mode) and found.st_uid == int(entry.name):
                    yield int(entry.name), place


def connect_within(connection: socket.socket, folder: Path, name: str, uid: int) -> None:
    """Connect to the socket *name* in a folder that belongs to *uid*. Raises OSError.

    PermissionError where it is not that uid that listens: work can put a link to another socket there, and whoever
    connects for it may have more rights than it.
    """
    # The path of a socket holds 107 bytes, and a folder that is opened stays the one that it was.
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{held}/{name}")
    finally:
        os.close(held)
    if uid_of_peer(connection) != uid:
        raise PermissionError("another uid listens there")
