"""A real object store for tests: its process, and spaces of this process in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgpack

from actorgrid.objects.connection import StoreConnection
from actorgrid.objects.space import ObjectSpace
from actorgrid.transports.object_frames import SECRET_BYTES, SpaceAbout

_STORE = """
import socket, sys, msgpack
from actorgrid.actors.objects.server import serve
serve(msgpack.unpackb(bytes.fromhex(sys.argv[3])), socket.socket(fileno=int(sys.argv[1])),
      socket.socket(fileno=int(sys.argv[2])), lambda: False)
"""
MIB = 2**20


class StoreProcess:
    """An object store that listens at ``path``."""

    def __init__(self, folder: Path, memory_bytes: int = 64 * MIB, disk_bytes: int = 256 * MIB) -> None:
        self.path = str(folder / "store.sock")
        # Closed with the store: one that the collector finds instead may have lost its socket first, which warns of it.
        self._connections: list[StoreConnection] = []
        self.folder = folder
        self._spec = {
            "memory_bytes": memory_bytes, "disk_bytes": disk_bytes, "host_id": "", "folder": str(folder / "files"),
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        Path(self.path).unlink(missing_ok=True)
        listener.bind(self.path)
        listener.listen(100)
        self._control, theirs = socket.socketpair()
        with listener, theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-c", _STORE, str(listener.fileno()), str(theirs.fileno()),
                    msgpack.packb(self._spec).hex(),
                ],
                pass_fds=(listener.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._control.close()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._control.close()
        self.process.wait(10)

    def space(self, secret: bytes | None = None, *, owner: bool = True, own_connection: bool = True) -> ObjectSpace:
        """A space, over a connection of its own."""
        connection = StoreConnection(self.path)
        self._connections.append(connection)
        return ObjectSpace(connection, secret or os.urandom(SECRET_BYTES), SpaceAbout(owner=owner))
