"""What is documented is what is served, both ways."""

from __future__ import annotations

import hashlib
import json
from time import time
from typing import Any

import msgpack
import pytest

from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.gateway.server.route import Route
from actorgrid.actors.jobs.graph_spec import write_spec
from actorgrid.actors.ledger.api_keys import make_key
from actorgrid.actors.ledger.tables.graphs import NEW_STEP
from actorgrid.configs.oidc_section import OidcSection
from actorgrid.dag.requests import GraphRequest

JOB = {"task_id": "new", "command": ["true"]}
BODIES: dict[str, Any] = {
    "post_working_dir": {"digest": "0" * 64},
    "post_environment": {"python": "3.12", "requirements": "numpy>=2\n"},
    "post_job": JOB,
    "post_jobs": {"jobs": [{**JOB, "task_id": "x"}, {**JOB, "task_id": "y"}]},
    "put_config": {"value": 3.0},
    "post_tenant": {"name": "biz", "weight": 2, "guarantee": {"gpus": 1}, "limits": {"gpus_by_model": {"H100": 2}}},
    "put_tenant": {"weight": 2.5},
    "put_secret": {"value": "c2VjcmV0", "shared": True},
    "put_quota": {"gpus": 2.5, "gpu_memory": "1GiB", "jobs_waiting": 5},
    "post_leave": {"now": True, "wait_s": 1},
    "post_rotation": {"call_off": False},
    "post_renewal": {"new_key": True},
    "post_token": {"ttl_s": 600, "uses": 2},
    "post_key": {"value": 1},
    "post_state_batch": {"mutations": [{"key": "k", "value": 1}]},
    "post_api_key": {"user_id": "ann"},
    "rotate_api_key": {"ttl_s": 3600},
    "post_sign_in": {"token": "a.b.c"},
    "post_drain": {"draining": True},
    "post_bench": {"to": "h2", "path": "tls", "bytes": 2**20, "trips": 10},
    "post_partition": {"gpu": "0000:0c:00", "change": "compute", "mode": "CPX"},
    "post_mig": {"gpu": "GPU-1", "profile": "3g.40gb"},
    "post_rebalance": {"exclude": ["h2"], "dry_run": False},
    "put_schedule": {"every_s": 60, "job": {"command": ["true"]}, "replace": True},
    "put_service": {"job": {"command": ["true"]}, "replicas_max": 2, "replace": True},
    "begin_token_stream": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "resume_s": 5},
    "scale_service": {"replicas_min": 0, "replicas_max": 3},
    "post_silence": {"alert": "Actorgrid*", "for_s": 60},
    "apply_tuning": {"names": ["sessions-lapse"]},
    "undo_tuning": {"names": []},
    "test_target": {"target": "webhook:http://127.0.0.1:9/"},
    "clear_notifications": {"job_id": "a"},
    "put_maintenance": {"for_s": 60, "reason": "fans"},
    "post_wait": {"job_ids": ["a"]},
    "post_results": {"job_ids": ["a", "b"]},
    "cancel_jobs": {"labels": {"team": "vision"}},
    "post_edit": {"priority": 70, "max_execution_time_s": None, "labels": {"team": "x", "old": None}},
    "post_acquire": {"owner": "me", "ttl_s": 5},
    "post_renew": {"owner": "me", "token": [1, 7]},
    "post_release": {"owner": "me", "token": [1, 7]},
    "open_session": {"user_id": "u", "python": ""},
    "acquire_lease": {"gpus": 0.5},
    "post_inspect_trace": {"events": 5},
    "post_suspend": {"for_s": 1},
    "cancel_indexes": {"indexes": "0"},
    "retry_indexes": {"indexes": "0"},
    "post_graph_file": {"digest": "0" * 64},
    "post_items": {"by": "g1.1-1.1", "position": 2, "size": 100},
    "post_graph": {"graph_id": "g2", "steps": [{"id": "one", "command": ["true"]}]},
}
PARTS = {
    "job_id": "a",
    "id": "t1",
    "host_id": "h1",
    "key": "work.kill_grace_s",
    "session_id": "s1",
    "lease_id": "l1",
    "name": "load_balancer",
    "user": "ann",
    "digest": "ab" * 32,
    "graph_id": "g1",
    "step": "one",
    "silence_id": "0123abcd",
    "instance": "MIG-1",
    "stream_id": "ts1",
    "tenant": "lab",
}
OF_OPERATION = {"find_channel": {"job_id": "r"}}
"""What else stands in the path of one."""
QUERIES = {"get_output": "?path=results/a"}


def path_of(route: Route) -> str:
    path = route.documented_path
    for name, value in {**PARTS, **OF_OPERATION.get(route.operation, {})}.items():
        path = path.replace("{" + name + "}", value)
    return path + QUERIES.get(route.operation, "")


def prepare(town: Any) -> None:
    town.host.settings.notifications.allowed_networks = ["127.0.0.0/8"]
    town.host.settings.oidc = OidcSection(issuer="http://127.0.0.1:9", client_id="cluster")
    town.attempt_folder().joinpath("stdout").write_bytes(b"hello\n")
    town.attempt_folder().joinpath("result.bin").write_bytes(b"result")
    environments = town.host.paths.environments_dir
    environments.mkdir(exist_ok=True)
    environments.joinpath(f"{PARTS['digest']}.build").touch()
    results = town.attempt_folder() / "outputs" / "results"
    results.mkdir(parents=True)
    results.joinpath("a").write_bytes(b"kept")
    attempt = town.attempt(state="succeeded", ended_at=2.0)
    town.add_job("a", kind="function", state="succeeded", attempts=[attempt], outputs=["results"])
    town.add_job("r", state="running", attempts=[{**town.attempt("r"), "allocation_id": "r.1"}])
    town.servers["distributed_state"].put("work.kill_grace_s", 1)
    silence = {"silence_id": PARTS["silence_id"], "alert": "*", "host": "*", "subject": "*", "until": 1e12, "by": "ann"}
    town.servers["distributed_state"].put(
        f"_cluster/alerts/silences/{PARTS['silence_id']}", {**silence, "reason": "", "only_firing_since": 0.0}
    )
    town.servers["load_balancer"].sessions.add("s1")
    town.hold_lease(PARTS["lease_id"])
    add_graph(town)
    plan = {"cron": "0 3 * * *", "time_zone": "Europe/Berlin", "job": {"command": ["true"]}, "replace": True}
    assert town.http("PUT", f"/api/schedules/{PARTS['name']}", json=plan).status == 200
    assert town.http("POST", "/api/tenants", json={"name": PARTS["tenant"]}).status == 200
    assert town.http("PUT", f"/api/secrets/{PARTS['name']}", json={"value": "c2VjcmV0"}).status == 200
    for word in ("one", "other"):  # the second is on its way, and can be taken back
        served = {"job": {"command": ["serve", word]}, "replace": True}
        assert town.http("PUT", f"/api/services/{PARTS['name']}", json=served).status == 200
    town.gateway._models.client_address = "127.0.0.1:9"  # where nobody is
    begun = town.http("POST", "/api/token-streams", json=BODIES["begin_token_stream"]).json["stream_id"]
    streams = town.gateway._app.token_streams._streams
    streams[PARTS["stream_id"]] = streams[begun]
    _, key = make_key(bytes(5), bytes(30), "ann@lab", "admin", time(), tenant="lab", name=PARTS["name"])
    town.servers["consensus"].keys[PARTS["id"]] = {**key, "id": PARTS["id"]}


def add_graph(town: Any) -> None:
    """A graph of one step, which gave what is in the folder of the attempt a.1."""
    call = {"offset": 0, "size": 1}
    steps = [{"id": "one", "kind": "function", "call": call}]
    request = GraphRequest.model_validate({"graph_id": PARTS["graph_id"], "bundle": "0" * 64, "steps": steps})
    content = write_spec(request)
    digest = hashlib.sha256(content).hexdigest()
    town.host.paths.blobs_dir.mkdir(parents=True, exist_ok=True)
    town.host.paths.blobs_dir.joinpath(digest).write_bytes(content)
    facts = {"files": [digest], "steps": 1, "strategy": "time_optimized", "on_failure": "continue", "extensions": []}
    graph = {**facts, "stopping": False, "retries": 0}
    array = {"array": "0"}
    town.add_job(PARTS["graph_id"], kind="graph", state="failed", ended_at=2.0, graph=graph, annotations=array)
    done = {"state": "succeeded", "run": 1, "host": "h1", "attempt_id": "a.1", "job_id": "a", "size": 6}
    town.servers["consensus"].steps = [(0, {**NEW_STEP, **done})]


def test_document_and_router_hold_the_same_paths_and_methods(town: Any) -> None:
    document = town.http("GET", "/openapi.json", token=None).json
    documented = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    app = town.gateway._app.application()
    served = set()
    for route in app.router.routes():
        info = route.resource.get_info()
        served.add((route.method, info.get("path") or info["formatter"]))
    assert documented == served
    assert document["openapi"] == "3.1.0"


def test_every_reference_in_the_document_leads_somewhere(town: Any) -> None:
    document = town.http("GET", "/openapi.json", token=None).json

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                where = document
                for part in node["$ref"].removeprefix("#/").split("/"):
                    where = where[part]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    operations = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(set(operations)) == len(operations)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.documented_path}")
@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_every_documented_operation_answers_as_its_schema_says(town: Any, route: Route, form: str) -> None:
    prepare(town)
    headers = {"Accept": "application/msgpack"} if form == "msgpack" else {}
    more: dict[str, Any] = {"headers": headers}
    if route.request is not None:
        body = BODIES[route.operation]
        if form == "msgpack":
            more["data"] = msgpack.packb(body)
            headers["Content-Type"] = "application/msgpack"
        else:
            more["json"] = body
    if route.answer == "text/event-stream":

        async def first(response: Any) -> tuple[int, str, bytes]:
            return response.status, response.content_type, await response.content.readline()

        status, content_type, line = town.finish(town.with_stream(path_of(route), first))
        assert (status, content_type, line) == (200, "text/event-stream", b": listening\n")
        return
    if route.websocket:  # what they say: tests/gateway/test_websockets.py

        async def open_and_close() -> bool:
            headers = {"Authorization": f"Bearer {town.token}"}
            async with town.client.session.ws_connect(town.url + path_of(route), headers=headers) as socket:
                return not socket.closed

        assert town.run(open_and_close())
        return
    reply = town.http(route.method, path_of(route), **more)
    if route.operation == "post_sign_in":  # what a provider's token is given: tests/gateway/test_sign_in.py
        assert reply.status in (400, 401) and (b"WrongToken" in reply.body or b"actorgrid[oidc]" in reply.body)
        return
    if route.status == 101:  # tests/system/test_sessions_afar.py upgrades
        assert reply.status == 400 and b"upgrade" in reply.body
        return
    assert reply.status == route.status, reply.body
    if isinstance(route.answer, str):
        assert reply.headers["Content-Type"].partition(";")[0] == route.answer
        return
    assert reply.headers["Content-Type"].partition(";")[0] == f"application/{form}"
    plain = msgpack.unpackb(reply.body) if form == "msgpack" else json.loads(reply.body)
    route.answer.model_validate(plain)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.token], ids=lambda route: f"{route.method} {route.documented_path}"
)
def test_every_operation_under_api_asks_for_the_token(town: Any, route: Route) -> None:
    assert route.path.startswith("/api/")
    reply = town.http(route.method, path_of(route), token=None)
    assert reply.status == 401
    assert reply.error["code"] == "WrongToken"
