"""The net that carries Raft between this host and the others: TCP with mutual TLS, of the host's own material."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import actorgrid
from actorgrid.errors import NotSupported
from actorgrid.transports.peer.calls import IncomingCall, NetLoop, OnCast, OnStream
from actorgrid.transports.peer.hosts import PeerHosts
from actorgrid.transports.peer.link import Admit
from actorgrid.transports.peer.net import PeerNet, Resolve

from ..security.peer_identity import peer_identity


@dataclass(frozen=True, slots=True)
class RaftNet:
    """Makes the net: listens on *address* and *port*, with the material in *security_dir* at that moment."""

    security_dir: Path
    address: str
    port: int

    def __call__(self, loop: NetLoop, resolve: Resolve, admit: Admit, on_cast: OnCast, on_stream: OnStream) -> PeerNet:
        """See ``raft_links.MakeNet``. Raises PortInUse, and as ``peer_identity``."""
        return PeerNet(
            loop,
            peer_identity(self.security_dir),
            (self.address, self.port),
            resolve=resolve,
            admit=admit,
            on_call=_refuse_call,
            on_cast=on_cast,
            on_stream=on_stream,
            software=actorgrid.__version__,
        )

    def renew(self, net: PeerHosts) -> None:
        """Have the net use the material that lies on disk now for its next links. Raises as ``peer_identity``."""
        assert isinstance(net, PeerNet), "it is the net that this has made"
        net.renew(peer_identity(self.security_dir))


def _refuse_call(call: IncomingCall) -> None:
    raise NotSupported("the port of Raft takes messages of Raft only", asked=call.target)
