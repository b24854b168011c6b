"""HTTPS for clients of other machines: takes connections on the cluster's address, and makes them private.

Whoever has not shown that it speaks TLS costs a bounded amount: 64 handshakes at once, 8 of one address, 5 s each. One
that is one too many takes the place of the oldest (of its address, or of all): a handshake takes milliseconds, so that
it is hardly ever an honest one. A context that is replaced serves the next connection; those that are open go on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import time

from actorgrid.actors.security.host_material import HOST_FILE, HostMaterial, load_material
from actorgrid.actors.security.tls_contexts import https_context
from actorgrid.actors.security.token_rate_limit import network_of
from actorgrid.errors import ActorGridError, KeyUnusable

HANDSHAKES_MAX = 64
HANDSHAKES_OF_ONE_MAX = 8
HANDSHAKE_S = 5.0
ACCEPT_PAUSE_S = 0.1
"""When no connection can be taken: there are no descriptors left, for instance."""

log = logging.getLogger("actorgrid.gateway")


class Certificate:
    """The host's certificate, from its files. ``look`` is for the server's thread, ``context`` for any."""

    def __init__(self, folder: Path) -> None:
        """Raises KeyUnusable, and what ``load_material`` does."""
        self._folder = folder
        # Marked before it is read: one that comes in between is then found by the next look.
        self._seen = self._mark()
        self._use(self._load())

    def look(self) -> bool:
        """Look for a new certificate on disk; whether one is used from now on. One that cannot be used is logged."""
        mark = self._mark()
        if mark == self._seen:
            return False
        # Before it is tried: one that cannot be used is logged once, and not at each look.
        self._seen = mark
        try:
            self._use(self._load())
        except ActorGridError as error:
            log.error("HTTPS goes on with the certificate it had: %s", error)
            return False
        return True

    def _mark(self) -> tuple[int, int]:
        try:
            found = (self._folder / HOST_FILE).stat()
        except FileNotFoundError:
            return (0, 0)
        return found.st_ino, found.st_mtime_ns

    def _load(self) -> HostMaterial:
        # One that ran out is shown, too: who comes refuses it and says why, and the host is up to get another.
        material = load_material(self._folder, time(), expired_too=True)
        if material is None:
            raise KeyUnusable("this host has no certificate", asked=str(self._folder))
        return material

    def _use(self, material: HostMaterial) -> None:
        self.context = https_context(material)
        self.authority = f"sha256:{material.bundle.signing.fingerprint}"
        """By which clients know the cluster."""


class TlsListener:
    """The HTTPS listener: takes connections for the loop it is served in."""

    def __init__(self, sock: socket.socket, certificate: Certificate) -> None:
        self.sock = sock
        self._certificate = certificate
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Handshakes under way, the oldest first, and whose they are."""
        self.refused_total = 0

    async def serve(self, connect: Callable[[], asyncio.Protocol]) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self.sock)
                except OSError as error:
                    log.warning("a connection was lost before it began: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                source = network_of(str(address[0]))
                of_one = [task for task, whose in self._tasks.items() if whose == source]
                if len(of_one) >= HANDSHAKES_OF_ONE_MAX:
                    self._give_up(of_one[0])
                elif len(self._tasks) >= HANDSHAKES_MAX:
                    self._give_up(next(iter(self._tasks)))
                task = asyncio.create_task(self._shake_hands(connection, source, connect))
                self._tasks[task] = source
                task.add_done_callback(partial(self._done, connection))
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():  # perhaps before it began
            connection.close()

    def _give_up(self, task: asyncio.Task[None]) -> None:
        self.refused_total += 1
        # At once: a task that is cancelled stays for another turn, and would be counted, and chosen, again.
        del self._tasks[task]
        task.cancel()

    async def _shake_hands(
        self, connection: socket.socket, source: str, connect: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                connect, connection, ssl=self._certificate.context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self.refused_total += 1
            log.debug("no TLS with %s: %s", source, error)
            connection.close()
