"""Quotas over HTTP: units, wrong bodies, names of users, and the real servers behind the door."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest


def test_limits_are_said_and_shown_in_the_units_of_requests(town: Any) -> None:
    body = {"gpus": 2.5, "gpu_memory": "3GiB", "cpus": 0.1, "memory_bytes": 2**20 + 5, "jobs_waiting": 7}
    reply = town.http("PUT", "/api/quotas/ann", json=body)
    assert reply.status == 200, reply.body
    (asked,) = town.servers["cluster_manager"].quotas
    assert asked.user == "ann"
    assert asked.limits == {
        "gpu_milli": 2500,
        "gpu_memory_mib": 3072,
        "cpu_milli": 100,
        "memory_mib": 1,
        "jobs_waiting": 7,
    }
    assert reply.json["limits"] == {
        "gpus": 2.5,
        "gpu_memory_bytes": 3 * 2**30,
        "cpus": 0.1,
        "memory_bytes": 2**20,
        "jobs_waiting": 7,
    }
    (row,) = town.http("GET", "/api/quotas").json["quotas"]
    assert (row["user"], row["limits"]["gpus"], row["used"]["gpus"], row["limits"]["cpus"]) == ("ann", 4.0, 1.5, None)


@pytest.mark.parametrize("name", ["*", "a/b", "o'neil", "José", "a b"])
def test_any_name_a_user_can_have_can_have_a_quota(town: Any, name: str) -> None:
    assert town.http("PUT", f"/api/quotas/{quote(name, safe='')}", json={"gpus": 1}).status == 200
    assert town.servers["cluster_manager"].quotas[-1].user == name
    assert town.http("DELETE", f"/api/quotas/{quote(name, safe='')}").status == 200
    assert town.servers["cluster_manager"].quotas[-1].limits is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"gpus": -1}, "gpus"),
        ({"gpus": "many"}, "gpus"),
        ({"gpu_memory": "2 apples"}, "gpu_memory"),
        ({"memory": "64"}, "memory"),
        ({"memory": 64}, "memory"),
        ({"jobs_waiting": 1.5}, "jobs_waiting"),
        ({"gpu": 1}, "gpu"),
    ],
)
def test_a_wrong_limit_is_named(town: Any, body: dict[str, Any], field: str) -> None:
    reply = town.http("PUT", "/api/quotas/ann", json=body)
    assert reply.status == 400 and reply.error["details"]["field"].startswith(field)
    assert town.servers["cluster_manager"].quotas == []


def test_a_name_that_cannot_be_one_is_refused(town: Any) -> None:
    for name in ("%07", "x" * 129):
        assert town.http("PUT", f"/api/quotas/{name}", json={"gpus": 1}).status == 400


def test_quotas_need_the_token(town: Any) -> None:
    assert town.http("GET", "/api/quotas", token=None).status == 401
    assert town.http("PUT", "/api/quotas/ann", token=None, json={}).status == 401


def test_a_quota_is_kept_shown_held_to_and_removed(real_town: Any) -> None:
    assert real_town.http("PUT", "/api/quotas/ann", json={"gpus": 1}).json["previous"] is None
    job = {"command": ["true"], "gpus": 1, "cpus": 0.01, "user_id": "ann"}
    assert real_town.http("POST", "/api/jobs", json={**job, "task_id": "a"}).status == 201
    assert real_town.http("POST", "/api/jobs", json={**job, "task_id": "b"}).status == 201
    refused = real_town.http("POST", "/api/jobs", json={**job, "gpus": 2})
    assert (refused.status, refused.error["code"]) == (409, "QuotaExceeded")
    real_town.until(lambda: bool(real_town.gateway._ledger.allocations), "the grant")
    (row,) = real_town.http("GET", "/api/quotas").json["quotas"]
    assert row["used"]["gpus"] == 1.0 and row["used"]["jobs_waiting"] == 1 and not row["default"]
    assert real_town.http("GET", "/api/jobs/b/why").json["quota"]["user"] == "ann"
    assert real_town.http("DELETE", "/api/quotas/ann").json["limits"] is None
    gone = real_town.http("DELETE", "/api/quotas/ann")
    assert (gone.status, gone.error["code"]) == (404, "NotFound")


def test_a_user_without_a_name_is_the_local_one(real_town: Any) -> None:
    real_town.http("PUT", "/api/quotas/local", json={"gpus": 0})
    refused = real_town.http("POST", "/api/jobs", json={"command": ["true"], "gpus": 1, "user_id": ""})
    assert refused.status == 409 and "local" in refused.error["message"]
