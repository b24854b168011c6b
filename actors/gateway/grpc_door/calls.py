"""The methods of the gRPC API, each made from its row of the table (``verbs.py``)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout
from actorgrid.rpc import actorgrid_pb2 as pb

from .host_api import Asker, HostApi
from .translation import (
    EventReader,
    HttpAsk,
    answer_of,
    ask_of,
    error_in,
    event_of,
    filled,
    packed_error,
    parsed,
    path_of,
    plain_of,
    status_name,
    text_of,
    whole_numbers,
)
from .verbs import UNARY_S, VERBS, ChatVerb, EventVerb, HttpVerb, OutputVerb, StateVerb, Verb

log = logging.getLogger("actorgrid.grpc")
DETAILS = "grpc-status-details-bin"
FINAL = frozenset({"succeeded", "failed", "cancelled", "lost"})
FIRST_ID = "0"
"""Of a watch of the shared state that has no position yet: it is told everything, with marks."""


def handlers_of(api: HostApi) -> list[grpc.GenericRpcHandler]:
    """A handler for each service of the description."""
    found = []
    for name, service in pb.DESCRIPTOR.services_by_name.items():
        methods = {}
        for method in service.methods:
            asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            verb = VERBS[f"{name}.{method.name}"]
            codec = asked.FromString, answered.SerializeToString
            methods[method.name] = (
                grpc.unary_unary_rpc_method_handler(_unary(api, verb, answered), *codec)
                if isinstance(verb, HttpVerb)
                else grpc.unary_stream_rpc_method_handler(_stream(api, verb), *codec)
            )
        found.append(grpc.method_handlers_generic_handler(service.full_name, methods))
    return found


Unary = Callable[[Message, "grpc.aio.ServicerContext"], Awaitable[Message]]
Stream = Callable[[Message, "grpc.aio.ServicerContext"], AsyncIterator[Message]]


def _unary(api: HostApi, verb: HttpVerb, answered: type[Message]) -> Unary:
    async def act(request: Message, context: grpc.aio.ServicerContext) -> Message:
        try:
            who = asker_of(context)
            ask = ask_of(verb, request)
            return answer_of(await api.answer(who, ask, who.left_s(UNARY_S + ask.wait_s)), answered())
        except (ActorGridError, TimeoutError) as error:
            return await refuse(context, error)  # it raises

    return act


def _stream(api: HostApi, verb: Verb) -> Stream:
    async def act(request: Message, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        try:
            who = asker_of(context)
            match verb:
                case EventVerb():
                    told = _events(api, verb, who, request)
                case StateVerb():
                    told = _entries(api, verb, who, request)
                case OutputVerb():
                    told = _output(api, verb, who, request)
                case ChatVerb():
                    told = _chat(api, verb, who, request)
                case _:
                    raise AssertionError(f"{verb} is no stream")
            async with aclosing(told):
                async for message in told:
                    yield message
        except (ActorGridError, TimeoutError) as error:
            await refuse(context, error)

    return act


async def refuse(context: grpc.aio.ServicerContext, error: ActorGridError | TimeoutError) -> Message:
    """End the call with the status and the details of *error*. Always raises."""
    if not isinstance(error, ActorGridError):
        error = CallTimeout("the host did not answer in time", hint="whether it acted is unknown")
    trailers: list[tuple[str, str | bytes]] = [(DETAILS, packed_error(error))]
    retry_after_s = (error.details or {}).get("retry_after_s")
    if retry_after_s is not None:
        trailers.append(("retry-after-s", str(retry_after_s)))
    await context.abort(getattr(grpc.StatusCode, status_name(error)), f"{error.code}: {error}"[:1000], tuple(trailers))
    raise AssertionError("abort raises")


def asker_of(context: grpc.aio.ServicerContext) -> Asker:
    """Who calls, by its metadata. Raises BadRequest for two tokens."""
    shown = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
    if len(shown) > 1 or (shown and not (isinstance(shown[0], str) and shown[0].isprintable() and shown[0].isascii())):
        raise BadRequest("the metadata has to have one authorization", found=f"{len(shown)}")
    left_s = context.time_remaining()
    deadline_s = None if left_s is None or left_s > 366 * 86_400 else time.monotonic() + left_s
    address, port = place_of(context.peer())
    return Asker(shown[0] if shown else None, address, deadline_s, port)


def place_of(peer: str) -> tuple[str, int]:
    """The address and port of a client, as gRPC writes them: ``ipv4:10.0.0.1:7``, ``ipv6:%5B::1%5D:7``."""
    kind, _, rest = unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    return (address.strip("[]"), int(port) if port.isdecimal() else 0) if kind in ("ipv4", "ipv6") else ("", 0)


async def _events(api: HostApi, verb: EventVerb, who: Asker, request: Message) -> AsyncGenerator[Message]:
    assert isinstance(request, pb.WatchRequest)
    headers = {"Last-Event-ID": str(request.after)} if request.HasField("after") else {}
    ids = frozenset(request.ids)
    async with aclosing(api.events(who, HttpAsk("GET", verb.path, {}, None, 0.0), headers)) as told:
        async for event in told:
            shown = event_of(int(event.id or 0), parsed(event.data), verb.kind, ids)
            if shown is not None:
                yield shown


async def _entries(api: HostApi, verb: StateVerb, who: Asker, request: Message) -> AsyncGenerator[Message]:
    assert isinstance(request, pb.WatchStateRequest)
    initial = not request.HasField("initial") or request.initial
    query = {"prefix": request.prefix, "initial": str(initial).lower()}
    after = request.after or (FIRST_ID if initial else "")
    headers = {"Last-Event-ID": after} if after else {}
    async with aclosing(api.events(who, HttpAsk("GET", verb.path, query, None, 0.0), headers)) as told:
        async for event in told:
            shown = pb.StateEvent(event=event.event, id=event.id)
            if event.event == "message":
                filled(parsed(event.data), shown.entry)
            yield shown


async def _output(api: HostApi, verb: OutputVerb, who: Asker, request: Message) -> AsyncGenerator[Message]:
    """The output of one attempt after the other: each is a request of its own, so that each piece has its place."""
    assert isinstance(request, pb.LogsRequest)
    plain = plain_of(request)
    job_path = path_of(verb.job_path, dict(plain))
    path = path_of(verb.path, plain)
    job = parsed(await api.answer(who, HttpAsk("GET", job_path, {}, None, 0.0), who.left_s(UNARY_S)))
    number, offset = request.attempt or max(1, len(job["attempts"])), 0
    if request.after:
        number, offset = _place(request.after)
    query = {"stream": request.stream or "stdout", "rank": str(request.rank), "follow": "true"}
    while True:
        asked = {**query, "attempt": str(number), "offset": str(offset)}
        async with api.stream(who, HttpAsk("GET", path, asked, None, 0.0)) as response:
            async for data in response.content.iter_any():
                offset += len(data)
                yield pb.Output(attempt=number, offset=offset, data=data, id=f"{number}:{offset}")
        if request.HasField("attempt"):
            return
        job = parsed(await api.answer(who, HttpAsk("GET", job_path, {}, None, 0.0), who.left_s(UNARY_S)))
        if job["state"] in FINAL and number >= len(job["attempts"]):
            return
        number, offset = number + 1, 0


async def _chat(api: HostApi, verb: ChatVerb, who: Asker, request: Message) -> AsyncGenerator[Message]:
    """A stream is begun by one request and read by another, so that its id is known to who may lose the connection."""
    assert isinstance(request, pb.ChatRequest)
    stream_id = request.stream_id
    if not stream_id:
        asked = whole_numbers(plain_of(request))
        begun = await api.answer(
            who, HttpAsk("POST", verb.begin_path, {}, json.dumps(asked).encode(), 0.0), who.left_s(UNARY_S)
        )
        stream_id = str(parsed(begun)["stream_id"])
        yield pb.ChatEvent(stream_id=stream_id)
    path = path_of(verb.path, {"stream_id": stream_id})
    query = {"after": request.after} if request.after else {}
    reader = EventReader()
    async with api.stream(who, HttpAsk("GET", path, query, None, 0.0)) as response:
        async for data in response.content.iter_any():
            for event in reader.feed(data):
                if event.event == "end" and parsed(event.data).get("reason") == "done":
                    return
                if event.event != "token":
                    raise error_in(502, event.data)
                chunk = parsed(event.data)
                told = pb.ChatEvent(stream_id=stream_id, id=event.id, text=text_of(chunk))
                yield filled({"chunk": chunk}, told)


def _place(after: str) -> tuple[int, int]:
    number, _, offset = after.partition(":")
    if not all(each.isascii() and each.isdigit() and len(each) <= 18 for each in (number, offset)) or number == "0":
        raise BadRequest("after is no id of output", asked=after[:64], hint="give the id of a message as it came")
    return int(number), int(offset)
