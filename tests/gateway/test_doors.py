"""The door itself: who may enter, what it says to strangers, what breaks and what does not."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import Any

import psutil
import pytest

from actorgrid.actors.files.identity import read_token
from actorgrid.actors.gateway.actor import Gateway, shortest
from actorgrid.actors.gateway.server import connections
from actorgrid.actors.gateway.server import loop as gateway_loop
from actorgrid.actors.gateway.server.application import nearest_path
from actorgrid.actors.gateway.server.auth import TokenGate, allowed_names, check_host
from actorgrid.actors.gateway.server.bridge import MAX_IN_FLIGHT
from actorgrid.actors.gateway.server.listener import listen
from actorgrid.errors import BadRequest, DiskFull, Overloaded, PortInUse, QueueFull, WrongToken
from actorgrid.supervisors.envelope import GetStatus


def test_token_is_made_once_and_only_ours_to_read(town: Any) -> None:
    path = town.host.paths.token_file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(town.token) >= 32
    assert read_token(path) == town.token


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic x", "", "Bearer", "Bearer é"])
def test_wrong_token_is_refused_with_where_to_find_it(town: Any, header: str) -> None:
    reply = town.http("GET", "/api/cluster", token=None, headers={"Authorization": header})
    assert (reply.status, reply.error["code"]) == (401, "WrongToken")
    assert str(town.host.paths.token_file) in reply.error["hint"]
    assert reply.headers["WWW-Authenticate"] == "Bearer"


def test_many_wrong_tokens_are_slowed_down_but_the_right_one_passes(caplog: Any, tmp_path: Any) -> None:
    gate = TokenGate("right", tmp_path)
    for _ in range(50):
        with pytest.raises(WrongToken):
            gate.check("Bearer wrong", 100.0, 0.0)
    with pytest.raises(Overloaded):
        gate.check("Bearer wrong", 100.0, 0.0)
    gate.check("Bearer right", 100.0, 0.0)
    with pytest.raises(WrongToken):
        gate.check("Bearer wrong", 101.0, 0.0)
    assert gate.refused_total == 52
    assert len(caplog.records) == 1


def test_wrong_tokens_of_one_address_slow_down_only_that_one(tmp_path: Any) -> None:
    gate = TokenGate("right", tmp_path)
    for _ in range(20):
        with pytest.raises(WrongToken):
            gate.check("Bearer wrong", 100.0, 0.0, "10.0.0.7")
    with pytest.raises(Overloaded, match="this address"):
        gate.check("Bearer wrong", 100.0, 0.0, "10.0.0.7")
    with pytest.raises(WrongToken, match="actorgrid login, or key create"):
        gate.check("Bearer wrong", 100.0, 0.0, "10.0.0.8")
    assert gate.check("Bearer right", 100.0, 0.0, "10.0.0.7").name == "admin"


@pytest.mark.parametrize("path", ["/api/nothing", "/api/jobs/x/y/z"])
def test_paths_under_api_say_nothing_without_a_token(town: Any, path: str) -> None:
    assert town.http("GET", path, token=None).status == 401


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/job", "/api/jobs"),
        ("/api/job/abc/why", "/api/jobs/{job_id}/why"),
        ("/api/jobs/abc/log", "/api/jobs/{job_id}/logs"),
        ("/metric", "/metrics"),
        ("/openapi", "/openapi.json"),
    ],
)
def test_unknown_path_names_the_nearest_one(town: Any, path: str, meant: str) -> None:
    reply = town.http("GET", path)
    assert (reply.status, reply.error["code"]) == (404, "NotFound")
    assert reply.error["hint"] == f"did you mean {meant}?"


def test_nothing_is_suggested_for_what_is_like_nothing() -> None:
    assert nearest_path("/wp-admin/setup.php") == ""


def test_wrong_method_says_which_are_right(town: Any) -> None:
    reply = town.http("DELETE", "/api/jobs")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, POST")
    assert reply.error["found"] == "GET, POST"


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:7400", "localhost.evil.example", "[::2]", "127.0.0.1.x"]
)
def test_a_foreign_host_header_is_refused(town: Any, name: str) -> None:
    reply = town.http("GET", "/healthz", headers={"Host": name})
    assert (reply.status, reply.error["code"]) == (400, "BadRequest")
    assert "Host header" in reply.error["message"]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80", "[::1]"])
def test_our_own_names_pass_with_any_port(name: str) -> None:
    check_host(name, allowed_names("127.0.0.1"))
    with pytest.raises(BadRequest):
        check_host(None, allowed_names("127.0.0.1"))


def test_answers_carry_security_headers_and_no_cors(town: Any) -> None:
    for path in ("/healthz", "/nothing", "/api/jobs"):
        headers = town.http("GET", path, headers={"Origin": "http://evil.example"}).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "actorgrid"
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_what_is_no_http_gets_a_named_error(town: Any) -> None:
    answer = town.raw(b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.") and b" 400 " in answer.split(b"\r\n")[0]
    assert b'"code":"BadRequest"' in answer


def test_an_endless_header_is_refused(town: Any) -> None:
    answer = town.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000 + b"\r\n\r\n")
    assert b" 400 " in answer.split(b"\r\n")[0]


def test_a_connection_that_asks_nothing_is_closed(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_loop, "FIRST_REQUEST_S", 0.1)
    assert town.raw(b"GET /healthz HT") == b""


def test_one_connection_too_many_is_told_so(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 0)
    reply = town.http("GET", "/healthz")
    assert (reply.status, reply.error["code"]) == (429, "Overloaded")


@pytest.mark.parametrize("error", [QueueFull("full", found="9"), DiskFull("no room", hint="make some")])
def test_errors_of_servers_cross_unchanged(town: Any, error: Any) -> None:
    town.servers["cluster_manager"].broken = error
    reply = town.http("POST", "/api/jobs", json={"command": ["x"]})
    assert (reply.status, reply.error) == (error.http_status, error.to_dict())


def test_a_server_that_is_gone_gives_503(town: Any) -> None:
    town.node.remove("cluster_manager")
    reply = town.http("GET", "/api/jobs")
    assert (reply.status, reply.error["code"]) == (503, "NoSuchActor")


def test_a_bug_gives_a_reference_that_is_in_the_log(town: Any, caplog: Any) -> None:
    town.gateway._app.openapi = object()
    reply = town.http("GET", "/openapi.json")
    reference = reply.error["details"]["reference"]
    assert reply.status == 500 and reference in reply.error["hint"]
    assert any(reference in record.getMessage() and record.exc_info for record in caplog.records)
    assert "object" not in reply.body.decode()


def test_unknown_and_repeated_query_parameters_are_refused(town: Any) -> None:
    assert town.http("GET", "/api/jobs?limt=3").error["hint"] == "did you mean limit?"
    assert town.http("GET", "/api/gpus?x=1").status == 400
    assert "given twice" in town.http("GET", "/api/jobs", params=[("limit", "1"), ("limit", "2")]).error["message"]
    assert "limit" in town.http("GET", "/api/jobs?limit=0").error["message"]
    assert town.http("GET", "/api/jobs?state=queued,nope").error["asked"] == "nope"
    assert town.http("GET", "/api/jobs/a?wait_s=nan").status == 400


def test_calls_under_way_have_a_bound(town: Any) -> None:
    town.gateway._bridge.in_flight = MAX_IN_FLIGHT
    reply = town.http("GET", "/api/jobs")
    assert (reply.status, reply.error["code"]) == (429, "Overloaded")
    town.gateway._bridge.in_flight = 0


def test_a_job_can_be_waited_for(town: Any) -> None:
    town.add_job("a")
    waiting = town.start(town.fetch("GET", "/api/jobs/a?wait_s=30"))
    town.until(lambda: bool(town.servers["cluster_manager"].waiting), "the wait")
    assert not waiting.done()
    town.servers["cluster_manager"].change("a", state="succeeded")
    assert town.finish(waiting).json["state"] == "succeeded"


def test_waiting_ends_in_time_without_the_end_of_the_job(town: Any) -> None:
    town.add_job("a")
    assert town.http("GET", "/api/jobs/a?wait_s=0.05").json["state"] == "queued"


def test_many_requests_at_once_are_all_answered(town: Any) -> None:
    for number in range(50):
        town.add_job(f"j{number}")

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(town.fetch("GET", f"/api/jobs/j{n % 50}") for n in range(400)))

    replies = town.run(all_of_them())
    assert [reply.json["job_id"] for reply in replies] == [f"j{n % 50}" for n in range(400)]
    assert town.gateway._bridge.in_flight == 0


def test_nothing_listens_beyond_loopback(town: Any) -> None:
    listening = [
        connection.laddr
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type.name == "SOCK_DGRAM"
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    # The cluster's address is one of loopback here.
    assert {address.port for address in listening} == {int(town.url.rpartition(":")[2]), town.host.enrolment.https_port}


def test_status_says_where(town: Any) -> None:
    status = town.node.request("gateway", GetStatus())
    assert status["url"] == town.url
    assert status["pid"] == os.getpid()


def test_port_in_use_names_its_holder(town: Any) -> None:
    port = int(town.url.rpartition(":")[2])
    with pytest.raises(PortInUse) as caught:
        listen("127.0.0.1", port)
    assert f"pid {os.getpid()}" in caught.value.found
    assert str(port) in caught.value.message
    assert "--port" in caught.value.hint


def test_a_gateway_whose_port_is_taken_does_not_start(town: Any, tmp_path: Any) -> None:
    from dataclasses import replace

    settings = town.host.settings.model_copy(deep=True)
    settings.cluster.base_port = int(town.url.rpartition(":")[2])
    other = replace(town.host, settings=settings, boot_id="other")
    with pytest.raises(PortInUse):
        town.node.add(Gateway, other)


def test_stopping_answers_those_who_wait_and_stops_listening(town: Any) -> None:
    town.add_job("a")
    waiting = town.start(town.fetch("GET", "/api/jobs/a?wait_s=60"))
    town.until(lambda: bool(town.servers["cluster_manager"].waiting), "the wait")
    town.gateway.stop("test")
    reply = town.finish(waiting)
    assert (reply.status, reply.error["code"]) == (503, "HostUnreachable")
    with pytest.raises(OSError):
        town.http("GET", "/healthz")


def test_readiness_follows_the_fault_detector(town: Any) -> None:
    assert town.http("GET", "/readyz", token=None).json == {"ready": True, "health": "healthy", "problems": []}
    town.servers["fault_detector"].ready = False
    reply = town.http("GET", "/readyz", token=None)
    assert (reply.status, reply.json["problems"]) == (503, ["consensus is silent"])
    town.node.remove("fault_detector")
    assert town.http("GET", "/readyz", token=None).status == 503
    assert town.http("GET", "/healthz", token=None).json == {"status": "ok"}


def test_settings_are_listed_and_live_ones_changed(town: Any) -> None:
    reply = town.http("PUT", "/api/config/work.kill_grace_s", json={"value": 7})
    assert reply.json == {"key": "work.kill_grace_s", "value": 7.0, "previous": 5.0}
    listed = {one["key"]: one for one in town.http("GET", "/api/config").json["settings"]}
    assert set(listed) == set(town.host.settings.keys())
    one = listed["work.kill_grace_s"]
    assert (one["value"], one["default"], one["live"], one["origin"]) == (7.0, 5.0, True, "live")
    assert all(entry["description"] for entry in listed.values() if "pools" not in entry["key"])


@pytest.mark.parametrize(
    ("key", "value", "status", "code"),
    [
        ("work.kill_grace", 1, 400, "UnknownSetting"),
        ("cluster.base_port", 1, 409, "SettingNotLive"),
        ("work.kill_grace_s", -1, 400, "InvalidSetting"),
    ],
)
def test_wrong_settings_are_refused(town: Any, key: str, value: Any, status: int, code: str) -> None:
    reply = town.http("PUT", f"/api/config/{key}", json={"value": value})
    assert (reply.status, reply.error["code"]) == (status, code)


def test_inspect_shows_who_does_not_answer(town: Any) -> None:
    town.node.remove("load_balancer")
    servers = town.http("GET", "/api/inspect").json["servers"]
    assert servers["load_balancer"]["error"]["code"] == "NoSuchActor"
    assert servers["host"] == {"children": 8}
    assert servers["gateway"]["url"] == town.url


def test_sessions_pass_their_resources_on(town: Any) -> None:
    town.http("POST", "/api/sessions", json={"user_id": "u"})
    reply = town.http("POST", "/api/sessions/s1/leases", json={"gpus": 0.5, "wait_s": 1, "env": {"A": "b"}})
    assert reply.json["lease_id"] == "l1"
    asked = town.servers["load_balancer"].acquired[0]
    assert (asked.resources["gpu_milli"], asked.wait_s, asked.env) == (500, 1.0, {"A": "b"})
    assert town.http("DELETE", "/api/sessions/s1").json == {"done": True}
    assert town.http("POST", "/api/sessions/s1/renew").error["code"] == "UnknownSession"
    reply = town.http("POST", "/api/sessions/s1/leases", json={"gpus": 0.5, "python": "2.7"})
    assert reply.error["code"] == "PythonMismatch"


def test_a_write_may_ask_for_a_majority_within_some_time(town: Any) -> None:
    assert town.http("POST", "/api/state/k", json={"value": 1, "durability": "majority", "within_s": 2}).status == 200
    asked = town.servers["distributed_state"].mutations[-1]
    assert (asked.durability, asked.within_s) == ("majority", 2.0)
    assert town.http("POST", "/api/state/k", json={"value": 1}).status == 200
    assert town.servers["distributed_state"].mutations[-1].durability == "host"
    for wrong in ({"durability": "all"}, {"within_s": 0}, {"within_s": 61}, {"within_s": "long"}):
        assert town.http("POST", "/api/state/k", json={"value": 1, **wrong}).status == 400


def test_state_keys_may_hold_slashes_and_anything_else(town: Any) -> None:
    reply = town.http("POST", "/api/state/models/a%20b/%C3%A9", json={"value": [1]})
    assert reply.json == {"key": "models/a b/é", "type": "lww_register", "value": [1]}
    assert town.http("GET", "/api/state/models/a%20b/%C3%A9").json["value"] == [1]
    assert town.http("GET", "/api/state?prefix=models/&limit=5").json["entries"] == [reply.json]
    assert town.http("GET", "/api/state/none").error["code"] == "UnknownKey"
    assert town.http("GET", "/api/state/" + "k" * 2000).status == 400


def test_only_the_shortest_prefixes_are_watched() -> None:
    assert shortest(["a/b", "a", "b/c", "b/d", "b/c/d"]) == {"a", "b/c", "b/d"}
    assert shortest(["", "a"]) == {""}
    assert shortest([]) == set()
