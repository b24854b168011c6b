"""What work is kept in on the host of whoever asks: for what is told of hosts."""

from __future__ import annotations

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from .messages import ContainmentAsked

ANSWER_S = 2.0


async def containment_here(server: Server) -> str | None:
    """The kind of containment on this host; None where it is not known, or nobody answers in time."""
    try:
        kind: str | None = await server.call("worker_manager", ContainmentAsked(), ANSWER_S)
    except ActorGridError as error:
        server.log.info("what work is kept in: %s", error)
        return None
    return kind
