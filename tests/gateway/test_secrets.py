"""Secrets at the door: who sets and lists them, which work may name them, and what is released to whom."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.security.host_material import HOST_FILE
from actorgrid.errors import DependencyFailed, NotFound
from tests.gateway.test_rights import ANN, BOB, EVE, Tenants

VALUE = b"correct horse"
BODY = {"value": base64.b64encode(VALUE).decode()}


@pytest.fixture
def tenants(real_town: Any) -> Tenants:
    return Tenants(real_town)


def names(tenants: Tenants, who: str) -> list[str]:
    reply = tenants.ask(who, "GET", "/api/secrets")
    assert VALUE not in reply.body and BODY["value"].encode() not in reply.body
    return [each["name"] for each in reply.json["secrets"]]


def test_a_secret_is_its_users_or_its_tenants(tenants: Tenants) -> None:
    assert tenants.ask(ANN, "PUT", "/api/secrets/hf", json=BODY).json == {"name": "hf", "tenant": "lab"}
    assert tenants.code(ANN, "PUT", "/api/secrets/db", json={**BODY, "shared": True, "user_id": "bob@lab"}) == 200
    assert tenants.code(BOB, "PUT", "/api/secrets/hf", json=BODY) == 409
    assert tenants.code(EVE, "PUT", "/api/secrets/hf", json=BODY) == 200, "another tenant's is another one"
    assert names(tenants, ANN) == ["db", "hf"] and names(tenants, BOB) == ["db"] and names(tenants, EVE) == ["hf"]
    assert names(tenants, "operator:o@lab") == names(tenants, "admin:a@lab") == ["db", "hf"]
    for who in ("viewer:v@lab", "service:ann@lab"):
        assert tenants.code(who, "GET", "/api/secrets") == 403
        assert tenants.code(who, "PUT", "/api/secrets/x", json=BODY) == 403
    assert tenants.code("operator:o@lab", "PUT", "/api/secrets/x", json=BODY) == 403
    for name, body in (("a.b", BODY), ("x" * 65, BODY), ("x", {"value": ""}), ("x", {"value": "A" * 44_000})):
        assert tenants.code(ANN, "PUT", f"/api/secrets/{name}", json=body) in (400, 413, 422), name
    # Which there are of others nobody learns.
    for secret, who, code in (("hf", BOB, 404), ("db", BOB, 201), ("db", EVE, 404), ("hf:TOKEN", ANN, 201)):
        job = {"command": ["true"], "task_id": f"{who[5:8]}-{secret[:2]}", "secrets": [secret]}
        assert tenants.code(who, "POST", "/api/jobs", json=job) == code, (secret, who)
    assert tenants.code(BOB, "DELETE", "/api/secrets/db") == tenants.code(EVE, "DELETE", "/api/secrets/db") == 404
    assert tenants.code(ANN, "DELETE", "/api/secrets/db") == 200
    assert tenants.code("admin:a@lab", "DELETE", "/api/secrets/hf") == 200
    assert names(tenants, "admin:a@lab") == [] and names(tenants, EVE) == ["hf"]
    told = tenants.town.http("GET", "/api/audit").body
    assert b"/api/secrets/hf" in told and VALUE not in told and BODY["value"].encode() not in told


def test_a_secret_is_released_to_the_host_of_an_attempt_and_to_no_other(tenants: Tenants, tmp_path: Path) -> None:
    town = tenants.town
    gateway, ledger = town.gateway, town.gateway._ledger
    (town.host.paths.security_dir / HOST_FILE).unlink(missing_ok=True)  # alone: with a key of its own
    assert tenants.code(ANN, "PUT", "/api/secrets/hf", json=BODY) == 200
    job = {"command": ["true"], "task_id": "j", "gpus": 0.5, "secrets": ["hf:TOKEN"]}
    assert tenants.code(ANN, "POST", "/api/jobs", json=job) == 201
    town.until(lambda: "j.1" in ledger.allocations and "j" in ledger.jobs, "the grant")
    released: list[Any] = []

    async def place(attempt_id: str, folder: Path) -> None:
        try:
            released.append(await gateway._secrets.place(attempt_id, folder))
        except (DependencyFailed, NotFound) as error:
            released.append(error)

    async def release(host_id: str) -> None:
        try:
            released.append(await gateway._secrets.release("j.1", host_id))
        except NotFound as error:
            released.append(error)

    gateway.spawn(place("j.1", tmp_path / "s"))
    town.until(lambda: len(released) == 1, "the release")
    file = tmp_path / "s" / "hf"
    assert released == [["hf"]] and file.read_bytes() == VALUE and file.stat().st_mode & 0o777 == 0o400
    (record,) = (each for each in town.http("GET", "/api/audit").json["records"] if each["verb"] == "RELEASE")
    assert (record["user"], record["key"], record["object"]) == ("ann@lab", "j.1", "/secrets/hf")
    gateway.spawn(release("another-host"))
    gateway.spawn(place("j.2", tmp_path / "t"))
    town.until(lambda: len(released) == 3, "the refusals")
    assert all(isinstance(each, NotFound) for each in released[1:]) and not (tmp_path / "t").exists()
    # What was taken away, or was never for that user, is not released: the attempt fails, and says why.
    assert tenants.code(ANN, "DELETE", "/api/secrets/hf") == 200
    gateway.spawn(place("j.1", tmp_path / "u"))
    town.until(lambda: len(released) == 4, "the refusal")
    assert isinstance(released[3], DependencyFailed) and "no secret hf" in str(released[3])
