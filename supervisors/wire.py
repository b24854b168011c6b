"""What processes of one host say to each other: envelopes between servers, orders between supervisor and child.

Envelopes travel as bytes, pickled once, as a plain tuple: that is twice as fast as pickling the dataclass.
The rest are small frozen dataclasses that the transport pickles itself.
"""

from __future__ import annotations

import pickle  # nosec B403 - between processes that proved the boot's key to each other
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import ActorGridError

from .envelope import Envelope
from .exits import ExitReason
from .ref import Ref


def pack(envelope: Envelope) -> bytes:
    """The bytes of an envelope. Its source is left out: the receiver knows who sent them."""
    return pickle.dumps((envelope.kind, envelope.sender, envelope.ref, envelope.body), pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes | bytearray | memoryview, address: str) -> Envelope:
    """The envelope that the process at *address* sent."""
    kind, sender, ref, body = pickle.loads(data)  # nosec B301 - see the module
    return Envelope(kind, sender, ref, body, Ref(address, sender))


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """The settings of all processes of one tree.

    Each process's loop beats every ``beat_interval_s``. A process is hung when its handler runs ``hang_margin_s``
    longer than declared, or its idle loop misses three beats and the margin (``watchdog.py``). No more than
    ``actors_max`` processes live at a time.
    """

    beat_interval_s: float = 1.0
    hang_margin_s: float = 2.0
    actors_max: int = 1000


@dataclass(frozen=True, slots=True)
class Inherited:
    """In place of a host: the one of the parent, which the fork handed on (``actor_runtime.share_host``)."""


@dataclass(frozen=True, slots=True)
class HostServer:
    """The first order to a new process: be this server. The answer is ServerStarted or ServerStartFailed.

    ``returned``: there was one of this name before, so the others are told that it came back. ``heartbeat`` is
    the number of the one made for it.
    """

    name: str
    kind: str
    host: Any
    arguments: tuple[Any, ...] = ()
    settings: TreeSettings = TreeSettings()
    heartbeat: int = 0
    registered: bool = True
    returned: bool = False
    shutdown_s: float | None = None
    max_handler_s: float | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class StopServer:
    """Run ``Server.stop(reason)`` and leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """``start`` has ended well."""

    pid: int


@dataclass(frozen=True, slots=True)
class ServerStartFailed:
    """``start`` raised; the process leaves."""

    error: ActorGridError


@dataclass(frozen=True, slots=True)
class LastWords:
    """Tells the supervisor why the process is about to end."""

    reason: ExitReason


@dataclass(frozen=True, slots=True)
class CameBack:
    """Says that a registered server was started again. Passed on to every process of the tree."""

    name: str


@dataclass(frozen=True, slots=True)
class WhyEnded:
    """Asks the parent of a watched process why that process ended.

    The answer is Ended, once it has ended and was buried.
    """

    ref: Ref


@dataclass(frozen=True, slots=True)
class Ended:
    """Says how a child ended: by its own words, or the kernel's."""

    ref: Ref
    reason: ExitReason
