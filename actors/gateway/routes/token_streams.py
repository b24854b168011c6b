"""Answers of models as they are made, for clients that read them over WebSockets or gRPC, and go on after a break."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.token_streams import (
    TokenStreamBegun,
    TokenStreamEnded,
    TokenStreamQuery,
    TokenStreamRequest,
)
from actorgrid.actors.gateway.schemas.websockets import SocketMessage
from actorgrid.actors.gateway.server.auth import authorization_of
from actorgrid.actors.gateway.server.codec import encode_json
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.stream import EventSink, ServerSentEvents, gone
from actorgrid.actors.gateway.server.websocket import serve_websocket
from actorgrid.errors import ActorGridError, BadRequest, NotFound, Overloaded, WrongState
from actorgrid.supervisors.envelope import GetStatus

ROUTES = RouteTable(Route)
STATUS_S = 2.0


@ROUTES.add(
    "POST",
    "/api/token-streams",
    TokenStreamBegun,
    "services",
    Right.SUBMIT_JOBS,
    request=TokenStreamRequest,
    errors=(Overloaded, WrongState),
)
async def begin_token_stream(call: RequestContext) -> Any:
    """Ask a model, for an answer that is read as it is made; the model gateway decides, by the same token."""
    asked = call.body_as(TokenStreamRequest)
    url = (await call.ask("gateway", GetStatus(), STATUS_S)).get("models_url", "")
    if not url:
        raise WrongState(
            "this host serves no models yet", asked=asked.model, hint="it does with the first service: actorgrid serve"
        )
    body: dict[str, Any] = {**asked.more, "model": asked.model, "stream": True}
    body |= {"messages": asked.messages} if asked.messages else {"prompt": asked.prompt}
    path = "/chat/completions" if asked.messages else "/completions"
    stream = call.app.token_streams.begin(
        call.caller, url + path, authorization_of(call.http) or "", body, asked.resume_s
    )
    return {"stream_id": stream.id}


@ROUTES.add(
    "GET",
    "/api/token-streams/{stream_id}",
    "text/event-stream",
    "services",
    Right.LIST_JOBS,
    query=TokenStreamQuery,
    errors=(NotFound, BadRequest),
)
async def read_token_stream(call: RequestContext) -> Any:
    """The answer of a model as it is made, as server-sent events; goes on behind after= or Last-Event-ID."""
    resumed = call.http.headers.get("Last-Event-ID", "")
    if resumed and (not resumed.isdigit() or len(resumed) > 19):
        raise BadRequest("Last-Event-ID is not one of ours", asked=resumed[:40], hint="send the id as it was given")
    sink = ServerSentEvents(call.http)
    await _send(call, sink, int(resumed or 0))
    return sink.response


@ROUTES.add(
    "GET",
    "/api/ws/token-streams/{stream_id}",
    SocketMessage,
    "services",
    Right.LIST_JOBS,
    query=TokenStreamQuery,
    errors=(NotFound, Overloaded),
    status=101,
    websocket=True,
)
async def socket_of_tokens(call: RequestContext) -> Any:
    """The answer of a model as it is made, over a WebSocket; goes on behind the event after=."""
    return await serve_websocket(call, lambda sink: _send(call, sink))


@ROUTES.add(
    "DELETE",
    "/api/token-streams/{stream_id}",
    TokenStreamEnded,
    "services",
    Right.SUBMIT_JOBS,
    errors=(NotFound,),
    unlimited=True,
)
async def cancel_token_stream(call: RequestContext) -> Any:
    """Break an answer off, at the replica that makes it, too."""
    streams = call.app.token_streams
    stream = streams.find(call.part("stream_id"), call.caller)
    streams.cancel(stream)
    return {"stream_id": stream.id, "cancelled": True}


async def _send(call: RequestContext, sink: EventSink, after: int = 0) -> None:
    after = after or call.query_as(TokenStreamQuery).after
    streams = call.app.token_streams
    stream = streams.find(call.part("stream_id"), call.caller)
    async with aclosing(streams.read(stream, after)) as events:
        await sink.begin()
        try:
            async for event in events:
                if gone(call.http):
                    raise ConnectionResetError("the reader of a token stream is gone")
                if call.app.stopping:
                    break
                if event is not None:
                    await sink.send(event[1], "token", event[0])
        except ActorGridError as error:
            # Said as an event to all readers alike: some have no other way to hear why an answer ends.
            await sink.send(encode_json({"error": error.to_dict()}), "error")
        await sink.end("stopping" if call.app.stopping else "done")
