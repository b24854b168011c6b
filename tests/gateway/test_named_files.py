"""Files that were sent before, and are named by their digests: whose they are, a digest alone does not say."""

from __future__ import annotations

import base64
import hashlib
import shutil
from typing import Any

import pytest

from tests.gateway.test_rights import ANN, BOB, EVE, Tenants

ARCHIVE = b"PK not looked into here"
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
WORK_OF_ANN = "service:ann@lab"


@pytest.fixture
def tenants(real_town: Any) -> Tenants:
    return Tenants(real_town)


ROUTES = {
    "/api/working-dirs": {"digest": DIGEST, "archive": base64.b64encode(ARCHIVE).decode()},
    "/api/graph-files": {"digest": DIGEST, "content": base64.b64encode(ARCHIVE).decode()},
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_file_is_there_for_the_tenant_that_sent_it(tenants: Tenants, route: str) -> None:
    def is_here(who: str) -> bool:
        return bool(tenants.ask(who, "POST", route, json={"digest": DIGEST}).json["here"])

    assert not is_here(ANN)
    assert tenants.ask(ANN, "POST", route, json=ROUTES[route]).json["here"]
    assert is_here(ANN) and is_here(BOB), "of one tenant"
    assert not is_here(EVE), "another tenant is not told that somebody has sent just that"
    assert tenants.town.http("POST", route, json={"digest": DIGEST}).json["here"], "the host's token acts for anybody"
    wrong = {**ROUTES[route], "digest": "0" * 64}
    assert tenants.code(EVE, "POST", route, json=wrong) == 400
    assert tenants.ask(EVE, "POST", route, json=ROUTES[route]).json["here"] and is_here(EVE)


def submitted(tenants: Tenants, who: str, task_id: str, **more: Any) -> int:
    return tenants.code(who, "POST", "/api/jobs", json={"command": ["true"], "task_id": task_id, **more})


def test_nobody_has_a_directory_by_its_digest_alone(tenants: Tenants) -> None:
    route = "/api/working-dirs"
    assert tenants.code(ANN, "POST", route, json=ROUTES[route]) == 200
    assert submitted(tenants, ANN, "a", working_dir=DIGEST) == submitted(tenants, BOB, "b", working_dir=DIGEST) == 201
    mine, none = (
        tenants.ask(EVE, "POST", "/api/jobs", json={"command": ["true"], "task_id": "e", "working_dir": digest})
        for digest in (DIGEST, "0" * 64)
    )
    assert mine.status == none.status == 400
    assert {**mine.error, "asked": ""} == {**none.error, "asked": ""}, "it cannot be told from one that is not there"
    steps = [{"id": "s", "command": ["true"]}]
    graph = {"graph_id": "g", "steps": steps, "working_dir": DIGEST}
    assert tenants.code(EVE, "POST", "/api/graphs", json=graph) == 400
    assert tenants.code(ANN, "POST", "/api/graphs", json=graph) == 201
    assert tenants.code(EVE, "POST", route, json=ROUTES[route]) == 200
    assert submitted(tenants, EVE, "e", working_dir=DIGEST) == 201


def test_work_may_name_what_a_job_of_its_tenant_names_on_whatever_host_it_runs(tenants: Tenants) -> None:
    route = "/api/working-dirs"
    assert tenants.code(ANN, "POST", route, json=ROUTES[route]) == 200
    assert submitted(tenants, ANN, "a", working_dir=DIGEST) == 201
    shutil.rmtree(tenants.town.host.paths.sent_dir)  # as on a host to which nobody has sent it
    assert submitted(tenants, WORK_OF_ANN, "nested", working_dir=DIGEST) == 201
    assert submitted(tenants, EVE, "e", working_dir=DIGEST) == 400
    assert submitted(tenants, "service:eve@biz", "f", working_dir=DIGEST) == 400


def test_an_environment_is_its_senders_too(tenants: Tenants) -> None:
    asked = {"python": "3.11", "requirements": "of_folder"}
    kept = tenants.ask(ANN, "POST", "/api/environments", json=asked)
    assert kept.status == 200, kept.body
    digest = kept.json["digest"]
    assert submitted(tenants, EVE, "e", environment=digest) == 400
    assert submitted(tenants, ANN, "a", environment=digest) == 201
    assert tenants.code(EVE, "POST", "/api/environments", json=asked) == 200
    assert submitted(tenants, EVE, "e", environment=digest) == 201
