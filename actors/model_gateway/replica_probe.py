"""Asks a replica that says nothing whether it is there, while requests wait for their first byte from it.

A model may think for minutes before its first byte, and a wedged one says nothing either: what tells them apart is
whether the server still answers an easy question. It is asked one after it has said nothing to anybody for 5 s, again
where it did not answer within 2 s; any answer of HTTP counts. One that misses two is taken for wedged: what waits there
and has got nothing goes to another replica, by the rules of tries. A server that computes in the thread of its door,
and so answers nobody meanwhile, has work done twice by that, and no request fails.

Bounds: one question at a time for each replica, and a connection of its own for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from actorgrid.actors.serving.table import ReplicaEndpoint

from .replica_connections import ReplicaConnection
from .request_head import AnswerHead

SUSPECT_S = 5.0
"""A replica that has requests and has said nothing for so long is asked."""
PROBE_S = 2.0
MISSES_MAX = 2
QUESTION = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\naccept-encoding: identity\r\n"

Opener = Callable[[ReplicaEndpoint], Awaitable[ReplicaConnection]]


class _FirstWord:
    """Waits for any answer."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.is_answer = False

    def answer_began(self, head: AnswerHead) -> None:
        """It answers."""
        self.is_answer = True
        self.came.set()

    def answer_body(self, data: bytes) -> None:
        """What it says is not read."""

    def flush(self) -> None:
        """As above."""

    def answer_ended(self, can_be_used_again: bool) -> None:
        """As above."""

    def answer_broke(self, why: str, heard_anything: bool) -> None:
        """It does not answer."""
        self.came.set()


async def answers(open_connection: Opener, endpoint: ReplicaEndpoint, lines: bytes) -> bool:
    """Whether the replica says anything. *lines*: further headers, for the gateway of its host."""
    for _ in range(MISSES_MAX):
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_S):
                connection = await open_connection(endpoint)
                try:
                    word = _FirstWord()
                    connection.ask(word, QUESTION + lines + b"\r\n")
                    await word.came.wait()
                finally:
                    connection.close()
            if word.is_answer:
                return True
    return False
