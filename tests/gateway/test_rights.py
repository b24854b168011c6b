"""Roles at the door: every route has its row, and nobody reaches what the table does not give him."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from actorgrid.access import ROLES, TABLE, Identity, Right, Role, Scope, in_tenant
from actorgrid.actors.cluster.explain.reach import without_output
from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.gateway.server.rights import scope_of
from actorgrid.actors.gateway.server.route import Route
from actorgrid.actors.model_gateway.process_spec import FOLDER
from actorgrid.actors.model_gateway.usage_store import UsageStore
from actorgrid.actors.serving.table import ModelUsage
from actorgrid.client.http import AdminHttp
from actorgrid.client.own_user import own_user
from actorgrid.client.state import SharedState
from actorgrid.client.user import user_name
from actorgrid.errors import NotAllowed

OPEN = {"/healthz", "/readyz", "/openapi.json", "/metrics", "/login/oidc"}
"""What answers without a token; /metrics asks for one where the client is on another machine."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.documented_path}")
def test_every_route_has_a_row_of_the_table_and_asks_for_a_token(route: Route) -> None:
    assert route.right in TABLE
    assert route.token is (route.documented_path not in OPEN) is route.path.startswith("/api/")


def test_what_changes_something_is_closed_to_viewers_and_what_is_the_clusters_to_a_tenants_admin() -> None:
    viewer, admin = (Identity("x", "x@lab", role, "lab") for role in (Role.VIEWER, Role.ADMIN))
    for route in ROUTES:
        if route.method != "GET" and route.documented_path not in ("/api/jobs/wait", "/api/keys/{id}", "/login/oidc"):
            with pytest.raises(NotAllowed):
                scope_of(route, viewer)
        if re.search(
            r"/api/(tokens|ca|config|inspect|faults|alerts)|/(drain|restart|leave|mig|maintenance)", route.path
        ):
            if (route.method, route.path) in (("GET", "/api/mig"), ("GET", "/api/maintenance")):
                continue
            with pytest.raises(NotAllowed):
                scope_of(route, admin)


def test_reads_of_output_reach_no_further_than_ends_of_jobs() -> None:
    for role in ROLES:
        who = Identity("x", "x@lab", role, "lab")
        read, steer = who.scope(Right.READ_OUTPUT), who.scope(Right.STEER_JOBS)
        assert read is None or read == steer
        assert who.scope(Right.USE_WORKERS) == read, "a relay leads to workers and to terminals alike"


class Tenants:
    """A host with keys of several tenants."""

    def __init__(self, town: Any) -> None:
        self.town = town
        self.keys: dict[str, str] = {}

    def key(self, who: str) -> str:
        """The key of ``role:name@tenant``."""
        if who not in self.keys:
            role, _, user = who.partition(":")
            name, _, tenant = user.partition("@")
            asked = {"user_id": name, "role": role, "tenant": tenant or "default"}
            made = self.town.http("POST", "/api/keys", json=asked)
            assert made.status == 200, made.body
            self.keys[who] = made.json["key"]
        return self.keys[who]

    def ask(self, who: str, method: str, path: str, **more: Any) -> Any:
        return self.town.http(method, path, self.key(who), **more)

    def code(self, who: str, method: str, path: str, **more: Any) -> int:
        return int(self.ask(who, method, path, **more).status)


@pytest.fixture
def tenants(real_town: Any) -> Tenants:
    return Tenants(real_town)


ANN, BOB, EVE = "user:ann@lab", "user:bob@lab", "user:eve@biz"


def test_jobs_are_whose_the_key_is_whatever_the_body_says(tenants: Tenants) -> None:
    body = {"command": ["true"], "task_id": "j", "user_id": "eve@biz"}
    assert tenants.code(ANN, "POST", "/api/jobs", json=body) == 201
    assert tenants.ask(ANN, "GET", "/api/jobs/j").json["user_id"] == "ann@lab"
    assert tenants.ask(EVE, "GET", "/api/jobs").json["jobs"] == []
    assert tenants.code("admin:root@lab", "POST", "/api/jobs", json={**body, "task_id": "k"}) == 201
    assert tenants.ask(ANN, "GET", "/api/jobs/k").json["user_id"] == "root@lab", "nor an administrator's of a tenant"
    assert tenants.town.http("POST", "/api/jobs", json={**body, "task_id": "m"}).status == 201
    assert tenants.ask(EVE, "GET", "/api/jobs/m").json["user_id"] == "eve@biz", "the host's token acts for anybody"
    taken = tenants.ask(EVE, "POST", "/api/jobs", json={"command": ["true"], "task_id": "j"})
    assert taken.error["code"] == "WrongState", "an id that somebody has is taken, and nothing more is told of it"


def test_what_is_not_ones_own_is_not_there(tenants: Tenants) -> None:
    assert tenants.code(ANN, "POST", "/api/jobs", json={"command": ["true"], "task_id": "j"}) == 201
    paths = [("GET", "/api/jobs/{}" + end) for end in ("", "/why", "/logs", "/result", "/files")]
    paths += [("POST", "/api/jobs/{}/" + end) for end in ("cancel", "retry", "channel")]
    for method, path in paths:
        mine, none = (tenants.ask(EVE, method, path.format(name)) for name in ("j", "nothing"))
        assert mine.status == none.status == 404, (path, mine.body)
        unnamed = [
            str({**reply.error, "asked": ""}).replace(f"job {name}", "?")
            for reply, name in ((mine, "j"), (none, "nothing"))
        ]
        assert unnamed[0] == unnamed[1], "nobody can tell what is hidden from what is not there"
    assert tenants.code(EVE, "POST", "/api/jobs/wait", json={"job_ids": ["j"]}) == 404
    later = {"command": ["true"], "depends_on": ["j"]}
    assert tenants.code(EVE, "POST", "/api/jobs", json=later) == 404
    assert tenants.code(EVE, "GET", "/api/jobs?cursor=j") == 404
    # In one tenant everybody sees that a job is there; only its user reads and ends it.
    assert tenants.code(BOB, "GET", "/api/jobs/j") == 200
    assert [tenants.code(BOB, "GET", f"/api/jobs/j/{end}") for end in ("logs", "result", "files")] == [404] * 3
    assert tenants.code(BOB, "POST", "/api/jobs/j/cancel") == 404
    assert tenants.code("viewer:v@lab", "GET", "/api/jobs/j") == 200
    assert tenants.code("viewer:v@lab", "GET", "/api/jobs/j/logs") == 403
    assert tenants.code("operator:o@lab", "GET", "/api/jobs/j/logs") == 403
    assert tenants.code("admin:a@lab", "GET", "/api/jobs/j/files") in (200, 404)
    assert tenants.code("operator:o@biz", "POST", "/api/jobs/j/cancel") == 404
    assert tenants.code("operator:o@lab", "POST", "/api/jobs/j/cancel") == 200


def test_lists_hold_what_is_in_reach(tenants: Tenants) -> None:
    for who, name in ((ANN, "a"), (EVE, "e")):
        assert tenants.code(who, "POST", "/api/jobs", json={"command": ["true"], "task_id": name, "gpus": 0.5}) == 201
        plan = {"every_s": 3600, "job": {"command": ["true"]}}
        assert tenants.code(who, "PUT", f"/api/schedules/of-{name}", json=plan) == 200
    town = tenants.town
    town.until(lambda: len(town.gateway._ledger.allocations) == 2, "the grants")
    for who, name in ((ANN, "a"), ("operator:o@lab", "a"), ("user:u", "")):
        wanted = [name] if name else []
        assert [job["job_id"] for job in tenants.ask(who, "GET", "/api/jobs").json["jobs"]] == wanted
        assert tenants.ask(who, "GET", "/api/jobs").json["total"] == len(wanted)
        held = tenants.ask(who, "GET", "/api/allocations").json["allocations"]
        assert [each["owner"]["job_id"] for each in held] == wanted
        on_gpus = [job for gpu in tenants.ask(who, "GET", "/api/gpus").json["gpus"] for job in gpu["jobs"]]
        (host,) = tenants.ask(who, "GET", "/api/hosts").json["hosts"]
        assert set(on_gpus) == {job for gpu in host["gpus"] for job in gpu["jobs"]} == set(wanted)
        plans = [each["name"] for each in tenants.ask(who, "GET", "/api/schedules").json["schedules"]]
        assert plans == [f"of-{each}" for each in wanted]
    assert tenants.code(EVE, "GET", "/api/schedules/of-a") == tenants.code(EVE, "DELETE", "/api/schedules/of-a") == 404
    served = {"job": {"command": ["serve"]}, "replicas_min": 0}
    for who, name in ((ANN, "a"), (EVE, "e")):
        assert tenants.code(who, "PUT", f"/api/services/of-{name}", json=served) == 200
        assert [each["name"] for each in tenants.ask(who, "GET", "/api/services").json["services"]] == [f"of-{name}"]
    assert tenants.code(EVE, "GET", "/api/services/of-a") == tenants.code(EVE, "DELETE", "/api/services/of-a") == 404
    assert tenants.code(EVE, "POST", "/api/services/of-a/scale", json={"replicas_min": 1, "replicas_max": 1}) == 404
    assert tenants.ask(EVE, "PUT", "/api/services/of-a", json=served).error["code"] == "WrongState"
    again = {"every_s": 60, "job": {"command": ["false"]}, "replace": True}
    assert tenants.ask(EVE, "PUT", "/api/schedules/of-a", json=again).error["code"] == "WrongState"
    assert town.http("PUT", "/api/quotas/ann@lab", json={"gpus": 1}).status == 200
    assert (
        tenants.ask(EVE, "GET", "/api/quotas").json["quotas"] != tenants.ask(ANN, "GET", "/api/quotas").json["quotas"]
    )
    assert "lab" not in str(tenants.ask(EVE, "GET", "/api/quotas").json)
    assert "lab" not in str(tenants.ask(EVE, "GET", "/api/usage").json)
    assert tenants.code(ANN, "POST", "/api/tenants", json={"name": "mine"}) == 403
    assert town.http("POST", "/api/tenants", json={"name": "lab", "weight": 2}).json["weight"] == 2.0
    assert tenants.ask(ANN, "GET", "/api/tenants/lab").json["weight"] == 2.0
    assert tenants.code(EVE, "GET", "/api/tenants/lab") == 404
    assert "lab" not in str(tenants.ask(EVE, "GET", "/api/tenants").json)
    assert tenants.code(EVE, "GET", "/api/usage?user=ann@lab") in (200, 404)
    assert tenants.code("operator:o@lab", "GET", "/api/usage?user=eve@biz") == 404


def test_of_what_models_used_everybody_sees_what_is_in_reach(tenants: Tenants) -> None:
    folder = tenants.town.host.paths.data_dir / FOLDER
    folder.mkdir()
    store = UsageStore(folder)
    for user in ("ann@lab", "bob@lab", "eve@biz"):
        tenant = user.partition("@")[2]
        store.add([ModelUsage(f"key of {user}", user, tenant, f"chat of {tenant}", "m", 1, 0, 10, 4, 5, 0)], 1.7e9)
    store.close()

    def seen(who: str, by: str = "user", more: str = "") -> list[str]:
        return [row["key"] for row in tenants.ask(who, "GET", f"/api/usage/models?by={by}{more}").json["rows"]]

    assert seen(EVE) == ["eve@biz"] and seen("viewer:bob@lab") == ["bob@lab"] and seen(ANN, "key") == ["key of ann@lab"]
    assert seen("operator:o@lab") == ["ann@lab", "bob@lab"] and seen("operator:o@lab", "model") == ["m"]
    assert seen("admin:a@lab", "user", "&user=bob@lab") == ["bob@lab"]
    assert tenants.code("operator:o@lab", "GET", "/api/usage/models?user=eve@biz") == 404
    assert seen(ANN, "user", "&user=bob@lab") == ["ann@lab"], "own is own, whoever is named"
    assert [row["key"] for row in tenants.town.http("GET", "/api/usage/models?by=tenant").json["rows"]] == [
        "lab",
        "biz",
    ]


def test_a_session_is_its_users_also_while_it_holds_nothing(tenants: Tenants) -> None:
    opened = tenants.ask(ANN, "POST", "/api/sessions", json={}).json["session_id"]
    for who in (BOB, EVE, "service:bob@lab"):
        assert tenants.code(who, "POST", f"/api/sessions/{opened}/renew") == 404, who
        assert tenants.code(who, "POST", f"/api/sessions/{opened}/leases", json={"cpus": 0.1, "wait_s": 1}) == 404, who
        assert tenants.code(who, "GET", f"/api/sessions/{opened}/leases/x/end") == 404, who
        assert tenants.code(who, "DELETE", f"/api/sessions/{opened}") == 200, "as for one that is not there"
    assert tenants.ask(BOB, "POST", f"/api/sessions/{opened}/renew").error["found"] == "0 open session(s)"
    assert tenants.code(ANN, "POST", f"/api/sessions/{opened}/renew") == 200
    assert tenants.code("admin:a@lab", "DELETE", f"/api/sessions/{opened}") == 200
    assert tenants.code(ANN, "POST", f"/api/sessions/{opened}/renew") == 404


def test_nobody_depends_on_others_work_by_naming_it_among_his_own(tenants: Tenants) -> None:
    command = {"command": ["true"]}
    assert tenants.code(ANN, "POST", "/api/jobs", json={**command, "task_id": "j"}) == 201
    mine = {**command, "task_id": "mine", "depends_on": ["j"]}
    for who in (BOB, EVE):
        assert tenants.code(who, "POST", "/api/jobs/batch", json={"jobs": [{**command, "task_id": "j"}, mine]}) == 404
        assert tenants.code(who, "GET", "/api/jobs/mine") == 404, "nothing of it was accepted"
    both = {"jobs": [{**command, "task_id": "first"}, {**mine, "depends_on": ["first"]}]}
    assert tenants.code(BOB, "POST", "/api/jobs/batch", json=both) == 201
    assert tenants.code(BOB, "POST", "/api/jobs/batch", json=both) == 201, "and asked again"


def test_a_graph_is_not_taken_for_that_of_another(tenants: Tenants) -> None:
    graph = {"graph_id": "g", "steps": [{"id": "a", "command": ["true"]}]}
    assert tenants.code(ANN, "POST", "/api/graphs", json=graph) == 201
    assert tenants.ask(ANN, "POST", "/api/graphs", json=graph).json["duplicate"]
    for who in (BOB, EVE):
        assert tenants.ask(who, "POST", "/api/graphs", json=graph).error["code"] == "WrongState", who
    items = "/api/graphs/g/steps/a/items"
    assert tenants.code("operator:o@lab", "POST", items, json={"by": "x"}) == 403, "items are results"
    assert tenants.code(EVE, "GET", "/api/graphs/g") == tenants.code(EVE, "POST", "/api/graphs/g/retry") == 404


def test_what_a_job_was_given_and_wrote_is_its_users_to_read(tenants: Tenants) -> None:
    given = {"command": ["true"], "task_id": "j", "env": {"KEY": "of-ann"}, "stdin": "b2YtYW5u"}
    assert tenants.code(ANN, "POST", "/api/jobs", json=given) == 201
    for who in (ANN, "service:ann@lab", "admin:a@lab"):
        record = tenants.ask(who, "GET", "/api/jobs/j").json
        assert record["env"] == given["env"] and record["stdin_digest"], who
    for who in (BOB, "viewer:v@lab", "operator:o@lab"):
        (listed,) = tenants.ask(who, "GET", "/api/jobs").json["jobs"]
        for record in (tenants.ask(who, "GET", "/api/jobs/j").json, listed):
            assert (record["env"], record["stdin_digest"]) == ({}, None), who
    assert "of-ann" not in str(tenants.ask("operator:o@lab", "POST", "/api/jobs/j/cancel").json)


def test_an_error_is_told_without_what_the_work_wrote() -> None:
    error = {"code": "TaskFailed", "message": "left with 3", "found": "on stderr: secret"}
    error |= {"details": {"exit_code": 3, "stderr": "secret"}}
    attempt = {"number": 1, "error": error, "members": [{"rank": 0, "error": error}]}
    job: Any = {"job_id": "j", "user_id": "ann@lab", "error": error, "attempts": [attempt], "env": {"KEY": "secret"}}
    shown = without_output(job)
    assert "secret" not in str(shown) and str(shown).count("'exit_code': 3") == 3
    assert "secret" in str(job), "the record itself is as it was"


def test_why_a_job_waits_names_no_work_of_others(tenants: Tenants) -> None:
    town = tenants.town
    whole = {"command": ["true"], "gpus": 2, "priority": 50}
    secret = {**whole, "task_id": "j-of-ann", "name": "secret-of-ann", "max_execution_time_s": 900}
    assert tenants.code(ANN, "POST", "/api/jobs", json=secret) == 201
    town.until(lambda: len(town.gateway._ledger.allocations) == 1, "the grant")
    assert tenants.code(EVE, "POST", "/api/jobs", json={**whole, "task_id": "k"}) == 201
    told = tenants.ask(EVE, "GET", "/api/jobs/k/why").json
    assert told["state"] == "queued" and told["held_by"], "that somebody holds the room is told"
    assert "of-ann" not in str(told) and "cancel" not in str(told["next_steps"])
    assert "secret-of-ann" in str(town.http("GET", "/api/jobs/k/why").json), "and all of it to who sees all"


def test_state_and_locks_of_tenants_are_apart(tenants: Tenants) -> None:
    put = {"type": "lww_register", "operation": "put", "value": 1}
    for key, allowed in (("@ann@lab/x", 200), ("@@lab/x", 200), ("@bob@lab/x", 403), ("@@biz/x", 403), ("x", 200)):
        assert tenants.code(ANN, "POST", f"/api/state/{key}", json=put) == allowed, key
    assert tenants.code(BOB, "GET", "/api/state/@@lab/x") == 200, "what a tenant shares"
    assert tenants.code(BOB, "GET", "/api/state/@ann@lab/x") == 403
    assert tenants.code("viewer:v@lab", "GET", "/api/state/@ann@lab/x") == 200
    assert tenants.code("viewer:v@lab", "POST", "/api/state/@@lab/x", json=put) == 403
    assert tenants.code("user:u", "POST", "/api/state/x", json=put) == 200, "the default tenant's, as before"
    assert tenants.code("user:u", "GET", "/api/state/@@lab/x") == 403
    for who, keys in ((EVE, set()), (ANN, {"@ann@lab/x", "x"}), ("viewer:v@lab", {"@ann@lab/x", "x"})):
        found = {each["key"] for each in tenants.ask(who, "GET", "/api/state").json["entries"]}
        assert {key for key in found if not key.startswith("_cluster/")} == keys
    assert tenants.ask(BOB, "GET", "/api/state/x").json["key"] == "x", "of another tenant's x, nothing"
    assert tenants.code(EVE, "GET", "/api/state/x") == 404
    (entry,) = tenants.ask(BOB, "GET", "/api/state?prefix=@@lab/").json["entries"]
    assert entry["key"] == "@@lab/x", "as it was asked for"
    hold = {"owner": "me", "ttl_s": 60}
    for who in (ANN, EVE, "user:u"):
        assert tenants.ask(who, "POST", "/api/locks/train/acquire", json=hold).json["name"] == "train"
    assert tenants.ask(BOB, "POST", "/api/locks/train/acquire", json={**hold, "owner": "b"}).error["code"] == "LockHeld"
    # Who holds it is shown, and is no way to act for him.
    for who in (BOB, "service:bob@lab"):
        assert tenants.ask(who, "POST", "/api/locks/train/acquire", json=hold).error["code"] == "WrongState"
        assert tenants.ask(who, "POST", "/api/locks/train/renew", json={"owner": "me"}).error["code"] == "LockLost"
        assert not tenants.ask(who, "POST", "/api/locks/train/release", json={"owner": "me"}).json["released"]
    assert tenants.code(ANN, "POST", "/api/locks/train/renew", json={"owner": "me"}) == 200
    assert tenants.code("service:ann@lab", "POST", "/api/locks/train/renew", json={"owner": "me"}) == 200
    for who, user in ((BOB, "ann@lab"), (EVE, "eve@biz"), ("user:u", "u")):
        (lock,) = tenants.ask(who, "GET", "/api/locks").json["locks"]
        assert (lock["name"], [each["user_id"] for each in lock["holders"]]) == ("train", [user])
    assert tenants.code("user:u", "POST", "/api/locks/@lab/train/release", json={"owner": "me"}) == 400
    taken = {"owner": "me", "force": True}
    assert tenants.code(BOB, "POST", "/api/locks/train/release", json=taken) == 403
    assert tenants.code("operator:o@lab", "POST", "/api/locks/train/release", json=taken) == 200
    assert len(tenants.town.http("GET", "/api/locks").json["locks"]) == 2


def test_nobody_raises_his_own_rights(tenants: Tenants) -> None:
    admin = "admin:a@lab"
    for who in (ANN, "viewer:v@lab", "operator:o@lab", "service:s@lab"):
        assert tenants.code(who, "POST", "/api/keys", json={"user_id": "ann", "role": "admin"}) == 403
    for wrong in ({"tenant": "biz"}, {"tenant": "*"}):
        assert tenants.code(admin, "POST", "/api/keys", json={"role": "viewer", **wrong}) == 403
    for unclear in ({}, {"role": "user", "user_id": "x@biz"}, {"role": "user", "tenant": "a@b"}, {"name": "n"}):
        assert tenants.code(admin, "POST", "/api/keys", json=unclear) == 400, unclear
    made = tenants.ask(admin, "POST", "/api/keys", json={"user_id": "new", "role": "user", "name": "ci"}).json
    assert (made["user_id"], made["tenant"], made["role"]) == ("new@lab", "lab", "user")
    old = tenants.town.http("POST", "/api/keys", json={"user_id": "boss"}).json
    assert (old["role"], old["tenant"]) == ("admin", "*")
    seen = {key["id"] for key in tenants.ask("operator:o@lab", "GET", "/api/keys").json["keys"]}
    assert made["id"] in seen and old["id"] not in seen
    assert "biz" not in str(tenants.ask(admin, "GET", "/api/keys").json)
    assert {key["user_id"] for key in tenants.ask(ANN, "GET", "/api/keys").json["keys"]} == {"ann@lab"}
    for who in (ANN, EVE, "operator:o@default", "admin:a@biz"):
        assert tenants.code(who, "DELETE", f"/api/keys/{made['id']}") == 404
        assert tenants.code(who, "DELETE", f"/api/keys/{old['id']}") == 404
    assert tenants.code("operator:o@lab", "DELETE", f"/api/keys/{made['id']}") == 200
    assert tenants.town.http("GET", "/api/jobs", made["key"]).status == 401


def test_a_key_is_rotated_with_two_good_for_a_while(tenants: Tenants) -> None:
    admin = "admin:a@lab"
    first = tenants.ask(admin, "POST", "/api/keys", json={"user_id": "ci", "role": "user", "name": "ci"}).json
    second = tenants.ask(admin, "POST", "/api/keys/ci/rotate", json={}).json
    assert (second["user_id"], second["role"], second["retires"]) == ("ci@lab", "user", [first["id"]])
    for made in (first, second):
        me = tenants.town.http("GET", "/api/me", made["key"]).json
        assert (me["user_id"], me["key_id"], me["rights"]["write_quotas"]) == ("ci@lab", made["id"], None)
    assert tenants.ask(admin, "POST", "/api/keys/ci/rotate", json={}).error["code"] == "WrongState"
    assert tenants.code(admin, "DELETE", f"/api/keys/{second['id']}") == 200
    third = tenants.ask(admin, "POST", "/api/keys/ci/rotate", json={"overlap_s": 0}).json
    assert tenants.town.http("GET", "/api/me", first["key"]).status == 401
    assert tenants.town.http("GET", "/api/me", third["key"]).status == 200
    assert tenants.code("admin:a@biz", "POST", "/api/keys/ci/rotate", json={}) == 404
    shown = {key["id"]: key for key in tenants.ask(admin, "GET", "/api/keys").json["keys"]}[third["id"]]
    assert third["key"].endswith(shown["last"]) and (shown["name"], shown["tenant"]) == ("ci", "lab")


def test_what_streams_and_what_waits_ends_with_its_key(tenants: Tenants) -> None:
    town = tenants.town
    assert (
        town.http("POST", "/api/jobs", json={"command": ["true"], "task_id": "j", "user_id": "ann@lab"}).status == 201
    )
    made = town.http("POST", "/api/keys", json={"user_id": "ann", "role": "user", "tenant": "lab"}).json
    begun: list[str] = []

    async def listen(path: str) -> str:
        headers = {"Authorization": f"Bearer {made['key']}"}
        try:
            begun.append(path)
            async with town.client.session.get(town.url + path, headers=headers) as response:
                assert response.status == 200
                async for _ in response.content:
                    pass
        except Exception as error:  # noqa: BLE001 - whichever way the client's library says that it was cut off
            return type(error).__name__
        return "ended"

    paths = ("/api/events", "/api/state-watch?prefix=@ann@lab/", "/api/jobs/j?wait_s=500")
    waiting = [town.start(listen(path)) for path in paths]
    town.until(lambda: len(begun) == 3 and len(town.gateway._app.rechecks._open) == 3, "the requests to be under way")
    assert town.http("DELETE", f"/api/keys/{made['id']}").status == 200
    assert all(town.finish(each, 30.0) for each in waiting)
    assert town.gateway._app.rechecks.cut_total == 3


def test_a_scope_that_reaches_a_user_does_not_reach_a_like_named_one() -> None:
    own = Scope(user=in_tenant("ann", "lab"))
    assert own.covers("ann@lab") and not any(own.covers(user) for user in ("ann", "ann@lab2", "nn@lab", "x@ann@lab"))


def test_the_audit_log_tells_who_asked_what_and_shows_it_to_whom_it_may(tenants: Tenants) -> None:
    town = tenants.town
    assert tenants.code(ANN, "POST", "/api/jobs", json={"command": ["true"], "task_id": "j"}) == 201
    assert tenants.code(EVE, "GET", "/api/jobs/j/logs") == 404
    assert tenants.code(EVE, "GET", "/api/tokens") == 403
    assert tenants.code(EVE, "GET", "/api/jobs") == 200
    assert town.http("GET", "/api/jobs", "agk1.nobody.nothing").status == 401
    wanted = 5 + len(tenants.keys) - 1  # the list is not told of, the making of keys is
    town.until(lambda: town.gateway._app.audit.size >= wanted, "the records to be on the disk")
    told = town.http("GET", "/api/audit").json["records"]
    seen = [(each["user"], each["verb"], each["object"], each["outcome"]) for each in reversed(told)]
    assert ("ann@lab", "POST", "/api/jobs", "done") in seen and ("", "GET", "/api/jobs", "WrongToken") in seen
    assert ("eve@biz", "GET", "/api/jobs/j/logs", "UnknownJob") in seen
    assert ("eve@biz", "GET", "/api/tokens", "NotAllowed") in seen
    assert ("admin", "POST", "/api/keys", "done") in seen and ("eve@biz", "GET", "/api/jobs", "done") not in seen
    text = str(told)
    assert not any(key.rpartition(".")[2] in text for key in tenants.keys.values()), "no token, ever"
    for who, users in ((ANN, {"ann@lab"}), (EVE, {"eve@biz"}), ("operator:o@lab", {"ann@lab", "o@lab"})):
        tenants.ask(who, "GET", "/api/audit")
        found = {each["user"] for each in tenants.ask(who, "GET", "/api/audit").json["records"]}
        assert found <= users and (who != ANN or found)
    for path in ("export", "head", "proof?seq=0", "growth?first=1"):
        assert tenants.code("admin:a@lab", "GET", f"/api/audit/{path}") == 403
        assert town.http("GET", f"/api/audit/{path}").status == 200, path


def test_the_client_of_a_tenants_key_has_its_own_state_and_names(tenants: Tenants) -> None:
    def program(key: str, user: str) -> list[str]:
        http = AdminHttp(tenants.town.url, key)
        assert own_user(http) == user
        state = SharedState(http)
        assert state.put("runs/1", user) == state.get("runs/1") == user
        assert [each["key"] for each in state.entries("runs/")] == ["runs/1"]
        assert state.in_namespace(own_user(http)).put("actors/a", 1) == 1
        assert state.apply(state.batch().put("runs/2", 2)) == [2]
        watch = state.watch("runs/", initial=True)
        told = [next(watch)["key"] for _ in range(2)]
        state.put("runs/3", 3)
        return [*told, next(watch)["key"]]

    for who, user in ((ANN, "ann@lab"), ("service:eve@biz", "eve@biz"), ("user:u", "u")):
        told = tenants.town.run(asyncio.to_thread(program, tenants.key(who), user))
        assert told == ["runs/1", "runs/2", "runs/3"], "and the watch says what comes later, too"
    anybody = AdminHttp(tenants.town.url, tenants.town.token)
    assert tenants.town.run(asyncio.to_thread(own_user, anybody)) == user_name(), "who may act for anybody"


def test_what_hosts_say_of_themselves_is_not_a_viewers(tenants: Tenants) -> None:
    path = "/api/state/_cluster/load/h1"
    assert tenants.code("viewer:v@*", "GET", path) == tenants.code("viewer:v@lab", "GET", path) == 403
    assert tenants.code("user:u@lab", "GET", path) in (200, 404)
    found = tenants.ask("viewer:v@*", "GET", "/api/state?prefix=_cluster/").json["entries"]
    assert found == []
