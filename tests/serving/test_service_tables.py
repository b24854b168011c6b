"""What a host tells its gateway of services."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Role
from actorgrid.actors.ledger.api_keys import make_key
from actorgrid.actors.ledger.commands import PutService
from actorgrid.actors.ledger.service_checks import ROUTE_WORDS
from actorgrid.actors.serving.service_tables import table_of
from actorgrid.actors.serving.table import (
    LoraAdapter,
    ReplicaState,
    RevisionWeight,
    RoutingStrategy,
    ServiceTable,
    decode_table,
    encode_table,
)
from actorgrid.actors.serving.why_service import explain_service, state_of
from actorgrid.cli.service_options import ROUTE_NAMES
from tests.consensus.rig import AT
from tests.ledger.test_services import Keeper, service

KEY: dict[str, Any] = {
    "sha256": "0" * 64,
    "user_id": "ann",
    "roles": ["admin"],
    "made_by": "me",
    "made_at": AT,
    "revoked_at": None,
}


def member(address: str = "") -> Any:
    return {"addresses": {"raft": "10.0.0.1:7402", **({"calls": address} if address else {})}}


def table(book: Keeper, members: Any = None, keys: Any = None) -> ServiceTable:
    made = table_of(book.ledger.services, members or {}, keys or {}, "h1", 3, AT)
    assert decode_table(encode_table(made)) == made
    return made


def test_an_endpoint_carries_its_attempt_and_token_and_where_its_hosts_gateway_is() -> None:
    book = Keeper()
    job_id = book.serve()
    (waiting,) = book.lead(book.record["revision"])
    (route,) = table(book, {"h1": member("10.0.0.1:7401"), "h2": member("10.0.0.2:7401"), "h3": member()}).services
    first, second = route.replicas
    token = "-".join(map(str, book.replica(job_id)["token"]))
    assert (first.replica_id, first.attempt, first.port) == (job_id, f"{job_id}.1@{token}", 20_000)
    assert (first.state, first.gateway, route.served_as) == (ReplicaState.READY, "10.0.0.1:7406", "m")
    assert (second.replica_id, second.state, second.port) == (waiting, ReplicaState.STARTING, 0)
    assert route.models == ("chat",) and route.scales_from_zero
    again = table(book, {"h1": member("10.0.0.1:7401"), "h2": member("10.0.0.2:7401")})
    assert again.peers == ("10.0.0.2:7406",) and again.keys_required
    assert not table(book).keys_required, "a host that is alone asks nobody on loopback"


def test_what_has_no_place_holds_no_request_and_says_why() -> None:
    book = Keeper()
    book.lead(book.record["revision"])
    book.lead(problem="no host has a free GPU")
    (route,) = table(book).services
    assert (route.replicas, route.scales_from_zero, route.reason) == ((), False, "no host has a free GPU")


def test_unwell_ones_are_not_told_and_those_that_leave_finish() -> None:
    book = Keeper()
    unwell, leaving = book.serve(), book.serve(gpu=1)
    book.answers(unwell, book.replica(unwell)["token"], "unhealthy")
    book.lead(drain=(leaving,))
    (route,) = table(book).services
    assert [(each.replica_id, each.state) for each in route.replicas] == [(leaving, ReplicaState.DRAINING)]


def test_a_canary_gets_its_part_once_both_are_ready_and_what_was_given_up_nothing() -> None:
    book = Keeper()
    old = book.record["revision"]
    book.serve()
    new = book.do(PutService(service(command="other"), True, 10, 60.0, at=AT))["revision"]
    assert table(book).services[0].revisions == ()
    book.serve(new, gpu=1)
    assert table(book).services[0].revisions == (RevisionWeight(new, 10), RevisionWeight(old, 90))
    book.lead(widened=True)
    assert table(book).services[0].revisions == ()
    book.lead(outcome="aborted", reason="it fails")
    assert table(book).services[0].revisions == (RevisionWeight(old, 100),)


def test_only_openais_servers_are_routed_to_and_keys_are_those_that_count() -> None:
    book = Keeper()
    other = {**service("site"), "serving": {**service()["serving"], "protocol": "http", "ready_path": "/"}}
    book.do(PutService(other, at=AT))
    keys = {
        "a": {**KEY, "id": "a", "expires_at": AT + 1},
        "b": {**KEY, "id": "b", "expires_at": AT - 1},
        "c": {**KEY, "id": "c", "expires_at": AT + 1, "revoked_at": AT},
    }
    made = table(book, keys=keys)
    assert [each.name for each in made.services] == ["chat"] and [each.key_id for each in made.keys] == ["a"]


def test_a_key_of_a_tenant_is_for_the_models_of_its_tenant_alone() -> None:
    book = Keeper()
    book.do(PutService({**service("ours"), "user_id": "bob@lab"}, at=AT))
    keys = {}
    for name, tenant in (("all", "*"), ("lab", "lab"), ("other", "other")):
        _, record = make_key(
            name.encode().ljust(5), bytes(30), f"bob@{tenant}", "me", AT, role=Role.USER, tenant=tenant
        )
        keys[name] = record
    found = {each.tenant: each.models for each in table(book, keys=keys).keys}
    assert found == {"": None, "lab": ("ours",), "other": ()}


def test_why_says_what_is_and_what_to_do() -> None:
    book = Keeper()
    assert state_of(book.record) == "starting"
    job_id = book.serve()
    assert state_of(book.record) == "ready" and "1 of 1" in explain_service(book.record, AT).headline
    book.end(job_id, error={"code": "TaskFailed", "message": "exit code 3"})
    told = explain_service(book.record, AT)
    assert state_of(book.record) == "failing" and "exit code 3" in told.headline
    assert f"actorgrid logs {job_id}" in told.next_steps
    assert any("next try" in note for note in told.notes)
    again = book.serve()
    told = explain_service(book.record, AT)
    assert state_of(book.record) == "ready" and again and told.next_steps == ["nothing to do"]
    book.do(PutService(service(command="other"), True, 10, 60.0, at=AT))
    told = explain_service(book.record, AT)
    assert state_of(book.record) == "rolling_out" and "10 %" in told.headline
    idle = Keeper(min=0)
    idle.lead(target=0)
    assert state_of(idle.record) == "idle" and "scale chat 1:4" in explain_service(idle.record, AT).next_steps[0]
    short = Keeper()
    short.lead(short.record["revision"])
    short.lead(problem="no room")
    assert state_of(short.record) == "short" and "no room" in explain_service(short.record, AT).headline


def test_one_whose_hosts_gateway_is_not_known_counts_as_one_that_starts() -> None:
    book = Keeper()
    book.serve()
    far = table_of(book.ledger.services, {"h1": member(), "h2": member()}, {}, "h2", 1, AT)
    assert far.services[0].replicas[0].state is ReplicaState.STARTING
    near = table_of(book.ledger.services, {"h1": member(), "h2": member()}, {}, "h1", 1, AT)
    assert near.services[0].replicas[0].state is ReplicaState.READY


def test_a_key_for_models_has_its_limits_and_no_more_models_than_its_tenant() -> None:
    book = Keeper()
    book.do(PutService({**service("ours"), "user_id": "bob@lab"}, at=AT))
    limits = {"models": ["ours", "chat"], "requests_per_minute": 60, "tokens_per_minute": 0, "tokens_per_month": 9}
    keys = {}
    for name, tenant in (("all", "*"), ("lab", "lab")):
        _, record = make_key(
            name.encode().ljust(5), bytes(30), f"bob@{tenant}", "me", AT, role=Role.USER, tenant=tenant
        )
        keys[name] = {**record, "serving": limits}
    found = {each.tenant: each for each in table(book, keys=keys).keys}
    assert {tenant: each.models for tenant, each in found.items()} == {"": ("ours", "chat"), "lab": ("ours",)}
    told = {(each.requests_per_minute, each.tokens_per_minute, each.tokens_per_month) for each in found.values()}
    assert told == {(60, None, 9)}


def test_routing_comes_from_the_record_and_adapters_are_models_of_the_tenant() -> None:
    book = Keeper()
    (usual,) = table(book).services
    assert (usual.strategy, usual.adapters, usual.tenant) == (RoutingStrategy.PREFIX_COST, (), "default")
    assert set(ROUTE_WORDS) == set(ROUTE_NAMES) == set(RoutingStrategy)
    told = {"strategy": "round_robin", "affinity_header": "x-user", "fallbacks": ["small"]}
    told["adapters"] = [{"model": "law", "served_as": "lora-7"}]
    book.do(PutService({**service(), "routing": told}, at=AT))
    text, record = make_key(b"12345", b"x" * 30, "eve", "me", AT, 60.0, role=Role.USER, tenant="default")
    made = table(book, None, {"k": record})
    (route,) = made.services
    assert (route.strategy, route.affinity_header) == (RoutingStrategy.ROUND_ROBIN, "x-user")
    assert (route.adapters, route.fallback_models) == ((LoraAdapter("law", "lora-7"),), ("small",))
    assert made.keys[0].models == ("chat", "law") and text
