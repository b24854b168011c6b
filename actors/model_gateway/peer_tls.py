"""TLS of a gateway: with gateways of other hosts, which both show the cluster's certificates, and with clients.

A host's certificate says who it is; the table says who is a member. What is renewed on the disk is taken up within a
second; connections that are open go on.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Container
from pathlib import Path
from time import time

from actorgrid.actors.security.certificates import identify
from actorgrid.actors.security.host_material import BUNDLE_FILE, HOST_FILE, load_material
from actorgrid.actors.security.tls_contexts import TlsContexts, https_context, ssl_contexts
from actorgrid.errors import ActorGridError

from .replica_connections import ReplicaConnection

log = logging.getLogger("actorgrid.model_gateway")


class GatewayTls:
    """The contexts, of the newest certificate and bundle in *folder*. *members*: the ids of the cluster's hosts."""

    def __init__(self, folder: Path, members: Callable[[], Container[str]]) -> None:
        self._folder = folder
        self._members = members
        self._seen: tuple[float, ...] = ()
        self._hosts: TlsContexts | None = None
        self._clients: ssl.SSLContext | None = None
        self._cluster_id = ""
        self.look()

    def look(self) -> None:
        """Take up what is new on the disk. What cannot be used is logged once, and what was goes on."""
        seen = tuple(
            found.st_mtime_ns for name in (HOST_FILE, BUNDLE_FILE) if (found := _stat(self._folder / name)) is not None
        )
        if seen == self._seen:
            return
        self._seen = seen
        try:
            material = load_material(self._folder, time(), expired_too=True)
            if material is not None:
                self._hosts, self._clients = ssl_contexts(material), https_context(material)
                self._cluster_id = material.identity.cluster_id
        except ActorGridError as error:
            log.error("the gateway goes on with the certificate it had: %s", error)

    def context(self) -> ssl.SSLContext | None:
        """For connections to other gateways."""
        return None if self._hosts is None else self._hosts.client

    @property
    def server(self) -> ssl.SSLContext | None:
        """For connections of other gateways."""
        return None if self._hosts is None else self._hosts.server

    @property
    def clients(self) -> ssl.SSLContext | None:
        """For connections of clients."""
        return self._clients

    def check(self, connection: ReplicaConnection, host: str) -> None:
        """Raises OSError where the other side is not that host."""
        found = self.host_of(connection.transport.get_extra_info("ssl_object") if connection.transport else None)
        if found != host:
            raise OSError(f"the gateway there is that of {found or 'nobody'}")

    def host_of(self, tls: ssl.SSLObject | None) -> str | None:
        """The member that is at the other side; ``None`` for nobody of this cluster."""
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate is None:
            return None
        try:
            identity = identify(certificate)
        except ActorGridError:
            return None
        is_member = identity.cluster_id == self._cluster_id and identity.host_id in self._members()
        return identity.host_id if is_member else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
