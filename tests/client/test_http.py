from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from actorgrid.client.client import Client, connect
from actorgrid.client.http import AdminHttp, segment
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    HostUnreachable,
    NoSuchActor,
    TooManyGpus,
    WrongToken,
)
from tests.client.stand_in import StandIn


@pytest.fixture
def http(host: StandIn) -> Iterator[AdminHttp]:
    http = AdminHttp(host.url, host.token)
    yield http
    http.close()


def test_a_token_is_not_sent_in_the_clear_beyond_this_machine() -> None:
    with pytest.raises(BadRequest, match="in the clear"):
        AdminHttp("http://10.0.0.1:7400", "t")
    AdminHttp("http://10.0.0.1:7400", "t", insecure=True).close()


@pytest.mark.parametrize("url", ["127.0.0.1:7400", "ftp://127.0.0.1", "http://", "http://127.0.0.1/?q=1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        AdminHttp(url)


def test_named_errors_arrive_as_themselves(host: StandIn, http: AdminHttp) -> None:
    def refuse(_body: object, _query: object) -> object:
        raise TooManyGpus("there are 8", asked="9 GPUs", found="8 GPUs", hint="ask for fewer", exist=8)

    host.routes["GET", "/api/x"] = refuse
    with pytest.raises(TooManyGpus) as caught:
        http.get("/api/x")
    assert (caught.value.asked, caught.value.found, caught.value.details) == ("9 GPUs", "8 GPUs", {"exist": 8})


def test_bytes_travel_as_msgpack_and_the_rest_as_json(host: StandIn, http: AdminHttp) -> None:
    got: list[object] = []
    host.routes["POST", "/api/x"] = lambda body, _query: got.append(body)
    http.post("/api/x", {"a": b"\xff\x00"})
    http.post("/api/x", {"a": [1, "zwei"]})
    assert got == [{"a": b"\xff\x00"}, {"a": [1, "zwei"]}]


def test_empty_query_values_are_left_out(host: StandIn, http: AdminHttp) -> None:
    host.routes["GET", "/api/x"] = lambda _body, query: query
    assert http.get("/api/x", a=None, b=True, c="ä b") == {"b": "true", "c": "ä b"}


def test_an_idempotent_request_waits_for_a_door_that_opens_again(host: StandIn, http: AdminHttp) -> None:
    assert http.get("/api/config") == {"settings": []}
    host.shut()
    opener = threading.Timer(0.3, host.open)
    opener.start()
    assert http.get("/api/config") == {"settings": []}
    opener.join()


def test_a_server_that_restarts_is_asked_again(host: StandIn, http: AdminHttp) -> None:
    answers: list[ActorGridError | None] = [NoSuchActor("not up yet"), None]

    def sometimes(_body: object, _query: object) -> str:
        error = answers.pop(0)
        if error is not None:
            raise error
        return "here"

    host.routes["GET", "/api/x"] = sometimes
    assert http.get("/api/x") == "here"


def test_what_must_happen_once_is_sent_once(host: StandIn, http: AdminHttp) -> None:
    def broken(_body: object, _query: object) -> object:
        raise NoSuchActor("not up yet")

    host.routes["POST", "/api/x"] = broken
    with pytest.raises(NoSuchActor):
        http.post("/api/x", {})
    assert host.requests.count(("POST", "/api/x")) == 1


def test_nobody_there_says_what_to_do(host: StandIn) -> None:
    url = host.url
    host.shut()
    http = AdminHttp(url, "t", retry_s=0)
    with pytest.raises(HostUnreachable, match="actorgrid up"):
        http.get("/api/config")
    http.close()


def test_connect_refuses_a_wrong_token_at_once(host: StandIn) -> None:
    with pytest.raises(WrongToken):
        connect(host.url, "wrong")
    connect(host.url, host.token).close()


def test_a_closed_client_says_so(host: StandIn) -> None:
    client = Client(host.url, host.token)
    client.close()
    with pytest.raises(HostUnreachable, match="closed"):
        client.hosts()


def test_keys_become_path_segments() -> None:
    assert segment("a/b c") == "a%2Fb%20c"
    assert segment("a/b c", slashes=True) == "a/b%20c"


def test_importing_the_client_stays_light() -> None:
    heavy = "pydantic", "aiohttp", "cloudpickle", "asyncio", "msgpack", "thespian"
    code = f"import sys, actorgrid.client.client; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
