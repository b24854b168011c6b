"""Who is at the other end of a socket of this machine, by the kernel's word."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def uid_of_peer(connection: socket.socket) -> int:
    """The uid of the process that connected to us; for one that listens, of who began to listen."""
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
