"""The listening socket: bound to loopback, and to the same port again after a crash."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import psutil

from actorgrid.errors import PortInUse, StartFailed

BACKLOG = 1024


def listen(bind: str, port: int, setting: str = "cluster.bind") -> socket.socket:
    """A listening socket, not blocking. Port 0: any free one. *setting* says where *bind* comes from.

    Raises PortInUse or StartFailed.
    """
    address = "127.0.0.1" if bind == "localhost" else bind
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Connections of the process before us may linger; on Linux this still refuses a port someone listens on.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} is taken",
                asked=f"{address}:{port}",
                found=holder(port),
                hint="stop what holds it, or choose another: actorgrid up --port N, or cluster.base_port (0: any free)",
            ) from None
        raise StartFailed(
            f"cannot listen on {address}:{port}: {error.strerror}",
            asked=f"{address}:{port}",
            hint="ports below 1024 need rights" if error.errno == errno.EACCES else f"check {setting}",
        ) from error
    return sock


def holder(port: int) -> str:
    """The process that listens on *port*, as far as this user may see it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a process of another user"
                command = " ".join(psutil.Process(connection.pid).cmdline()).strip()
                return f"pid {connection.pid}: {command[:200]}"
    except (psutil.Error, OSError) as error:
        return f"not known who holds it ({error})"
    return "not known who holds it"


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket."""
    address, port = sock.getsockname()[:2]
    return f"{scheme}://[{address}]:{port}" if sock.family == socket.AF_INET6 else f"{scheme}://{address}:{port}"


def remembered(path: Path) -> int | None:
    """The port this boot had before, if any."""
    try:
        port = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return port if 0 < port < 65536 else None


def remember(path: Path, port: int) -> None:
    """Keep the port for whoever takes our place in this boot. Raises StartFailed."""
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(str(port), encoding="ascii")
        os.replace(draft, path)
    except OSError as error:
        raise StartFailed(
            f"cannot remember the port: {error.strerror}", asked=str(path), hint="the runtime directory must be ours"
        ) from error
