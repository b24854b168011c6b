from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.restart import RETRY_S_MAX, Forget, GiveUp, Restart, RestartPolicy, Stop

SPECS = [
    ChildSpec("a", "m:A"),
    ChildSpec("b", "m:B", restart="transient"),
    ChildSpec("c", "m:C", restart="temporary"),
    ChildSpec("d", "m:D"),
]


def test_a_permanent_child_is_started_again_at_once_whatever_its_end() -> None:
    policy = RestartPolicy(SPECS)
    assert policy.child_exited("a", True, 0.0) == [Restart("a", 0.0)]
    assert policy.child_exited("a", False, 1.0) == [Restart("a", 0.0)]
    assert policy.restarts("a") == 2 and policy.restarts("d") == 0


def test_transient_and_temporary_children_are_forgotten_as_their_specs_say() -> None:
    policy = RestartPolicy(SPECS)
    assert policy.child_exited("b", True, 0.0) == [Forget("b")]
    assert policy.child_exited("b", False, 0.0) == [Restart("b", 0.0)]
    assert policy.child_exited("c", False, 0.0) == [Forget("c")]


def test_a_start_that_fails_is_tried_again_after_growing_pauses() -> None:
    policy = RestartPolicy(SPECS, intensity=100)
    pauses = [policy.start_failed("a", float(n))[0] for n in range(8)]
    assert pauses == [Restart("a", s) for s in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0)]
    policy.started("a", 9.0)
    assert policy.start_failed("a", 10.0) == [Restart("a", 0.1)]


def test_a_temporary_child_whose_start_fails_stays_down() -> None:
    assert RestartPolicy(SPECS).start_failed("c", 0.0) == [Forget("c")]


def test_more_restarts_than_the_intensity_within_the_period_end_it() -> None:
    policy = RestartPolicy(SPECS, intensity=3, period_s=10.0)
    assert [policy.child_exited("a", False, t) for t in (0.0, 1.0, 2.0)] == [[Restart("a", 0.0)]] * 3
    assert policy.child_exited("d", False, 3.0) == [GiveUp("d", 3, 10.0)]
    assert policy.child_exited("a", False, 4.0) == [] and policy.gave_up


def test_old_restarts_do_not_count() -> None:
    policy = RestartPolicy(SPECS, intensity=3, period_s=10.0)
    for t in range(0, 400, 4):
        assert policy.child_exited("a", False, float(t)) == [Restart("a", 0.0)]


def test_intensity_zero_gives_up_at_the_first_end() -> None:
    assert RestartPolicy(SPECS, intensity=0).child_exited("a", False, 0.0) == [GiveUp("a", 0, 30.0)]


def test_a_strategy_stops_and_restarts_its_group_in_order() -> None:
    def rest(order: Sequence[str], ended: str) -> Sequence[str]:
        return order[order.index(ended) :]

    policy = RestartPolicy([SPECS[0], SPECS[1], SPECS[3]], strategy=rest)
    assert policy.child_exited("b", False, 0.0) == [Stop("d"), Restart("b", 0.0), Restart("d", 0.0)]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["exit", "failed", "started"])), max_size=60),
    st.integers(0, 5),
    st.floats(0.5, 20),
)
def test_never_more_restarts_in_a_period_than_the_intensity(
    events: list[tuple[float, str]], intensity: int, period_s: float
) -> None:
    policy = RestartPolicy(SPECS, intensity=intensity, period_s=period_s)
    now, restarts = 0.0, []
    for wait_s, event in events:
        now += wait_s
        if event == "started":
            assert policy.started("a", now) == []
            continue
        gave_up = policy.gave_up
        given = policy.child_exited("a", False, now) if event == "exit" else policy.start_failed("a", now)
        if gave_up:
            assert given == []
        for instruction in given:
            if isinstance(instruction, Restart):
                assert 0.0 <= instruction.delay_s <= RETRY_S_MAX
                restarts.append(now)
                assert sum(1 for at in restarts if at >= now - period_s) <= intensity
