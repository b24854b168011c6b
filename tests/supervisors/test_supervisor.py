"""The supervisor's doings over processes that are only pretended, on a clock the test moves."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from actorgrid.errors import (
    ActorGridError,
    ChildExists,
    InvalidChildSpec,
    LogCorrupted,
    NoSuchChild,
    NotSupported,
    RestartIntensityExceeded,
    StartFailed,
    TooManyActors,
)
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import ExitReason, from_status
from actorgrid.supervisors.inline import InlineNode, InlineRuntime
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.supervisor import (
    STARTS_AT_ONCE,
    ChildInfo,
    CountChildren,
    DeleteChild,
    RestartChild,
    StartChild,
    Started,
    Supervisor,
    TerminateChild,
    WhichChildren,
)


class Boss(Supervisor):
    name: ClassVar[str] = "boss"
    flags: ClassVar[SupervisorFlags] = SupervisorFlags(intensity=3, period_s=10.0)

    def __init__(self, host: Any, runtime: Any) -> None:
        super().__init__(host, runtime)
        self.came_back: list[str] = []

    def child_came_back(self, child_id: str) -> None:
        self.came_back.append(child_id)


class Crew(Boss):
    """simple_one_for_one, with an ``init`` of its own."""

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, list[ChildSpec]]:
        return SupervisorFlags("simple_one_for_one"), [ChildSpec("worker", "m:C", arguments=arguments)]


class Pretended(InlineRuntime):
    """A ChildRuntime whose children start and stop when asked, unless told otherwise."""

    def __init__(self, *arguments: Any, kind: type[Boss] = Boss, name: str = "boss") -> None:
        node = InlineNode()
        super().__init__(node, name, arguments)
        self.did: list[tuple[Any, ...]] = []
        self.pids: dict[str, int] = {}
        self.given: dict[str, tuple[Any, ...]] = {}
        self.silent: set[str] = set()
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.failing: dict[str, ActorGridError] = {}
        self.no_process: dict[str, ActorGridError] = {}
        self.failed: ActorGridError | None = None
        self.left = 0
        self._next_pid = 100
        self.boss = kind(SimpleNamespace(), self)
        node.servers[name] = self.boss
        node.registry.register(name, self.me)

    def start_child(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...]) -> Started:
        assert child_id not in self.pids
        self.did.append(("start", child_id))
        if child_id in self.no_process:
            raise self.no_process[child_id]
        self._next_pid += 1
        self.pids[child_id], self.given[child_id] = self._next_pid, arguments
        if child_id in self.failing:
            self.node.after(0.0, lambda: self.start_fails(child_id))
        elif child_id not in self.silent:
            self.node.after(0.0, lambda: self.boss.child_started(child_id))
        return Started(self._next_pid, Ref(f"a.{self._next_pid}", child_id))

    def stop_child(self, child_id: str, reason: str) -> None:
        self.did.append(("stop", child_id))
        if child_id not in self.stubborn:
            self.node.after(0.0, lambda: self.dies(child_id, 0))

    def kill_child(self, child_id: str) -> None:
        self.did.append(("kill", child_id))
        if child_id not in self.immortal:
            self.node.after(0.0, lambda: self.dies(child_id, -9))

    def start_fails(self, child_id: str) -> None:
        self.boss.child_start_failed(child_id, self.failing[child_id])
        self.dies(child_id, 71)

    def fail(self, error: ActorGridError) -> None:
        self.failed = error

    def exit(self) -> None:
        self.left += 1

    def dies(self, child_id: str, status: int | ExitReason) -> None:
        if self.pids.pop(child_id, None) is not None:
            self.boss.child_exited(child_id, from_status(status) if isinstance(status, int) else status)

    def begin(self) -> list[BaseException | None]:
        outcome: list[BaseException | None] = []
        self.boss.begin(outcome.append)
        self.settle_timers()
        return outcome

    def settle_timers(self) -> None:
        self.node.advance(0.001)

    def request(self, message: Any) -> Any:
        return self.node.request("boss", message)

    def children(self) -> list[dict[str, Any]]:
        return self.request(WhichChildren())

    def states(self) -> dict[str, str]:
        return {child["name"]: child["state"] for child in self.children()}

    def stop(self, reason: str = "test") -> None:
        self.boss.spawn(self.boss.stop(reason))
        self.settle_timers()


def specs(*names: str, **fields: Any) -> tuple[ChildSpec, ...]:
    return tuple(ChildSpec(name, "m:C", **fields) for name in names)


def boss_of(*names: str, **fields: Any) -> Pretended:
    return Pretended(specs(*names, **fields))


def test_children_start_one_after_the_other() -> None:
    boss = boss_of("a", "b", "c")
    boss.silent.add("b")
    assert boss.begin() == []
    assert boss.did == [("start", "a"), ("start", "b")] and boss.states()["c"] == "waiting"
    boss.boss.child_started("b")
    boss.settle_timers()
    assert boss.states() == {"a": "up", "b": "up", "c": "up"}


def test_a_child_that_ends_comes_back_alone_and_the_subclass_is_told() -> None:
    boss = boss_of("a", "b")
    assert boss.begin() == [None]
    first = boss.children()[0]
    boss.dies("a", -11)
    boss.settle_timers()
    again, other = boss.children()
    assert (again["restarts"], other["restarts"]) == (1, 0)
    assert again["pid"] != first["pid"] and again["ref"] != first["ref"]
    assert again["last_exit"]["reason"] == "killed by SIGSEGV" and again["last_exit"]["kind"] == "error"
    assert boss.boss.came_back == ["a"] and again["state"] == "up"


def test_which_children_says_who_they_are() -> None:
    boss = Pretended((ChildSpec("a", "m:C", "transient", type="supervisor"),))
    boss.begin()
    assert boss.children() == [
        {
            "name": "a",
            "pid": 101,
            "ref": Ref("a.101", "a"),
            "state": "up",
            "restarts": 0,
            "last_exit": None,
            "type": "supervisor",
            "restart": "transient",
            "kind": "m:C",
        }
    ]
    assert boss.request(CountChildren()) == {"specs": 1, "active": 1, "supervisors": 1, "workers": 0}
    status = boss.boss.status()
    assert (status["strategy"], status["stopping"]) == ("one_for_one", False) and status["children"] == boss.children()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (ExitReason("error", "a broken invariant", exit_status=70), "a broken invariant (exit status 70)"),
        (ExitReason("normal", exit_status=0), "left in order"),
        (ExitReason("killed", exit_status=-9), "killed by SIGKILL"),
        (ExitReason("hung", "no beat for 3 s", exit_status=-9), "no beat for 3 s (killed by SIGKILL)"),
        (ExitReason("noproc"), "noproc"),
        (ExitReason("killed", exit_status=-99), "killed by signal 99"),
    ],
)
def test_an_end_in_words(reason: ExitReason, words: str) -> None:
    boss = boss_of("a")
    boss.begin()
    boss.dies("a", reason)
    assert boss.children()[0]["last_exit"]["reason"] == words


def test_the_traceback_of_an_end_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    boss = boss_of("a")
    boss.begin()
    with caplog.at_level(logging.WARNING, "actorgrid.boss"):
        boss.dies("a", ExitReason("error", "no", "Traceback: in f\n", 70))
    assert "ended: no (exit status 70)\n  Traceback: in f" in caplog.text


def test_the_first_start_that_fails_stops_the_rest_and_raises_its_error() -> None:
    boss = boss_of("a", "b", "c")
    boss.failing["b"] = LogCorrupted("record 7")
    assert boss.begin() == [boss.failing["b"]]
    assert boss.did == [("start", "a"), ("start", "b"), ("stop", "a")]
    assert boss.failed is None and not boss.left, "whoever runs the start has the error"


def test_a_first_start_that_dies_is_a_failed_start() -> None:
    boss = boss_of("a")
    boss.silent.add("a")
    outcome = boss.begin()
    boss.dies("a", 3)
    boss.settle_timers()
    assert isinstance(outcome[0], StartFailed) and "exit status 3" in outcome[0].message


def test_a_first_start_without_a_process_is_a_failed_start() -> None:
    boss = boss_of("a", "b")
    boss.no_process["b"] = TooManyActors("400 live")
    assert boss.begin() == [boss.no_process["b"]]
    assert boss.did[-1] == ("stop", "a") and not boss.pids


@pytest.mark.parametrize("arguments", [(), ((), ()), ((ChildSpec("a", "m:C"), ChildSpec("a", "m:C")),), (("a",),)])
def test_wrong_children_fail_the_start(arguments: tuple[Any, ...]) -> None:
    assert isinstance(Pretended(*arguments).begin()[0], InvalidChildSpec)


def test_a_start_that_takes_too_long_is_killed() -> None:
    boss = boss_of("a", start_timeout_s=2.0)
    boss.silent.add("a")
    outcome = boss.begin()
    boss.node.advance(2.0)
    assert ("kill", "a") in boss.did and isinstance(outcome[0], StartFailed)
    assert "did not start in 2 s" in outcome[0].message


def test_a_restart_that_fails_is_tried_again_later() -> None:
    boss = boss_of("a")
    boss.begin()
    boss.failing["a"] = StartFailed("port taken")
    boss.dies("a", 1)
    boss.settle_timers()
    assert boss.states() == {"a": "restarting"}
    assert boss.children()[0]["last_exit"]["reason"] == "port taken (exit status 71)"
    del boss.failing["a"]
    boss.node.advance(0.2)
    assert boss.states() == {"a": "up"}


def test_a_restart_without_a_process_is_tried_again_until_it_is_enough() -> None:
    boss = boss_of("a")
    boss.begin()
    boss.no_process["a"] = StartFailed("no process")
    boss.dies("a", 1)
    boss.node.advance(5.0)
    assert isinstance(boss.failed, RestartIntensityExceeded)


def test_too_many_ends_stop_all_children_and_fail_the_supervisor() -> None:
    boss = boss_of("a", "b")
    boss.begin()
    for _ in range(4):
        boss.dies("a", 3)
        boss.settle_timers()
    assert isinstance(boss.failed, RestartIntensityExceeded) and "after 3 restarts in 10 s" in boss.failed.message
    assert "exit status 3" in boss.failed.found and boss.failed.hint
    assert boss.states() == {"a": "down", "b": "down"} and not boss.pids and boss.boss.stopping


def test_stopping_goes_backwards_and_starts_nothing_again() -> None:
    boss = boss_of("a", "b", "c")
    boss.begin()
    boss.did.clear()
    boss.stop()
    assert boss.did == [("stop", "c"), ("stop", "b"), ("stop", "a")] and not boss.pids
    boss.stop("again")
    assert len(boss.did) == 3
    assert not boss.left and boss.failed is None, "the runtime that asked for the stop leaves by itself"


def test_who_does_not_stop_in_its_time_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    boss = Pretended(
        (
            ChildSpec("patient", "m:C", shutdown="infinity"),
            ChildSpec("slow", "m:C", shutdown=2.0),
            ChildSpec("brutal", "m:C", shutdown="brutal_kill"),
        )
    )
    boss.stubborn |= {"patient", "slow"}
    boss.begin()
    boss.did.clear()
    boss.stop()
    boss.node.advance(1.9)
    assert boss.did == [("kill", "brutal"), ("stop", "slow")]
    boss.node.advance(3000.0)
    assert boss.did == [("kill", "brutal"), ("stop", "slow"), ("kill", "slow"), ("stop", "patient")]
    boss.dies("patient", 0)
    assert not boss.pids and boss.states()["patient"] == "down"
    assert "slow did not stop in 2 s and is killed" in caplog.text


def test_what_does_not_die_does_not_hold_up_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    boss = boss_of("a", "b", shutdown=1.0)
    boss.begin()
    boss.stubborn.add("b")
    boss.immortal.add("b")
    boss.stop()
    boss.node.advance(12.0)
    assert boss.did[-1] == ("stop", "a") and "b (pid 102) does not die of SIGKILL" in caplog.text
    assert boss.states() == {"a": "down", "b": "stopping"}


def test_a_stop_while_starting_ends_the_start() -> None:
    boss = boss_of("a", "b", "c")
    boss.silent.add("b")
    outcome = boss.begin()
    boss.stop("SIGTERM")
    assert isinstance(outcome[0], StartFailed) and "SIGTERM" in outcome[0].message
    assert ("start", "c") not in boss.did and not boss.pids


def test_a_significant_child_that_is_done_ends_the_supervisor_in_order() -> None:
    class Job(Boss):
        flags = SupervisorFlags(auto_shutdown="any_significant")

    boss = Pretended(
        (ChildSpec("a", "m:C"), ChildSpec("job", "m:C", "transient", significant=True)),
        kind=Job,
    )
    boss.begin()
    boss.dies("job", 0)
    boss.settle_timers()
    assert boss.left == 1 and boss.failed is None and not boss.pids


def test_children_are_added_stopped_started_again_and_deleted_on_request() -> None:
    boss = boss_of("a")
    boss.begin()
    info = boss.request(StartChild(ChildSpec("b", "m:C", arguments=(1, "x"))))
    assert info == ChildInfo("b", 102, Ref("a.102", "b")) and boss.given["b"] == (1, "x")
    assert boss.request(TerminateChild("b")) is None and boss.states() == {"a": "up", "b": "down"}
    assert boss.request(RestartChild("b")).pid == 103 and boss.boss.came_back == ["b"]
    assert boss.request(TerminateChild(Ref("a.103"))) is None
    assert boss.request(DeleteChild("b")) is None and boss.states() == {"a": "up"}
    boss.dies("a", 1)
    boss.settle_timers()
    assert [child["restarts"] for child in boss.children()] == [1]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (StartChild(ChildSpec("a", "m:C")), ChildExists),
        (StartChild(ChildSpec("b", "m:C"), (1,)), InvalidChildSpec),
        (StartChild("b"), InvalidChildSpec),  # type: ignore[arg-type]
        (StartChild(ChildSpec("b", "m:C", "temporary", significant=True)), InvalidChildSpec),
        (StartChild(), NotSupported),
        (StartChild(ChildSpec("fails", "m:C")), LogCorrupted),
        (TerminateChild("b"), NoSuchChild),
        (TerminateChild(Ref("a.7", "b")), NoSuchChild),
        (RestartChild("a"), ChildExists),
        (RestartChild("b"), NoSuchChild),
        (DeleteChild("a"), ChildExists),
        (DeleteChild("b"), NoSuchChild),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_its_reason(request_: Any, error: type[ActorGridError]) -> None:
    boss = boss_of("a")
    boss.begin()
    boss.failing["fails"] = LogCorrupted("record 7")
    with pytest.raises(error):
        boss.request(request_)
    assert boss.states() == {"a": "up"} and boss.failed is None


def test_dynamic_children_get_their_own_ids_and_their_arguments_after_those_of_the_spec() -> None:
    boss = Pretended("common", kind=Crew)
    assert boss.begin() == [None] and boss.children() == []
    first, second = boss.request(StartChild(arguments=(1,))), boss.request(StartChild(arguments=(2,)))
    assert (first.id, second.id) == ("worker:1", "worker:2")
    assert boss.given == {"worker:1": ("common", 1), "worker:2": ("common", 2)}
    boss.dies("worker:1", 1)
    boss.settle_timers()
    assert boss.given["worker:1"] == ("common", 1) and boss.states() == {"worker:1": "up", "worker:2": "up"}
    assert boss.request(CountChildren()) == {"specs": 1, "active": 2, "supervisors": 0, "workers": 2}
    boss.request(TerminateChild(second.ref))
    assert boss.states() == {"worker:1": "up"}
    for refused in (RestartChild("worker:1"), DeleteChild("worker:1"), StartChild(ChildSpec("b", "m:C"))):
        with pytest.raises(NotSupported):
            boss.request(refused)


def test_only_so_many_starts_are_under_way_and_the_next_wait_in_order_for_one_to_end() -> None:
    boss = Pretended(kind=Crew)
    boss.begin()
    boss.silent = {f"worker:{number}" for number in range(1, 100)}
    answers: list[Any] = []

    for number in range(STARTS_AT_ONCE + 3):
        boss.boss.spawn(boss_call(boss, number, answers))
    boss.settle_timers()
    assert len(boss.pids) == STARTS_AT_ONCE and not answers
    boss.boss.child_started("worker:2")
    boss.failing = {"worker:1": StartFailed("it would not")}
    boss.start_fails("worker:1")
    boss.settle_timers()
    assert answers == ["worker:2", StartFailed]
    assert [boss.given[f"worker:{STARTS_AT_ONCE + more}"] for more in (1, 2)] == [
        (STARTS_AT_ONCE,),
        (STARTS_AT_ONCE + 1,),
    ]
    assert len(boss.pids) == STARTS_AT_ONCE + 1


def test_hundreds_of_starts_that_are_refused_at_once_are_all_answered() -> None:
    boss = Pretended(kind=Crew)
    boss.begin()
    boss.no_process = {f"worker:{number}": TooManyActors("full") for number in range(1, 500)}
    answers: list[Any] = []
    for number in range(400):
        boss.boss.spawn(boss_call(boss, number, answers))
    boss.settle_timers()
    assert answers == [TooManyActors] * 400


async def boss_call(boss: Pretended, number: int, answers: list[Any]) -> None:
    try:
        answers.append((await boss.boss._start_child(StartChild(arguments=(number,)))).id)
    except ActorGridError as error:
        answers.append(type(error))


def test_many_children_leave_nothing_behind() -> None:
    boss = Pretended(kind=Crew)
    boss.begin()
    for _ in range(5):
        info = boss.request(StartChild())
        boss.dies(info.id, 1)
        boss.settle_timers()
        boss.request(TerminateChild(info.id))
    assert boss.children() == [] and not boss.pids
    leftovers = (boss.boss._running, boss.boss._ended_at, boss.boss._timers, boss.boss._requests)
    assert not any(leftovers)


def test_news_of_a_child_that_is_not_ours_changes_nothing() -> None:
    boss = boss_of("a")
    boss.begin()
    boss.boss.child_started("b")
    boss.boss.child_exited("b", ExitReason("killed"))
    assert boss.states() == {"a": "up"} and len(boss.did) == 1


def test_a_supervisor_is_called_what_its_child_spec_calls_it() -> None:
    boss = Pretended(specs("a"), name="storage")
    boss.no_process["a"] = StartFailed("no")
    boss.begin()
    assert boss.boss.title == "storage"
