"""RDMA to the other hosts of the cluster: the device of this process, and a path for each host it is wanted with.

What goes over the paths, a subclass says (``RdmaStreams``). Everything runs in the loop's thread. ``RdmaLimits`` says
the bounds.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from actorgrid.errors import NotSupported, PeerGone

from ..peer.calls import Cancellable, NetLoop, Stream
from .limits import RdmaLimits
from .path import PathStatus, RdmaPath
from .peer_core import PairFailed
from .verbs import RdmaDevice

TARGET = "rdma"
"""Of the TLS stream beside a pair."""
OPEN_AGAIN_S = 30.0
"""A device that could not be opened, or failed, is tried again after this."""

OpenStream = Callable[[str, str, bytes], Stream]
log = logging.getLogger("actorgrid.links")


class RdmaPeer(ABC):
    """Another host's path, and what goes over it."""

    def __init__(self, net: RdmaNet[Any], host_id: str) -> None:
        self.host_id = host_id
        self.path = RdmaPath(
            net.loop,
            net.host_id,
            host_id,
            net.limits,
            net.device,
            lambda: net.open_tls(host_id, TARGET, b""),
            self.on_path_message,
            self.on_path_room,
            self.on_path_reset,
        )

    @abstractmethod
    def on_path_message(self, data: bytes) -> None:
        """The next message came; say ``consumed`` when it is dealt with."""

    @abstractmethod
    def on_path_room(self) -> None:
        """The path takes messages (again)."""

    @abstractmethod
    def on_path_reset(self) -> None:
        """The other process is another one, or was away for too long: what was under way is lost."""

    def end_all(self, why: str) -> None:
        """End the path and what goes over it."""
        self.path.close(why)
        self.on_path_reset()


Peer = TypeVar("Peer", bound=RdmaPeer)


class RdmaNet(ABC, Generic[Peer]):
    """See the module. *open_tls*: (host, target, head), a stream over the peers' mutual TLS link.

    *device_name* and *gid_index*: which one to use; "" and -1: the first, and its address of RoCE v2.
    """

    def __init__(
        self,
        loop: NetLoop,
        host_id: str,
        open_tls: OpenStream,
        *,
        device_name: str = "",
        gid_index: int = -1,
        limits: RdmaLimits | None = None,
    ) -> None:
        self.loop, self.host_id = loop, host_id
        self.limits = limits or RdmaLimits()
        self.open_tls = open_tls
        self._device_name, self._gid_index = device_name, gid_index
        self._device: RdmaDevice | None = None
        self._why = ""
        self._open_again_s = 0.0
        self._more: Cancellable | None = None
        self._peers: dict[str, Peer] = {}
        self._closed = False

    @abstractmethod
    def _new_peer(self, host_id: str) -> Peer:
        """A peer, with its path."""

    # -- for the owner

    def peer(self, host_id: str) -> Peer | None:
        """A peer whose path was begun, here or there."""
        return self._peers.get(host_id)

    def want(self, host_id: str) -> None:
        """Begin a path to a host; nothing where there is no device here, or as many paths as there may be."""
        if host_id in self._peers or self._closed or isinstance(self.device(), str):
            return
        if len(self._peers) < self.limits.peers:
            self._peers[host_id] = self._new_peer(host_id)
            self._peers[host_id].path.begin()

    def take(self, stream: Stream) -> None:
        """Another host opened the stream of a path. Raises PeerGone, NotSupported."""
        if self._closed:
            raise PeerGone("RDMA stops on this host")
        peer = self._peers.get(stream.host_id)
        if peer is None:
            if len(self._peers) >= self.limits.peers:
                raise NotSupported("this host has RDMA paths to as many hosts as it may", found=str(self.limits.peers))
            peer = self._peers[stream.host_id] = self._new_peer(stream.host_id)
        peer.path.came(stream)

    def forget(self, host_id: str) -> None:
        """End the path to a host that is no member any more."""
        peer = self._peers.pop(host_id, None)
        if peer is not None:
            peer.end_all(f"{host_id} is no host of this cluster now")

    def status(self) -> tuple[str, list[PathStatus]]:
        """Why there is no device ("" where there is one, or none was asked for yet), and the paths."""
        return self._why, [peer.path.status() for peer in self._peers.values()]

    def close(self, why: str = "RDMA stops on this host") -> None:
        """End all of it."""
        self._closed = True
        for peer in self._peers.values():
            peer.end_all(why)
        self._peers.clear()
        self._close_device()

    # -- the device

    def device(self) -> RdmaDevice | str:
        """The device, opened when it is needed first; a text says why there is none now."""
        if self._device is not None:
            return self._device
        if self._closed or self.loop.monotonic() < self._open_again_s:
            return self._why or "RDMA stops on this host"
        try:
            device = self._device = RdmaDevice(self._device_name, self._gid_index, self.limits)
        except NotSupported as error:
            self._why = str(error)
            self._open_again_s = self.loop.monotonic() + OPEN_AGAIN_S
            log.warning("%s", error)
            return self._why
        self._why = ""
        self.loop.watch(device.fd, self._drain)
        if device.events_fd >= 0:
            self.loop.watch(device.events_fd, self._device_says)
        return device

    def _drain(self) -> None:
        self._more = None
        device = self._device
        if device is None:
            return
        try:
            if device.drain() and self._more is None:
                self._more = self.loop.after(0.0, self._drain)
        except PairFailed as failed:
            self._device_failed(str(failed))

    def _device_says(self) -> None:
        if self._device is None:
            return
        try:
            self._device.take_events()
        except PairFailed as failed:
            self._device_failed(str(failed))

    def _device_failed(self, why: str) -> None:
        log.warning("%s: its messages go over TLS", why)
        self._why = why
        self._open_again_s = self.loop.monotonic() + OPEN_AGAIN_S
        self._close_device()
        for peer in self._peers.values():
            peer.path.failed(why)

    def _close_device(self) -> None:
        device, self._device = self._device, None
        if self._more is not None:
            self._more.cancel()
            self._more = None
        if device is not None:
            self.loop.unwatch(device.fd)
            if device.events_fd >= 0:
                self.loop.unwatch(device.events_fd)
            device.close()
