"""The way to actors that are kept apart, on a host that is of no cluster and so has no links to lead there."""

from __future__ import annotations

import os
from pathlib import Path

from actorgrid.errors import HostUnreachable
from actorgrid.supervisors.server import Server
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.user_actor_frames import far_actors_path

from ..work.attempt_specs import object_store_path
from ..work.environment import host_tag
from .actor_relays import ActorRelays


def open_actor_door(server: Server) -> ActorRelays | None:
    """Take callers of actors of this host, which have other sockets than it has. Raises StartFailed.

    ``None`` in a cluster, and for an agent that is not root: it keeps no work apart that way.
    """
    host = server.host
    if host.enrolment is not None or os.geteuid() != 0:
        return None
    sockets = host.paths.work_sockets_dir
    made = ActorRelays(server.runtime, str(host.host_id), sockets, _no_links, host.paths.users_dir)
    made.listen(Path(far_actors_path(str(object_store_path(sockets, host_tag(host.paths.data_dir))))))
    return made


def _no_links(host_id: str, _target: str, _head: bytes) -> Stream:
    raise HostUnreachable("this host is of no cluster", asked=f"a stream to host {host_id}")
