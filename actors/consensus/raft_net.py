"""The net that carries Raft between this host and the others: TCP with mutual TLS, of the host's own material."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import actorgrid
from actorgrid.errors import KeyUnusable, NotSupported
from actorgrid.transports.peer_calls import IncomingCall, Loop, OnCast, Stream
from actorgrid.transports.peer_hosts import PeerHosts
from actorgrid.transports.peer_link import Admit
from actorgrid.transports.peer_net import PeerNet, Resolve
from actorgrid.transports.peer_tls import PeerIdentity

from ..security.host_material import load_material
from ..security.tls_contexts import ssl_contexts


@dataclass(frozen=True, slots=True)
class RaftNet:
    """Makes it: listens on *address* and *port*, with what lies in *security_dir* at that moment."""

    security_dir: Path
    address: str
    port: int

    def __call__(self, loop: Loop, resolve: Resolve, admit: Admit, on_cast: OnCast) -> PeerNet:
        """See ``raft_links.MakeNet``. Raises PortInUse, and as ``identity``."""
        return PeerNet(
            loop,
            self.identity(),
            (self.address, self.port),
            resolve=resolve,
            admit=admit,
            on_call=_refuse_call,
            on_cast=on_cast,
            on_stream=_refuse_stream,
            software=actorgrid.__version__,
        )

    def renew(self, net: PeerHosts) -> None:
        """Have the net use what lies on disk now for its next links. Raises as ``identity``."""
        assert isinstance(net, PeerNet), "it is the net that this has made"
        net.renew(self.identity())

    def identity(self) -> PeerIdentity:
        """What lies on disk now. Raises KeyUnusable, and what ``load_material`` raises."""
        material = load_material(self.security_dir, time.time())
        if material is None:
            raise KeyUnusable(
                "this host is a member of a cluster and has no certificate",
                asked=str(self.security_dir),
                hint="restore the folder from a backup; else remove the host and join again in an empty directory",
            )
        contexts, identity = ssl_contexts(material), material.identity
        return PeerIdentity(identity.cluster_id, identity.host_id, contexts.server, contexts.client)


def _refuse_call(call: IncomingCall) -> None:
    raise NotSupported("the port of Raft takes messages of Raft only", asked=call.target)


def _refuse_stream(_stream: Stream) -> None:
    raise NotSupported("the port of Raft takes messages of Raft only", asked="a stream")
