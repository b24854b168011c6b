"""WebSockets: the streams of the other routes, with the same rights, for who would rather have messages.

One path for each, and not one for all: so each has its row of the access table, and what is refused is refused before
the connection is a WebSocket, as an answer of HTTP.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import time
from base64 import b64encode
from contextlib import aclosing
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.routes.job_files import followed
from actorgrid.actors.gateway.routes.state import stream_events, stream_state
from actorgrid.actors.gateway.schemas.answers import LogsQuery
from actorgrid.actors.gateway.schemas.shared_state import WatchQuery
from actorgrid.actors.gateway.schemas.websockets import (
    EventsSocketQuery,
    FiguresMessage,
    LogsSocketQuery,
    MetricsSocketQuery,
    OutputMessage,
    SocketMessage,
    StateSocketQuery,
)
from actorgrid.actors.gateway.server.codec import encode_json
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.state_stream import FIRST
from actorgrid.actors.gateway.server.stream import EventSink
from actorgrid.actors.gateway.server.websocket import serve_websocket
from actorgrid.errors import BadRequest, NotARegularFile, NotFound, Overloaded, ResultGone, UnknownJob

ROUTES = RouteTable(Route)

OFFSET_DIGITS = 19


@ROUTES.add(
    "GET",
    "/api/ws/events",
    SocketMessage,
    "events",
    Right.LIST_JOBS,
    query=EventsSocketQuery,
    errors=(Overloaded,),
    status=101,
    websocket=True,
)
async def socket_of_events(call: RequestContext) -> Any:
    """What the ledger applied, over a WebSocket; goes on behind the index after=."""
    after = call.query_as(EventsSocketQuery).after
    if after and not (after.isascii() and after.isdigit() and len(after) <= OFFSET_DIGITS):
        raise _wrong_id(after)
    first = int(after) + 1 if after else None
    return await serve_websocket(call, lambda sink: stream_events(call, sink, first))


@ROUTES.add(
    "GET",
    "/api/ws/state",
    SocketMessage,
    "state",
    Right.READ_STATE,
    query=StateSocketQuery,
    errors=(Overloaded,),
    status=101,
    websocket=True,
)
async def socket_of_state(call: RequestContext) -> Any:
    """Entries of the shared state under a prefix as they change, over a WebSocket; goes on behind the id after=."""
    query = call.query_as(StateSocketQuery)
    watched = WatchQuery(prefix=query.prefix, initial=query.initial)
    # Of messages every client understands the marks of a stream, ``resync`` and ``synced``; FIRST asks for all.
    resumed = query.after or (FIRST if query.initial else "")
    return await serve_websocket(call, lambda sink: stream_state(call, sink, watched, resumed, marks=True))


@ROUTES.add(
    "GET",
    "/api/ws/jobs/{job_id}/logs",
    SocketMessage,
    "jobs",
    Right.READ_OUTPUT,
    query=LogsSocketQuery,
    errors=(UnknownJob, NotFound, ResultGone, NotARegularFile, Overloaded),
    status=101,
    websocket=True,
)
async def socket_of_logs(call: RequestContext) -> Any:
    """Output of a job as it grows, over a WebSocket, until it is final; goes on behind ATTEMPT:OFFSET of after=."""
    query = call.query_as(LogsSocketQuery)
    number, offset = _place(query.after) if query.after else (query.attempt, 0)
    if query.attempt is not None and number != query.attempt:
        raise BadRequest(
            "after is of another attempt than the one that is asked for",
            asked=f"attempt={query.attempt}&after={query.after}",
            hint="leave one of them out",
        )
    asked = LogsQuery(stream=query.stream, attempt=query.attempt, rank=query.rank, offset=offset, follow=True)

    async def stream(sink: EventSink) -> None:
        parts = await followed(call, asked, number)
        await sink.begin()
        pieces = _TextPieces() if query.form == "text" else None
        attempt = end = 0
        async with aclosing(parts):
            async for part in parts:
                if pieces is not None and part.attempt != attempt and pieces.held:
                    await _send_output(sink, OutputMessage(attempt=attempt, offset=end, text=pieces.rest()))
                attempt, end = part.attempt, part.end
                if pieces is None:
                    message = OutputMessage(attempt=attempt, offset=end, base64=b64encode(part.data).decode())
                else:
                    text = pieces.add(part.data)
                    if not text:
                        continue
                    message = OutputMessage(attempt=attempt, offset=end - pieces.held, text=text)
                await _send_output(sink, message)
        if pieces is not None and pieces.held:
            await _send_output(sink, OutputMessage(attempt=attempt, offset=end, text=pieces.rest()))
        await sink.end("stopping" if call.app.stopping else "done")

    return await serve_websocket(call, stream)


async def _send_output(sink: EventSink, message: OutputMessage) -> None:
    data = message.model_dump_json(exclude_none=True).encode()
    await sink.send(data, "output", f"{message.attempt}:{message.offset}")


class _TextPieces:
    """Bytes as text, with characters whole: the first bytes of one that is not all there are *held* for the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def held(self) -> int:
        """So many bytes."""
        return len(self._decoder.getstate()[0])

    def add(self, data: bytes) -> str:
        """As much as is whole."""
        return self._decoder.decode(data)

    def rest(self) -> str:
        """What is held, as what it is: no character."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def _place(after: str) -> tuple[int, int]:
    """The attempt and the offset that an id of output says."""
    number, _, offset = after.partition(":")
    if not all(each.isascii() and each.isdigit() and len(each) <= OFFSET_DIGITS for each in (number, offset)):
        raise _wrong_id(after)
    if not 1 <= int(number) <= 2**31 or int(offset) > 2**62:
        raise _wrong_id(after)
    return int(number), int(offset)


def _wrong_id(after: str) -> BadRequest:
    return BadRequest("after is no id of this stream", asked=after[:64], hint="give the id of a message as it came")


@ROUTES.add(
    "GET",
    "/api/ws/metrics",
    SocketMessage,
    "system",
    Right.SEE_METRICS,
    query=MetricsSocketQuery,
    errors=(Overloaded,),
    status=101,
    websocket=True,
)
async def socket_of_metrics(call: RequestContext) -> Any:
    """Figures of the host that changed, again and again, over a WebSocket; all of them at first."""
    query = call.query_as(MetricsSocketQuery)

    async def stream(sink: EventSink) -> None:
        known: dict[str, float | None] = {}
        await sink.begin()
        while not call.app.stopping:
            found = figures_of(await call.app.latest_scrape(), query.prefix)
            changed = {name: value for name, value in found.items() if name not in known or known[name] != value}
            gone = [name for name in known if name not in found]
            known = found
            message = FiguresMessage(at=time.time(), changed=changed, gone=gone)
            # The next is taken when this one is out: a slow client gets fewer of them, and each of its time.
            await sink.send(encode_json(message), "figures")
            try:
                async with asyncio.timeout(query.interval_s):
                    await call.app.websockets.closing.wait()
            except TimeoutError:
                continue
        await sink.end("stopping")

    return await serve_websocket(call, stream)


def figures_of(text: bytes, prefix: str) -> dict[str, float | None]:
    """The samples of a Prometheus text, by name with labels; ``None`` for what is no number."""
    found: dict[str, float | None] = {}
    for line in text.decode().splitlines():
        if line.startswith("#") or not line.startswith(prefix):
            continue
        name, _, value = line.rpartition(" ")
        number = float(value)
        found[name] = number if math.isfinite(number) else None
    return found
