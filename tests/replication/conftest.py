"""How to drive each type: its mutators with small arguments, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from actorgrid.actors.replication.types import (
    Crdt,
    EWFlag,
    GCounter,
    LWWRegister,
    MVRegister,
    ORMap,
    ORSet,
    PNCounter,
    Replica,
)
from tests.replication.gossip_net import Town

small = st.integers(0, 3)
values = st.one_of(small, st.sampled_from(["a", "b", None, True, 1.5]))
fields = st.sampled_from(["f", "g"])
clocks = st.integers(0, 5)
_op = st.tuples

OPERATIONS: dict[type[Crdt], st.SearchStrategy[tuple[Any, ...]]] = {
    LWWRegister: _op(st.just("put"), values, clocks),
    MVRegister: _op(st.just("put"), values),
    GCounter: _op(st.just("increment"), st.integers(1, 5)),
    PNCounter: _op(st.sampled_from(["increment", "decrement"]), st.integers(1, 5)),
    ORSet: _op(st.sampled_from(["add", "add", "remove"]), values),
    EWFlag: _op(st.sampled_from(["enable", "disable"])),
    ORMap: st.one_of(
        _op(st.just("put"), fields, values, clocks),
        _op(st.just("remove"), fields),
        _op(st.just("increment"), st.just("n"), st.integers(1, 5)),
        _op(st.just("decrement"), st.just("n"), st.integers(1, 5)),
        _op(st.just("remove"), st.just("n")),
        _op(st.just("update"), st.just("s"), st.just(ORSet), st.sampled_from(["add", "remove"]), small),
        _op(st.just("update"), st.just("m"), st.just(ORMap), st.just("put"), fields, values, clocks),
        _op(st.just("update"), st.just("m"), st.just(ORMap), st.just("remove"), fields),
        _op(st.just("update"), st.just("v"), st.just(MVRegister), st.just("put"), values),
        _op(st.just("remove"), st.sampled_from(["s", "m", "v"])),
    ),
}


def apply(state: Any, replica: Replica, operation: tuple[Any, ...]) -> Any:
    """Run one mutator; its delta."""
    name, *arguments = operation
    return getattr(state, name)(replica, *arguments)


@dataclass
class Scene:
    """Three replicas of one type that mutated and heard some of each other's deltas, in some order."""

    kind: type[Any]
    states: list[Any]
    deltas: list[Any] = field(default_factory=list)


@st.composite
def scenes(draw: st.DrawFn, kind: type[Any]) -> Scene:
    states = [kind() for _ in range(3)]
    scene = Scene(kind, states)
    for _ in range(draw(st.integers(0, 12))):
        who = draw(st.integers(0, 2))
        if draw(st.booleans()) or not scene.deltas:
            scene.deltas.append(apply(states[who], (f"r{who}", 1), draw(OPERATIONS[kind])))
        else:
            states[who].join(draw(st.sampled_from(scene.deltas)))
    return scene


@dataclass(frozen=True)
class Drive:
    """What the tests of the laws need, as one fixture."""

    operations: dict[type[Crdt], Any]
    apply: Callable[[Any, Replica, tuple[Any, ...]], Any]
    scenes: Callable[[type[Any]], Any]


@pytest.fixture(scope="session")
def drive() -> Drive:
    return Drive(OPERATIONS, apply, scenes)


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is played by the town: what was not written is gone, what was written stays."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path, 3, seed=1)
    yield made
    made.close()
