"""Replicas under loss, duplicates, reordering, partitions and restarts, against an oracle of causal histories.

The oracle keeps sets of events and, per event, which events it overwrote or removed at its birth. It knows nothing
of dots, contexts or compaction: an event is live for a replica that heard it and no event that killed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from actorgrid.actors.replication.lww import next_stamp
from actorgrid.actors.replication.types import (
    TYPES,
    CausalContext,
    Dotted,
    EWFlag,
    GCounter,
    LWWRegister,
    MVRegister,
    ORMap,
    ORSet,
    PNCounter,
    decode,
)

SIMPLE: dict[type[Any], st.SearchStrategy[tuple[Any, ...]]] = {
    LWWRegister: st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 5)),
    MVRegister: st.tuples(st.just("put"), st.integers(0, 9)),
    GCounter: st.tuples(st.just("increment"), st.integers(1, 5)),
    PNCounter: st.tuples(st.sampled_from(["increment", "decrement"]), st.integers(1, 5)),
    ORSet: st.tuples(st.sampled_from(["add", "add", "remove"]), st.integers(0, 3)),
    EWFlag: st.tuples(st.sampled_from(["enable", "disable"])),
    ORMap: st.one_of(
        st.tuples(st.just("put"), st.sampled_from("fg"), st.integers(0, 9), st.integers(0, 5)),
        st.tuples(st.just("remove"), st.sampled_from("fg")),
    ),
}
CREATE = {"put", "add", "enable"}


@dataclass(frozen=True)
class Event:
    """One mutator call, with what its replica knew."""

    number: int
    replica: tuple[str, int]
    name: str
    place: Any
    content: Any
    kills: frozenset[int]
    stamp: tuple[int, int]


@dataclass
class Node:
    state: Any
    replica: tuple[str, int]
    heard: set[int] = field(default_factory=set)


class Convergence(RuleBasedStateMachine):
    kind: type[Any]

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[int, Event] = {}
        self.network: list[tuple[bytes, frozenset[int]]] = []
        self.sides: list[int] = []
        self.nodes: list[Node] = []

    @initialize(count=st.integers(3, 7))
    def begin(self, count: int) -> None:
        self.nodes = [Node(self.kind(), (f"r{number}", 1)) for number in range(count)]
        self.sides = [0] * count

    # -- what happens

    @rule(data=st.data(), who=st.integers(0, 6))
    def mutate(self, data: Any, who: int) -> None:
        node = self.nodes[who % len(self.nodes)]
        name, *arguments = data.draw(SIMPLE[self.kind])
        place, content, now = None, None, 0
        if self.kind is LWWRegister:
            content, now = arguments
        elif self.kind is ORMap:
            place = arguments[0]
            content, now = arguments[1:] if name == "put" else (None, 0)
        elif self.kind is ORSet:
            place = arguments[0]
        elif arguments:
            content = arguments[0]
        old = self.live(node.heard, place)
        latest = max((event.stamp for event in old), default=None)
        event = Event(
            len(self.events),
            node.replica,
            name,
            place,
            content,
            frozenset(event.number for event in old),
            next_stamp(now, latest),
        )
        delta = getattr(node.state, name)(node.replica, *arguments)
        self.events[event.number] = event
        node.heard.add(event.number)
        self.network.append((delta.to_bytes(), self.closure({event.number})))

    @rule(place=st.integers(0, 10**6), who=st.integers(0, 6))
    def deliver(self, place: int, who: int) -> None:
        """Any delta, any number of times, in any order; what is never chosen is lost."""
        if self.network:
            self.hear(self.nodes[who % len(self.nodes)], *self.network[place % len(self.network)])

    @rule(first=st.integers(0, 10**6), count=st.integers(2, 5), who=st.integers(0, 6))
    def deliver_group(self, first: int, count: int, who: int) -> None:
        if not self.network:
            return
        group, events = self.kind(), frozenset[int]()
        for place in range(first, first + count):
            data, about = self.network[place % len(self.network)]
            group.join(decode(data))
            events |= about
        self.hear(self.nodes[who % len(self.nodes)], group.to_bytes(), events)

    @rule(giver=st.integers(0, 6), taker=st.integers(0, 6))
    def exchange(self, giver: int, taker: int) -> None:
        """Whole states, unless a partition is between them."""
        one, other = giver % len(self.nodes), taker % len(self.nodes)
        if self.sides[one] == self.sides[other]:
            node = self.nodes[one]
            self.hear(self.nodes[other], node.state.to_bytes(), frozenset(node.heard))

    @rule(sides=st.lists(st.integers(0, 1), min_size=7, max_size=7))
    def partition(self, sides: list[int]) -> None:
        self.sides = sides[: len(self.nodes)]

    @rule(who=st.integers(0, 6))
    def restart_with_disk(self, who: int) -> None:
        node = self.nodes[who % len(self.nodes)]
        node.state = decode(node.state.to_bytes())

    @rule(who=st.integers(0, 6))
    def restart_without_disk(self, who: int) -> None:
        """All is lost, so it comes back under a new incarnation."""
        node = self.nodes[who % len(self.nodes)]
        name, incarnation = node.replica
        node.state, node.heard, node.replica = self.kind(), set(), (name, incarnation + 1)

    # -- what must hold

    @invariant()
    def every_replica_shows_what_it_heard(self) -> None:
        for node in self.nodes:
            assert node.state.value == self.expected(node.heard)

    def teardown(self) -> None:
        for _ in range(2):
            for one in self.nodes:
                for other in self.nodes:
                    self.hear(other, one.state.to_bytes(), frozenset(one.heard))
        assert len({node.state.to_bytes() for node in self.nodes}) <= 1
        self.every_replica_shows_what_it_heard()

    # -- the oracle

    def hear(self, node: Node, data: bytes, events: frozenset[int]) -> None:
        node.state.join(decode(data))
        node.heard |= events

    def closure(self, events: set[int]) -> frozenset[int]:
        """A counter's delta carries its replica's total, so all of that replica's earlier steps."""
        if self.kind not in (GCounter, PNCounter):
            return frozenset(events)
        return frozenset(
            event.number
            for event in self.events.values()
            for heard in events
            if event.replica == self.events[heard].replica and event.number <= heard
        )

    def live(self, heard: set[int], place: Any) -> list[Event]:
        if self.kind in (GCounter, PNCounter):
            return []
        known = [self.events[number] for number in sorted(heard) if self.events[number].place == place]
        killed = frozenset[int]().union(*(event.kills for event in known))
        return [event for event in known if event.name in CREATE and event.number not in killed]

    def expected(self, heard: set[int]) -> Any:
        if self.kind in (GCounter, PNCounter):
            signs = {"increment": 1, "decrement": -1}
            return sum(signs[self.events[number].name] * self.events[number].content for number in heard)
        places = {self.events[number].place for number in heard}
        live = {place: self.live(heard, place) for place in places}
        if self.kind is ORSet:
            return frozenset(place for place, events in live.items() if events)
        if self.kind is EWFlag:
            return bool(live.get(None))
        if self.kind is MVRegister:
            return sorted({event.content for event in live.get(None, [])})
        last = {
            place: max(events, key=lambda event: (event.stamp, event.replica)).content
            for place, events in live.items()
            if events
        }
        return last if self.kind is ORMap else last.get(None)


def run(kind: Any, examples: int = 60, **options: Any) -> None:
    machine = type(f"Convergence_{kind.kind}", (Convergence,), {"kind": kind})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            **options,
        ),
    )


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES.keys())
def test_replicas_show_what_they_heard_and_converge_when_all_heard_all(kind: Any) -> None:
    run(kind)


def vector_only(context: Any, dot: Any) -> None:
    replica, counter = dot
    context._vector[replica] = max(counter, context._vector.get(replica, 0))


def remove_all_known_or_not(state: Any, other: Any) -> Any:
    for dot in [dot for dot in state._entries if dot not in other._entries and other._context.vector]:
        state._drop(dot)
    for dot, entry in other._entries.items():
        if dot not in state._context:
            state._insert(dot, entry)
    state._context.join(other._context)
    return state


@pytest.mark.parametrize(
    ("owner", "name", "naive"),
    [(CausalContext, "add", vector_only), (Dotted, "join", remove_all_known_or_not)],
    ids=["a context without a cloud", "a join that ignores what the other has seen"],
)
def test_the_machine_refuses_naive_designs(owner: Any, name: str, naive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, naive)
    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        run(ORSet, 2000, phases=(Phase.generate,), print_blob=False, report_multiple_bugs=False, derandomize=True)
