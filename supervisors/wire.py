"""What processes of one host say to each other: envelopes between servers, orders between supervisor and child.

Envelopes travel as bytes, pickled once, as a plain tuple: that is twice as fast as pickling the dataclass.
The rest are small frozen dataclasses that the transport pickles itself.
"""

from __future__ import annotations

import pickle  # nosec B403 - between processes that proved the boot's key to each other
from dataclasses import dataclass, field
from typing import Any

from actorgrid.errors import ActorGridError

from .child import ChildSpec
from .server import Envelope


def pack(envelope: Envelope, generation: int) -> bytes:
    """The bytes of an envelope; *generation* tells the sender's processes of one name apart."""
    return pickle.dumps(
        (envelope.kind, envelope.sender, generation, envelope.ref, envelope.body), pickle.HIGHEST_PROTOCOL
    )


def unpack(data: bytes | bytearray) -> tuple[Envelope, int]:
    """The envelope and its sender's generation."""
    kind, sender, generation, ref, body = pickle.loads(data)  # nosec B301 - see the module
    return Envelope(kind, sender, ref, body), generation


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is. ``generation`` counts the processes that had its name; ``up``: its start has ended."""

    address: str
    generation: int
    up: bool


@dataclass(frozen=True, slots=True)
class HostServer:
    """The first order to a new process: be this server. The answer is ServerStarted or ServerStartFailed."""

    name: str
    kind: str
    host: Any
    generation: int
    directory: dict[str, Place]
    children: tuple[ChildSpec, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Directory:
    """All servers that have a process now. Replaces what was known."""

    places: dict[str, Place]


@dataclass(frozen=True, slots=True)
class StopServer:
    """Run ``Server.stop(reason)`` and leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """``start`` has ended well."""

    name: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class ServerStartFailed:
    """``start`` raised; the process leaves."""

    name: str
    generation: int
    error: ActorGridError


@dataclass(frozen=True, slots=True)
class ServerCrashed:
    """Why the process is about to end: a broken invariant, or a supervisor that gave up."""

    name: str
    generation: int
    error: ActorGridError
