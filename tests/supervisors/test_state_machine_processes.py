"""The same state machines in processes of their own, under a supervisor: nothing about them changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import pytest

from actorgrid.errors import ActorDown, NotSupported
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.state_machine import (
    StateMachine,
    Transition,
    keep_state,
    next_state,
    on,
    on_enter,
    postpone,
    state_timeout,
)
from actorgrid.supervisors.supervisor import WhichChildren
from actorgrid.supervisors.tree import Tree

DEADLINE_S = 30.0


@dataclass(frozen=True)
class Ask:
    text: str


@dataclass(frozen=True)
class Ready:
    pass


class Oven(StateMachine):
    """Answers when it is warm; breaks when it is told to go where there is no state."""

    states = ("cold", "warm")

    def init(self) -> None:
        self.served = 0

    @on_enter("cold")
    def heat(self) -> Transition:
        return keep_state(state_timeout(0.05, Ready()))

    @on("cold", Ready)
    def ready(self, _ready: Ready) -> Transition:
        return next_state("warm")

    @on("cold", Ask)
    def wait(self, _ask: Ask) -> Transition:
        return keep_state(postpone())

    @on("warm", Ask)
    async def serve(self, ask: Ask) -> Transition:
        await self.sleep(0.01)
        self.served += 1
        return next_state("nowhere") if ask.text == "break" else keep_state(reply=f"{ask.text} {self.served}")


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    try:
        tree.up(
            "actorgrid.supervisors.supervisor:Supervisor",
            None,
            (ChildSpec("oven", "tests.supervisors.test_state_machine_processes:Oven"),),
        )
        yield tree
        tree.stop("the test is over")
    finally:
        tree.close()


def wait_for_restart(tree: Tree) -> None:
    deadline = monotonic() + DEADLINE_S
    while True:
        (oven,) = tree.call("root", WhichChildren(), DEADLINE_S)  # each turn waits for an answer
        if oven["restarts"] == 1 and oven["state"] == "up":
            return
        assert monotonic() < deadline, oven


def test_a_machine_in_a_process_waits_for_its_timer_and_answers_what_was_postponed(tree: Tree) -> None:
    assert tree.call("oven", Ask("bread"), DEADLINE_S) == "bread 1"
    assert tree.call("oven", Ask("cake"), DEADLINE_S) == "cake 2"
    with pytest.raises(NotSupported, match="Ready has no handler in state 'warm'"):
        tree.call("oven", Ready(), DEADLINE_S)


def test_a_machine_that_breaks_its_own_rules_is_restarted_in_its_first_state(tree: Tree) -> None:
    assert tree.call("oven", Ask("bread"), DEADLINE_S) == "bread 1"
    with pytest.raises(ActorDown):
        tree.call("oven", Ask("break"), DEADLINE_S)
    wait_for_restart(tree)
    assert tree.call("oven", Ask("bread"), DEADLINE_S) == "bread 1"
