"""The TCP sockets that listen on this host: asked of the kernel (sock_diag(7)), or read in /proc where that is refused.

The table in /proc holds connections as well, and was read in 16 ms on a machine with hardly any; the question for those
that listen was answered in 0.3 ms.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

NETLINK_SOCK_DIAG = 4
ANSWER_BYTES = 64 * 1024
ANSWER_S = 1.0
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLM_F_DUMP, _NLMSG_ERROR, _NLMSG_DONE = 20, 0x001, 0x300, 2, 3
_TCP_LISTEN = 10
_HEAD = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, pid."""
_REQUEST = struct.Struct("=BBBBI48s")
"""inet_diag_req_v2: family, protocol, extensions, padding, states, socket id."""
_ANSWER = struct.Struct("=BBBB2s2s16s16s12sIIIII")
"""inet_diag_msg: family, state, timer, retransmits; ports, addresses, interface and cookie; expires, queues, uid,
inode."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class ListeningSocket(NamedTuple):
    """A socket that listens on this host."""

    family: socket.AddressFamily
    address: str
    port: int
    inode: int

    @property
    def is_near(self) -> bool:
        """Whether it is reached over loopback."""
        found = ipaddress.ip_address(self.address)
        return found.is_loopback or found.is_unspecified

    @property
    def reached_at(self) -> str:
        """The address to connect to: of this machine, where it listens on all."""
        if not ipaddress.ip_address(self.address).is_unspecified:
            return self.address
        return "127.0.0.1" if self.family == socket.AF_INET else "::1"


def listening_sockets(port: int = 0) -> list[ListeningSocket]:
    """All of this host's, or those on *port*; those of IPv4, and those that are reached over loopback, first.

    The kernel looks for a port by itself: what a hundred others listen on takes a millisecond to read.
    """
    try:
        found = [each for family in _FAMILIES for each in _asked(family, port)]
    except OSError:
        found = _read()
    if port:
        found = [each for each in found if each.port == port]
    return sorted(found, key=lambda each: (each.family, not each.is_near))


def _asked(family: socket.AddressFamily, port: int) -> list[ListeningSocket]:
    """Those of a family, on *port* if that is not 0, by the kernel's answer. Raises OSError."""
    # The socket's id begins with its own port; what is 0 there is not looked at.
    id = port.to_bytes(2, "big")
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN, id)
    head = _HEAD.pack(_HEAD.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    found: list[ListeningSocket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(ANSWER_S)
        asked.send(head + body)
        while True:
            data, at = asked.recv(ANSWER_BYTES), 0
            while at + _HEAD.size <= len(data):
                length, kind, *_ = _HEAD.unpack_from(data, at)
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR or length < _HEAD.size:
                    raise OSError("the kernel does not tell which sockets listen")
                if length >= _HEAD.size + _ANSWER.size:
                    found.append(_socket_of(_ANSWER.unpack_from(data, at + _HEAD.size)))
                at += (length + 3) & ~3


def _socket_of(fields: tuple[int | bytes, ...]) -> ListeningSocket:
    family, port, address, inode = fields[0], fields[4], fields[6], fields[-1]
    assert isinstance(port, bytes) and isinstance(address, bytes) and isinstance(inode, int), "as of the struct"
    v4 = family == socket.AF_INET
    text = str(ipaddress.ip_address(address[:4] if v4 else address))
    return ListeningSocket(_FAMILIES[0 if v4 else 1], text, int.from_bytes(port, "big"), inode)


def _read() -> list[ListeningSocket]:
    """All of them, by the tables of /proc."""
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError), open(f"/proc/self/net/{table}", encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == f"{_TCP_LISTEN:02X}":
                    address, _, port = fields[1].partition(":")
                    found.append(ListeningSocket(family, _address(address), int(port, 16), int(fields[9])))
    return found


def _address(text: str) -> str:
    """An address as the kernel writes it: words of 32 bits, each in the byte order of the machine."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    return str(ipaddress.ip_address(packed))


def sockets_of(pids: list[int]) -> set[int]:
    """The inodes of all sockets that these processes have open, as far as we may look."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return found
