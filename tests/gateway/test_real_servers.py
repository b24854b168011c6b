"""The doors before the real servers: what they answer is what is documented."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.gateway.server.route import Route
from actorgrid.errors import WrongState

READS = [
    route
    for route in ROUTES
    if route.method == "GET"
    and isinstance(route.answer, type)
    and not route.websocket
    and "{key" not in route.path
    # Nobody signs in by a provider here: test_sign_in.py.
    and route.path != "/login/oidc"
    # Those of sessions and leases need one to ask about: test_routes.py, tests/system/test_session_leases.py.
    and not any(name in route.path for name in ("{session", "{lease"))
]


def submit(town: Any, **job: Any) -> Any:
    return town.http("POST", "/api/jobs", json={"command": ["true"], **job})


@pytest.mark.parametrize("route", READS, ids=lambda route: route.documented_path)
def test_every_read_answers_as_its_schema_says(real_town: Any, route: Route) -> None:
    assert submit(real_town, task_id="j", gpus=0.5, outputs=["results"]).status == 201
    (host,) = real_town.http("GET", "/api/hosts").json["hosts"]
    if "{graph_id}" in route.documented_path:
        graph = {"graph_id": "g", "steps": [{"id": "one", "command": ["true"]}]}
        assert real_town.http("POST", "/api/graphs", json=graph).status == 201
    parts = {"job_id": "j", "name": "consensus", "host_id": host["node_id"], "graph_id": "g", "tenant": "lab"}
    if "/tenants/" in route.documented_path:
        assert real_town.http("POST", "/api/tenants", json={"name": "lab"}).status == 200
    if "/schedules/" in route.documented_path:
        plan = {"every_s": 3600, "job": {"command": ["true"]}}
        assert real_town.http("PUT", "/api/schedules/consensus", json=plan).status == 200
    if "/services/" in route.documented_path:
        assert real_town.http("PUT", "/api/services/consensus", json={"job": {"command": ["true"]}}).status == 200
    path = route.documented_path.format(**parts)
    reply = real_town.http("GET", path)
    if WrongState in route.errors and reply.status == WrongState.http_status:
        assert reply.error["code"] == "WrongState" and reply.error["hint"], "this host is alone"
        return
    assert reply.status in (200, *route.other), reply.body
    assert isinstance(route.answer, type) and issubclass(route.answer, BaseModel)
    route.answer.model_validate(reply.json)


def test_a_job_is_committed_placed_listed_and_cancelled(real_town: Any) -> None:
    assert submit(real_town, task_id="j", gpus=0.5, gpu_memory="2GiB", priority=90).json["duplicate"] is False
    assert submit(real_town, task_id="j").json["duplicate"] is True
    real_town.until(lambda: bool(real_town.gateway._ledger.allocations), "the grant")
    (allocation,) = real_town.http("GET", "/api/allocations").json["allocations"]
    assert (allocation["gpu_milli"], allocation["gpu_memory_mib"]) == (500, 2048)
    job = real_town.http("GET", "/api/jobs/j").json
    assert (job["state"], job["attempts"][0]["gpu_uuids"]) == ("placed", allocation["gpu_uuids"])
    assert real_town.http("GET", "/api/jobs?state=placed,running").json["total"] == 1
    assert real_town.http("POST", "/api/jobs/j/cancel").json["cancel_requested"] is True


def test_jobs_are_listed_page_by_page(real_town: Any) -> None:
    jobs = [{"task_id": f"p{number}", "command": ["true"], "gpus": 2} for number in range(7)]
    assert real_town.http("POST", "/api/jobs/batch", json={"jobs": jobs}).status == 201
    found, cursor = [], ""
    while cursor is not None:
        page = real_town.http("GET", f"/api/jobs?limit=3{cursor and f'&cursor={cursor}'}").json
        assert page["total"] == 7
        found, cursor = [*found, *(job["job_id"] for job in page["jobs"])], page["next"]
    assert found == [f"p{number}" for number in reversed(range(7))]
    assert real_town.http("GET", "/api/jobs?prefix=p3").json["total"] == 1
    assert real_town.http("GET", "/api/jobs?cursor=nobody").error["code"] == "UnknownJob"
    assert real_town.http("GET", "/api/jobs?cursor=p1&before=5").error["code"] == "BadRequest"


@pytest.mark.parametrize(
    ("job", "status", "code"),
    [
        ({"gpus": 3}, 400, "TooManyGpus"),
        ({"gpus": 1, "gpu_models": ["Z9000"]}, 400, "UnknownGpuModel"),
        ({"cpus": 4000}, 400, "RequestTooLarge"),
        ({"depends_on": ["nobody"]}, 404, "UnknownJob"),
    ],
)
def test_what_can_never_run_is_refused_at_once(real_town: Any, job: dict[str, Any], status: int, code: str) -> None:
    reply = submit(real_town, **job)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error["hint"]


def test_a_full_queue_refuses(real_town: Any) -> None:
    real_town.host.settings.set_live("scheduling.queue_max", 2)
    jobs = [{"command": ["true"]}] * 3
    assert real_town.http("POST", "/api/jobs/batch", json={"jobs": jobs}).error["code"] == "QueueFull"


def test_events_from_the_beginning_and_as_they_come(real_town: Any) -> None:
    submit(real_town, task_id="first", gpus=2)
    real_town.until(lambda: bool(real_town.gateway._ledger.allocations), "the grant")
    seen: list[dict[str, Any]] = []

    async def read(response: Any) -> None:
        async for line in response.content:
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
                if any(change["id"] == "second" for change in seen[-1]["changes"]):
                    return

    reading = real_town.with_stream("/api/events?from=0", read)
    real_town.until(lambda: len(seen) >= 3, "what was")
    submit(real_town, task_id="second", gpus=2)
    real_town.finish(reading)
    indexes = [event["index"] for event in seen]
    assert indexes == sorted(set(indexes))
    assert {"register_host", "submit_jobs", "grant_attempt"} <= {event["type"] for event in seen}


def test_state_of_each_type_goes_through_both_forms(real_town: Any) -> None:
    def change(key: str, **body: Any) -> Any:
        return real_town.http("POST", f"/api/state/{key}", json=body)

    assert change("r", value={"a": [1, None]}).json == {"key": "r", "type": "lww_register", "value": {"a": [1, None]}}
    assert change("c", type="pn_counter", operation="increment", value=3).json["value"] == 3
    assert change("s", type="or_set", operation="add", value="x").json["value"] == ["x"]
    assert change("c", type="or_set", operation="add", value=1).error["code"] == "StateTypeConflict"
    packed = msgpack.packb({"value": b"\x00\xff"})
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    reply = real_town.http("POST", "/api/state/b", data=packed, headers=headers)
    assert msgpack.unpackb(reply.body)["value"] == b"\x00\xff"
    assert [entry["key"] for entry in real_town.http("GET", "/api/state").json["entries"]][-4:] == ["b", "c", "r", "s"]


def test_state_changes_are_watched(real_town: Any) -> None:
    seen: list[Any] = []

    async def read(response: Any) -> None:
        async for line in response.content:
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
                if len(seen) == 2:
                    return

    reading = real_town.with_stream("/api/state-watch?prefix=w/", read)
    real_town.until(lambda: "w/" in real_town.gateway._watched, "the watch")
    for value in (1, 2):
        assert real_town.http("POST", "/api/state/w/k", json={"value": value}).status == 200
        real_town.until(lambda at=value: len(seen) >= at, "the change")
    real_town.finish(reading)
    assert [entry["value"] for entry in seen] == [1, 2]


def test_a_live_setting_reaches_everyone_and_says_so(real_town: Any) -> None:
    reply = real_town.http("PUT", "/api/config/work.kill_grace_s", json={"value": 2})
    assert reply.json == {"key": "work.kill_grace_s", "value": 2.0, "previous": 5.0}


def test_metrics_of_the_real_servers_can_be_parsed(real_town: Any) -> None:
    submit(real_town, task_id="j")
    text = real_town.http("GET", "/metrics", token=None).body.decode()
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    up = {sample.labels["server"]: sample.value for sample in found["actorgrid_up"]}
    assert set(up.values()) == {1.0}
    assert len(found["actorgrid_gpu_memory_total_bytes"]) == 2
    assert not [name for name in found if name.startswith("DCGM")]
    assert sum(sample.value for sample in found["actorgrid_jobs"]) == 1
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
