"""What the host's supervisor takes, and what it tells the process in front (``main``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHost:
    """Stop all servers in reverse order, then the host's actor system. Answered when all servers have stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestartHost:
    """Stop all servers, leave the work that runs to itself, and start anew with the code that is on the disk by then.

    Answer: {"host_id", "incarnation"} of the start that ends; given before anything stops. Raises WrongState when the
    host is stopping already.
    """

    by: str


@dataclass(frozen=True, slots=True)
class RestartServer:
    """Kill one of the host's servers, which the supervisor then starts again as its child spec says.

    Answer: the pid that was killed. Raises NoSuchChild, WrongState while the host is stopping.
    """

    server: str
    by: str


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Cast to ``main`` at the start and when the gateway came back: where HTTP is served now."""

    url: str


@dataclass(frozen=True, slots=True)
class HostRestarts:
    """Cast to ``main``: RestartHost was asked for. ``absence_index``: where the ledger allows the host to be away."""

    by: str
    absence_index: int = 0


@dataclass(frozen=True, slots=True)
class HostStopped:
    """Cast to ``main`` before the host's actor system leaves because StopHost asked for it."""

    reason: str
