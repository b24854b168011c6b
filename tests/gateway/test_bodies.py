"""What comes in: JSON and msgpack, wrong ones named with their place, sizes bounded."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import msgpack
import pytest

from actorgrid.actors.gateway.job_requests import host_python, job_record
from actorgrid.actors.gateway.server.codec import check_plain, encode_json, field_names
from actorgrid.errors import HostUnreachable, MalformedBody
from actorgrid.models import TaskRequest

MSGPACK = {"Content-Type": "application/msgpack"}


def post(town: Any, body: Any, path: str = "/api/jobs") -> Any:
    return town.http("POST", path, json=body)


def test_accepted_job_has_the_whole_record(town: Any) -> None:
    reply = post(town, {"task_id": "j1", "command": ["/bin/echo", "hi"], "gpus": 0.25, "memory": "2GiB", "retries": 3})
    assert (reply.status, reply.json) == (201, {"job_id": "j1", "duplicate": False})
    job = town.servers["cluster_manager"].submitted[0]
    assert job["name"] == "echo"
    assert job["resources"] == {
        "gpus": 0.25,
        "gpu_count": 1,
        "gpu_milli": 250,
        "gpu_memory_mib": 0,
        "gpu_models": [],
        "gpu_affinity": [],
        "cpu_milli": 1000,
        "memory_mib": 2048,
    }
    assert job["retries_left"] == 3
    assert job["max_isolation_s"] == town.host.settings.work.max_isolation_s
    assert "state" not in job and "attempts" not in job


@pytest.mark.parametrize(
    "more", [{}, {"deadline_s": 60}, {"deadline": "2030-01-31T18:00+01:00", "grace_s": 0, "preemptible": False}]
)
def test_the_ledger_takes_the_records_we_make(more: dict[str, Any]) -> None:
    from actorgrid.actors.ledger.command import read_command
    from actorgrid.actors.ledger.commands import SubmitJobs

    request = TaskRequest(command=["x"], env={"A": "b"}, gpus=2, pool="general", max_execution_time_s=3, **more)
    read_command(SubmitJobs([job_record(request, None, None, 10.0, 5.0, 1.0)], at=1.0).to_plain())


def test_a_deadline_counts_from_the_acceptance_and_a_grace_that_is_not_given_is_the_hosts(town: Any) -> None:
    post(town, {"task_id": "a", "command": ["x"], "deadline_s": 60})
    post(town, {"task_id": "b", "command": ["x"], "deadline": "2030-01-31T18:00:00+01:00", "grace_s": 7.5})
    post(town, {"task_id": "c", "command": ["x"], "preemptible": False})
    a, b, c = town.servers["cluster_manager"].submitted
    assert (a["deadline"] - a["submitted_at"], a["grace_s"], a["preemptible"]) == (pytest.approx(60), 5.0, True)
    assert (b["deadline"], b["grace_s"]) == (1_896_109_200.0, 7.5)
    assert (c["deadline"], c["preemptible"]) == (None, False)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline": "2030-01-31T18:00"}, "deadline"),
        ({"deadline_s": 1, "deadline": "2030-01-31T18:00Z"}, "one of them"),
        ({"grace_s": 3601}, "grace_s"),
    ],
)
def test_a_deadline_or_grace_that_is_none_is_refused(town: Any, wrong: dict[str, Any], names: str) -> None:
    reply = post(town, {"command": ["x"], **wrong})
    assert reply.status == 400 and names in reply.json["error"]["message"]


def test_same_task_id_again_is_a_duplicate(town: Any) -> None:
    post(town, {"task_id": "j1", "command": ["x"]})
    assert post(town, {"task_id": "j1", "command": ["x"]}).json == {"job_id": "j1", "duplicate": True}


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_payload_is_on_disk_under_its_digest_before_the_job_is_submitted(town: Any, form: str) -> None:
    payload = b"\x80\x05opaque \xff bytes"
    body = {"task_id": "f", "kind": "function", "payload": payload, "python": host_python(), "stdin": b""}
    if form == "json":
        body["payload"] = base64.b64encode(payload).decode()
        body["stdin"] = ""
        reply = post(town, body)
    else:
        reply = town.http("POST", "/api/jobs", data=msgpack.packb(body), headers=MSGPACK)
    assert reply.status == 201, reply.body
    job = town.servers["cluster_manager"].submitted[0]
    assert job["payload_digest"] == hashlib.sha256(payload).hexdigest()
    assert job["stdin_digest"] == hashlib.sha256(b"").hexdigest()
    kept = town.host.paths.blobs_dir / job["payload_digest"]
    assert kept.read_bytes() == payload
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not list(town.host.paths.blobs_dir.glob(".incoming-*"))
    # And on other hosts' disks: this one may be lost.
    assert [set(each) for each in town.servers["links"].spread] == [{job["payload_digest"], job["stdin_digest"]}]


def test_a_job_whose_payload_no_other_host_takes_is_not_accepted(town: Any) -> None:
    town.servers["links"].broken = HostUnreachable("too few voters take the job's payload, so it is not accepted")
    reply = post(town, {"task_id": "f", "kind": "function", "payload": "AAAA", "python": host_python()})
    assert (reply.status, reply.error["code"]) == (503, "HostUnreachable")
    assert not town.servers["cluster_manager"].submitted


def test_batch_is_accepted_whole_with_equal_payloads_kept_once(town: Any) -> None:
    jobs = [
        {"task_id": f"b{i}", "kind": "function", "payload": b"same", "python": host_python() + ".9"} for i in range(20)
    ]
    reply = town.http("POST", "/api/jobs/batch", data=msgpack.packb({"jobs": jobs}), headers=MSGPACK)
    assert [job["job_id"] for job in reply.json["jobs"]] == [f"b{i}" for i in range(20)]
    assert len(list(town.host.paths.blobs_dir.iterdir())) == 1


@pytest.mark.parametrize(
    ("body", "code", "status", "field", "hint"),
    [
        ({"command": ["x"], "gpu": 1}, "MalformedBody", 400, "gpu", "did you mean gpus?"),
        ({"command": ["x"], "gpus": "many"}, "MalformedBody", 400, "gpus", ""),
        ({"command": ["x"], "gpus": 1.5}, "MalformedBody", 400, "", ""),
        ({"command": ["x"], "priority": 101}, "MalformedBody", 400, "priority", ""),
        ({"command": ["x"], "policy": "luck"}, "UnknownPolicy", 400, "policy", ""),
        ({"command": ["x"], "memory": "lots"}, "MalformedBody", 400, "memory", ""),
        ({"command": ["x"], "memory": "64"}, "MalformedBody", 400, "memory", ""),
        ({"command": ["x"], "gpus": 1, "gpu_memory": 10}, "MalformedBody", 400, "gpu_memory", ""),
        ({"command": ["x"], "gpu_models": ["H100"]}, "MalformedBody", 400, "", ""),
        ({"command": ["x"], "env": {"A=B": "c"}}, "MalformedBody", 400, "env", "names hold"),
        ({"command": ["x"], "cwd": "here"}, "MalformedBody", 400, "cwd", "write it from /"),
        ({"command": ["x"], "depends_on": ["../up"]}, "MalformedBody", 400, "depends_on", "ids are"),
        ({"task_id": "me", "command": ["x"], "depends_on": ["me"]}, "MalformedBody", 400, "depends_on", "leave"),
        ({"command": ["x"], "max_execution_time_s": 0}, "MalformedBody", 400, "max_execution_time_s", ""),
        ({"kind": "function"}, "MalformedBody", 400, "", ""),
        ({"command": ["x"], "checkpoint": {"path": "../up"}}, "MalformedBody", 400, "checkpoint.path", ""),
        (
            {"command": ["x"], "checkpoint": {"path": "c", "every_s": 0}},
            "MalformedBody",
            400,
            "checkpoint.every_s",
            "",
        ),
        ({"command": ["x"], "checkpoint": {"every_s": 5}}, "MalformedBody", 400, "checkpoint", ""),
        ({}, "MalformedBody", 400, "", ""),
        ([], "MalformedBody", 400, "", ""),
    ],
)
def test_wrong_field_is_named_with_its_value_and_a_hint(
    town: Any, body: Any, code: str, status: int, field: str, hint: str
) -> None:
    reply = post(town, body)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error["details"].get("field", "") == field
    assert hint in reply.error["hint"]
    assert field in reply.error["message"]
    assert not town.servers["cluster_manager"].submitted


def test_wrong_field_in_a_batch_is_named_with_its_position(town: Any) -> None:
    reply = post(town, {"jobs": [{"command": ["x"]}, {"command": ["x"], "priorty": 3}]}, "/api/jobs/batch")
    assert reply.error["message"].startswith("jobs.1.priorty: there is no such field")
    assert reply.error["hint"] == "did you mean priority?"


def test_a_batch_with_one_id_twice_is_refused(town: Any) -> None:
    jobs = [{"task_id": "t", "command": ["x"]}] * 2
    assert "used twice" in post(town, {"jobs": jobs}, "/api/jobs/batch").error["message"]


def test_all_wrong_fields_are_listed(town: Any) -> None:
    reply = post(town, {"command": ["x"], "priority": -1, "retries": "no"})
    assert [problem["field"] for problem in reply.error["details"]["problems"]] == ["priority", "retries"]
    assert "(and 1 more)" in reply.error["message"]


@pytest.mark.parametrize("raw", [b'{"command": [oops]}', b'{"command": ["x"]', b"\xff\xfe", b'{"command": ["\xff"]}'])
def test_malformed_json_is_named_with_its_position(town: Any, raw: bytes) -> None:
    reply = town.http("POST", "/api/jobs", data=raw, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error["code"]) == (400, "MalformedBody")
    assert "line 1 column" in reply.error["message"]


def test_empty_body_says_what_is_expected(town: Any) -> None:
    reply = town.http("POST", "/api/jobs", headers={"Content-Type": "application/json"})
    assert reply.error["message"] == "the body is empty"
    assert "command" in reply.error["hint"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x82\xa7command", "ends too early"),
        (b"\xc1", "not msgpack"),
        (msgpack.packb({"command": ["x"]}) + b"more", "bytes follow"),
        (msgpack.packb({"command": msgpack.ExtType(5, b"x")}), "extension type 5"),
        (msgpack.packb({1: 2}), "not msgpack"),
    ],
)
def test_malformed_msgpack_is_named_with_its_position(town: Any, raw: bytes, words: str) -> None:
    reply = town.http("POST", "/api/jobs", data=raw, headers=MSGPACK)
    assert (reply.status, reply.error["code"]) == (400, "MalformedBody")
    assert words in reply.error["message"]
    assert "byte" in reply.error["found"]


@pytest.mark.parametrize("levels", [100, 150, 100_000])
def test_deep_nesting_is_refused_and_harms_nobody(town: Any, levels: int) -> None:
    raw = b'{"value": ' + b"[" * levels + b"]" * levels + b"}"
    reply = town.http("POST", "/api/state/k", data=raw, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error["code"]) == (400, "MalformedBody")
    packed = b"\x81\xa5value" + b"\x91" * levels + b"\x90"
    assert town.http("POST", "/api/state/k", data=packed, headers=MSGPACK).status == 400
    assert town.http("GET", "/healthz").status == 200


@pytest.mark.parametrize("raw", [b'{"value": NaN}', b'{"value": [1, Infinity]}', b'{"value": 1e999}'])
def test_numbers_without_a_name_in_json_are_refused(town: Any, raw: bytes) -> None:
    reply = town.http("POST", "/api/state/k", data=raw, headers={"Content-Type": "application/json"})
    assert reply.status == 400
    packed = msgpack.packb({"value": float("nan")})
    assert town.http("POST", "/api/state/k", data=packed, headers=MSGPACK).error["message"] == "a number is not finite"


def test_unknown_content_type_is_refused(town: Any) -> None:
    reply = town.http("POST", "/api/jobs", data=b"command=x", headers={"Content-Type": "text/csv"})
    assert reply.error["found"] == "Content-Type: text/csv"


def test_compressed_body_is_refused(town: Any) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    reply = town.http("POST", "/api/jobs", data=b"\x1f\x8b", headers=headers)
    assert reply.error["message"] == "compressed bodies are not taken"


def test_oversized_body_is_refused_by_its_announced_length(town: Any) -> None:
    town.host.settings.set_live("security.max_body_bytes", 1000)
    reply = post(town, {"command": ["x" * 2000]})
    assert (reply.status, reply.error["code"]) == (413, "BodyTooLarge")
    assert "security.max_body_bytes" in reply.error["found"]


def test_oversized_chunked_body_is_refused_by_what_arrives(town: Any) -> None:
    town.host.settings.set_live("security.max_body_bytes", 1000)

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    reply = town.http("POST", "/api/jobs", data=pieces(), headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error["code"]) == (413, "BodyTooLarge")
    assert town.gateway._app.bodies.held_bytes == 0


def test_a_body_shorter_than_announced_is_given_up_when_the_client_leaves(town: Any) -> None:
    head = f"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {town.token}\r\nContent-Length: 50\r\n"

    async def leave() -> None:
        import asyncio

        port = int(town.url.rpartition(":")[2])
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"\r\n{")
        await writer.drain()
        writer.close()

    town.run(leave())
    town.until(lambda: town.gateway._app.bodies.held_bytes == 0 and town.gateway._app.serving == 0)
    assert not town.servers["cluster_manager"].submitted


def test_bodies_together_have_a_bound(town: Any) -> None:
    town.gateway._app.bodies.held_bytes = 4 * town.host.settings.security.max_body_bytes
    reply = post(town, {"command": ["x"]})
    assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (429, "Overloaded", "1")
    town.gateway._app.bodies.held_bytes = 0


def test_function_of_another_python_is_refused_at_once(town: Any) -> None:
    reply = post(town, {"kind": "function", "payload": "aGk=", "python": "2.7"})
    assert (reply.status, reply.error["code"]) == (409, "PythonMismatch")
    assert "2.7" in reply.error["asked"] and host_python() in reply.error["hint"]
    assert post(town, {"command": ["x"], "python": "2.7"}).status == 201


def test_a_full_disk_refuses_new_work_and_leaves_nothing_behind(town: Any) -> None:
    town.host.settings.set_live("performance.min_free_bytes", 2**60)
    reply = post(town, {"kind": "function", "payload": "aGk=", "python": host_python()})
    assert (reply.status, reply.error["code"]) == (507, "DiskFull")
    assert "free some room" in reply.error["hint"]
    assert not list(town.host.paths.blobs_dir.iterdir())
    assert not town.servers["cluster_manager"].submitted


def test_what_the_models_take_is_known_in_every_spelling() -> None:
    assert {"gpus", "compute_required", "gpu_memory", "timeout_s", "policy"} <= set(field_names(TaskRequest))


def test_check_plain_lets_ordinary_values_pass_and_stops_deep_ones() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value, {"a": 1.5}]
    check_plain(value)
    for _ in range(10):
        value = [value]
    with pytest.raises(MalformedBody):
        check_plain(value)


def test_json_answers_are_always_json() -> None:
    plain = {"bytes": b"\x00\xff", "nan": float("nan"), "set": {2, 1}, "deep": [{"inf": float("inf")}]}
    assert json.loads(encode_json(plain)) == {"bytes": "AP8=", "nan": None, "set": [1, 2], "deep": [{"inf": None}]}
