"""Which path brings large things from which host: chosen by what their transfers showed, and told to who looks.

Threads that bring objects ask as well, so that a lock is held: for microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

from actorgrid.transports.path_choice import Burst, BurstMeter, PathChoice
from actorgrid.transports.paths import PathKind

from .rdma_streams import RdmaFigures

SHOWN_MAX = 256
"""Hosts that are told of: in an answer of some 100 KiB."""


class PathView(TypedDict):
    """One path to one host."""

    path: str
    """As ``PathKind``."""
    available: bool
    reason: str
    """Why it is not, or failed last."""
    mb_per_s: float | None
    """Of its transfers, the newest weighing most; ``None`` where none was large enough."""
    transfers: int
    """Of those."""
    bytes: int
    """Of those."""


class PeerPathsView(TypedDict):
    """The paths from one host."""

    host: str
    used: str
    """The path of large things; empty where there is no link."""
    paths: list[PathView]


@dataclass(slots=True)
class _Peer:
    choice: PathChoice = field(default_factory=PathChoice)
    meters: dict[PathKind, BurstMeter] = field(default_factory=dict)
    under_way: int = 0
    begun: int = 0


class LargePaths:
    """*is_member*: of others nothing is kept. *rdma_up*: whether there is a pair with a host. Both for any thread."""

    def __init__(
        self, monotonic: Callable[[], float], is_member: Callable[[str], bool], rdma_up: Callable[[str], bool]
    ) -> None:
        self._monotonic = monotonic
        self.is_member = is_member
        self._rdma_up = rdma_up
        self._peers: dict[str, _Peer] = {}
        self._lock = threading.Lock()

    def choose(self, host_id: str, size: int) -> PathKind:
        """The path for a thing of *size* bytes: several connections, or what streams of that host go over now."""
        with self._lock:
            return self._peer(host_id).choice.choose(self._up(host_id), size, self._monotonic())

    def is_left(self, host_id: str) -> bool:
        """Whether several connections failed of late, and are left."""
        with self._lock:
            return bool(self._peer(host_id).choice.left_s(PathKind.TLS_STREAMS, self._monotonic()))

    def begin(self, host_id: str) -> int:
        """Take note that a transfer over several connections begins; gives what ``came`` wants."""
        with self._lock:
            peer = self._peer(host_id)
            peer.under_way += 1
            peer.begun += 1
            return peer.begun if peer.under_way == 1 else 0

    def came(self, host_id: str, begun: int, count: int, took_s: float) -> None:
        """Take note that it came whole. Nothing is measured where another one went beside it."""
        with self._lock:
            peer = self._peer(host_id)
            peer.under_way = max(0, peer.under_way - 1)
            peer.choice.measured(PathKind.TLS_STREAMS, count if begun == peer.begun else 0, took_s)

    def failed(self, host_id: str, why: str, *, path: bool) -> None:
        """Take note that it did not come; *path*: as the path is broken, and not for what was asked."""
        with self._lock:
            peer = self._peer(host_id)
            peer.under_way = max(0, peer.under_way - 1)
            if path:
                peer.choice.failed(PathKind.TLS_STREAMS, why, self._monotonic())

    def stream_bytes(self, host_id: str, carrier: PathKind, count: int) -> None:
        """Count bytes that came over streams of a host: bursts of them are measured."""
        with self._lock:
            peer = self._peer(host_id)
            burst = peer.meters.setdefault(carrier, BurstMeter()).came(count, self._monotonic())
            _note(peer, carrier, burst)

    def measured(self, host_id: str, kind: PathKind, count: int, took_s: float) -> None:
        """Take note of what somebody measured on purpose."""
        with self._lock:
            self._peer(host_id).choice.measured(kind, count, took_s)

    def forget(self, host_id: str) -> None:
        """Forget a host that is no member any more."""
        with self._lock:
            self._peers.pop(host_id, None)

    def views(self, host_ids: list[str], reachable: Callable[[str], bool], rdma: RdmaFigures) -> list[PeerPathsView]:
        """The paths from these hosts, ``SHOWN_MAX`` of them at most."""
        return [self._view(host_id, reachable(host_id), rdma) for host_id in host_ids[:SHOWN_MAX]]

    def _view(self, host_id: str, reachable: bool, rdma: RdmaFigures) -> PeerPathsView:
        with self._lock:
            peer, now_s = self._peer(host_id), self._monotonic()
            for kind, meter in peer.meters.items():
                if meter.is_over(now_s):
                    _note(peer, kind, meter.over())
            up = [*self._up(host_id)] if reachable else []
            paths: list[PathView] = []
            for kind in (PathKind.TLS, PathKind.TLS_STREAMS, PathKind.RDMA):
                known = peer.choice.paths.get(kind)
                left_s = peer.choice.left_s(kind, now_s)
                available = reachable and not left_s and (kind != PathKind.RDMA or kind in up)
                reason = "" if reachable else "there is no link with that host now"
                if kind == PathKind.RDMA and not available:
                    reason = _why_no_pair(host_id, rdma)
                elif known is not None and known.why:
                    reason = f"{known.why}; tried again in {left_s:.0f} s"
                rate = round(known.bytes_per_s / 1e6, 1) if known is not None and known.samples else None
                samples, count = (known.samples, known.bytes) if known is not None else (0, 0)
                paths.append(
                    {
                        "path": str(kind),
                        "available": available,
                        "reason": reason,
                        "mb_per_s": rate,
                        "transfers": samples,
                        "bytes": count,
                    }
                )
            return {"host": host_id, "used": str(peer.choice.best(up, now_s)) if up else "", "paths": paths}

    def _up(self, host_id: str) -> tuple[PathKind, PathKind]:
        return PathKind.RDMA if self._rdma_up(host_id) else PathKind.TLS, PathKind.TLS_STREAMS

    def _peer(self, host_id: str) -> _Peer:
        if not self.is_member(host_id):
            return _Peer()  # processes may ask for whatever they like
        return self._peers.setdefault(host_id, _Peer())


def _note(peer: _Peer, kind: PathKind, burst: Burst | None) -> None:
    if burst is not None:
        peer.choice.measured(kind, burst.size, burst.took_s)


def _why_no_pair(host_id: str, rdma: RdmaFigures) -> str:
    if not rdma["on"]:
        return "off: transports.rdma is false"
    found = rdma["hosts"].get(host_id)
    return rdma["unavailable"] or (found["reason"] if found is not None else "") or "no pair was needed yet"
