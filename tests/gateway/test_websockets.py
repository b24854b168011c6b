"""WebSockets: the streams of the other routes as messages; and clients that mean no good, or cannot keep up."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from actorgrid.actors.gateway.routes.websockets import figures_of
from actorgrid.actors.gateway.server import hub as gateway_hub
from actorgrid.actors.gateway.server import websocket
from actorgrid.actors.gateway.server.websocket import CloseCode, WebSockets, close_frame
from actorgrid.actors.ledger.messages import Applied
from actorgrid.errors import CallTimeout, Overloaded

Talk = Callable[[aiohttp.ClientWebSocketResponse], Awaitable[Any]]


def opened(town: Any, path: str, use: Talk, token: str = "", **more: Any) -> Any:
    """Open one in the client's loop, and let *use* talk."""

    async def talk() -> Any:
        headers = {"Authorization": f"Bearer {token or town.token}", **more.pop("headers", {})}
        async with town.client.session.ws_connect(town.url + path, headers=headers, **more) as socket:
            return await use(socket)

    return town.start(talk())


async def rest(socket: aiohttp.ClientWebSocketResponse) -> tuple[list[Any], int | None]:
    """All messages up to the end, and the code of the close."""
    told = [json.loads(message.data) async for message in socket]
    return told, socket.close_code


def first(count: int) -> Talk:
    async def use(socket: aiohttp.ClientWebSocketResponse) -> list[Any]:
        return [await socket.receive_json() for _ in range(count)]

    return use


def refused(town: Any, path: str, token: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    """The answer to an opening that is none."""
    shake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    shake["Sec-WebSocket-Key"] = base64.b64encode(os.urandom(16)).decode()
    reply = town.http("GET", path, token, headers={**shake, **{k.replace("_", "-"): v for k, v in headers.items()}})
    return reply.status, reply.error


def listening(town: Any, count: int = 1) -> None:
    town.until(lambda: town.gateway._app.hub.listeners == count, "the listener")


def test_events_come_and_go_on_behind_the_last_id(town: Any) -> None:
    reading = opened(town, "/api/ws/events", first(2))
    listening(town)
    for number in range(2):
        town.servers["consensus"].apply("job", f"j{number}", {"state": "queued"})
    told = town.finish(reading)
    assert [(each["event"], each["id"], each["data"]["changes"][0]["id"]) for each in told] == [
        ("message", "6", "j0"),
        ("message", "7", "j1"),
    ]
    assert [each["id"] for each in town.finish(opened(town, "/api/ws/events?after=6", first(1)))] == ["7"]
    for wrong in ("x", "-1", "9" * 20, "٣"):
        assert refused(town, f"/api/ws/events?after={wrong}")[0] == 400


def test_a_page_in_a_browser_shows_its_key_as_a_protocol_and_the_host_never_says_it(town: Any) -> None:
    async def page() -> Any:
        offered = ("actorgrid.v1", f"actorgrid.bearer.{town.token}")
        socket = await town.client.session.ws_connect(
            town.url + "/api/ws/events", protocols=offered, headers={"Origin": town.url}
        )
        async with socket:
            assert socket.protocol == "actorgrid.v1"
            return str(socket._response.headers)

    assert town.token not in town.run(page())
    assert town.http("GET", "/api/events", None, headers={"Sec-WebSocket-Protocol": f"actorgrid.bearer.{town.token}"})
    plain = town.http("GET", "/api/jobs", None, headers={"Sec-WebSocket-Protocol": f"actorgrid.bearer.{town.token}"})
    assert plain.status == 401, "only where there is no other way"


def test_openings_that_are_none_are_refused_in_the_form_of_every_other_error(
    town: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = town.http("POST", "/api/keys", json={"user_id": "v", "role": "viewer", "tenant": "lab"}).json["key"]
    assert refused(town, "/api/ws/events", "agk1.no.no")[0] == 401
    assert refused(town, "/api/ws/jobs/a/logs", made)[1]["code"] == "NotAllowed"
    assert refused(town, "/api/ws/metrics", made)[1]["code"] == "NotAllowed"
    assert refused(town, "/api/ws/jobs/none/logs")[1]["code"] == "UnknownJob"
    assert refused(town, f"/api/ws/events?token={town.token}")[0] == 400, "nothing secret in an address"
    assert town.http("GET", "/api/ws/events").error["code"] == "BadRequest"
    assert refused(town, "/api/ws/events", Sec_WebSocket_Version="1")[0] == 400
    with caplog.at_level(logging.WARNING):
        assert refused(town, "/api/ws/events", Sec_WebSocket_Protocol=f"chat, actorgrid.bearer.{town.token}")[0] == 400
    assert town.token not in caplog.text
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert refused(town, "/api/ws/events", Origin=origin)[1]["code"] == "NotAllowed", origin
    town.host.settings.set_live("security.websocket_origins", ["https://board.example"])
    reading = opened(town, "/api/ws/events", first(0), headers={"Origin": "https://board.example"})
    assert town.finish(reading) == []
    town.until(lambda: not len(town.gateway._app.websockets), "its place to be free")


def test_entries_of_the_state_come_with_marks_and_go_on_behind_the_last_id(town: Any) -> None:
    state = town.servers["distributed_state"]
    state.put("k1", "\ud800 half a character")
    resync, entry, synced = town.finish(opened(town, "/api/ws/state?prefix=k", first(3)))
    assert (resync["event"], entry["event"], synced["event"]) == ("resync", "message", "synced")
    assert entry["data"]["key"] == "k1"
    state.put("k2", 2)
    change, again = town.finish(opened(town, f"/api/ws/state?prefix=k&after={synced['id']}", first(2)))
    assert (change["data"]["key"], change["data"]["value"], again["event"]) == ("k2", 2, "synced")
    (quiet,) = town.finish(opened(town, "/api/ws/state?prefix=k&initial=false", first(1)))
    assert quiet["event"] == "synced", "nothing of what was there"
    town.until(lambda: not state.watched, "the watches to end")


def test_output_comes_as_text_whose_characters_are_whole(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt()])
    path = town.attempt_folder() / "stdout"
    path.write_bytes("zw\u00f6lf".encode()[:3])  # half of the second character's bytes
    seen: list[Any] = []

    async def use(socket: aiohttp.ClientWebSocketResponse) -> int | None:
        async for message in socket:
            seen.append(json.loads(message.data))
        return socket.close_code

    reading = opened(town, "/api/ws/jobs/a/logs", use)
    town.until(lambda: len(seen) == 1, "the first piece")
    assert (seen[0]["event"], seen[0]["id"], seen[0]["data"]) == (
        "output",
        "1:2",
        {"attempt": 1, "offset": 2, "text": "zw"},
    )
    with path.open("ab") as file:
        file.write("zw\u00f6lf".encode()[3:] + b"\xff\xc3")
    town.until(lambda: len(seen) == 2, "the rest")
    second = town.attempt("a", 2)
    town.attempt_folder("a.2").joinpath("stdout").write_bytes(b"again")
    ended = {**town.attempt(), "ended_at": 2.0, "state": "failed"}
    town.tell_job("a", attempts=[ended, {**second, "ended_at": 3.0}], state="succeeded", ended_at=3.0)
    assert town.finish(reading) == CloseCode.DONE
    assert [each["data"].get("text") for each in seen] == ["zw", "\u00f6lf\ufffd", "\ufffd", "again", None]
    assert [each.get("id") for each in seen] == ["1:2", "1:7", "1:8", "2:5", None]
    assert (seen[-1]["event"], seen[-1]["data"]["reason"]) == ("end", "done")
    told, code = town.finish(opened(town, "/api/ws/jobs/a/logs?after=1:7&form=base64", rest))
    assert [base64.b64decode(each["data"]["base64"]) for each in told[:-1]] == [b"\xc3", b"again"]
    assert code == CloseCode.DONE
    for wrong in ("after=1", "after=0:1", "after=1:1:1", "after=1:x", "after=1:2&attempt=2", "form=hex"):
        assert refused(town, f"/api/ws/jobs/a/logs?{wrong}")[0] == 400, wrong


def test_figures_come_whole_and_then_what_changed(town: Any) -> None:
    reading = opened(town, "/api/ws/metrics?prefix=actorgrid_gateway&interval_s=0.2", first(2))
    whole, then = town.finish(reading)
    assert whole["event"] == "figures" and all(
        name.startswith("actorgrid_gateway") for name in whole["data"]["changed"]
    )
    assert len(then["data"]["changed"]) < len(whole["data"]["changed"])
    assert figures_of(b'# HELP a x\na{b="c d"} 1.5\nb +Inf\nc 2\n', "") == {'a{b="c d"}': 1.5, "b": None, "c": 2.0}


@pytest.mark.parametrize(
    ("say", "code"),
    [
        (lambda socket: socket.send_str("hello"), CloseCode.SAID_SOMETHING),
        (lambda socket: socket.send_bytes(b"\0" * 2000), aiohttp.WSCloseCode.MESSAGE_TOO_BIG),
        (lambda socket: asyncio.gather(*(socket.ping() for _ in range(200))), CloseCode.TOO_MANY_PINGS),
        (lambda socket: socket._writer.send_frame(b"\xff\xff", WSMsgType.TEXT), aiohttp.WSCloseCode.INVALID_TEXT),
    ],
    ids=["a message", "a large one", "pings", "no text"],
)
def test_a_client_that_says_something_is_closed_with_a_code(town: Any, say: Any, code: int) -> None:
    async def use(socket: aiohttp.ClientWebSocketResponse) -> int | None:
        await say(socket)
        return (await rest(socket))[1]

    assert town.finish(opened(town, "/api/ws/events", use)) == code
    town.until(lambda: not len(town.gateway._app.websockets), "its place to be free")
    town.until(lambda: town.gateway._app.hub.listeners == 0, "the listener to be gone")


def test_a_client_that_falls_behind_is_told_by_the_code(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_hub, "MAX_WAITING", 3)
    reading = opened(town, "/api/ws/events", rest)
    listening(town)
    hub = town.gateway._app.hub

    def burst() -> None:
        for index in range(20, 30):
            hub.receive(Applied(index, index - 1, 1.0, "x", ()))

    town.gateway._bridge._loop.call_soon_threadsafe(burst)
    assert town.finish(reading)[1] == CloseCode.LAGGING


def test_a_client_that_reads_nothing_finds_the_close_behind_what_it_left(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "WRITE_TIMEOUT_S", 0.1)
    hub = town.gateway._app.hub
    shake = f"GET /api/ws/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {town.token}\r\n"
    shake += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    shake += f"Sec-WebSocket-Key: {base64.b64encode(b'0' * 16).decode()}\r\n\r\n"

    async def open_only() -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(town.url.rpartition(":")[2]), limit=1024)
        writer.write(shake.encode())
        return reader, writer

    reader, writer = town.run(open_only())
    listening(town)

    def flood() -> None:
        for listener in list(hub._events):
            for _ in range(4):
                listener.put(gateway_hub.Item(0, b"1" * 4_000_000))

    town.gateway._bridge._loop.call_soon_threadsafe(flood)
    sending = lambda: any(  # noqa: E731
        request.transport is not None and request.transport.is_closing()
        for request in list(town.gateway._app.rechecks._open.values())
    )
    town.until(lambda: sending() or hub.listeners == 0, "it to be given up")

    async def read_on() -> bytes:
        try:
            return bytes(await reader.read())
        finally:
            writer.close()

    left = town.run(read_on())
    assert len(left) < 12_000_000, "no more than was on its way"
    assert left.endswith(close_frame(CloseCode.LAGGING, "lagging"))
    town.until(lambda: hub.listeners == 0, "the listener to be gone")


def test_one_ends_with_its_key_and_says_so(town: Any) -> None:
    made = town.http("POST", "/api/keys", json={"user_id": "ann", "role": "user", "tenant": "lab"}).json
    reading = opened(town, "/api/ws/events", rest, made["key"])
    listening(town)
    town.servers["consensus"].apply(
        "api_key", made["id"], {**town.servers["consensus"].keys[made["id"]], "revoked_at": 1}
    )
    assert town.finish(reading)[1] == CloseCode.WRONG_TOKEN
    town.until(lambda: not len(town.gateway._app.websockets), "its place to be free")
    assert town.gateway._app.rechecks.cut_total == 1 and not town.gateway._app.rechecks._last_words


@pytest.mark.parametrize("path", ["/api/ws/events", "/api/ws/metrics?prefix=none"])
def test_they_end_in_order_when_the_host_stops(town: Any, path: str) -> None:
    reading = opened(town, path, rest)
    town.until(lambda: len(town.gateway._app.websockets) == 1, "the WebSocket")
    town.node.settle()
    town.gateway.stop("test")
    told, code = town.finish(reading)
    assert (told[-1]["event"], told[-1]["data"]["reason"], code) == ("end", "stopping", CloseCode.STOPPING)


def test_what_fails_on_the_way_closes_with_the_name_of_the_error(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = town.gateway._app

    async def broken() -> bytes:
        raise CallTimeout("no answer")

    monkeypatch.setattr(app, "latest_scrape", broken)

    async def use(socket: aiohttp.ClientWebSocketResponse) -> Any:
        message = await socket.receive()
        return message.data, message.extra

    assert town.finish(opened(town, "/api/ws/metrics", use)) == (CloseCode.BROKE_OFF, "CallTimeout")


def test_a_quiet_one_is_pinged_and_a_client_that_does_not_answer_is_gone(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HEARTBEAT_S", 0.1)

    async def talk() -> Any:
        headers = {"Authorization": f"Bearer {town.token}"}
        url = town.url + "/api/ws/events"
        async with town.client.session.ws_connect(url, headers=headers, autoping=False) as socket:
            pinged = await socket.receive()
            ended = await socket.receive()
            while ended.type is WSMsgType.PING:
                ended = await socket.receive()
            return pinged.type, ended.type

    pinged, ended = town.run(talk())
    assert pinged is WSMsgType.PING and ended in (WSMsgType.CLOSED, WSMsgType.ERROR)
    town.until(lambda: town.gateway._app.hub.listeners == 0, "the listener to be gone")


def test_how_many_are_open_has_bounds_in_all_and_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SOCKETS_MAX", 3)
    monkeypatch.setattr(websocket, "OF_CALLER_MAX", 2)
    sockets = WebSockets()
    with sockets.place("ann"), sockets.place("ann"):
        with pytest.raises(Overloaded, match="with this token"), sockets.place("ann"):
            raise AssertionError("one too many of hers")
        with sockets.place("bob"), pytest.raises(Overloaded, match=r"WebSockets;"), sockets.place("eve"):
            raise AssertionError("one too many")
        assert len(sockets) == 2
    assert not len(sockets) and not sockets._of_caller
