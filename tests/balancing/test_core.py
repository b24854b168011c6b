"""The balancer's choice: fair, by weight, bounded, and never one that lacks what is required."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.balancing.affinity import BOUND, AffinityRule, first_with_room, rendezvous_order
from actorgrid.balancing.core import STALE_S, Balancer
from actorgrid.balancing.targets import MAX_RULES, RouteTarget, RoutingRequest, TargetNeeds, balancing_policy
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import BadRequest, NoSuitableTarget

POLICIES = st.sampled_from(list(BalancingPolicy))
WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def targets(weights: list[int], hosts: int = 0) -> list[RouteTarget]:
    return [
        RouteTarget(f"t{number}", f"h{number % hosts if hosts else number}", weight=weight)
        for number, weight in enumerate(weights)
    ]


def balancer(weights: list[int], policy: BalancingPolicy = BalancingPolicy.LEAST_LOADED) -> Balancer:
    made = Balancer(policy)
    made.set_targets(targets(weights))
    return made


ANY = RoutingRequest()


def chosen(made: Balancer, count: int, request: RoutingRequest = ANY) -> list[str]:
    draw = Random(1).randrange
    return [made.choose(request, 0.0, draw).target.id for _ in range(count)]


@given(WEIGHTS, st.integers(1, 200))
def test_round_robin_gives_nobody_more_than_one_beyond_another(weights: list[int], count: int) -> None:
    counts = Counter(chosen(balancer(weights, BalancingPolicy.ROUND_ROBIN), count))
    assert max(counts.values()) - min(counts[target.id] for target in targets(weights)) <= 1


@given(WEIGHTS, st.integers(1, 3))
def test_weights_are_kept_exactly_in_each_cycle(weights: list[int], cycles: int) -> None:
    counts = Counter(chosen(balancer(weights, BalancingPolicy.WEIGHTED_ROUND_ROBIN), cycles * sum(weights)))
    assert counts == {f"t{number}": cycles * weight for number, weight in enumerate(weights)}


def test_weighted_round_robin_is_spread_as_nginx_spreads_it() -> None:
    made = Balancer(BalancingPolicy.WEIGHTED_ROUND_ROBIN)
    made.set_targets([RouteTarget("a", "a", 5), RouteTarget("b", "b", 1), RouteTarget("c", "c", 1)])
    order = "".join(chosen(made, 7))
    assert sorted(order) == sorted("aaaaabc")
    assert "aaa" not in order[:5].replace("aa", "", 1)
    assert order.index("b") not in (0, 6) and order.index("c") not in (0, 6)


@given(WEIGHTS, st.integers(1, 120))
def test_nobody_is_more_loaded_than_another_would_be_with_one_more(weights: list[int], count: int) -> None:
    made = balancer(weights)
    draw = Random(2).randrange
    for _ in range(count):
        made.began(made.choose(RoutingRequest(), 0.0, draw).target.id, 0.0)
    most = max(made.in_flight(f"t{number}") / weight for number, weight in enumerate(weights))
    assert all(most <= (made.in_flight(f"t{number}") + 1) / weight + 1e-9 for number, weight in enumerate(weights))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["H100", "A100", ""]), st.integers(0, 80)), max_size=8),
    POLICIES,
    st.integers(0, 4),
    st.integers(0, 80),
    st.sampled_from([(), ("H100",), ("A100", "H100")]),
    st.text(max_size=4),
)
def test_no_target_that_lacks_something_is_chosen_under_any_policy(
    have: list[tuple[int, str, int]], policy: BalancingPolicy, gpus: int, memory: int, models: tuple[str, ...], key: str
) -> None:
    made = Balancer(policy)
    made.set_targets(
        RouteTarget(f"t{n}", "h", gpu_count=count, gpu_models=(model,) if model else (), gpu_memory_mib=mib)
        for n, (count, model, mib) in enumerate(have)
    )
    needs = TargetNeeds(gpu_count=gpus, gpu_memory_mib=memory, gpu_models=models)
    suits = {
        f"t{n}"
        for n, (count, model, mib) in enumerate(have)
        if count >= gpus and mib >= memory and (not models or model in models)
    }
    if suits:
        assert set(chosen(made, 20, RoutingRequest(needs, key))) <= suits
    else:
        with pytest.raises(NoSuitableTarget) as raised:
            chosen(made, 1, RoutingRequest(needs, key))
        assert not have or "t0" in raised.value.found


def test_labels_are_required_with_their_value() -> None:
    made = Balancer(BalancingPolicy.CAPABILITY_BASED)
    made.set_targets([RouteTarget("a", "a", labels={"site": "x"}), RouteTarget("b", "b", labels={"site": "y"})])
    assert set(chosen(made, 5, RoutingRequest(TargetNeeds(labels={"site": "y"})))) == {"b"}


@given(st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=12, unique=True), st.data())
def test_a_target_that_goes_moves_only_its_own_keys(ids: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(ids))
    weights = {id: data.draw(st.integers(1, 5)) for id in ids}
    left = {id: weight for id, weight in weights.items() if id != gone}
    for key in data.draw(st.lists(st.text(max_size=8), max_size=20)):
        before = rendezvous_order(key, weights)
        assert rendezvous_order(key, left) == [id for id in before if id != gone]


def test_keys_are_spread_by_weight() -> None:
    first = Counter(rendezvous_order(f"user-{n}", {"a": 1, "b": 1, "c": 2})[0] for n in range(4000))
    assert 900 <= first["a"] <= 1100 and 900 <= first["b"] <= 1100 and 1850 <= first["c"] <= 2150


@given(WEIGHTS, st.lists(st.integers(0, 3), max_size=150))
@settings(deadline=None)
def test_a_busy_key_does_not_drown_its_target(weights: list[int], keys: list[int]) -> None:
    made = balancer(weights, BalancingPolicy.AFFINITY_AWARE)
    for number, key in enumerate(keys):
        target = made.choose(RoutingRequest(key=str(key)), 0.0, Random(3).randrange).target
        made.began(target.id, 0.0)
        share = BOUND * (number + 1) * target.weight / sum(weights)
        assert made.in_flight(target.id) <= share + 1


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_there_is_always_one_with_room(loads: list[float]) -> None:
    order = [str(number) for number in range(len(loads))]
    found = first_with_room(order, dict.fromkeys(order, 1), dict(zip(order, loads, strict=True)))
    assert loads[int(found)] <= BOUND * (sum(loads) + 1) / len(loads) + 1


def test_a_key_comes_back_to_its_target_while_that_has_room() -> None:
    made = balancer([1] * 5, BalancingPolicy.AFFINITY_AWARE)
    for key in "abcdef":
        assert len(set(chosen(made, 10, RoutingRequest(key=key)))) == 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (AffinityRule("site", "in", ("x",), required=True), {"a", "b"}),
        (AffinityRule("site", "not_in", ("x",), required=True), {"c", "d"}),
        (AffinityRule("site", "exists", required=True), {"a", "b", "c"}),
        (AffinityRule("site", "does_not_exist", required=True), {"d"}),
        (AffinityRule("host", "in", ("h2",), required=True), {"c"}),
        (AffinityRule("target", "not_in", ("a", "b", "c"), required=True), {"d"}),
    ],
)
def test_a_required_rule_is_kept_under_every_policy(rule: AffinityRule, expected: set[str]) -> None:
    sites = {"a": {"site": "x"}, "b": {"site": "x"}, "c": {"site": "y"}, "d": {}}
    for policy in BalancingPolicy:
        made = Balancer(policy)
        made.set_targets(RouteTarget(id, f"h{n}", labels=labels) for n, (id, labels) in enumerate(sites.items()))
        assert set(chosen(made, 60, RoutingRequest(rules=(rule,)))) == expected


def test_data_draws_requests_until_its_holder_has_its_share() -> None:
    made = Balancer(BalancingPolicy.AFFINITY_AWARE)
    made.set_targets([RouteTarget("a", "a", data=frozenset({"x"})), RouteTarget("b", "b"), RouteTarget("c", "c")])
    request = RoutingRequest(data=("x",))
    assert set(chosen(made, 10, request)) == {"a"}
    for _ in range(4):
        made.began("a", 0.0)
    assert "a" not in chosen(made, 10, request)


def test_excluded_targets_and_hosts_get_nothing() -> None:
    made = balancer([1, 1, 1])
    assert set(chosen(made, 20, RoutingRequest(exclude=frozenset({"t0", "h1"})))) == {"t2"}


def test_a_host_that_cannot_be_reached_gets_a_request_only_when_there_is_no_other() -> None:
    made = balancer([1, 1])
    made.unreachable = frozenset({"h0"})
    assert set(chosen(made, 20)) == {"t1"}
    made.unreachable = frozenset({"h0", "h1"})
    assert "no host can be reached" in made.choose(RoutingRequest(), 0.0, Random(1).randrange).why


def test_what_we_sent_since_a_load_was_taken_is_added_to_it() -> None:
    made = balancer([1, 1])
    made.began("t0", 1.0)
    made.heard("h0", 5, 2.0)  # counts the one of before
    made.began("t0", 3.0)
    made.began("t0", 3.5)
    made.ended("t0", 3.6)
    assert made.host_load("h0", 2.0) == 6
    assert made.host_load("h1", 2.0) is None


def test_an_old_load_fades_to_the_mean_of_all() -> None:
    made = balancer([1, 1, 1])
    for host, load in (("h0", 0.0), ("h1", 10.0), ("h2", 20.0)):
        made.heard(host, load, 0.0)
    fresh, old = made.loads(made.targets.values(), 0.0), made.loads(made.targets.values(), 8.0)
    assert [fresh.in_flight[id] for id in ("t0", "t1", "t2")] == [0.0, 10.0, 20.0]
    assert all(abs(load - 10.0) < 0.1 for load in old.in_flight.values())
    assert made.loads(made.targets.values(), STALE_S + 1).exact


def test_no_load_of_a_strange_host_and_no_older_one_is_taken() -> None:
    made = balancer([1])
    assert not made.heard("nobody", 1.0, 1.0)
    assert made.heard("h0", 1.0, 1.0)
    assert not made.heard("h0", 2.0, 1.0) and not made.heard("h0", float("nan"), 2.0)
    assert not made.heard("h0", -1.0, 2.0) and not made.heard("h0", 1.0, float("inf"))


def test_what_is_known_of_targets_that_went_is_forgotten() -> None:
    made = balancer([1, 1], BalancingPolicy.WEIGHTED_ROUND_ROBIN)
    chosen(made, 3)
    made.heard("h1", 3.0, 1.0)
    made.began("t1", 1.0)
    made.set_targets(targets([1]))
    assert (made.histories, made.in_flight("t1")) == ({}, 0)
    made.ended("t1", 2.0)  # ends late: harmless
    assert set(chosen(made, 3)) == {"t0"}


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="no such balancing policy"):
        balancing_policy("fastest")
    with pytest.raises(BadRequest, match="one id"):
        Balancer().set_targets([RouteTarget("a", "x"), RouteTarget("a", "y")])
    with pytest.raises(BadRequest, match="weight"):
        RouteTarget("a", "x", weight=0)
    with pytest.raises(BadRequest, match="operator"):
        AffinityRule("a", "like", ("b",))  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="without values"):
        AffinityRule("a")
    with pytest.raises(BadRequest, match="too many"):
        RoutingRequest(rules=(AffinityRule("a", "exists"),) * (MAX_RULES + 1))
    with pytest.raises(BadRequest, match="key"):
        RoutingRequest(key="k" * 2000)
