"""Loads that hosts tell each other: what is told, what is believed, and what is done with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.cluster.host_load import REFRESH_S, HostLoad, is_worth_telling, load_in_requests, read_load
from actorgrid.actors.cluster.load_balancer import LoadBalancer, python_version
from actorgrid.actors.cluster.messages import (
    AcquireWorker,
    LeaveLeases,
    LoadReport,
    OpenSession,
    Rebalance,
    RenewSession,
    ReturnWorker,
    SelectTarget,
    SetTargets,
    TargetDone,
)
from actorgrid.actors.cluster.rebalance import MOVES_MAX, OVERLOADED, ROOM, HostRoom, plan_moves
from actorgrid.actors.cluster.service_targets import MAX_SERVICES, ServiceTargets
from actorgrid.actors.replication.messages import StateChanged
from actorgrid.balancing.affinity import AffinityRule
from actorgrid.balancing.targets import RouteTarget, RoutingRequest, TargetNeeds
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import BadRequest, NoSuchActor, NoSuitableTarget, NotFound, Overloaded
from tests.cluster.rig import Rig, resources

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=9),
    max_leaves=12,
)


def load(**changes: Any) -> HostLoad:
    plain: HostLoad = {
        "at": 100.0, "cpus": 8, "cpu": 0.5, "memory": 0.5, "gpu": None, "attempts": 1, "leases": 2, "waiting": 0,
    }  # fmt: skip
    return {**plain, **changes}  # type: ignore[typeddict-item]


# -- the record


def test_a_load_counts_what_runs_or_keeps_cpus_busy_and_what_waits() -> None:
    assert load_in_requests(load(cpu=0.5, attempts=1, waiting=3)) == 7.0
    assert load_in_requests(load(cpu=0.0, attempts=5)) == 5.0


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"at": 101.0}, False),
        ({"at": 101.0, "cpu": 0.7}, True),
        ({"at": 101.0, "gpu": 0.2}, True),
        ({"at": 101.0, "waiting": 1}, True),
        ({"at": 100.5, "waiting": 1}, False),
        ({"at": 100.0 + REFRESH_S}, True),
        ({"at": 20.0}, True),
    ],
)
def test_a_load_is_told_when_it_changed_or_is_old_but_not_more_than_once_a_second(
    now: dict[str, Any], expected: bool
) -> None:
    assert is_worth_telling(None, load(), 5)
    assert is_worth_telling(load(), load(**now), 5) is expected


def test_all_hosts_of_a_large_cluster_together_tell_no_more_than_a_hundred_loads_a_second() -> None:
    assert is_worth_telling(None, load(), 1_000)
    assert not is_worth_telling(load(), load(at=100.0 + 9.0, waiting=1), 1_000)
    assert is_worth_telling(load(), load(at=100.0 + 10.0, waiting=1), 1_000)
    assert not is_worth_telling(load(), load(at=100.0 + 49.0), 1_000)
    assert is_worth_telling(load(), load(at=100.0 + 50.0), 1_000)


def test_a_load_is_read_as_it_was_told() -> None:
    assert read_load(dict(load(gpu=0.25))) == load(gpu=0.25)
    assert read_load({**load(), "of_a_later_version": [1]}) == load()


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": 1.1}, {"cpu": math.nan}, {"memory": -0.1}, {"at": math.inf}, {"at": "now"}, {"cpus": 0},
        {"cpus": 10**9}, {"attempts": -1}, {"waiting": 10**12}, {"leases": 1.5}, {"gpu": 2}, {"gpu": "hot"},
    ],
)  # fmt: skip
def test_what_no_host_can_have_is_not_believed(change: dict[str, Any]) -> None:
    assert read_load({**load(), **change}) is None


@given(JSON)
def test_anything_else_is_not_believed_either(value: Any) -> None:
    found = read_load(value)
    assert found is None or load_in_requests(found) >= 0


# -- the plan


def allocation(host: str, cpu_milli: int = 1000, gpus: tuple[str, ...] = ()) -> Any:
    return {"host": host, "cpu_milli": cpu_milli, "memory_mib": 10, "gpu_uuids": list(gpus)}


def room(host: str, load_per_cpu: float | None, free: int = 8000) -> HostRoom:
    return HostRoom(host, 8, load_per_cpu, free, 1000)


def test_workers_leave_an_overloaded_host_until_that_is_enough() -> None:
    held = {f"lease-{n}": allocation("a") for n in range(8)} | {"job": allocation("a"), "there": allocation("b")}
    homes = {lease: "a" for lease in held if lease != "job"}
    plan = plan_moves([room("a", 1.2), room("b", 0.1), room("c", 0.3)], held, (), homes)
    assert plan["overloaded"] == ["a"] and plan["stays"] == 1 and plan["dry_run"]
    assert [move["host"] for move in plan["moves"]] == ["a"] * 3, "1.2 less three eighths is below the bound"
    assert {move["to"] for move in plan["moves"]} <= {"b", "c"} and not any(move["done"] for move in plan["moves"])


def test_an_excluded_host_is_emptied_however_loaded_and_gets_nothing() -> None:
    held = {"one": allocation("b"), "two": allocation("b"), "gpu": allocation("b", gpus=("g",))}
    plan = plan_moves([room("a", 0.0), room("b", 0.0)], held, ("b",), dict.fromkeys(held, "a"))
    assert [(move["lease_id"], move["to"]) for move in plan["moves"]] == [("one", "a"), ("two", "a")]
    assert plan["stays"] == 1


def test_an_excluded_host_is_emptied_onto_a_full_one_when_there_is_no_other() -> None:
    plan = plan_moves([room("a", 0.1), room("b", 1.0)], {"one": allocation("a")}, ("a",), {"one": "a"})
    assert [move["to"] for move in plan["moves"]] == ["b"]


def test_nothing_moves_to_or_from_a_host_whose_load_is_not_known() -> None:
    held = {"one": allocation("a"), "two": allocation("b")}
    plan = plan_moves([room("a", 1.5), room("b", None)], held, (), dict.fromkeys(held, "a"))
    assert plan["moves"] == [] and plan["stays"] == 1


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 8000)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(100, 4000)), max_size=120),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_a_plan_is_bounded_and_overloads_nobody(
    hosts: list[tuple[float, int]], leases: list[tuple[int, int]], exclude: set[int]
) -> None:
    rooms = [room(f"h{n}", per_cpu, free) for n, (per_cpu, free) in enumerate(hosts)]
    held = {f"l{n:03d}": allocation(f"h{host}", cpus) for n, (host, cpus) in enumerate(leases)}
    plan = plan_moves(rooms, held, {f"h{n}" for n in exclude}, dict.fromkeys(held, "h0"))
    assert len(plan["moves"]) <= MOVES_MAX
    assert len({move["lease_id"] for move in plan["moves"]}) == len(plan["moves"])
    for host in rooms:
        arrives = sum(held[move["lease_id"]]["cpu_milli"] for move in plan["moves"] if move["to"] == host.host_id)
        assert arrives <= host.cpu_milli_free
        assert exclude or not arrives or (host.load_per_cpu or 0) + arrives / 8000 < ROOM < OVERLOADED
        assert exclude or not arrives or host.host_id not in plan["overloaded"]


# -- services


def replicas(count: int) -> tuple[RouteTarget, ...]:
    return tuple(RouteTarget(f"r{n}", f"host-{n}", gpu_memory_mib=1000 * n) for n in range(count))


def test_services_have_a_bound_and_those_without_targets_are_forgotten() -> None:
    services = ServiceTargets()
    for number in range(MAX_SERVICES):
        services.set_targets(f"s{number}", replicas(1), BalancingPolicy.ROUND_ROBIN)
    with pytest.raises(Overloaded, match="no further service"):
        services.set_targets("one more", replicas(1), BalancingPolicy.ROUND_ROBIN)
    services.set_targets("s0", (), BalancingPolicy.ROUND_ROBIN)
    services.set_targets("one more", replicas(1), BalancingPolicy.ROUND_ROBIN)


@pytest.fixture
def balancer(rig: Rig) -> Any:
    return rig.add(LoadBalancer)


def test_a_request_gets_a_target_that_has_what_it_requires(rig: Rig, balancer: LoadBalancer) -> None:
    rig.balancer(SetTargets("chat", replicas(3)))
    needs = RoutingRequest(TargetNeeds(gpu_memory_mib=1500))
    answer = rig.balancer(SelectTarget("chat", needs))
    assert (answer["target"], answer["host"], answer["considered"]) == ("r2", "host-2", 1)
    assert answer["policy"] == "least_loaded" and "load 0.00" in answer["why"]
    with pytest.raises(NoSuitableTarget, match="no target is suitable"):
        rig.balancer(SelectTarget("chat", RoutingRequest(TargetNeeds(gpu_memory_mib=99_000))))
    with pytest.raises(NotFound, match="no targets of that service"):
        rig.balancer(SelectTarget("nobody"))
    with pytest.raises(BadRequest, match="no such balancing policy"):
        rig.balancer(SelectTarget("chat", policy="fastest"))


def test_requests_in_flight_are_counted_until_they_are_done_or_their_caller_starts_again(
    rig: Rig, balancer: LoadBalancer
) -> None:
    rig.balancer(SetTargets("chat", replicas(2), "least_loaded"))
    chosen = [rig.balancer(SelectTarget("chat"))["target"] for _ in range(4)]
    assert sorted(chosen) == ["r0", "r0", "r1", "r1"]
    rig.balancer(TargetDone("chat", "r1"))
    rig.balancer(TargetDone("chat", "r1"))
    rig.balancer(TargetDone("chat", "r1"))  # one too many: nothing
    assert balancer.status()["services"] == {"chat": {"r0": 2, "r1": 0}}
    balancer.peer_restarted("test")
    assert balancer.status()["services"] == {"chat": {"r0": 0, "r1": 0}}


def test_each_policy_may_be_asked_for_with_a_request(rig: Rig, balancer: LoadBalancer) -> None:
    rig.balancer(SetTargets("chat", replicas(3), "round_robin"))
    assert [rig.balancer(SelectTarget("chat"))["target"] for _ in range(4)] == ["r0", "r1", "r2", "r0"]
    sticky = {
        rig.balancer(SelectTarget("chat", RoutingRequest(key="user-7"), "affinity_aware"))["target"] for _ in range(2)
    }
    assert len(sticky) == 1
    away = RoutingRequest(rules=(AffinityRule("host", "not_in", ("host-0", "host-1"), required=True),))
    assert rig.balancer(SelectTarget("chat", away, "weighted_round_robin"))["target"] == "r2"


# -- the server


def other_host(rig: Rig, name: str = "host-b") -> None:
    rig.propose(
        "register_host",
        host={
            "host_id": name, "hostname": "beta", "incarnation": 1, "cpu_milli": 8000, "memory_mib": 8000, "devices": [],
        },
    )  # fmt: skip
    rig.node.settle()


def told(balancer: LoadBalancer, host: str, **changes: Any) -> None:
    wall = balancer._gossip.loads[balancer.host.host_id]["at"]
    balancer._state_changed(StateChanged(f"_cluster/load/{host}", "lww_register", dict(load(at=wall, **changes))))


def test_the_load_of_this_host_is_read_and_shown_with_its_history(rig: Rig, balancer: LoadBalancer) -> None:
    rig.node.advance(5.0)
    (mine,) = rig.balancer(LoadReport())
    assert (mine["hostname"], mine["state"]) == ("alpha", "known")
    assert len(mine["history"]) >= 4 and mine["expected"] is not None and mine["reading"]["cpus"] >= 1
    assert balancer.metrics()["host_loads_known"] == 1
    assert balancer._gossip.published_total == 0, "a host that is alone has nobody to tell"


def test_the_load_of_others_is_heard_grows_old_and_is_refused_when_it_is_none(rig: Rig, balancer: LoadBalancer) -> None:
    other_host(rig)
    rig.node.advance(2.0)
    told(balancer, "host-b", cpu=1.0)
    assert {each["host"]: each["state"] for each in rig.balancer(LoadReport())} == {
        "host-a": "known",
        "host-b": "known",
    }
    told(balancer, "stranger")
    balancer._state_changed(StateChanged("_cluster/load/host-b", "lww_register", {"cpu": "all of it"}))
    assert (balancer._gossip.heard_total, balancer._gossip.refused_total) == (1, 2)
    rig.node.advance(20.0)
    assert {each["host"]: each["state"] for each in rig.balancer(LoadReport())} == {
        "host-a": "known",
        "host-b": "stale",
    }


def test_a_lease_is_hinted_to_a_host_with_less_to_do_only_when_its_own_is_full(
    rig: Rig, balancer: LoadBalancer
) -> None:
    other_host(rig)
    rig.node.advance(2.0)
    session_id = rig.balancer(OpenSession("me", python_version()))["session_id"]
    later = 0.0
    for mine, others, hint in ((0, 0, ""), (500, 3000, ""), (500, 0, "host-b")):
        later += 60.0  # long enough for the average to be there
        for host, attempts in (("host-a", mine), ("host-b", others)):
            taken_at = balancer.runtime.monotonic() + later
            balancer._gossip._take(host, load(cpu=0.0, attempts=attempts), taken_at)
        assert balancer._near(balancer._sessions[session_id]) == hint
    with pytest.raises(NoSuchActor, match="links"):  # it was placed there, and there are no links in this rig
        rig.balancer(AcquireWorker(session_id, resources(0.0), wait_s=1.0))


def test_a_worker_that_is_to_leave_is_named_at_each_renewal_until_it_is_gone(rig: Rig, balancer: LoadBalancer) -> None:
    other_host(rig)
    rig.node.advance(2.0)
    session_id = rig.balancer(OpenSession("me", python_version()))["session_id"]
    # Before the other host is known to have nothing to do: this one may be busy with other tests.
    lease_id = rig.balancer(AcquireWorker(session_id, resources(0.0), wait_s=1.0))["lease_id"]
    told(balancer, "host-b", cpu=0.0, attempts=0)
    planned = rig.balancer(Rebalance(exclude=("host-a",)))
    assert [(move["lease_id"], move["to"], move["done"]) for move in planned["moves"]] == [(lease_id, "host-b", False)]
    assert rig.balancer(RenewSession(session_id)) == {"leave": []}, "a dry run changes nothing"
    done = rig.balancer(Rebalance(exclude=("host-a",), dry_run=False))
    assert [move["done"] for move in done["moves"]] == [True]
    assert rig.balancer(RenewSession(session_id)) == rig.balancer(RenewSession(session_id)) == {"leave": [lease_id]}
    assert balancer._near(balancer._sessions[session_id]) == "host-b"
    rig.balancer(ReturnWorker(session_id, lease_id))
    rig.node.advance(1.0)
    assert rig.balancer(RenewSession(session_id)) == {"leave": []}
    assert rig.balancer(LeaveLeases({"nobody's": "host-b"})) == []
    with pytest.raises(BadRequest, match="no host of that id"):
        rig.balancer(Rebalance(exclude=("host-z",)))
