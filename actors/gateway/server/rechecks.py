"""Requests under way, whose tokens are looked at again: what streams or waits ends soon after its token does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from actorgrid.errors import ActorDown

from .auth import TokenGate, authorization_of

RECHECK_S = 0.4
"""How often. With the time that the ledger's word takes to come here, nothing goes on for a second."""
FAREWELL_S = 0.3
"""Given to the last words to whoever is cut off, for those who have some."""


class Rechecks:
    """The requests under way that showed a token. Lives in the loop's thread; there are as many as connections."""

    def __init__(self, gate: TokenGate) -> None:
        self._gate = gate
        self._open: dict[int, web.Request] = {}  # by identity: they have no hash
        self._last_words: dict[int, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.cut_total = 0

    @contextmanager
    def open(self, request: web.Request) -> Iterator[None]:
        """While it lasts, *request* is broken off when its token is good no more."""
        self._open[id(request)] = request
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_S, self._look)
        try:
            yield
        finally:
            del self._open[id(request)]
            self._last_words.pop(id(request), None)

    def say_before(self, request: web.Request, last_words: bytes) -> None:
        """Have *last_words* sent before *request*, which is open, is broken off. They are bytes of its connection."""
        self._last_words[id(request)] = last_words

    def is_good(self, authorization: str | None) -> bool:
        """Whether a token that was good still is; also while nobody here can say."""
        try:
            return self._gate.identify(authorization, time.time()) is not None
        except ActorDown:  # our copy of the ledger is being filled
            return True

    def _look(self) -> None:
        self._timer = None
        for request in list(self._open.values()):
            transport = request.transport
            if transport is None or self.is_good(authorization_of(request)):
                continue
            last_words = self._last_words.get(id(request))
            if last_words is None:
                transport.abort()  # its handler is cancelled with it
            elif transport.is_closing():
                continue  # it was cut off at the look before this
            else:
                transport.write(last_words)
                transport.close()  # takes nothing more
                asyncio.get_running_loop().call_later(FAREWELL_S, transport.abort)
            self.cut_total += 1
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_S, self._look)
