"""The end of a host's membership: when the others say that it is no member any more, it remembers that and stops."""

from __future__ import annotations

from collections.abc import Callable
from time import time

from actorgrid.errors import CertificateRefused, HostRemoved
from actorgrid.supervisors.server import Server

from ..files.departure import mark_departed, removed
from ..host.messages import StopHost
from .member_links import ANOTHER_KEY, REMOVED


class Departures:
    """*led*: whether a leader is known, who takes this host for a member. *starting*: whether the host's start waits
    for the ledger still; then that *fail*s."""

    def __init__(
        self,
        server: Server,
        led: Callable[[], bool],
        starting: Callable[[], bool],
        fail: Callable[[HostRemoved], None],
    ) -> None:
        self._server, self._led, self._starting, self._fail = server, led, starting, fail
        self._told = False
        self._replaced = ""

    def replaced(self) -> CertificateRefused | None:
        """Why a start found no leader: the error when members know this host by another key than it has."""
        if not self._replaced:
            return None
        return CertificateRefused(
            "the cluster knows this host by another key than the one that is here",
            asked=str(self._server.host.host_id),
            found=f"so says {self._replaced}",
            hint="was its data directory copied, and started elsewhere? That one has its place now: stop it and bring"
            " its directory back, or join with a new token in an empty one (--data-dir)",
        )

    def refused(self, host_id: str, why: str) -> None:
        """Stop this host if member *host_id* says that it was removed, and no leader takes it for a member.

        A member that lags, and does not know us yet, says something else.
        """
        if f"{self._server.host.host_id}{ANOTHER_KEY}" in why:
            self._replaced = host_id
        own = f"{self._server.host.host_id}{REMOVED}"
        if own not in why or self._told or self._led():
            return
        self._told = True
        text = why[why.index(own) :]
        mark_departed(self._server.host.paths, text, time())
        if self._starting():
            self._fail(removed(text))
            return
        self._server.log.critical("this host is no member any more, says %s: %s", host_id, text)
        self._server.cast("host", StopHost("it is no member of the cluster any more"))
