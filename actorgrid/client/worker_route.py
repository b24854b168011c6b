"""Ways to a leased worker: its own socket, where this machine has that, or one by a relay, which may break."""

from __future__ import annotations

import os
import socket
from typing import Protocol


class WorkerRoute(Protocol):
    """The way to a worker that may break, and be there again."""

    @property
    def is_away(self) -> bool:
        """Whether nothing that the worker says is heard just now."""

    @property
    def back_at(self) -> float:
        """When the way was there (again), on the monotonic clock."""


def own_socket(path: str, may_be_elsewhere: bool) -> socket.socket | None:
    """The socket of a worker on this machine; ``None`` where that is on another, if it may be. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        # On the host itself a socket that is not there says that its worker is gone; but not to work that is kept
        # apart, which has other sockets than its host, in a folder that is not its own.
        folder = os.path.dirname(path)
        is_elsewhere = isinstance(error, PermissionError) or not os.path.isdir(folder)
        is_elsewhere = is_elsewhere or os.stat(folder).st_uid != os.geteuid()
        if may_be_elsewhere and is_elsewhere:
            return None
        raise
    return sock
