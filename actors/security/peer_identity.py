"""What a host shows and believes on links with other hosts, from what lies on its disk now."""

from __future__ import annotations

import time
from pathlib import Path

from actorgrid.errors import KeyUnusable
from actorgrid.transports.peer.tls import PeerIdentity

from .host_material import load_material
from .tls_contexts import ssl_contexts


def peer_identity(security_dir: Path) -> PeerIdentity:
    """This host's identity and TLS contexts for links. Raises KeyUnusable, and what ``load_material`` raises."""
    material = load_material(security_dir, time.time())
    if material is None:
        raise KeyUnusable(
            "this host is a member of a cluster and has no certificate",
            asked=str(security_dir),
            hint="restore the folder from a backup; else remove the host and join again in an empty directory",
        )
    contexts, identity = ssl_contexts(material), material.identity
    return PeerIdentity(identity.cluster_id, identity.host_id, contexts.server, contexts.client)
