"""The choice of a replica: sessions stay, nobody is drowned, load is given back on every path."""

from __future__ import annotations

from collections import Counter

import pytest

from actorgrid.actors.serving.prefix_index import PrefixIndex
from actorgrid.actors.serving.routing import BOUND, HEARD_S, SLACK, PromptHead, ReplicaLoad, ReplicaRouter
from actorgrid.actors.serving.table import ReplicaEndpoint, ReplicaState, RevisionWeight, RoutingStrategy

HASH, COST = RoutingStrategy.PREFIX_HASH, RoutingStrategy.PREFIX_COST


def replica(number: int, state: ReplicaState = ReplicaState.READY, revision: str = "v1") -> ReplicaEndpoint:
    return ReplicaEndpoint(f"r{number}", f"h{number}", f"r{number}.1", revision, state, 8000 + number)


def router(strategy: RoutingStrategy = COST, count: int = 4, *revisions: RevisionWeight) -> ReplicaRouter:
    made = ReplicaRouter(strategy, PrefixIndex())
    made.use(strategy, [replica(number) for number in range(count)], revisions)
    return made


def first(_below: int) -> int:
    return 0


def head(session: str, chain: tuple[int, ...] = (), size: int = 400, named: bool = False) -> PromptHead:
    return PromptHead(session, named, chain, size)


@pytest.mark.parametrize("strategy", RoutingStrategy)
def test_only_ready_replicas_are_chosen_and_none_where_there_is_none(strategy: RoutingStrategy) -> None:
    one = router(strategy, 0)
    assert one.choose(head("s"), 0.0, first) is None
    one.use(strategy, [replica(0, ReplicaState.STARTING), replica(1, ReplicaState.DRAINING), replica(2)], ())
    for number in range(20):
        chosen = one.choose(head(f"s{number}"), 0.0, first)
        assert chosen is not None and chosen.replica.replica_id == "r2"
    assert one.choose(head("s"), 0.0, first, avoid={"r2"}) is None


@pytest.mark.parametrize("strategy", RoutingStrategy)
def test_who_is_shunned_gets_requests_only_when_all_are(strategy: RoutingStrategy) -> None:
    one = router(strategy, 3)
    for number in range(12):
        chosen = one.choose(head(f"s{number}"), 0.0, first, shunned={"r0", "r1"})
        assert chosen is not None and chosen.replica.replica_id == "r2"
    assert one.choose(head("s"), 0.0, first, shunned={"r0", "r1", "r2"}) is not None


@pytest.mark.parametrize("strategy", RoutingStrategy)
def test_all_load_is_given_back_once_in_whatever_order(strategy: RoutingStrategy) -> None:
    one = router(strategy)
    taken = [one.choose(head(f"s{number}", (number,), 4000), 0.0, first) for number in range(40)]
    assert sum(load.requests for load in one.loads.values()) == 40
    for number, each in enumerate(taken):
        assert each is not None
        if number % 2:
            one.answered(each)
        if number == 20:  # the table changes meanwhile: two are gone, one has started again
            again = ReplicaEndpoint("r0", "h0", "r0.2", "v1", ReplicaState.READY, 1)
            one.use(strategy, [again, replica(1)], ())
        one.release(each, 1.0)
        one.release(each, 1.0)
        one.answered(each)
    assert {attempt: load for attempt, load in one.loads.items() if load != ReplicaLoad()} == {}


def test_a_session_stays_at_its_replica_and_other_gateways_send_it_there_too() -> None:
    one, other = router(HASH, 8), router(HASH, 8)
    for number in range(50):
        places = set[str]()
        for gateway in (one, other, one):
            chosen = gateway.choose(head(f"s{number}"), 0.0, first)
            assert chosen is not None
            places.add(chosen.replica.replica_id)
            gateway.release(chosen, 0.0)
        assert len(places) == 1


def test_one_hot_session_spills_at_its_bound_and_not_before() -> None:
    one = router(HASH, 4)
    places = Counter[str]()
    for _ in range(40):
        chosen = one.choose(head("hot"), 0.0, first)
        assert chosen is not None
        places[chosen.replica.replica_id] += 1
    assert max(places.values()) <= BOUND * 40 / 4 + SLACK + 1
    assert max(places.values()) >= 12


def test_a_long_prompt_counts_for_more_than_one_request() -> None:
    one = router(HASH, 4)
    long = one.choose(head("hot", size=400_000), 0.0, first)
    then = one.choose(head("hot"), 0.0, first)
    assert long is not None and then is not None
    assert then.replica != long.replica


def test_the_least_to_compute_is_chosen_and_what_was_begun_counts() -> None:
    one = router(COST, 2)
    chain = tuple(range(1, 9))
    known = one.choose(head("a", chain, 8192), 0.0, first)
    assert known is not None and known.new_blocks == chain[::-1]
    other = one.choose(head("b", (77,), 1024), 0.0, first)
    assert other is not None and other.replica != known.replica, "2,048 tokens wait at the first"
    one.answered(known)
    again = one.choose(head("c", (*chain, 9), 9216), 0.0, first)
    assert again is not None and again.replica == known.replica, "its cache has nearly all"
    assert again.new_blocks == (9,)
    assert again.pending_tokens < 300


def test_gateways_that_see_costs_alike_do_not_all_go_to_the_cheapest() -> None:
    told = {replica(number).attempt: ReplicaLoad(1, 100, 100 + number) for number in range(4)}
    chosen = Counter[str]()
    for number in range(40):  # each as another gateway would, which has heard the same
        one = router(COST, 4)
        one.hear("other", told, 0.0)
        found = one.choose(head(f"s{number}", (number,)), 0.0, first)
        assert found is not None
        chosen[found.replica.replica_id] += 1
    assert len(chosen) == 4 and max(chosen.values()) < 20
    one = router(COST, 4)
    one.hear("other", {attempt: ReplicaLoad(1, 100, 500) for attempt in list(told)[1:]}, 0.0)
    clear = one.choose(head("s", (1,)), 0.0, first)
    assert clear is not None and clear.replica == replica(0), "what is clearly cheaper is chosen"


def test_a_named_session_goes_by_its_name() -> None:
    one = router(COST, 8)
    places = set[str]()
    for number in range(20):
        chosen = one.choose(head("mine", (number,), named=True), 0.0, first)
        assert chosen is not None
        places.add(chosen.replica.replica_id)
        one.release(chosen, 0.0)
    assert len(places) == 1


def test_what_other_gateways_have_running_counts_until_they_are_silent() -> None:
    one = router(COST, 2)
    first_choice = one.choose(head("s"), 0.0, first)
    assert first_choice is not None
    one.release(first_choice, 0.0)
    busy = first_choice.replica.attempt
    one.hear("other", {busy: ReplicaLoad(5, 5000, 5000)}, 10.0)
    then = one.choose(head("s"), 10.0, first)
    assert then is not None and then.replica.attempt != busy
    one.release(then, 10.0)
    later = one.choose(head("s"), 10.1 + HEARD_S, first)
    assert later is not None and later.replica.attempt == busy


def test_a_canary_gets_its_share_of_sessions_and_always_the_same() -> None:
    def made() -> ReplicaRouter:
        one = ReplicaRouter(COST, PrefixIndex())
        replicas = [replica(0), replica(1), replica(2, revision="v2")]
        one.use(COST, replicas, (RevisionWeight("v1", 90), RevisionWeight("v2", 10)))
        return one

    one, other = made(), made()
    canaries = 0
    for number in range(1000):
        pair = [gateway.choose(head(f"key-{number}"), 0.0, first) for gateway in (one, other)]
        revisions = {each.replica.revision for each in pair if each}
        assert len(revisions) == 1
        canaries += revisions == {"v2"}
    assert 70 <= canaries <= 130


def test_where_the_canary_is_gone_its_sessions_go_to_the_others() -> None:
    one = ReplicaRouter(COST, PrefixIndex())
    one.use(COST, [replica(0)], (RevisionWeight("v1", 0), RevisionWeight("v2", 100)))
    assert one.choose(head("s"), 0.0, first) is not None


def test_turn_by_turn_is_turn_by_turn() -> None:
    one = router(RoutingStrategy.ROUND_ROBIN, 4)
    places = [chosen.replica.replica_id for _ in range(8) if (chosen := one.choose(head("s"), 0.0, first))]
    assert places == ["r0", "r1", "r2", "r3"] * 2
