"""Token streams: the answer of a model over WebSocket, server-sent events and gRPC, gone on with after a break, and
broken off where it is made. A real model gateway, before a replica that does as it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.actors.gateway.server import token_streams
from actorgrid.actors.gateway.server.token_streams import refusal_of
from actorgrid.actors.gateway.server.websocket import CloseCode
from tests.gateway.test_websockets import opened, rest
from tests.model_gateway.running import RunningGateway, endpoint, route, table
from tests.model_gateway.scripted_replica import ScriptedReplica, SeenRequest

CLOSED = "the replica closed the connection"
MESSAGES = [{"role": "user", "content": "hi"}]


class Models:
    """A model gateway of the host, and its replica."""

    def __init__(self, town: Any) -> None:
        self.town = town
        self.replica = ScriptedReplica()
        self.gateway = RunningGateway(table(route(endpoint(self.replica))))
        nothing = dict.fromkeys(("stop", "look"), lambda: None)
        town.gateway._models = SimpleNamespace(url=self.gateway.url, applied=lambda message: None, **nothing)

    def close(self) -> None:
        self.gateway.stop()
        self.replica.stop()

    def begin(self, token: str = "", **more: Any) -> str:
        reply = self.town.http("POST", "/api/token-streams", token, json={"model": "m", "messages": MESSAGES, **more})
        assert reply.status == 200, reply.body
        return str(reply.json["stream_id"])

    def asked(self) -> SeenRequest:
        """The first request that the replica has."""
        return self.replica.wait_for(1)


@pytest.fixture
def models(town: Any) -> Iterator[Models]:
    made = Models(town)
    yield made
    made.close()


def text_of(told: list[dict[str, Any]]) -> str:
    choices = [choice for each in told if each["event"] == "token" for choice in each["data"]["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_an_answer_comes_in_messages_and_then_its_end(town: Any, models: Models) -> None:
    stream = models.begin(more={"max_tokens": 5, "stream_options": {"include_usage": True}})
    told, code = town.finish(opened(town, f"/api/ws/token-streams/{stream}", rest))
    assert text_of(told) == "ab" and told[-1]["event"] == "end" and code == CloseCode.DONE
    assert [each["id"] for each in told[:-1]] == [str(number) for number in range(1, len(told))]
    sent = models.asked().json
    assert sent["stream"] is True and sent["max_tokens"] == 5 and sent["messages"] == MESSAGES
    assert told[-2]["data"]["usage"]["total_tokens"] == 11
    # Nobody reads it any more, and nobody was to go on with it.
    town.until(lambda: not len(town.gateway._app.token_streams), "it is forgotten")
    assert town.http("DELETE", f"/api/token-streams/{stream}").status == 404


def test_a_reader_that_lost_its_connection_goes_on_behind_what_it_has(town: Any, models: Models) -> None:
    models.replica.plan = "pause"
    stream = models.begin(resume_s=30)

    async def lose(socket: Any) -> str:
        event = await socket.receive_json()
        socket._response.connection.transport.abort()
        return str(event["id"])

    last = town.finish(opened(town, f"/api/ws/token-streams/{stream}", lose))
    found = town.gateway._app.token_streams._streams[stream]
    town.until(lambda: not found.readers, "the host knows that it is gone")
    assert not models.asked().closed.is_set()
    models.replica.go_on.set()
    told, code = town.finish(opened(town, f"/api/ws/token-streams/{stream}?after={last}", rest))
    assert text_of(told) == "b" and told[0]["id"] == str(int(last) + 1) and code == CloseCode.DONE
    # After its end too, and by another door.
    again = town.http("GET", f"/api/token-streams/{stream}?after={last}")
    assert b"event: token\nid: 2\n" in again.body and b"event: token\nid: 1\n" not in again.body
    wrong = town.http("GET", f"/api/token-streams/{stream}?after=900")
    assert b"event: error" in wrong.body and b"cannot be gone on with" in wrong.body


@pytest.mark.parametrize("plan", ["error", "error-named", "cut"])
def test_an_answer_that_breaks_off_ends_with_a_named_error(town: Any, models: Models, plan: str) -> None:
    models.replica.plan = plan
    told, code = town.finish(opened(town, f"/api/ws/token-streams/{models.begin()}", rest))
    assert [each["event"] for each in told] == ["token", "error", "end"] and text_of(told) == "a"
    error = told[1]["data"]["error"]
    assert error["code"] == "ServingError" and error["found"] in ("engine died", CLOSED) and code == CloseCode.DONE


def test_a_page_goes_on_behind_the_last_id_that_it_sends(town: Any, models: Models) -> None:
    stream = models.begin(resume_s=30)
    path = f"/api/token-streams/{stream}"
    assert b"event: token\nid: 1\n" in town.http("GET", path).body
    again = town.http("GET", path, headers={"Last-Event-ID": "1"}).body
    assert b"event: token\nid: 2\n" in again and b"id: 1\n" not in again
    assert town.http("GET", path, headers={"Last-Event-ID": "1; x"}).error["code"] == "BadRequest"


@pytest.mark.parametrize("way", ["close", "abort", "delete", "stop"])
def test_an_answer_that_nobody_reads_is_broken_off_where_it_is_made(town: Any, models: Models, way: str) -> None:
    models.replica.plan = "pause"
    stream = models.begin(resume_s=30 if way in ("delete", "stop") else 0)

    async def leave(socket: Any) -> list[Any]:
        await socket.receive_json()
        if way == "close":
            await socket.close()
        elif way == "abort":
            socket._response.connection.transport.abort()
        else:
            return [json.loads(message.data) async for message in socket]
        return []

    reading = opened(town, f"/api/ws/token-streams/{stream}", leave)
    seen = models.asked()
    assert seen.reached.wait(10)
    if way == "delete":
        town.until(lambda: town.gateway._app.token_streams._streams[stream].readers, "the reader")
        assert town.http("DELETE", f"/api/token-streams/{stream}").json["cancelled"] is True
    elif way == "stop":
        town.until(lambda: town.gateway._app.token_streams._streams[stream].readers, "the reader")
        town.gateway.stop("test")
    told = town.finish(reading)
    assert seen.closed.wait(10)
    if way == "delete":
        assert [each["event"] for each in told] == ["error", "end"]
        assert told[0]["data"]["error"]["code"] == "ServingError"


def test_what_is_asked_wrongly_is_refused_and_what_the_model_gateway_refuses_is_named(
    town: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ({"messages": []}, {"prompt": "x"}, {"more": {"stream": False}}, {"resume_s": 61}, {"model": ""}):
        asked = {"model": "m", "messages": MESSAGES, **wrong}
        assert town.http("POST", "/api/token-streams", json=asked).status == 400, wrong
    stream = models.begin(model="nobody")
    told, _ = town.finish(opened(town, f"/api/ws/token-streams/{stream}", rest))
    assert told[0]["event"] == "error" and told[0]["data"]["error"]["code"] == "NotFound"
    assert refusal_of(401, b"{}").code == "WrongToken" and refusal_of(422, b"no").code == "BadRequest"
    assert refusal_of(503, b'{"error": {"message": "full"}}').found == "503: full"
    # Another's is not there, whoever asks.
    other = town.http("POST", "/api/keys", json={"user_id": "eve", "role": "admin"}).json["key"]
    stream = models.begin(resume_s=30)
    assert town.http("GET", f"/api/token-streams/{stream}", other).status == 404
    assert town.http("DELETE", f"/api/token-streams/{stream}", other).status == 404
    monkeypatch.setattr(token_streams, "OF_CALLER_MAX", 1)
    refused = town.http("POST", "/api/token-streams", json={"model": "m", "messages": MESSAGES})
    assert refused.status == 429 and refused.error["code"] == "Overloaded"
    town.gateway._models = None
    assert town.http("POST", "/api/token-streams", json={"model": "m", "prompt": "x"}).error["code"] == "WrongState"


def test_no_more_of_an_answer_is_kept_than_said(town: Any, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_streams, "EVENTS_MAX", 2)
    stream = models.begin(resume_s=30)
    found = town.gateway._app.token_streams._streams[stream]
    town.until(lambda: found.is_over, "it has come whole")
    told, _ = town.finish(opened(town, f"/api/ws/token-streams/{stream}", rest))
    assert told[0]["event"] == "error" and "are kept" in told[0]["data"]["error"]["found"]
    told, _ = town.finish(opened(town, f"/api/ws/token-streams/{stream}?after=1", rest))
    assert text_of(told) == "b"


def test_over_grpc_it_goes_on_too_and_ends_with_its_call(
    town: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'actorgrid[grpc]'")
    pytest.importorskip("grpc_health", reason="grpcio-health-checking is not installed")
    from google.protobuf.struct_pb2 import Struct

    from actorgrid.rpc import actorgrid_pb2 as pb
    from tests.gateway.test_grpc import Door

    said, more = Struct(), Struct()
    said.update(MESSAGES[0])
    more.update({"max_tokens": 5})
    door = Door(town)
    door.open(monkeypatch)
    asked = pb.ChatRequest(model="m", messages=[said], more=more, resume_s=30)

    async def whole(request: Any) -> list[Any]:
        async with door.stream("Services", "Chat", request) as call:
            return [each async for each in call]

    async def refused() -> str:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await whole(pb.ChatRequest(model="nobody", messages=[said]))
        return str(raised.value.code().name)

    async def leave() -> None:
        async with door.stream("Services", "Chat", pb.ChatRequest(model="m", prompt="x")) as call:
            await call.read()
            await call.read()

    try:
        first, *told = town.run(whole(asked))
        assert first.stream_id and not first.id and "".join(each.text for each in told) == "ab"
        assert told[0].chunk["object"] == "chat.completion.chunk"
        assert models.asked().json["max_tokens"] == 5 and "5.0" not in models.asked().body.decode()
        behind = town.run(whole(pb.ChatRequest(stream_id=first.stream_id, after=told[0].id)))
        assert [each.id for each in behind] == [each.id for each in told[1:]]
        assert town.run(refused()) == "NOT_FOUND"
        models.replica.plan = "pause"
        count = len(models.replica.seen)
        town.run(leave())
        seen = models.replica.wait_for(count + 1)
        assert seen.closed.wait(10)
    finally:
        door.close()
