"""The supervision tree over HTTP; one server looked into, traced, suspended and resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from actorgrid.actors.gateway import tree
from actorgrid.errors import CallTimeout
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.supervisor import WhichChildren

from .conftest import STAND_INS, ClientThread, Host, StandIn, Town, town_of

KILLED = {"at": 100.0, "reason": "killed by SIGKILL", "kind": "killed"}


def row(name: str, address: str | None = None, **fields: Any) -> dict[str, Any]:
    """A child as WhichChildren gives it; the servers of an InlineNode have their names for addresses."""
    address = name if address is None else address
    return {
        "name": name,
        "pid": os.getpid() if address else None,
        "ref": Ref(address, name) if address else None,
        "state": "up",
        "restarts": 0,
        "last_exit": None,
        "type": "worker",
        "restart": "permanent",
        "kind": "m:C",
        **fields,
    }


class Boss(StandIn):
    """A supervisor that tells of the children it was given."""

    name = "boss"
    rows: ClassVar[list[dict[str, Any]]] = []

    def start(self) -> None:
        self.rows = []  # type: ignore[misc] # each boss its own

    @handles(WhichChildren)
    def which(self, _request: WhichChildren) -> list[dict[str, Any]]:
        return self.rows


class HostBoss(Boss, Host):
    """The root."""

    name = "host"

    def status(self) -> dict[str, Any]:
        return {"strategy": "one_for_one", "children": self.rows}


class Till(Server):
    """A leaf with something to hide."""

    name = "till"

    def start(self) -> None:
        self.coins = {"penny": 3}
        self.token = "do not show"
        self.seen = 0

    @handles(str)
    def count(self, _word: str) -> int:
        self.seen += 1
        return self.seen

    def status(self) -> dict[str, Any]:
        return {"open": True, "of": Ref("a.b", "x"), "sets": {1}}


@contextmanager
def shop_of(host: Any, client: ClientThread) -> Iterator[Town]:
    kinds = [HostBoss if kind is Host else kind for kind in STAND_INS]
    with town_of(kinds, host, client) as town:
        town.until(lambda: bool(town.servers["consensus"].subscribers), "the copy of the ledger")
        for name in ("task-1", "task-2", "till"):
            town.servers[name] = town.node.add(Till, host, name=name)
        for name in ("shop", "stall"):
            town.servers[name] = town.node.add(Boss, host, name=name)
        mine = [row(kind.name) for kind in STAND_INS if kind is not Host]
        town.servers["host"].rows = [*mine, row("gateway"), row("shop", type="supervisor", restarts=2)]
        town.servers["shop"].rows = [row("till"), row("stall", type="supervisor")]
        dead = row("task:3", "", state="restarting", restarts=4, last_exit=KILLED)
        town.servers["stall"].rows = [row("task:1", "task-1"), row("task:2", "task-2"), dead]
        town.node.settle()
        yield town


@pytest.fixture
def shop(host: Any, client: ClientThread) -> Iterator[Town]:
    """A host with a tree of three levels."""
    with shop_of(host, client) as town:
        yield town


def nodes_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found, waiting = {}, [document["tree"]]
    while waiting:
        node = waiting.pop()
        found[node["name"]] = node
        waiting += node["children"]
    return found


def test_the_tree_is_shown_from_the_host_down_with_everyones_own_word(shop: Town) -> None:
    document = shop.http("GET", "/api/inspect").json
    root = document["tree"]
    assert (root["name"], root["type"], root["state"], root["pid"]) == ("host", "supervisor", "up", os.getpid())
    assert [child["name"] for child in root["children"]][-2:] == ["gateway", "shop"]
    nodes = nodes_of(document)
    assert nodes["shop"]["restarts"] == 2
    assert [child["name"] for child in nodes["stall"]["children"]] == ["task:1", "task:2", "task:3"]
    till = nodes["till"]
    assert till["inspect"]["state"] == "running" and till["inspect"]["handled"] >= 1
    assert till["inspect"]["status"] == {"open": True, "of": "x@a.b", "sets": [1]}
    assert till["started_at"] > 1e9 and till["error"] is None and till["address"] == "till"
    assert document["truncated"] is False


def test_a_supervisors_list_of_its_children_is_in_the_tree_once_but_stays_in_its_status(shop: Town) -> None:
    document = shop.http("GET", "/api/inspect").json
    assert document["tree"]["inspect"]["status"] == {"strategy": "one_for_one"}
    assert len(document["servers"]["host"]["children"]) == len(document["tree"]["children"])


def test_a_child_without_a_process_is_shown_with_its_last_end_and_not_asked(shop: Town) -> None:
    node = nodes_of(shop.http("GET", "/api/inspect").json)["task:3"]
    assert (node["state"], node["pid"], node["address"], node["restarts"]) == ("restarting", None, None, 4)
    assert node["last_exit"] == KILLED and node["inspect"] is None and node["error"] is None


def test_those_who_do_not_answer_cost_one_timeout_together(shop: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ANSWER_S", 0.3)
    asked: list[float] = []
    call = shop.gateway.call

    def counted(to: Any, request: Any, timeout_s: float = 5.0) -> Any:
        asked.append(timeout_s)
        return call(to, request, timeout_s)

    monkeypatch.setattr(shop.gateway, "call", counted)
    for name in ("load_balancer", "gpu_coordinator", "consensus"):
        shop.servers[name].mute = True
    nodes = nodes_of(shop.http("GET", "/api/inspect").json)
    for name in ("load_balancer", "gpu_coordinator", "consensus"):
        assert nodes[name]["error"]["code"] == "CallTimeout" and nodes[name]["inspect"] is None
        assert nodes[name]["state"] == "up" and nodes[name]["pid"] == os.getpid()
    assert nodes["till"]["error"] is None
    assert len([timeout_s for timeout_s in asked if timeout_s <= 0.3]) >= 15


def test_a_supervisor_that_does_not_answer_is_shown_so_and_its_children_are_unknown(
    shop: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "ANSWER_S", 0.3)
    shop.servers["shop"].mute = True
    nodes = nodes_of(shop.http("GET", "/api/inspect").json)
    assert nodes["shop"]["error"]["code"] == "CallTimeout" and nodes["shop"]["children"] == []
    assert "till" not in nodes


def test_when_the_root_does_not_answer_the_hosts_servers_are_asked_by_name(
    shop: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "ANSWER_S", 0.3)
    shop.servers["host"].mute = True
    document = shop.http("GET", "/api/inspect").json
    assert document["tree"]["error"]["code"] == "CallTimeout" and document["tree"]["state"] == "up"
    assert document["servers"]["host"]["error"]["code"] == "CallTimeout"
    assert document["servers"]["gateway"]["url"] == shop.url
    assert shop.http("GET", "/api/inspect/till").json["attributes"]["seen"] == "0"
    answer = shop.http("GET", "/api/inspect/host").json
    assert answer["error"]["code"] == "CallTimeout" and answer["attributes"] is None
    shop.node.remove("host")
    assert shop.http("GET", "/api/inspect").json["tree"]["state"] == "down"


def test_a_large_tree_is_cut_off_and_says_how_much_is_missing(shop: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "NODES_MAX", 12)
    document = shop.http("GET", "/api/inspect").json
    nodes = nodes_of(document)
    assert document["truncated"] and len(nodes) == 12
    assert sum(node["left_out"] for node in nodes.values()) >= 1


def test_beyond_a_bound_servers_are_listed_but_not_asked(shop: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ASKED_MAX", 3)
    nodes = nodes_of(shop.http("GET", "/api/inspect").json)
    assert len([node for node in nodes.values() if node["inspect"]]) == 3
    assert nodes["task:1"]["state"] == "up" and nodes["task:1"]["error"] is None


def test_a_walk_ends_in_time_however_many_hang(shop: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WALK_S", 0.0)
    root = shop.http("GET", "/api/inspect").json["tree"]
    assert root["error"]["code"] == CallTimeout.__name__ and "was not asked" in root["error"]["message"]


def test_one_server_shows_its_attributes_but_not_its_secrets(shop: Town) -> None:
    answer = shop.http("GET", "/api/inspect/till").json
    assert answer["attributes"]["coins"] == "{'penny': 3}"
    assert "do not show" not in str(answer) and answer["attributes"]["token"] == "(hidden)"
    assert answer["inspect"]["kind"].endswith(":Till") and answer["kind"] == "m:C"
    assert "children" not in answer


def test_a_server_is_named_by_id_address_or_registered_name(shop: Town) -> None:
    assert shop.http("GET", "/api/inspect/task:2").json["name"] == "task:2"
    shop.servers["till"].register("cash desk")
    found = shop.http("GET", "/api/inspect/cash%20desk").json
    assert (found["name"], found["address"], found["kind"]) == ("till", "till", "m:C")
    assert shop.http("GET", "/api/inspect/task-2").json["name"] == "task:2"


def test_a_server_outside_of_the_tree_is_found_by_its_name(shop: Town) -> None:
    shop.servers["shop"].rows = []
    found = shop.http("GET", "/api/inspect/till").json
    assert found["address"] == "till" and found["attributes"]["seen"] == "0"


def test_an_unknown_name_is_answered_with_the_nearest_living_ones(shop: Town) -> None:
    reply = shop.http("GET", "/api/inspect/gatewya")
    assert (reply.status, reply.error["code"]) == (404, "NotFound")
    assert reply.error["hint"] == "did you mean gateway?" and reply.error["asked"] == "gatewya"
    reply = shop.http("POST", "/api/inspect/zzzz/resume")
    assert reply.status == 404 and "actorgrid inspect" in reply.error["hint"]
    assert shop.http("GET", "/api/inspect/" + "n" * 1000).error["code"] == "BadRequest"


def test_an_id_that_two_supervisors_use_is_refused_with_the_addresses(shop: Town) -> None:
    shop.servers["shop"].rows.append(row("task:1", "task-2"))
    reply = shop.http("GET", "/api/inspect/task:1")
    assert reply.status == 400 and "task-1 (up)" in reply.error["found"] and "task-2 (up)" in reply.error["found"]


def test_a_server_between_two_processes_is_shown_and_everything_else_says_so(shop: Town) -> None:
    answer = shop.http("GET", "/api/inspect/task:3").json
    assert answer["error"]["code"] == "NoSuchActor" and "killed by SIGKILL" in answer["error"]["found"]
    assert answer["inspect"] is None and answer["restarts"] == 4
    reply = shop.http("POST", "/api/inspect/task:3/suspend", json={})
    assert (reply.status, reply.error["code"]) == (503, "NoSuchActor")


def test_a_server_that_hangs_is_shown_with_what_its_supervisor_knows(
    shop: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorgrid.actors.gateway.routes.inspect.ANSWER_S", 0.3)
    shop.servers["consensus"].mute = True
    answer = shop.http("GET", "/api/inspect/consensus").json
    assert answer["error"]["code"] == "CallTimeout" and answer["pid"] == os.getpid()
    assert shop.http("GET", "/api/inspect/consensus/trace").status == 504


def test_a_trace_keeps_the_last_messages_until_it_is_ended(shop: Town) -> None:
    assert shop.http("GET", "/api/inspect/till/trace").json == {"name": "till", "traced": False, "events": []}
    assert shop.http("POST", "/api/inspect/till/trace", json={"events": 50}).json == {"name": "till", "events": 50}
    shop.node.request("till", "hello")
    answer = shop.http("GET", "/api/inspect/till/trace").json
    told = next(event for event in answer["events"] if event["way"] == "in")
    assert answer["traced"] and (told["kind"], told["message"]) == ("call", "'hello'")
    assert 1e9 < told["at"] < 1e11
    shop.http("POST", "/api/inspect/till/trace", json={"events": 0})
    assert shop.http("GET", "/api/inspect/till/trace").json["traced"] is False


def test_a_suspended_server_holds_what_comes_until_it_is_resumed(shop: Town) -> None:
    answer = shop.http("POST", "/api/inspect/till/suspend", json={"for_s": 30}).json
    assert answer["state"] == "suspended" and answer["until"] > 1e9
    shop.servers["consensus"].cast("till", "hello")
    shop.node.settle()
    assert shop.servers["till"].seen == 0
    node = nodes_of(shop.http("GET", "/api/inspect").json)["till"]
    assert (node["inspect"]["state"], node["inspect"]["held"], node["state"]) == ("suspended", 1, "up")
    assert shop.http("POST", "/api/inspect/till/resume").json == {"name": "till", "state": "running", "until": None}
    assert shop.servers["till"].seen == 1
    assert shop.http("POST", "/api/inspect/till/resume").status == 200


def test_looking_adds_nothing_to_what_a_suspended_server_holds(shop: Town) -> None:
    assert len(shop.http("GET", "/api/inspect").json["attempts"]) == 1
    shop.http("POST", "/api/inspect/worker_manager/suspend", json={})
    for _ in range(2):
        document = shop.http("GET", "/api/inspect").json
        assert nodes_of(document)["worker_manager"]["inspect"]["held"] == 0
        assert document["attempts"] == []


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("suspend", {"for_s": 0}),
        ("suspend", {"for_s": 601}),
        ("suspend", {"for_s": "long"}),
        ("suspend", {"seconds": 5}),
        ("trace", {"events": -1}),
        ("trace", {"events": 1001}),
        ("trace", {"events": 2.5}),
    ],
)
def test_values_out_of_bounds_are_refused_and_change_nothing(shop: Town, action: str, body: dict[str, Any]) -> None:
    reply = shop.http("POST", f"/api/inspect/till/{action}", json=body)
    assert reply.status == 400 and reply.error["code"] in ("BadRequest", "MalformedBody")
    answer = shop.http("GET", "/api/inspect/till").json
    assert answer["inspect"]["state"] == "running" and not answer["inspect"]["traced"]


def test_the_gateway_and_supervisors_are_not_suspended_and_say_why(shop: Town) -> None:
    reply = shop.http("POST", "/api/inspect/gateway/suspend", json={})
    assert (reply.status, reply.error["code"]) == (400, "NotSupported")
    assert "resumes it" in reply.error["found"] and "--trace" in reply.error["hint"]
    shop.gateway.register("front door")
    assert shop.http("POST", "/api/inspect/front%20door/suspend", json={}).error["code"] == "NotSupported"
    for name in ("host", "shop"):
        reply = shop.http("POST", f"/api/inspect/{name}/suspend", json={})
        assert reply.error["code"] == "NotSupported" and "deadlines" in reply.error["found"]
    assert "till, stall" in reply.error["hint"]
    shop.servers["shop"].rows = []
    assert shop.http("POST", "/api/inspect/shop/suspend", json={}).error["hint"] == "it has no children"
    for name in ("gateway", "host"):
        assert shop.http("GET", f"/api/inspect/{name}").json["inspect"]["state"] == "running"


def test_who_changed_what_is_in_the_log(shop: Town, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "actorgrid.gateway"):
        shop.http("POST", "/api/inspect/till/suspend", json={"for_s": 30})
        shop.http("POST", "/api/inspect/till/resume")
        shop.http("POST", "/api/inspect/till/trace", json={"events": 7})
        shop.http("POST", "/api/inspect/till/trace", json={"events": 0})
    said = [record.getMessage() for record in caplog.records if record.name == "actorgrid.gateway"]
    who = f"till (pid {os.getpid()})"
    assert said == [
        f"{who} is suspended for at most 30 s; asked over http from 127.0.0.1",
        f"{who} is resumed; asked over http from 127.0.0.1",
        f"{who} is traced, 7 events; asked over http from 127.0.0.1",
        f"{who} is traced no more; asked over http from 127.0.0.1",
    ]
