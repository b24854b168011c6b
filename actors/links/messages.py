"""What the links server takes from the other servers of its host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class AskHost:
    """Ask a *service* (``services.py``) of another host. Answer: its answer, plain values.

    Raises what the service raised, HostUnreachable, CallTimeout or PeerGone: after the last two it is unknown whether
    the host acted.
    """

    host_id: str
    service: str
    fields: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class AskHosts:
    """``AskHost`` of several at once. Answer: {host id: answer} of those that answered in time without an error."""

    host_ids: tuple[str, ...]
    service: str
    fields: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 1.0


@dataclass(frozen=True, slots=True)
class AskLeader:
    """``AskHost`` of whoever leads the ledger, also when that changes meanwhile. Raises NotLeader after *timeout_s*."""

    service: str
    fields: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class FetchBlobs:
    """Bring these payloads to this host's disk. Answer: None. Raises NotFound when no host that answers has one."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpreadBlobs:
    """Have these payloads of this host on the disks of a majority of the voters, as the ledger has the jobs that
    will name them. Answer: None. Raises HostUnreachable when too few take them.
    """

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Bring the result file of another host's attempt here. Answer: its path. Raises NotFound, HostUnreachable."""

    host_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class OpenRelay:
    """Make a local socket that leads to the worker of a session's lease on another host, or to the channels of an
    attempt there, by its id. Answer: its path."""

    host_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class CastPackets:
    """Cast these packets, each (host id, packet), to the same server there. Those that find no room are lost.

    ``target``: "state" (the shared state), or "membership".
    """

    packets: tuple[tuple[str, bytes], ...]
    target: str = "state"


@dataclass(frozen=True, slots=True)
class TellMembers:
    """Tell DistributedState the members (``MembersNow``): it began anew."""


@dataclass(frozen=True, slots=True)
class TellPaths:
    """Tell which paths there are to which host, and which one large things come over. Answer: list of
    ``PeerPathsView``."""
