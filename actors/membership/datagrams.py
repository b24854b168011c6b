"""A UDP socket that never blocks and never raises once it is open: what goes wrong with a datagram is counted.

Datagrams are read a few at a time, so that a flood of them leaves the server time for its clock and its mailbox; what
does not fit into the socket's buffer meanwhile the kernel drops, as a network would.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections import Counter
from functools import lru_cache

from actorgrid.errors import PortInUse, StartFailed

from .packets import DATAGRAM_BYTES_MAX, MEMBERS_MAX

DATAGRAMS_A_TURN = 64
BUFFER_BYTES = 2**20
"""Some 700 full datagrams: what comes while this process stands still for a moment is there when it goes on."""

SocketAddress = tuple[str, int]


@lru_cache(maxsize=2 * MEMBERS_MAX)
def socket_address(address: str) -> SocketAddress | None:
    """``IP:PORT`` as a socket takes it; ``None`` for anything else. A name would be looked up, and that blocks."""
    host, _, port = address.rpartition(":")
    try:
        numeric = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536):
        return None
    return str(numeric), int(port)


class DatagramSocket:
    """Listens at *host* and *port* (0: any). Raises PortInUse, or StartFailed where the address is not this machine's.

    ``sent``, ``received``, ``sent_bytes``, ``received_bytes`` count what went through; ``failed`` what did not go out,
    by the error's name.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            where = f"{host}, UDP port {port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"cannot listen at {where}", asked=where, hint="another process has it") from error
            raise StartFailed(f"cannot listen at {where}: {error.strerror}", asked=where) from error
        self.sent = self.received = self.sent_bytes = self.received_bytes = 0
        self.failed: Counter[str] = Counter()

    def fileno(self) -> int:
        """The descriptor to be watched."""
        return self._socket.fileno()

    @property
    def address(self) -> str:
        """``IP:PORT`` where it listens."""
        return _text(self._socket.getsockname())

    def read(self) -> list[tuple[bytes, str]]:
        """What has come, at most 64 datagrams, each with its sender's ``IP:PORT``. One that is longer than a packet may
        be comes cut, one byte too long."""
        found = []
        for _ in range(DATAGRAMS_A_TURN):
            try:
                data, source = self._socket.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                break
            except OSError as error:  # an ICMP error of something sent before: nothing is lost by it but that
                self.failed[_name(error)] += 1
                continue
            self.received += 1
            self.received_bytes += len(data)
            found.append((data, _text(source)))
        return found

    def send(self, to: str, datagram: bytes) -> None:
        """Send to ``IP:PORT``, or count why not: a full buffer, no route, an address that is none."""
        address = socket_address(to)
        if address is None:
            self.failed["address"] += 1
            return
        try:
            self._socket.sendto(datagram, address)
        except OSError as error:
            self.failed[_name(error)] += 1
            return
        self.sent += 1
        self.sent_bytes += len(datagram)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _text(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "buffer_full"
    return errno.errorcode.get(error.errno or 0, os.strerror(error.errno or 0)).lower()
