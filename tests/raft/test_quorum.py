from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.raft.configuration import CHANGES_MAX, Configuration, InvalidConfChange
from actorgrid.actors.raft.messages import ConfChange, ConfState
from actorgrid.actors.raft.quorum import EVERYTHING, decided, reached

nodes = st.integers(1, 7)
voters = st.frozensets(nodes, min_size=1)
numbers = st.dictionaries(nodes, st.integers(0, 20))
votes = st.dictionaries(nodes, st.booleans())
changes = st.lists(
    st.builds(ConfChange, st.sampled_from(("add_voter", "add_learner", "remove")), nodes),
    max_size=4,
    unique_by=lambda change: change.node,
)


def majorities(of: frozenset[int]) -> list[frozenset[int]]:
    return [frozenset(some) for some in combinations(sorted(of), len(of) // 2 + 1)]


@given(voters, numbers)
def test_what_is_reached_is_what_some_majority_has_all_reached(of: frozenset[int], have: dict[int, int]) -> None:
    assert reached(of, have) == max(min(have.get(node, 0) for node in some) for some in majorities(of))


@given(voters, votes)
def test_a_vote_is_decided_when_no_further_answer_can_change_it(of: frozenset[int], given: dict[int, bool]) -> None:
    if any(all(given.get(node) for node in some) for some in majorities(of)):
        assert decided(of, given) is True
    elif any(all(given.get(node, True) for node in some) for some in majorities(of)):
        assert decided(of, given) is None
    else:
        assert decided(of, given) is False


def test_nobody_agrees_with_everything() -> None:
    assert reached((), {}) == EVERYTHING
    assert decided((), {}) is True


@given(voters, voters, numbers, votes)
def test_a_joint_configuration_needs_both_halves(
    to: frozenset[int], of: frozenset[int], have: dict[int, int], given: dict[int, bool]
) -> None:
    joint = Configuration(voters=to, outgoing=of)
    assert joint.reached(have) == min(reached(to, have), reached(of, have))
    halves = {decided(to, given), decided(of, given)}
    expected = False if False in halves else None if None in halves else True
    assert joint.decided(given) is expected


@given(
    voters,
    st.frozensets(st.integers(8, 9)),
    st.lists(st.tuples(changes, st.sampled_from(("auto", "implicit", "explicit"))), max_size=6),
)
def test_majorities_of_each_configuration_and_the_next_meet(
    begin: frozenset[int], learners: frozenset[int], steps: list[tuple[list[ConfChange], str]]
) -> None:
    before = Configuration(voters=begin, learners=learners)
    for request, transition in steps:
        try:
            after = before.changed(request, transition)  # type: ignore[arg-type]
        except InvalidConfChange:
            continue
        assert after.voters and not after.learners & after.all_voters
        assert Configuration.of(after.state()) == after
        for some in quorums(before):
            assert all(some & others for others in quorums(after))
        before = after


def quorums(of: Configuration) -> list[frozenset[int]]:
    if not of.joint:
        return majorities(of.voters)
    return [some | others for some in majorities(of.voters) for others in majorities(of.outgoing)]


@pytest.mark.parametrize(
    "request_, why",
    [
        ([], "not joint"),
        ([ConfChange("remove", 1), ConfChange("remove", 2), ConfChange("remove", 3)], "no voter"),
        ([ConfChange("add_voter", 4), ConfChange("remove", 4)], "named twice"),
        ([ConfChange("add_voter", 0)], "no node id"),
        ([ConfChange("add_voter", node) for node in range(1, CHANGES_MAX + 2)], "at most"),
    ],
)
def test_a_change_that_does_not_fit_says_why(request_: list[ConfChange], why: str) -> None:
    with pytest.raises(InvalidConfChange, match=why):
        Configuration.of(ConfState(voters=(1, 2, 3))).changed(request_, "auto")


def test_a_joint_configuration_is_left_before_the_next_change() -> None:
    joint = Configuration.of(ConfState(voters=(1, 2, 3))).changed([ConfChange("add_learner", 3)], "explicit")
    assert joint.state() == ConfState((1, 2), (), (1, 2, 3), (3,), False)
    with pytest.raises(InvalidConfChange, match="must be left"):
        joint.changed([ConfChange("add_voter", 4)], "auto")
    assert joint.changed((), "auto").state() == ConfState((1, 2), (3,))
