"""Taking the names of retired origins out of states: nothing that readers see changes, and joins go on as before.

Hosts r0 and r1 had openings in incarnation 1 that the ledger says are gone; r2, and the later openings, are alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.replication import retirement
from actorgrid.actors.replication.causal import CausalContext, Replica
from actorgrid.actors.replication.counters import MAX_COUNT
from actorgrid.actors.replication.lifetimes import shown
from actorgrid.actors.replication.messages import Mutate
from actorgrid.actors.replication.mutations import apply_mutation
from actorgrid.actors.replication.retirement import NOBODY, RetiredOrigins, is_folded, join_at, retire, settle
from actorgrid.actors.replication.types import TYPES, GCounter, LWWRegister, ORMap, ORSet, PNCounter, decode
from actorgrid.actors.replication.version_vector import new_epoch

ALL = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES.keys())
many = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
NOW_US = 1_700_000_000_000_000
OLD = [(f"r{number}", new_epoch(1, 7 + number)) for number in range(2)]
ALIVE = [("r0", new_epoch(2, 5)), ("r1", new_epoch(3, 5)), ("r2", new_epoch(1, 5))]
FIRST = RetiredOrigins(1, {"r0": 2})
BOTH = RetiredOrigins(2, {"r0": 2, "r1": 2})
LATER = RetiredOrigins(3, {"r0": 3, "r1": 4})


@dataclass
class History:
    """What all replicas hold of the retired origins, and two that then went on by themselves."""

    common: Any
    sides: list[Any]
    deltas: list[Any] = field(default_factory=list)
    """Of the living origins, in the order in which they were made."""


@st.composite
def histories(draw: st.DrawFn, drive: Any, kind: type[Any]) -> History:
    common = kind()
    for _ in range(draw(st.integers(0, 10))):
        drive.apply(common, draw(st.sampled_from([*OLD, *ALIVE])), draw(drive.operations[kind]))
    # The living write where they are: each host on one side only.
    history = History(common, [common.copy(), common.copy()])
    for _ in range(draw(st.integers(0, 10))):
        side = draw(st.integers(0, 1))
        if draw(st.booleans()) or not history.deltas:
            delta = drive.apply(history.sides[side], ALIVE[side], draw(drive.operations[kind]))
            history.deltas.append(delta)
        else:
            history.sides[side].join(draw(st.sampled_from(history.deltas)))
    return history


def at(state: Any, retired: RetiredOrigins) -> Any:
    found = state.copy()
    retire(found, retired)
    return found


def joined_at(mine: Any, theirs: Any, here: RetiredOrigins, there: RetiredOrigins) -> Any:
    found = mine.copy()
    join_at(found, theirs.copy(), here, there)
    return found


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and one.to_bytes() == other.to_bytes()


# -- the laws


@ALL
def test_retiring_changes_no_value_and_twice_is_once(kind: Any, drive: Any) -> None:
    @many
    @given(histories(drive, kind))
    def law(history: History) -> None:
        for state in history.sides:
            for retired in (FIRST, BOTH, LATER):
                less = at(state, retired)
                assert less.plain == state.plain
                assert same(at(less, retired), less)
                assert same(decode(less.to_bytes()), less)
            assert same(at(at(at(state, FIRST), BOTH), LATER), at(state, LATER)), "the way to a level matters"

    law()


@ALL
def test_whole_states_at_one_level_join_as_those_with_all_names(kind: Any, drive: Any) -> None:
    @many
    @given(histories(drive, kind))
    def law(history: History) -> None:
        one, other = history.sides
        whole = one.copy().join(other)
        for retired in (FIRST, BOTH, LATER):
            if retired is LATER and history.deltas:
                continue  # those who went on are retired there, and have not all been told to both
            here, there = at(one, retired), at(other, retired)
            assert same(joined_at(here, there, retired, retired), at(whole, retired))
            assert same(joined_at(there, here, retired, retired), at(whole, retired))

    law()


@ALL
def test_deltas_may_come_before_a_retirement_or_after_it(kind: Any, drive: Any) -> None:
    @many
    @given(histories(drive, kind), st.integers(0, 10))
    def law(history: History, place: int) -> None:
        early, late = history.common.copy(), history.common.copy()
        retire(early, FIRST)
        for number, delta in enumerate(history.deltas):
            if number == place:
                retire(early, BOTH)
            early.join(delta)
            settle(early, delta, BOTH if number >= place else FIRST)
            late.join(delta)
        retire(early, BOTH)
        retire(late, BOTH)
        assert same(early, late)

    law()


@ALL
def test_who_lacks_some_of_the_retired_comes_to_the_same_by_the_states_of_one_that_has_all(
    kind: Any, drive: Any
) -> None:
    @many
    @given(histories(drive, kind), st.data())
    def law(history: History, data: Any) -> None:
        # One that was set back to what it had before: some deltas, in order, and what it did since by itself.
        behind, deltas = kind(), []
        complete = kind()
        for _ in range(data.draw(st.integers(0, 8))):
            deltas.append(drive.apply(complete, data.draw(st.sampled_from(OLD)), data.draw(drive.operations[kind])))
        for delta in deltas[: data.draw(st.integers(0, len(deltas)))]:
            behind.join(delta)
        own = [drive.apply(behind, ALIVE[2], data.draw(drive.operations[kind])) for _ in range(data.draw(small))]
        expected = complete.copy()
        for delta in own:
            expected.join(delta)
        found = joined_at(behind, at(complete, BOTH), NOBODY, BOTH)
        assert found.plain == expected.plain
        retire(found, BOTH)
        assert same(found, at(expected, BOTH))

    law()


small = st.integers(0, 3)


# -- naive designs, refused by the same checks


def _plain_join(mine: Any, theirs: Any, here: Any, there: Any) -> None:
    mine.join(theirs)


def test_a_plain_join_of_whole_states_brings_back_what_was_removed() -> None:
    held, removed = ORSet(), ORSet()
    delta = held.add(OLD[0], "x")
    removed.join(delta)
    removed.remove(ALIVE[2], "x")
    here, there = at(removed, BOTH), at(held, BOTH)
    naive = here.copy()
    _plain_join(naive, there.copy(), BOTH, BOTH)
    assert naive.value == {"x"}, "else the level of whole states would be of no use"
    assert joined_at(here, there, BOTH, BOTH).value == joined_at(there, here, BOTH, BOTH).value == frozenset()


def test_what_is_implied_of_whole_states_is_not_implied_of_deltas() -> None:
    held = ORSet()
    held.add(OLD[0], "x")
    held.add(OLD[0], "y")
    retire(held, BOTH)
    delta = ORSet().add(ALIVE[2], "z")
    assert joined_at(held, delta, BOTH, BOTH).value == {"z"}, "a delta taken for a whole state removes all there was"
    held.join(delta)
    settle(held, delta, BOTH)
    assert held.value == {"x", "y", "z"}


def test_a_counter_that_was_folded_is_not_counted_again_by_its_old_entries() -> None:
    whole = PNCounter({OLD[0]: (3, 1), ("r0", new_epoch(1, 99)): (4, 0), ALIVE[2]: (5, 0)})
    folded = at(whole, BOTH)
    assert folded.value == whole.value == 11 and folded._entries.keys() == {("r0", new_epoch(2, 0) - 1), ALIVE[2]}
    behind = PNCounter({OLD[0]: (2, 0)})
    assert joined_at(behind, folded, NOBODY, BOTH).value == 11
    assert joined_at(folded, behind, BOTH, NOBODY).value == 11
    # Of two that are behind, one was told by somebody at the level, the other not.
    assert joined_at(folded, behind, NOBODY, NOBODY).value == 11


def test_a_fold_ends_where_an_entry_does() -> None:
    counter = GCounter({OLD[0]: MAX_COUNT, ("r0", new_epoch(1, 99)): MAX_COUNT, ("r0", new_epoch(2, 1)): 1})
    one, other = at(at(counter, FIRST), LATER), at(counter, LATER)
    assert same(one, other) and same(decode(one.to_bytes()), one) and one.value == MAX_COUNT


# -- which are retired, and their names


@given(st.integers(1, 2**32 - 1), st.integers(0, 2**31 - 1), st.integers(1, 2**32 - 1))
def test_an_origin_is_retired_below_the_floor_of_its_host(incarnation: int, chance: int, floor: int) -> None:
    origin = ("h", new_epoch(incarnation, chance))
    retired = RetiredOrigins(1, {"h": floor})
    assert (origin in retired) == (incarnation < floor) and ("other", origin[1]) not in retired
    assert not is_folded(origin) and is_folded(retired.folded("h")) and retired.folded("h") not in retired
    kept = {("h", 3): 2} if incarnation < floor else {origin: 1, ("h", 3): 2}
    assert retired.without({origin: 1, ("h", 3): 2}) == kept


@given(st.sets(st.integers(1, 12)), st.integers(1, 12), st.sets(st.integers(1, 12)))
def test_a_context_without_a_dot_is_that_of_the_others(counters: set[int], gone: int, rest: set[int]) -> None:
    replica: Replica = ("h", 1)
    context = CausalContext((replica, counter) for counter in counters)
    context.discard((replica, gone))
    assert context == CausalContext((replica, counter) for counter in counters - {gone})
    assert context.restrict(replica, rest) == (rest != counters - {gone})
    assert context == CausalContext((replica, counter) for counter in rest)


def test_a_set_whose_elements_all_went_keeps_no_names() -> None:
    state = ORSet()
    for number in range(100):
        origin: Replica = ("h", new_epoch(number + 1, 1))
        state.add(origin, "x")
        state.remove(origin, "x")
    full = len(state.to_bytes())
    retire(state, RetiredOrigins(1, {"h": 101}))
    assert state.to_bytes() == ORSet().to_bytes() and full > 1000


def test_a_removal_of_very_many_dots_costs_one_look_at_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    live = retirement._live
    monkeypatch.setattr(retirement, "_live", lambda *asked: looks.append(asked) or live(*asked))
    state, delta = ORSet(), ORSet()
    state.add(OLD[0], "x")
    delta._context._vector[OLD[0]] = 2**60
    state.join(delta)
    settle(state, delta, BOTH)
    assert state.to_bytes() == ORSet().to_bytes() and len(looks) == 1


# -- a counter that was deleted


def test_a_deleted_counter_stays_so_whoever_was_retired_before_or_after() -> None:
    def counted() -> dict[str, Any]:
        return {"pn_counter": PNCounter({OLD[0]: (3, 0), OLD[1]: (2, 1), ALIVE[2]: (1, 0)})}

    def retired(kinds: dict[str, Any], level: RetiredOrigins) -> dict[str, Any]:
        return {kind: at(state, level) for kind, state in kinds.items()}

    delete = Mutate("hits", "pn_counter", "delete")
    after = counted()
    apply_mutation(after, delete, ALIVE[2], NOW_US)
    assert shown(after, NOW_US) is None and shown(retired(after, BOTH), NOW_US) is None
    before = retired(counted(), BOTH)
    apply_mutation(before, delete, ALIVE[2], NOW_US)
    assert shown(before, NOW_US) is None and shown(retired(before, LATER), NOW_US) is None
    # Deleted at a level, read by a replica that has not come to it.
    mixed = counted() | {"lww_register": before["lww_register"]}
    assert shown(mixed, NOW_US) is None
    assert isinstance(before["lww_register"], LWWRegister)
    # What was counted since counts, also after a second deletion by the other names.
    apply_mutation(before, Mutate("hits", "pn_counter", "increment", 4), ALIVE[2], NOW_US + 1)
    found = shown(before, NOW_US + 1)
    assert found is not None and found.plain == 4
    mixed = {"pn_counter": before["pn_counter"], "lww_register": after["lww_register"]}
    found = shown(mixed, NOW_US + 1)
    assert found is not None and found.plain == 4
    apply_mutation(mixed, delete, ALIVE[2], NOW_US + 2)
    assert shown(mixed, NOW_US + 2) is None and shown(retired(mixed, LATER), NOW_US + 2) is None


def test_fields_of_maps_keep_their_values() -> None:
    state = ORMap()
    state.put(OLD[0], "f", 1, NOW_US)
    state.increment(OLD[0], "n", 3)
    state.increment(OLD[1], "n", 4)
    state.remove(OLD[1], "f")
    state.put(OLD[1], "f", 2, NOW_US + 1)
    before = state.plain
    retire(state, BOTH)
    assert state.plain == before == {"f": 2, "n": 7}
    assert len(state.context) == 3, "the dots of live events"
