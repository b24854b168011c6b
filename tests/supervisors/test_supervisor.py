"""The supervisor's doings over processes that are only pretended, on a clock the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from actorgrid.errors import ActorGridError, LogCorrupted, RestartIntensityExceeded, StartFailed
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.supervisor import Supervisor, WhichChildren, describe_exit


class Pretended(InlineNode):
    """An InlineNode that is a ChildRuntime too. Children start and stop when asked, unless told otherwise."""

    def __init__(self, *specs: ChildSpec) -> None:
        super().__init__()
        self.children = specs
        self.did: list[tuple[Any, ...]] = []
        self.pids: dict[str, int] = {}
        self.silent: set[str] = set()
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.failing: dict[str, ActorGridError] = {}
        self.no_process: set[str] = set()
        self.failed: ActorGridError | None = None
        self.left = False
        self._next_pid = 100
        self.supervisor: Supervisor = Boss(SimpleNamespace(), self)
        self.servers["boss"] = self.supervisor

    def start_child(self, spec: ChildSpec) -> int:
        self.did.append(("start", spec.id))
        if spec.id in self.no_process:
            raise StartFailed("no process")
        self._next_pid += 1
        self.pids[spec.id] = self._next_pid
        if spec.id in self.failing:
            self.after(0.0, lambda: self.supervisor.child_start_failed(spec.id, self.failing[spec.id]))
        elif spec.id not in self.silent:
            self.after(0.0, lambda: self.supervisor.child_started(spec.id))
        return self._next_pid

    def stop_child(self, child_id: str, reason: str) -> None:
        self.did.append(("stop", child_id))
        if child_id not in self.stubborn:
            self.after(0.0, lambda: self.dies(child_id, 0))

    def kill_child(self, child_id: str) -> None:
        self.did.append(("kill", child_id))
        if child_id not in self.immortal:
            self.after(0.0, lambda: self.dies(child_id, -9))

    def fail(self, error: ActorGridError) -> None:
        self.failed = error

    def exit(self) -> None:
        self.left = True

    def dies(self, child_id: str, status: int) -> None:
        if self.pids.pop(child_id, None) is not None:
            self.supervisor.child_exited(child_id, status)

    def begin(self) -> list[BaseException | None]:
        outcome: list[BaseException | None] = []
        self.supervisor.begin(outcome.append)
        self.settle_timers()
        return outcome

    def settle_timers(self) -> None:
        self.advance(0.001)

    def states(self) -> dict[str, str]:
        return {child["name"]: child["state"] for child in self.request("boss", WhichChildren())}


class Boss(Supervisor):
    name: ClassVar[str] = "boss"
    intensity: ClassVar[int] = 3
    period_s: ClassVar[float] = 10.0


def specs(*names: str, **fields: Any) -> tuple[ChildSpec, ...]:
    return tuple(ChildSpec(name, "m:C", **fields) for name in names)


def test_children_start_one_after_the_other() -> None:
    node = Pretended(*specs("a", "b", "c"))
    node.silent.add("b")
    assert node.begin() == []
    assert node.did == [("start", "a"), ("start", "b")] and node.states()["c"] == "waiting"
    node.supervisor.child_started("b")
    node.settle_timers()
    assert node.states() == {"a": "up", "b": "up", "c": "up"}


def test_a_child_that_ends_comes_back_alone() -> None:
    node = Pretended(*specs("a", "b"))
    assert node.begin() == [None]
    node.dies("a", -11)
    node.settle_timers()
    children = node.request("boss", WhichChildren())
    assert [child["restarts"] for child in children] == [1, 0]
    assert children[0]["last_exit"]["reason"] == "killed by SIGSEGV" and children[0]["state"] == "up"


def test_a_crash_keeps_its_reason() -> None:
    node = Pretended(*specs("a"))
    node.begin()
    node.supervisor.child_crashed("a", ActorGridError("a broken invariant"))
    node.dies("a", 70)
    assert node.request("boss", WhichChildren())[0]["last_exit"]["reason"] == "a broken invariant (exit status 70)"


def test_the_first_start_that_fails_stops_the_rest_and_raises_its_error() -> None:
    node = Pretended(*specs("a", "b", "c"))
    node.failing["b"] = LogCorrupted("record 7")
    assert node.begin() == [node.failing["b"]]
    assert node.did == [("start", "a"), ("start", "b"), ("kill", "b"), ("stop", "a")]


def test_a_first_start_that_dies_is_a_failed_start() -> None:
    node = Pretended(*specs("a"))
    node.silent.add("a")
    outcome = node.begin()
    node.dies("a", 3)
    node.settle_timers()
    assert isinstance(outcome[0], StartFailed) and "exit status 3" in outcome[0].message


def test_a_first_start_without_a_process_is_a_failed_start() -> None:
    node = Pretended(*specs("a"))
    node.no_process.add("a")
    assert isinstance(node.begin()[0], StartFailed)


def test_a_start_that_takes_too_long_is_killed() -> None:
    node = Pretended(*specs("a", start_timeout_s=2.0))
    node.silent.add("a")
    outcome = node.begin()
    node.advance(2.0)
    assert ("kill", "a") in node.did and isinstance(outcome[0], StartFailed)
    assert "did not start in 2 s" in outcome[0].message


def test_a_restart_that_fails_is_tried_again_later() -> None:
    node = Pretended(*specs("a"))
    node.begin()
    node.failing["a"] = StartFailed("port taken")
    node.dies("a", 1)
    node.settle_timers()
    assert node.states() == {"a": "restarting"}
    del node.failing["a"]
    node.advance(0.2)
    assert node.states() == {"a": "up"}


def test_a_restart_without_a_process_is_tried_again_until_it_is_enough() -> None:
    node = Pretended(*specs("a"))
    node.begin()
    node.no_process.add("a")
    node.dies("a", 1)
    node.advance(5.0)
    assert isinstance(node.failed, RestartIntensityExceeded)


def test_too_many_ends_stop_all_children_and_fail_the_supervisor() -> None:
    node = Pretended(*specs("a", "b"))
    node.begin()
    for _ in range(4):
        node.dies("a", 1)
        node.settle_timers()
    assert isinstance(node.failed, RestartIntensityExceeded) and "after 3 restarts in 10 s" in node.failed.message
    assert node.states() == {"a": "down", "b": "down"} and not node.pids


def test_stopping_goes_backwards_and_starts_nothing_again() -> None:
    node = Pretended(*specs("a", "b", "c"))
    node.begin()
    node.did.clear()
    node.supervisor.spawn(node.supervisor.stop("test"))
    node.settle_timers()
    assert node.did == [("stop", "c"), ("stop", "b"), ("stop", "a")] and not node.pids


def test_who_does_not_stop_in_its_time_is_killed() -> None:
    node = Pretended(
        ChildSpec("patient", "m:C", shutdown="infinity"),
        ChildSpec("slow", "m:C", shutdown=2.0),
        ChildSpec("brutal", "m:C", shutdown="brutal_kill"),
    )
    node.stubborn |= {"patient", "slow"}
    node.begin()
    node.did.clear()
    node.supervisor.spawn(node.supervisor.stop("test"))
    node.advance(1.9)
    assert node.did == [("kill", "brutal"), ("stop", "slow")]
    node.advance(3000.0)
    assert node.did == [("kill", "brutal"), ("stop", "slow"), ("kill", "slow"), ("stop", "patient")]
    node.dies("patient", 0)
    assert not node.pids and node.states()["patient"] == "down"


def test_what_does_not_die_does_not_hold_up_the_stop() -> None:
    node = Pretended(*specs("a", "b", shutdown=1.0))
    node.begin()
    node.stubborn.add("b")
    node.immortal.add("b")
    node.supervisor.spawn(node.supervisor.stop("test"))
    node.advance(12.0)
    assert node.did[-1] == ("stop", "a")


def test_a_stop_while_starting_ends_the_start() -> None:
    node = Pretended(*specs("a", "b", "c"))
    node.silent.add("b")
    outcome = node.begin()
    node.supervisor.spawn(node.supervisor.stop("SIGTERM"))
    node.settle_timers()
    assert isinstance(outcome[0], StartFailed) and "SIGTERM" in outcome[0].message
    assert ("start", "c") not in node.did and not node.pids


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "left in order"), (70, "exit status 70"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words
