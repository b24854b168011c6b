"""A budget of power among hosts and devices: max-min fair, within the budget, and what others tell is not believed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.power_budget import (
    HostPower,
    PowerClaim,
    host_budget,
    is_worth_telling,
    read_power,
    share_power,
    wanted_watts,
)

WATTS = st.floats(0, 1000)
CLAIMS = st.tuples(WATTS, WATTS, WATTS).map(lambda three: PowerClaim(sorted(three)[0], three[1], sorted(three)[2]))


def test_what_all_want_comes_first_and_the_rest_goes_on_evenly() -> None:
    claims = {"busy": PowerClaim(100, 700, 700), "idle": PowerClaim(100, 200, 700)}
    assert share_power(1000, claims) == {"busy": 700.0, "idle": 300.0}
    assert share_power(700, claims) == {"busy": 500.0, "idle": 200.0}
    assert share_power(2000, claims) == {"busy": 700.0, "idle": 700.0}


def test_each_has_its_least_even_where_the_budget_has_not() -> None:
    assert share_power(50, {"a": PowerClaim(100, 700, 700), "b": PowerClaim(80, 90, 700)}) == {"a": 100, "b": 80}


@given(st.dictionaries(st.text(max_size=3), CLAIMS, max_size=12), st.floats(0, 10_000))
def test_shares_are_within_the_budget_and_nobody_has_more_than_wanted_while_another_lacks(
    claims: dict[str, PowerClaim], budget: float
) -> None:
    shares = share_power(budget, claims)
    least = sum(claim.least for claim in claims.values())
    assert sum(shares.values()) <= max(budget, least) + 1e-6
    for name, share in shares.items():
        assert claims[name].least - 1e-9 <= share <= max(claims[name].most, claims[name].least) + 1e-9
    if sum(shares.values()) < budget - 1e-6:
        assert all(shares[name] >= claims[name].most - 1e-6 for name in claims), "some is left, and somebody lacks it"
    for poor, share in shares.items():
        if share < min(max(claims[poor].wanted, claims[poor].least), claims[poor].most) - 1e-6:
            # Whoever has more than one that lacks has no more than what it cannot do without.
            assert all(other <= max(share, claims[rich].least) + 1e-6 for rich, other in shares.items())


def test_a_device_held_back_by_its_limit_wants_all_and_another_a_little_more_than_it_draws() -> None:
    assert wanted_watts(400.0, 410.0, 700.0) == 700.0
    assert wanted_watts(100.0, 700.0, 700.0) == pytest.approx(110.0)
    assert wanted_watts(None, 700.0, 700.0) == 700.0


@given(
    st.lists(CLAIMS, min_size=1, max_size=6),
    st.floats(0, 6000),
    st.lists(st.integers(0, 5), max_size=40),
)
def test_hosts_that_look_one_after_the_other_never_draw_more_than_the_budget_once_each_has_looked(
    claims: list[PowerClaim], budget: float, order: list[int]
) -> None:
    names = [f"host-{number}" for number in range(len(claims))]
    own = dict(zip(names, claims, strict=True))
    told: dict[str, HostPower] = {
        name: {"at": 0.0, "least": one.least, "wanted": one.wanted, "most": one.most, "limit": one.most}
        for name, one in own.items()
    }
    looked: set[str] = set()
    for number in [*range(len(names)), *order]:
        name = names[number % len(names)]
        others = {other: power for other, power in told.items() if other != name}
        told[name]["limit"] = host_budget(budget, name, own[name], others, told[name]["limit"])
        looked.add(name)
        assert told[name]["limit"] >= own[name].least - 1e-9
        if len(looked) == len(names):
            least = sum(one.least for one in own.values())
            assert sum(power["limit"] for power in told.values()) <= max(budget, least) + 1e-6


def test_a_host_takes_more_only_when_others_have_let_go() -> None:
    own = PowerClaim(100, 700, 700)
    other: HostPower = {"at": 0.0, "least": 100.0, "wanted": 150.0, "most": 700.0, "limit": 600.0}
    assert host_budget(1000, "me", own, {"other": other}, 400.0) == 400.0, "it is still drawing"
    other["limit"] = 300.0
    assert host_budget(1000, "me", own, {"other": other}, 400.0) == 700.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "700",
        {},
        {"at": 1.0, "least": 1, "wanted": 1, "most": 1},
        {"at": 1.0, "least": 5, "wanted": 1, "most": 1, "limit": 1},
        {"at": 1.0, "least": -1, "wanted": 1, "most": 1, "limit": 1},
        {"at": 1.0, "least": 1, "wanted": 1, "most": math.inf, "limit": 1},
        {"at": math.nan, "least": 1, "wanted": 1, "most": 1, "limit": 1},
        {"at": 1.0, "least": True, "wanted": 1, "most": 1, "limit": 1},
        {"at": 1.0, "least": 1, "wanted": "1", "most": 1, "limit": 1},
    ],
)
def test_what_is_no_claim_is_not_taken(value: Any) -> None:
    assert read_power(value) is None


def test_a_claim_comes_back_as_it_was_told_and_is_told_again_when_it_moved() -> None:
    told: HostPower = {"at": 10.0, "least": 200.0, "wanted": 300.0, "most": 700.0, "limit": 500.0}
    assert read_power(dict(told)) == told
    assert is_worth_telling(None, told)
    assert not is_worth_telling(told, {**told, "at": 15.0})
    assert is_worth_telling(told, {**told, "at": 15.0, "limit": 490.0})
    assert is_worth_telling(told, {**told, "at": 15.0, "wanted": 400.0})
    assert is_worth_telling(told, {**told, "at": 50.0})
    assert is_worth_telling(told, {**told, "at": 5.0}), "the clock was set back"
