"""The gRPC door: the same rights, errors and streams as over HTTP, to clients that mean well and to others."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
from pydantic import ValidationError

from actorgrid.actors.gateway.grpc_door import door_keeper
from actorgrid.actors.gateway.grpc_door.door_keeper import GrpcKeeper
from actorgrid.actors.gateway.server import connections
from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.security.host_material import load_material
from actorgrid.cli.plug_in_checks import check_grpc
from actorgrid.configs.schema import GrpcSection

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'actorgrid[grpc]'")
pytest.importorskip("grpc_reflection", reason="grpcio-reflection is not installed")
pytest.importorskip("grpc_health", reason="grpcio-health-checking is not installed")

from google.protobuf.struct_pb2 import Struct, Value  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402

from actorgrid.actors.gateway.grpc_door import main as door  # noqa: E402
from actorgrid.actors.gateway.grpc_door import translation  # noqa: E402
from actorgrid.actors.gateway.grpc_door.calls import DETAILS, place_of  # noqa: E402
from actorgrid.actors.gateway.grpc_door.door_connections import peer_named  # noqa: E402
from actorgrid.actors.gateway.grpc_door.door_spec import DoorSpec  # noqa: E402
from actorgrid.actors.gateway.grpc_door.translation import EventReader, event_of, packed_error, status_name  # noqa: E402
from actorgrid.actors.gateway.grpc_door.verbs import VERBS, ChatVerb, HttpVerb, OutputVerb  # noqa: E402
from actorgrid.errors import (  # noqa: E402
    ActorGridError,
    BadRequest,
    MalformedMessage,
    NotAllowed,
    TooManyRequests,
    UnknownJob,
)
from actorgrid.rpc import actorgrid_pb2 as pb  # noqa: E402
from actorgrid.rpc import actorgrid_pb2_grpc as stubs  # noqa: E402

SECRET = "secret-of-this-start"


class Door:
    """The door's code, served in the client's loop: as its process does, without being one."""

    def __init__(self, town: Any) -> None:
        self.town = town
        self.address = ""
        self._stop: asyncio.Event | None = None
        self._served: Any = None

    def open(self, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        told = threading.Event()

        def say(word: Any) -> None:
            self.address = word.address
            told.set()

        monkeypatch.setattr(door, "say", say)
        self.town.gateway._app.door_secret = SECRET

        async def serve() -> None:
            self._stop = asyncio.Event()
            await door.serve(DoorSpec("127.0.0.1:0", self.town.url, **more), SECRET, self._stop)

        self._served = self.town.start(serve())
        self.town.until(lambda: told.is_set() or self._served.done(), "the door")

    def close(self) -> None:
        async def end() -> None:
            if self._stop is not None:
                self._stop.set()

        self.town.run(end())
        self.town.finish(self._served)

    def call(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let *use* talk over a channel, in the client's loop."""

        async def talk() -> Any:
            async with grpc.aio.insecure_channel(self.address) as channel:
                return await use(channel)

        return self.town.run(talk())

    def ask(self, service: str, method: str, request: Any, token: str | None = "", **more: Any) -> Any:
        """One call of one answer."""

        async def use(channel: Any) -> Any:
            stub = getattr(stubs, f"{service}Stub")(channel)
            return await getattr(stub, method)(request, metadata=self.metadata(token), **more)

        return self.call(use)

    def refused(self, service: str, method: str, request: Any, token: str | None = "", **more: Any) -> tuple[str, Any]:
        """The status that a call ends with, and the named error in its details."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            self.ask(service, method, request, token, **more)
        return raised.value.code().name, error_of(raised.value)

    def metadata(self, token: str | None) -> tuple[tuple[str, str], ...]:
        return () if token is None else (("authorization", f"Bearer {token or self.town.token}"),)

    @asynccontextmanager
    async def stream(self, service: str, method: str, request: Any, token: str = "") -> AsyncIterator[Any]:
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = getattr(getattr(stubs, f"{service}Stub")(channel), method)(request, metadata=self.metadata(token))
            try:
                yield call
            finally:
                call.cancel()

    def first(self, count: int, service: str, method: str, request: Any, token: str = "") -> Any:
        """The first messages of a stream, once they have come."""

        async def read() -> list[Any]:
            async with self.stream(service, method, request, token) as call:
                return [await call.read() for _ in range(count)]

        return self.town.start(read())

    def key(self, role: str = "user", user: str = "ann", tenant: str = "lab") -> dict[str, Any]:
        asked = {"user_id": user, "role": role, "tenant": tenant}
        made: dict[str, Any] = self.town.http("POST", "/api/keys", json=asked).json
        return made


def error_of(error: Any) -> Any:
    """The named error among the trailers of a call."""
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS:
            status = pb.Status.FromString(value)
            assert status.details[0].type_url == translation.TYPE_URL
            return pb.Error.FromString(status.details[0].value)
    return None


@pytest.fixture
def opened(town: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    found = Door(town)
    found.open(monkeypatch)
    yield found
    found.close()


def test_every_method_is_a_request_of_the_http_api_whose_right_decides() -> None:
    methods = {
        f"{name}.{method.name}": method
        for name, service in pb.DESCRIPTOR.services_by_name.items()
        for method in service.methods
    }
    assert set(methods) == set(VERBS)
    served = {(route.method, re.sub(r":[^}]*", "", route.path)) for route in ROUTES}
    for name, verb in VERBS.items():
        assert methods[name].server_streaming is not isinstance(verb, HttpVerb)
        asked = (verb.method, verb.path) if isinstance(verb, HttpVerb) else ("GET", verb.path)
        assert asked in served, name
        if isinstance(verb, ChatVerb):
            assert ("POST", verb.begin_path) in served
        if isinstance(verb, OutputVerb):
            assert ("GET", verb.job_path) in served
        parts = re.findall(r"\{(\w+)\}", verb.path)
        assert set(parts) <= set(methods[name].input_type.fields_by_name), name


def test_fields_of_messages_are_those_of_the_http_api() -> None:
    by_path = {(route.method, re.sub(r":[^}]*", "", route.path)): route for route in ROUTES}
    for name, verb in VERBS.items():
        if not isinstance(verb, HttpVerb):
            continue
        service, _, method = name.partition(".")
        message = pb.DESCRIPTOR.services_by_name[service].methods_by_name[method]
        route = by_path[verb.method, verb.path]
        taken = route.request if verb.place == "body" else route.query
        known = set() if taken is None else set(taken.model_fields)
        sent = set(message.input_type.fields_by_name) - set(re.findall(r"\{(\w+)\}", verb.path)) - {"more"}
        assert sent <= known, name
        assert not isinstance(route.answer, str)
        assert set(message.output_type.fields_by_name) <= set(route.answer.model_fields), name


def test_a_job_is_submitted_found_listed_and_cancelled(opened: Door) -> None:
    more = Struct()
    more.update({"annotations": {"why": "test"}})
    asked = pb.SubmitJobRequest(
        command=["train"], task_id="j", gpus=0.5, memory_bytes=2**33, env={"A": "b"}, labels={"team": "x"}, more=more
    )
    assert opened.ask("Jobs", "Submit", asked) == pb.SubmitJobAnswer(job_id="j")
    (record,) = opened.town.servers["cluster_manager"].submitted
    assert (record["command"], record["env"], record["labels"], record["annotations"]) == (
        ["train"],
        {"A": "b"},
        {"team": "x"},
        {"why": "test"},
    )
    assert record["resources"]["memory_mib"] == 2**13
    opened.town.add_job("j", attempts=[opened.town.attempt("j")])
    job = opened.ask("Jobs", "Get", pb.GetJobRequest(job_id="j"))
    assert (job.job_id, job.state, job.attempts[0].gpu_uuids, job.HasField("ended_at")) == (
        "j",
        "queued",
        ["GPU-0"],
        False,
    )
    listed = opened.ask("Jobs", "List", pb.ListJobsRequest(limit=10, state="queued"))
    assert ([each.job_id for each in listed.jobs], listed.total) == (["j"], 1)
    assert opened.ask("Jobs", "Cancel", pb.CancelJobRequest(job_id="j")).state == "cancelled"


def test_cluster_state_locks_and_services_answer(opened: Door) -> None:
    assert opened.ask("Cluster", "Get", pb.ClusterRequest()).gpu_capacity_milli == 1000
    (host,) = opened.ask("Cluster", "ListHosts", pb.ListHostsRequest()).hosts
    (gpu,) = opened.ask("Cluster", "ListGpus", pb.ListGpusRequest()).gpus
    assert (host.hostname, host.gpus[0].device_id, gpu.model, gpu.HasField("unfit")) == (
        "box",
        "GPU-0",
        "H100-80GB",
        False,
    )
    value = Value()
    value.struct_value.update({"loss": 0.25, "steps": 7, "notes": [None, True]})
    put = opened.ask("State", "Put", pb.PutStateRequest(key="run/../7 best?/%2F", value=value, ttl_s=60))
    assert (put.key, put.value) == ("run/../7 best?/%2F", value)
    written = opened.town.servers["distributed_state"].mutations[-1]
    assert written.value == {"loss": 0.25, "steps": 7, "notes": [None, True]} and written.ttl_s == 60
    assert opened.ask("State", "Get", pb.GetStateRequest(key="run/../7 best?/%2F")).value == value
    (entry,) = opened.ask("State", "List", pb.ListStateRequest(prefix="run/")).entries
    assert entry.key == "run/../7 best?/%2F"
    held = opened.ask("Locks", "Acquire", pb.AcquireLockRequest(name="a/b", owner="me", ttl_s=5))
    assert (held.name, held.held, list(held.token)) == ("a/b", True, [1, 7])
    assert opened.ask("Locks", "Renew", pb.RenewLockRequest(name="a/b", owner="me", token=held.token)).held
    assert opened.ask("Locks", "Release", pb.ReleaseLockRequest(name="a/b", owner="me", token=held.token)).released
    (lock,) = opened.ask("Locks", "List", pb.ListLocksRequest()).locks
    assert (lock.name, list(lock.holders[0].token)) == ("deploy", [1, 7])
    served = {"job": {"command": ["serve"]}, "replicas_min": 0}
    assert opened.town.http("PUT", "/api/services/m", json=served).status == 200
    scaled = opened.ask("Services", "Scale", pb.ScaleServiceRequest(name="m", replicas_min=0, replicas_max=3))
    assert (scaled.replicas_min, scaled.replicas_max) == (0, 3)
    assert opened.ask("Services", "Get", pb.GetServiceRequest(name="m")).name == "m"
    assert len(opened.ask("Services", "List", pb.ListServicesRequest()).services) == 1


def test_the_table_decides_for_grpc_as_for_http(opened: Door) -> None:
    viewer, user, other = opened.key("viewer", "v")["key"], opened.key()["key"], opened.key("user", "eve", "biz")["key"]
    job = pb.SubmitJobRequest(command=["true"], task_id="j")
    assert opened.refused("Jobs", "Submit", job, viewer)[0] == "PERMISSION_DENIED"
    assert opened.refused("Jobs", "Submit", job, "agk1.no.no")[0] == "UNAUTHENTICATED"
    status, error = opened.refused("Jobs", "Submit", job, None)
    assert (status, error.code) == ("UNAUTHENTICATED", "WrongToken")
    assert opened.ask("Jobs", "Submit", job, user).job_id == "j"
    assert opened.town.servers["cluster_manager"].submitted[-1]["user_id"] == "ann@lab"
    opened.town.add_job("j", user_id="ann@lab")
    status, error = opened.refused("Jobs", "Get", pb.GetJobRequest(job_id="j"), other)
    assert (status, error.code) == ("NOT_FOUND", "UnknownJob")
    assert opened.refused("Cluster", "ListHosts", pb.ListHostsRequest(), viewer)[0] == "PERMISSION_DENIED"


def test_errors_have_a_status_and_are_named(opened: Door) -> None:
    status, error = opened.refused("Jobs", "Get", pb.GetJobRequest(job_id="none"))
    assert (status, error.code, error.asked, error.hint) == ("NOT_FOUND", "UnknownJob", "none", "actorgrid ps")
    assert opened.refused("Jobs", "Get", pb.GetJobRequest())[0] == "INVALID_ARGUMENT"
    for name in ("..", "a/../b", "x" * 2000, "\0", "?wait_s=9"):
        assert opened.refused("Jobs", "Get", pb.GetJobRequest(job_id=name))[0] in ("NOT_FOUND", "INVALID_ARGUMENT"), (
            name
        )
    wrong = Struct()
    wrong.update({"nonsense": 1})
    status, error = opened.refused("Jobs", "Submit", pb.SubmitJobRequest(command=["x"], more=wrong))
    assert (status, error.code, error.details["field"]) == ("INVALID_ARGUMENT", "MalformedBody", "nonsense")
    assert opened.refused("Jobs", "Submit", pb.SubmitJobRequest(command=["x"], gpus=-1))[0] == "INVALID_ARGUMENT"
    two = (("authorization", "Bearer a"), ("authorization", "Bearer b"))

    async def twice(channel: Any) -> Any:
        return await stubs.JobsStub(channel).List(pb.ListJobsRequest(), metadata=two)

    with pytest.raises(grpc.aio.AioRpcError, match="one authorization"):
        opened.call(twice)

    async def garbage(channel: Any) -> Any:
        act = channel.unary_unary("/actorgrid.v1.Jobs/Get", request_serializer=None, response_deserializer=None)
        return await act(b"\xff\xff\xff", metadata=opened.metadata(""))

    with pytest.raises(grpc.aio.AioRpcError):
        opened.call(garbage)
    assert opened.ask("Jobs", "List", pb.ListJobsRequest()).total == 0, "and goes on"


def test_a_deadline_ends_a_wait_on_both_sides(opened: Door) -> None:
    opened.town.add_job("j")
    status, _ = opened.refused("Jobs", "Get", pb.GetJobRequest(job_id="j", wait_s=500), timeout=0.3)
    assert status == "DEADLINE_EXCEEDED"
    opened.town.until(lambda: not opened.town.gateway._app.rechecks._open, "the request to be given up")


def test_streams_tell_what_is_asked_for_and_go_on_behind_an_id(opened: Door) -> None:
    town = opened.town
    consensus, state = town.servers["consensus"], town.servers["distributed_state"]
    jobs = opened.first(1, "Jobs", "Watch", pb.WatchRequest(ids=["b"]))
    services = opened.first(1, "Services", "Watch", pb.WatchRequest())
    town.until(lambda: town.gateway._app.hub.listeners == 2, "the listeners")
    for kind, name in (("job", "a"), ("service", "b"), ("job", "b")):
        record = {"state": "queued"} if kind == "job" else None
        consensus.apply(kind, name, record)
    (event,), (other,) = town.finish(jobs), town.finish(services)
    assert (event.changes[0].kind, event.changes[0].id, event.changes[0].state) == ("job", "b", "queued")
    assert (other.changes[0].kind, other.changes[0].id) == ("service", "b") and event.index == other.index + 1
    (again,) = town.finish(opened.first(1, "Cluster", "Watch", pb.WatchRequest(after=other.index)))
    assert again.index == event.index
    state.put("k", [1, None])
    resync, entry, synced = town.finish(opened.first(3, "State", "Watch", pb.WatchStateRequest(prefix="k")))
    assert (resync.event, entry.entry.key, list(entry.entry.value.list_value), synced.event) == (
        "resync",
        "k",
        [1, None],
        "synced",
    )
    town.until(lambda: town.gateway._app.hub.listeners == 0, "the listeners to be gone")


def test_output_goes_on_from_attempt_to_attempt(opened: Door) -> None:
    town = opened.town
    ended = {**town.attempt(), "ended_at": 2.0, "state": "failed"}
    town.add_job("a", attempts=[ended, {**town.attempt("a", 2), "ended_at": 3.0}], state="succeeded", ended_at=3.0)
    (town.attempt_folder() / "stdout").write_bytes(b"one\xff")
    (town.attempt_folder("a.2") / "stdout").write_bytes(b"two")

    async def read(after: str) -> list[tuple[int, bytes, str]]:
        async with opened.stream("Jobs", "Logs", pb.LogsRequest(job_id="a", after=after)) as call:
            return [(each.attempt, each.data, each.id) async for each in call]

    assert town.run(read("1:2")) == [(1, b"e\xff", "1:4"), (2, b"two", "2:3")]
    with pytest.raises(grpc.aio.AioRpcError, match="no id of output"):
        town.run(read("2"))


def test_a_stream_ends_with_its_key(opened: Door) -> None:
    town = opened.town
    made = opened.key()

    async def read() -> str:
        async with opened.stream("Jobs", "Watch", pb.WatchRequest(), made["key"]) as call:
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
        return "went on"

    reading = town.start(read())
    town.until(lambda: town.gateway._app.hub.listeners == 1, "the listener")
    assert town.http("DELETE", f"/api/keys/{made['id']}").status == 200
    assert town.finish(reading) == "UNAUTHENTICATED"


def test_who_asks_is_told_to_the_http_door_and_believed_of_this_door_alone(opened: Door) -> None:
    town = opened.town
    told: list[str | None] = []
    facts = town.gateway._app._audited

    def note(request: Any, state: Any, status: int) -> Any:
        if request.path == "/api/cluster":
            told.append(state.address)
        return facts(request, state, status)

    town.gateway._app._audited = note
    opened.ask("Cluster", "Get", pb.ClusterRequest())
    headers = {"X-Actorgrid-Peer": "10.0.0.9", "X-Actorgrid-Door": SECRET}
    town.http("GET", "/api/cluster", headers=headers)
    town.http("GET", "/api/cluster", headers={**headers, "X-Actorgrid-Door": "guess"})
    assert told == ["127.0.0.1", "10.0.0.9", "127.0.0.1"]
    # Wrong tokens of a machine far away count as its own, though they come by loopback.
    codes = [town.http("GET", "/api/cluster", "agk1.no.no", headers=headers).status for _ in range(25)]
    assert codes[0] == 401 and codes[-1] == 429
    assert town.http("GET", "/api/cluster", "agk1.no.no").status == 401
    assert place_of("ipv6:%5B::1%5D:7") == ("::1", 7) and place_of("ipv4:10.0.0.1:7") == ("10.0.0.1", 7)
    assert place_of("unix:/a:7") == ("", 0)


def test_connections_without_a_token_are_few_and_the_oldest_goes_first(
    opened: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNPROVEN_MAX", 4)
    address, _, port = opened.address.rpartition(":")

    async def use() -> tuple[str, int, str]:
        async with opened.stream("State", "Watch", pb.WatchStateRequest(prefix="flood/")) as call:
            began = [(await call.read()).event for _ in range(2)][-1]
            strangers = [await asyncio.open_connection(address, int(port)) for _ in range(12)]
            async with asyncio.timeout(30):
                for reading, _ in strangers[:8]:
                    await reading.read()  # until it is hung up on
            left = sum(not reading.at_eof() for reading, _ in strangers)
            async with grpc.aio.insecure_channel(opened.address) as channel:
                asked = pb.PutStateRequest(key="flood/a", value=Value(string_value="b"))
                await stubs.StateStub(channel).Put(asked, metadata=opened.metadata(""))
            told = (await call.read()).entry.key
            for _, writing in strangers:
                writing.close()
            return began, left, told

    # Who has shown a good token keeps its connection.
    assert opened.town.run(use()) == ("synced", 4, "flood/a")


def test_clients_have_one_name_however_the_system_writes_it() -> None:
    assert peer_named("::ffff:10.0.0.1", 7) == peer_named("10.0.0.1", 7)
    assert peer_named("fe80::1%eth0", 7).address == "fe80::1"


def test_health_and_reflection_answer_whoever_asks(opened: Door) -> None:
    async def use(channel: Any) -> Any:
        checks, jobs = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest(service="actorgrid.v1.Jobs")
        first = await checks.Check(jobs)
        watch = checks.Watch(jobs)
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
        answer = await call.read()
        return first.status, {each.name for each in answer.list_services_response.service}

    first, names = opened.call(use)
    assert first in (health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING)
    assert {"actorgrid.v1.Jobs", "actorgrid.v1.State", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("mutual", [False, True], ids=["the host's certificate", "both sides'"])
def test_tls_shows_the_hosts_certificate_and_asks_for_the_clients_where_that_is_set(
    town: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mutual: bool
) -> None:
    folder = town.host.paths.security_dir
    material = load_material(folder, time())
    assert material is not None
    roots = material.bundle.pem.encode()
    (tmp_path / "clients.pem").write_bytes(roots)
    found = Door(town)
    more = {"client_authorities": str(tmp_path / "clients.pem")} if mutual else {}
    found.open(monkeypatch, security=str(folder), **more)
    key, certificate = material.pem.split(b"-----BEGIN CERTIFICATE", 1)
    own = (key, b"-----BEGIN CERTIFICATE" + certificate)

    async def ask(credentials: Any) -> str:
        async with grpc.aio.secure_channel(found.address, credentials) as channel:
            try:
                stub = stubs.ClusterStub(channel)
                return str((await stub.Get(pb.ClusterRequest(), metadata=found.metadata(""), timeout=20)).name)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)

    try:
        assert town.run(ask(grpc.ssl_channel_credentials(roots))) == ("UNAVAILABLE" if mutual else "actorgrid")
        assert town.run(ask(grpc.ssl_channel_credentials(roots, *own))) == "actorgrid"
        assert town.run(ask(grpc.ssl_channel_credentials())) == "UNAVAILABLE", "a stranger does not believe the host"
    finally:
        found.close()


def test_without_its_libraries_or_a_certificate_the_door_says_why_it_does_not_serve(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_keeper, "LIBRARIES", ("grpc", "no_such_library", "grpc.no_such_part"))
    keeper = GrpcKeeper(town.gateway, town.url, SECRET)
    keeper.start()
    assert keeper.problem.startswith("unavailable: no_such_library, grpc.no_such_part not installed")
    (finding,) = check_grpc("127.0.0.1:7407")
    assert (finding.level, finding.fix) == ("problem", "pip install 'actorgrid[grpc]'")
    assert [each.level for each in check_grpc("")] == ["note"]
    monkeypatch.undo()
    town.host.enrolment = None
    town.host.settings.grpc.listen = "0.0.0.0:7407"
    keeper = GrpcKeeper(town.gateway, town.url, SECRET)
    keeper.start()
    assert "certificate" in keeper.problem and keeper._process is None
    keeper.stop()
    for wrong in ("127.0.0.1", ":7", "::1:7", "127.0.0.1:70000", "127.0.0.1:x"):
        with pytest.raises(ValidationError):
            GrpcSection(listen=wrong)
    assert GrpcSection(listen="[::1]:0").listen == "[::1]:0"


def test_events_are_read_out_of_any_pieces() -> None:
    text = b': listening\n\nid: 7\ndata: {"a":1}\n\nevent: end\ndata: {}\n\n'
    for size in (1, 2, 3, 7, len(text)):
        reader = EventReader()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = [event for piece in pieces for event in reader.feed(piece)]
        assert [(each.event, each.id, each.data) for each in found] == [
            ("message", "7", b'{"a":1}'),
            ("end", "", b"{}"),
        ]


def test_an_event_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "EVENT_BYTES_MAX", 10)
    with pytest.raises(MalformedMessage):
        list(EventReader().feed(b"data: " + b"x" * 20))


def test_an_error_of_any_size_goes_into_the_trailers() -> None:
    for error in (BadRequest("x" * 9000, asked="y" * 9000), UnknownJob("none", problems=["z" * 100] * 500)):
        packed = packed_error(error)
        assert 0 < len(packed) <= translation.DETAIL_BYTES_MAX
        assert pb.Error.FromString(pb.Status.FromString(packed).details[0].value).code == type(error).__name__
    names = [status_name(each("x")) for each in (NotAllowed, TooManyRequests, ActorGridError)]
    assert names == ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INTERNAL"]
    assert all(hasattr(grpc.StatusCode, name) for name in translation.NUMBERS)
    assert {name: getattr(grpc.StatusCode, name).value[0] for name in translation.NUMBERS} == translation.NUMBERS


def test_changes_that_are_not_asked_for_make_no_event() -> None:
    plain = {"at": 1.0, "type": "x", "changes": [{"kind": "job", "id": "a", "state": "queued", "user_id": "ann"}]}
    event = event_of(3, plain, "job", frozenset())
    assert event is not None and event.changes[0].more["user_id"] == "ann"
    assert event_of(3, plain, "service", frozenset()) is None
    assert event_of(3, plain, "", frozenset({"b"})) is None
