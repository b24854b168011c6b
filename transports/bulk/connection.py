"""One TLS connection between two hosts that carries pieces, for a thread that may block.

It begins as any link between hosts: the same port, certificates, the ledger's word on the other host, the same Hello,
whose lane is ``pieces``. A host of before refuses that lane by name, and the caller goes on over one stream. Then
bytes go through memory: read from the socket by 256 KiB, decrypted record by record to where they belong, and encrypted
from where they lie. OpenSSL and the kernel work without the interpreter's lock.
"""

from __future__ import annotations

import socket
import ssl
import struct
from time import monotonic
from typing import Any

from actorgrid.errors import ActorGridError, FrameTooLarge, HostUnreachable, MalformedBody, PeerGone, PeerRefused

from ..frames import FrameDecoder, encode_frame
from ..peer.frames import PIECES_LANE
from ..peer.limits import PeerLimits
from ..peer.link import Admit, LinkUp, PeerLink
from ..peer.session import LinkDown
from ..peer.tls import PeerIdentity, TlsPipe

READ_BYTES = 256 * 1024
WRITE_BYTES = 256 * 1024
"""Encrypted and sent at once: as much as stays in a processor's cache."""
SILENT_S = 20.0
"""A side that neither sends nor takes a byte for so long is gone."""
FRAME_BYTES_MAX = 64 * 1024
PIECES_VERSION = 1
_LENGTH = struct.Struct(">I")


class PiecesConnection:
    """A connection after its Hello. *connected*, *tls*, *unsent* (ciphertext): of its link. Methods raise PeerGone."""

    def __init__(
        self, connected: socket.socket, tls: TlsPipe, host_id: str, fingerprint: str, unsent: bytes = b""
    ) -> None:
        self.host_id = host_id
        self.fingerprint = fingerprint
        self._socket = connected
        self._tls = tls
        self._unsent = unsent
        self._buffer = memoryview(bytearray(READ_BYTES))
        connected.settimeout(SILENT_S)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send all of *parts*, one after the other."""
        try:
            self.begin()
            for part in parts:
                view = memoryview(part)
                for at in range(0, len(view), WRITE_BYTES):
                    self._tls.write(view[at : at + WRITE_BYTES])
                    self._socket.sendall(self._tls.take())
        except (OSError, ssl.SSLError) as error:
            raise PeerGone(f"the connection for pieces with {self.host_id} broke: {error}") from error

    def begin(self) -> None:
        """Send what the link had encrypted and not sent. Raises OSError."""
        if self._unsent:
            self._socket.sendall(self._unsent)
            self._unsent = b""

    def send_frame(self, fields: list[Any]) -> None:
        """Send a frame."""
        self.send(encode_frame(fields, FRAME_BYTES_MAX))

    def receive_into(self, into: memoryview) -> None:
        """Receive exactly as many bytes as *into* has."""
        at = 0
        try:
            self.begin()
            while at < len(into):
                got = self._tls.read_into(into[at:])
                if got is None:
                    raise PeerGone(f"{self.host_id} closed the connection for pieces")
                at += got
                if not got:
                    count = self._socket.recv_into(self._buffer)
                    if not count:
                        raise PeerGone(f"{self.host_id} closed the connection for pieces")
                    self._tls.feed(self._buffer[:count])
        except (OSError, ssl.SSLError) as error:
            raise PeerGone(f"the connection for pieces with {self.host_id} broke: {error}") from error

    def receive_frame(self) -> list[Any]:
        """Receive a frame. Raises MalformedBody and FrameTooLarge as well."""
        head = bytearray(_LENGTH.size)
        self.receive_into(memoryview(head))
        (length,) = _LENGTH.unpack(head)
        if length > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a frame of {length} bytes is announced between pieces")
        body = bytearray(length)
        self.receive_into(memoryview(body))
        frames = FrameDecoder(FRAME_BYTES_MAX).feed(head + body)
        if len(frames) != 1:
            raise MalformedBody("not one frame between pieces")
        return frames[0]

    def break_off(self) -> None:
        """Have whoever is at it, in another thread, find the connection gone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def dial(
    identity: PeerIdentity,
    addresses: list[tuple[str, int]],
    host_id: str,
    admit: Admit,
    software: str = "",
    limits: PeerLimits | None = None,
) -> PiecesConnection:
    """Connect to *host_id* for pieces: blocks for at most the limits' handshake at each address.

    Raises HostUnreachable, PeerRefused (also where it is of a version that has no pieces), PeerGone.
    """
    limits = limits or PeerLimits()
    why: ActorGridError | None = None
    for address in addresses:
        try:
            connected = socket.create_connection(address, limits.handshake_s)
        except OSError as error:
            why = HostUnreachable(f"{host_id} at {address[0]}:{address[1]}: {error}")
            continue
        try:
            return _greet(connected, identity, host_id, admit, software, limits)
        except ActorGridError as error:
            connected.close()
            why = error
        except BaseException:
            connected.close()
            raise
    raise why or HostUnreachable(f"no address is known for {host_id}")


def _greet(
    connected: socket.socket, identity: PeerIdentity, host_id: str, admit: Admit, software: str, limits: PeerLimits
) -> PiecesConnection:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link = PeerLink(
        identity,
        admit,
        monotonic(),
        dialled=True,
        expected_host=host_id,
        lane=PIECES_LANE,
        software=software,
        limits=limits,
    )
    until = monotonic() + limits.handshake_s
    try:
        while True:
            while (event := link.next_event()) is not None:
                if isinstance(event, LinkDown):
                    raise event.error
                if isinstance(event, LinkUp):
                    connection = PiecesConnection(connected, link.give_away(), host_id, event.fingerprint)
                    _check_version(connection)
                    return connection
            if data := link.bytes_to_send():
                connected.sendall(data)
            connected.settimeout(max(0.01, until - monotonic()))
            data = connected.recv(READ_BYTES)
            if data:
                link.receive(data, monotonic())
            else:
                link.end_of_stream()
    except OSError as error:
        raise PeerGone(f"{host_id} did not greet for pieces: {error}") from error


def _check_version(connection: PiecesConnection) -> None:
    """Hear which pieces the other side speaks: one of before says that it knows no such lane, and no more."""
    try:
        found = connection.receive_frame()
    except ActorGridError as error:
        raise PeerRefused(
            f"{connection.host_id} takes no connections for pieces: it is of another version, or has enough of them",
            found=error.message,
        ) from error
    if found != ["pieces", PIECES_VERSION]:
        raise PeerRefused(
            f"{connection.host_id} speaks another version of pieces", asked=str(PIECES_VERSION), found=str(found)[:40]
        )
