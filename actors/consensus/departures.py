"""What a host does when the others say that it is no member any more: remember it, and stop."""

from __future__ import annotations

from collections.abc import Callable
from time import time

from actorgrid.errors import HostRemoved
from actorgrid.supervisors.server import Server

from ..host.departure import mark_departed, removed
from ..host.messages import StopHost
from .member_links import REMOVED


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

    def refused(self, host_id: str, why: str) -> None:
        """Member *host_id* does not take us. Where no leader does either, and the word is that we were removed, go.

        A member that lags, and does not know us yet, says something else.
        """
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
