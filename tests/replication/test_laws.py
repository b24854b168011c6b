"""The algebra of every type, and a naive design for each known fault that the same checks refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.replication.causal import CausalContext
from actorgrid.actors.replication.types import TYPES, GCounter, LWWRegister, MVRegister, ORMap, ORSet, decode
from actorgrid.errors import BadRequest, MalformedBody, StateTypeConflict

A, B, C = ("a", 1), ("b", 1), ("c", 1)
ALL = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES.keys())
many = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# -- the checks, for real and naive types alike


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and one.to_bytes() == other.to_bytes()


def check_join(a: Any, b: Any, c: Any) -> None:
    """Commutative, associative, idempotent."""
    assert same(a.copy().join(b), b.copy().join(a)), "not commutative"
    assert same(a.copy().join(b).join(c), a.copy().join(b.copy().join(c))), "not associative"
    assert same(a.copy().join(a), a), "not idempotent"
    assert same(a.copy().join(b).join(b), a.copy().join(b)), "not idempotent"


def check_delta(before: Any, after: Any, delta: Any) -> None:
    """m(X) = X join delta, and m(X) is above X."""
    assert same(before.copy().join(delta), after), "the delta is not what the mutator did"
    assert same(after.copy().join(before), after), "not inflationary"


def check_any_order(kind: Callable[[], Any], deltas: list[Any], order: list[int], groups: list[bool]) -> None:
    """Deltas in order, each once, against the same shuffled, duplicated and joined into groups."""
    plain = kind()
    for delta in deltas:
        plain.join(delta)
    other, group = kind(), kind()
    for place, cut in zip(order, groups, strict=True):
        group.join(deltas[place])
        if cut:
            other.join(group)
            group = kind()
    other.join(group)
    assert same(plain, other), "the order of deltas matters"


# -- the laws


@ALL
def test_join_is_a_semilattice(kind: Any, drive: Any) -> None:
    @many
    @given(drive.scenes(kind))
    def law(scene: Any) -> None:
        check_join(*scene.states)

    law()


@ALL
def test_a_delta_does_elsewhere_what_its_mutator_did_here(kind: Any, drive: Any) -> None:
    @many
    @given(drive.scenes(kind), drive.operations[kind], st.integers(0, 2))
    def law(scene: Any, operation: Any, who: int) -> None:
        before = scene.states[who]
        after = before.copy()
        delta = drive.apply(after, (f"r{who}", 1), operation)
        check_delta(before, after, delta)

    law()


@ALL
def test_deltas_come_in_any_order_twice_and_in_groups(kind: Any, drive: Any) -> None:
    @many
    @given(drive.scenes(kind), st.data())
    def law(scene: Any, data: Any) -> None:
        count = len(scene.deltas)
        twice = data.draw(st.permutations(list(range(count)) + list(range(0, count, 2))))
        groups = data.draw(st.lists(st.booleans(), min_size=len(twice), max_size=len(twice)))
        check_any_order(kind, scene.deltas, twice, groups)
        whole = functools.reduce(lambda one, other: one.join(other), scene.states, kind())
        check_any_order(kind, [*scene.deltas, whole], [*twice, count], [*groups, True])

    law()


@ALL
def test_equal_states_have_equal_bytes_and_come_back_from_them(kind: Any, drive: Any) -> None:
    @many
    @given(drive.scenes(kind))
    def law(scene: Any) -> None:
        for state in [*scene.states, *scene.deltas]:
            data = state.to_bytes()
            assert same(decode(data), state)
            assert kind.from_bytes(data).value == state.value
        one, other = scene.states[:2]
        assert (one == other) == (one.to_bytes() == other.to_bytes())

    law()


@ALL
def test_foreign_bytes_are_refused_by_name(kind: Any) -> None:
    for data in (b"", b"\xc1", b"\x90", b"\x93\x01\xa1x\x90", b"\x93\x02\xa6or_set\x90", kind().to_bytes()[:-1]):
        with pytest.raises((MalformedBody, BadRequest)):
            decode(data)
    other = GCounter if kind is not GCounter else ORSet
    with pytest.raises(StateTypeConflict):
        kind.from_bytes(other().to_bytes())
    with pytest.raises(StateTypeConflict):
        kind().join(other())


@ALL
def test_damaged_bytes_never_raise_anything_unnamed(kind: Any, drive: Any) -> None:
    @many
    @given(drive.scenes(kind), st.data())
    def law(scene: Any, data: Any) -> None:
        raw = bytearray(functools.reduce(lambda one, other: one.join(other), scene.states, kind()).to_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        try:
            decode(bytes(raw)).join(decode(bytes(raw)))
        except BadRequest:
            return

    law()


# -- each fault of a naive design: what is right, and a naive type that the check refuses


class Plain:
    """What the naive types share: a dict of facts."""

    def __init__(self) -> None:
        self.facts: dict[Any, Any] = {}

    def copy(self) -> Any:
        twin = type(self)()
        twin.facts = dict(self.facts)
        return twin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.facts == other.facts

    __hash__ = None  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        return repr(sorted(self.facts.items(), key=repr)).encode()

    def delta(self, facts: dict[Any, Any]) -> Any:
        made = type(self)()
        made.facts = facts
        self.facts.update(facts)
        return made


class OneTagSet(Plain):
    """Fault 1: one tag per element, None once removed; the larger tag wins."""

    def add(self, replica: Any, element: Any) -> Any:
        count = self.facts.get(element, (0, None))[0] + 1
        return self.delta({element: (count, replica)})

    def remove(self, replica: Any, element: Any) -> Any:
        count = self.facts.get(element, (0, None))[0] + 1
        return self.delta({element: (count, None)})

    def join(self, other: Any) -> Any:
        for element, tag in other.facts.items():
            self.facts[element] = max(tag, self.facts.get(element, (0, None)), key=repr)
        return self

    @property
    def value(self) -> frozenset[Any]:
        return frozenset(element for element, tag in self.facts.items() if tag[1] is not None)


def check_unseen_add_survives(kind: Any) -> None:
    one, other = kind(), kind()
    seen = one.add(A, "x")
    one.add(A, "y")
    other.join(seen)
    removed = other.remove(B, "x")
    unseen = one.add(A, "x")
    both = one.copy().join(removed)
    assert "x" in both.value, "a remove deleted an add it had not seen"
    assert both == other.join(unseen).join(one)


def test_a_remove_takes_only_the_adds_it_has_seen() -> None:
    check_unseen_add_survives(ORSet)


def check_two_adds_one_seen(kind: Any) -> None:
    first, second = kind(), kind()
    by_a = first.add(A, "x")
    by_b = second.add(B, "x")
    remover = kind().join(by_a)
    removed = remover.remove(C, "x")
    for order in ([by_a, by_b, removed], [by_b, removed, by_a], [removed, by_a, by_b]):
        state = functools.reduce(lambda one, other: one.join(other), order, kind())
        assert "x" in state.value, "one tag stood for two adds"


def test_concurrent_adds_of_one_element_keep_a_dot_each() -> None:
    check_two_adds_one_seen(ORSet)
    with pytest.raises(AssertionError):
        check_two_adds_one_seen(OneTagSet)


class TombstoneSet(Plain):
    """Fault 2: removed tags are kept for ever."""

    def add(self, replica: Any, element: Any) -> Any:
        return self.delta({(replica, len(self.facts), element): True})

    def remove(self, replica: Any, element: Any) -> Any:
        return self.delta({tag: False for tag, live in self.facts.items() if live and tag[2] == element})

    def join(self, other: Any) -> Any:
        for tag, live in other.facts.items():
            self.facts[tag] = live and self.facts.get(tag, True)
        return self


def check_removals_leave_nothing(kind: Any, cycles: int) -> None:
    state, mirror = kind(), kind()
    for cycle in range(cycles):
        mirror.join(state.add((f"r{cycle % 3}", 1), cycle % 10))
        mirror.join(state.remove((f"r{cycle % 2}", 1), cycle % 10))
    assert mirror == state
    assert len(state.to_bytes()) < 200, f"{len(state.to_bytes())} bytes of an empty set"


def test_a_hundred_thousand_cycles_leave_only_the_replicas() -> None:
    check_removals_leave_nothing(ORSet, 100_000)
    with pytest.raises(AssertionError):
        check_removals_leave_nothing(TombstoneSet, 200)


class VectorClockRegister(Plain):
    """Fault 3: last by vector clock; concurrent writes have no last, so who asks keeps his own."""

    def put(self, replica: Any, value: Any) -> Any:
        clock = dict(self.facts.get("clock", ()))
        clock[replica] = clock.get(replica, 0) + 1
        return self.delta({"clock": tuple(sorted(clock.items())), "value": value})

    def join(self, other: Any) -> Any:
        mine, theirs = dict(self.facts.get("clock", ())), dict(other.facts.get("clock", ()))
        if mine != theirs and all(theirs.get(replica, 0) >= count for replica, count in mine.items()):
            self.facts = dict(other.facts)
        return self


class WallClockRegister(Plain):
    """Fault 3 again: last by wall clock alone."""

    def put(self, replica: Any, value: Any, now_us: int) -> Any:
        old = self.facts.get("write", (-1, None, None))
        return self.copy().join(made := self.delta({"write": max(old, (now_us, replica, value), key=repr)})) and made

    def join(self, other: Any) -> Any:
        writes = [state.facts["write"] for state in (self, other) if "write" in state.facts]
        if writes:
            self.facts["write"] = max(writes, key=repr)
        return self

    @property
    def value(self) -> Any:
        return self.facts["write"][2]


def check_concurrent_puts(kind: Any) -> None:
    states = [kind(), kind(), kind()]
    for state, replica in zip(states, (A, B, C), strict=True):
        state.put(replica, replica[0])
    check_join(*states)


def check_a_write_beats_what_it_saw(kind: Any) -> None:
    state = kind()
    state.put(A, "fast clock", 900)
    state.put(B, "later", 100)
    assert state.value == "later", "a later write lost to what its writer had read"


def test_last_is_a_total_order() -> None:
    check_concurrent_puts(LWWRegister)
    check_concurrent_puts(MVRegister)
    with pytest.raises(AssertionError):
        check_concurrent_puts(VectorClockRegister)
    check_a_write_beats_what_it_saw(LWWRegister)
    with pytest.raises(AssertionError):
        check_a_write_beats_what_it_saw(WallClockRegister)


def test_an_mv_register_keeps_concurrent_writes_and_drops_overwritten_ones() -> None:
    one, other = MVRegister(), MVRegister()
    first = one.put(A, "old")
    other.join(first)
    left, right = one.put(A, "left"), other.put(B, "right")
    assert one.join(right).value == ["left", "right"] == other.join(left).value
    assert one.put(A, "merged").value == ["merged"]


def test_a_write_from_the_far_future_is_refused_at_the_door() -> None:
    far = LWWRegister()
    far.put(A, "x", 10**15)
    with pytest.raises(BadRequest, match="future"):
        far.check_drift(10**15 - 61_000_000)
    far.check_drift(10**15 - 59_000_000)
    held = ORMap()
    held.put(A, "f", "x", 10**15)
    with pytest.raises(BadRequest, match="future"):
        held.check_drift(0)


class OverwritingRegister(Plain):
    """Fault 4: what comes in replaces what is there."""

    def put(self, replica: Any, value: Any) -> Any:
        return self.delta({"value": value})

    def join(self, other: Any) -> Any:
        self.facts.update(other.facts)
        return self


def test_incoming_data_is_joined_never_put() -> None:
    with pytest.raises(AssertionError):
        check_concurrent_puts(OverwritingRegister)


class AddingCounter(Plain):
    """Fault 5: merged by adding."""

    def increment(self, replica: Any, amount: int) -> Any:
        made = type(self)()
        made.facts = {"sum": amount}
        self.join(made)
        return made

    def join(self, other: Any) -> Any:
        self.facts["sum"] = self.facts.get("sum", 0) + other.facts.get("sum", 0)
        return self


def check_counter_counts_once(kind: Any) -> None:
    states = [kind(), kind(), kind()]
    for state, replica in zip(states, (A, B, C), strict=True):
        state.increment(replica, 2)
    check_join(*states)


def test_counters_are_merged_by_maximum() -> None:
    check_counter_counts_once(GCounter)
    with pytest.raises(AssertionError):
        check_counter_counts_once(AddingCounter)


def test_a_replica_that_lost_its_entries_needs_a_new_incarnation() -> None:
    others = GCounter()
    others.increment(A, 5)
    reborn = GCounter()
    reborn.increment(("a", 2), 3)
    assert others.copy().join(reborn).value == 8
    naive = GCounter()
    naive.increment(A, 3)
    assert others.copy().join(naive).value == 5, "three increments vanish under the old incarnation"


class DeletingMap(Plain):
    """Fault 7: removing a field clears it, whoever else wrote to it meanwhile."""

    def put(self, replica: Any, name: str, value: Any) -> Any:
        return self.delta({name: value})

    def remove(self, replica: Any, name: str) -> Any:
        return self.delta({name: None})

    def join(self, other: Any) -> Any:
        for name, value in other.facts.items():
            gone = value is None or self.facts.get(name, value) is None
            self.facts[name] = None if gone else max(value, self.facts.get(name, value), key=repr)
        return self

    @property
    def value(self) -> dict[str, Any]:
        return {name: value for name, value in self.facts.items() if value is not None}


def check_concurrent_update_survives(kind: Any) -> None:
    one = kind()
    first = one.put(A, "f", "first")
    other = kind().join(first)
    removed, updated = one.remove(A, "f"), other.put(B, "f", "second")
    assert one.value == {}
    assert one.join(updated).value == {"f": "second"} == other.join(removed).value


def test_removing_a_field_spares_what_was_not_seen() -> None:
    check_concurrent_update_survives(ORMap)
    with pytest.raises(AssertionError):
        check_concurrent_update_survives(DeletingMap)


def test_of_a_removed_nested_set_only_the_unseen_elements_come_back() -> None:
    one = ORMap()
    first = one.update(A, "tags", ORSet, "add", "seen")
    other = ORMap().join(first)
    removed, updated = one.remove(A, "tags"), other.update(B, "tags", ORSet, "add", "unseen")
    assert one.join(updated).plain == {"tags": ["unseen"]} == other.join(removed).plain
    with pytest.raises(StateTypeConflict):
        one.put(A, "tags", 1)


def test_a_field_that_became_two_types_keeps_both_and_shows_one_everywhere() -> None:
    one, other = ORMap(), ORMap()
    left, right = one.put(A, "f", 1), other.update(B, "f", ORSet, "add", 2)
    assert one.join(right) == other.join(left)
    assert one.plain == {"f": [2]} == other.plain
    other.join(one.remove(A, "f"))
    assert one.value == {} == other.value


class VectorOnlyContext(CausalContext):
    """Fault 9: the highest counter alone, as if no delta were ever lost."""

    __slots__ = ()

    def add(self, dot: Any) -> None:
        replica, counter = dot
        self._vector[replica] = max(counter, self._vector.get(replica, 0))


def check_lost_delta_may_come_later(context: type[CausalContext]) -> None:
    class Gapped(ORSet):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__()
            self._context = context()

    source = Gapped()
    deltas = [source.add(A, number) for number in range(3)]
    check_any_order(Gapped, deltas, [2, 0, 1], [True, True, True])
    assert same(functools.reduce(lambda one, other: one.join(other), deltas[::-1], Gapped()), source)


def test_a_delta_lost_and_sent_again_is_not_taken_for_seen() -> None:
    check_lost_delta_may_come_later(CausalContext)
    with pytest.raises(AssertionError):
        check_lost_delta_may_come_later(VectorOnlyContext)


class InsertionOrderCounter(GCounter):
    """Fault 10: encoded in the order of a dict."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        return repr(self._entries).encode()


def test_the_encoding_does_not_depend_on_who_came_first() -> None:
    check_counter_counts_once(GCounter)
    with pytest.raises(AssertionError):
        check_counter_counts_once(InsertionOrderCounter)
    one, other = LWWRegister(), LWWRegister()
    one.put(A, {"a": 1, "b": {"x": 1, "y": 2}})
    other.put(A, {"b": {"y": 2, "x": 1}, "a": 1})
    assert one.to_bytes() == other.to_bytes()


def test_what_is_equal_in_python_but_not_on_the_wire_is_kept_apart() -> None:
    state = ORSet()
    for element in (1, True, 1.0, "1", b"1"):
        state.add(A, element)
    assert len(state) == 5
    assert [type(element) for element in state.plain] == [bool, int, float, str, bytes]
