"""When the leader gives up what ran on a host that it does not hear of: decisions on made-up times."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.host_leases import lease_view, losses, next_at, over_after_s

HEARD = 1000.0


def host(host_id: str, state: str = "up") -> dict[str, Any]:
    return {"host_id": host_id, "incarnation": 3, "state": state, "seen_index": 7}


def allocation(name: str, host_id: str, patience_s: float | None = 10.0) -> dict[str, Any]:
    made: dict[str, Any] = {
        "allocation_id": name,
        "host": host_id,
        "token": [1, 9],
        "owner": {"kind": "attempt", "job_id": name.partition(".")[0]},
    }
    return made if patience_s is None else {**made, "max_isolation_s": patience_s}


def view(*allocations: dict[str, Any], state: str = "up", jobs: dict[str, Any] | None = None) -> Any:
    hosts = {"a": host("a"), "b": host("b", state)}
    return lease_view(hosts, allocations, jobs or {}, 5, ["b"])


def named(found: list[Any]) -> list[list[str]]:
    return [[name for name, _ in loss.allocations] for loss in found]


@pytest.mark.parametrize("patience_s", [4.0, 10.0, 600.0])
def test_the_leader_waits_longer_than_the_host_however_their_clocks_differ(patience_s: float) -> None:
    fast, slow = 1 + 0.004, 1 - 0.004
    assert over_after_s(patience_s) / fast > patience_s / slow + 0.3


def test_work_of_little_patience_goes_first_and_the_rest_when_its_own_is_over() -> None:
    held = view(allocation("j.1", "b", 4.0), allocation("k.1", "b", 60.0), allocation("l.1", "a", 4.0))
    assert losses(held, {"b": HEARD}, HEARD + 4.5) == []
    (first,) = losses(held, {"b": HEARD}, HEARD + 4.6)
    assert (first.host, first.incarnation, first.seen_index, first.term) == ("b", 3, 7, 5)
    assert [name for name, _ in first.allocations] == ["j.1"]
    assert named(losses(held, {"b": HEARD}, HEARD + 61.2)) == [["j.1", "k.1"]]


def test_a_host_may_start_something_for_three_seconds_so_it_gets_no_less() -> None:
    held = view(allocation("j.1", "b", 1.0))
    assert losses(held, {"b": HEARD}, HEARD + 3.5) == []
    assert named(losses(held, {"b": HEARD}, HEARD + 3.6)) == [["j.1"]]


def test_a_host_without_work_is_lost_as_well_and_only_once() -> None:
    assert losses(view(), {"b": HEARD}, HEARD + 10.5) == []
    assert named(losses(view(), {"b": HEARD}, HEARD + 10.7)) == [[]]
    assert losses(view(state="lost"), {"b": HEARD}, HEARD + 1000) == []
    assert next_at(view(state="lost"), {"b": HEARD}) is None


def test_it_is_looked_again_when_the_next_is_over() -> None:
    held = view(allocation("j.1", "b", 60.0), state="lost")
    assert next_at(held, {"b": HEARD}) == pytest.approx(HEARD + 61.1)
    assert next_at(held, {"c": HEARD}) is None  # who is not away is not judged


def test_an_allocation_of_before_this_version_has_the_patience_of_its_job() -> None:
    held = view(allocation("j.1", "b", None), state="lost", jobs={"j": {"max_isolation_s": 30.0}})
    assert losses(held, {"b": HEARD}, HEARD + 20) == []
    assert named(losses(held, {"b": HEARD}, HEARD + 31)) == [["j.1"]]


def test_what_was_heard_after_the_question_counts() -> None:
    held = view(allocation("j.1", "b", 4.0))
    assert losses(held, {"b": HEARD + 20.0}, HEARD + 19.9) == []


def test_a_host_that_said_it_would_be_away_is_waited_for_and_work_of_more_patience_no_less() -> None:
    held = view(allocation("j.1", "b", 4.0), allocation("k.1", "b", 600.0))
    held.hosts["b"]["absence_s"] = 60.0
    assert next_at(held, {"b": HEARD}) == HEARD + over_after_s(60.0)
    assert losses(held, {"b": HEARD}, HEARD + 61.0) == []
    assert named(losses(held, {"b": HEARD}, HEARD + 61.2)) == [["j.1"]]
    assert named(losses(held, {"b": HEARD}, HEARD + 607.0)) == [["j.1", "k.1"]]
