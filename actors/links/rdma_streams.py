"""What the links of this host have of RDMA: streams to object stores, where ``transports.rdma`` is on (docs/rdma.md).

Nothing of it is loaded where the setting is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from actorgrid.errors import NotSupported
from actorgrid.transports.peer.calls import NetLoop, OnStream, Stream
from actorgrid.transports.peer.limits import PeerLimits

from .object_relays import OpenStream

if TYPE_CHECKING:
    from actorgrid.transports.rdma.streams import RdmaStreams

RDMA = "rdma"
"""The target of the stream beside a pair: ``actorgrid.transports.rdma.net.TARGET``."""


class RdmaPathFigures(TypedDict):
    """The path to one host."""

    carrier: str
    """What carries messages: "rdma", "tls" while there is no pair, "none" while there is no link."""
    reason: str
    """Why there is no pair."""
    pairs: int
    """Made since this process started."""
    pairs_failed: int
    unconsumed: int
    """Messages that the other host has not dealt with."""


class RdmaFigures(TypedDict):
    """RDMA of this host."""

    on: bool
    unavailable: str
    """Why no device is in use; empty where one is, or none was needed yet."""
    hosts: dict[str, RdmaPathFigures]


def start_rdma(
    host: Any, loop: NetLoop, open_tls: OpenStream, takers: Mapping[str, OnStream], limits: PeerLimits
) -> RdmaStreams | None:
    """RDMA as the settings of *host* say; ``None`` where it is off. *takers*: who takes streams, by their target."""
    wanted = host.settings.transports
    if not wanted.rdma:
        return None
    from actorgrid.transports.rdma.streams import RdmaStreams

    def take(stream: Stream) -> None:
        found = takers.get(stream.target)
        if found is None:
            raise NotSupported("there is no such stream over RDMA", asked=stream.target[:80], found=", ".join(takers))
        found(stream)

    return RdmaStreams(
        loop,
        str(host.host_id),
        open_tls,
        on_stream=take,
        peer_limits=limits,
        device_name=wanted.rdma_device,
        gid_index=wanted.rdma_gid_index,
    )


def take_rdma(rdma: RdmaStreams | None, stream: Stream) -> None:
    """Another host begins a path. Raises NotSupported, PeerGone."""
    if rdma is None:
        raise NotSupported(
            "RDMA is off on this host", asked=stream.target, hint="set transports.rdma to true on both hosts"
        )
    rdma.take(stream)


def rdma_status(rdma: RdmaStreams | None) -> RdmaFigures:
    """RDMA of this host, for who looks."""
    if rdma is None:
        return {"on": False, "unavailable": "", "hosts": {}}
    unavailable, paths = rdma.status()
    hosts: dict[str, RdmaPathFigures] = {
        path.host_id: {
            "carrier": path.carrier,
            "reason": path.reason,
            "pairs": path.pairs,
            "pairs_failed": path.pairs_failed,
            "unconsumed": path.unconsumed,
        }
        for path in paths
    }
    return {"on": True, "unavailable": unavailable, "hosts": hosts}
