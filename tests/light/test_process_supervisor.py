"""Supervisors of light processes: the rules are those of ``tests/supervisors/test_restart.py``, carried out here."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import (
    ChildExists,
    InvalidChildSpec,
    NoSuchChild,
    NotSupported,
    RestartIntensityExceeded,
    StartFailed,
)
from actorgrid.supervisors.process import (
    CountChildren,
    DeleteChild,
    DynamicSupervisor,
    GenServer,
    Pid,
    Process,
    ProcessExit,
    ProcessSpec,
    ProcessSupervisor,
    RestartChild,
    StartChild,
    SupervisorFlags,
    TerminateChild,
    WhichChildren,
)
from tests.light.conftest import StillShard, Witness

LOG: list[str] = []


class Child(Witness):
    """Says when it starts and ends."""

    def init(self, name: str = "child", log: list[str] = LOG, fails: int = 0) -> None:  # type: ignore[override]
        super().init(log)  # type: ignore[arg-type]
        self.title = name
        if sum(1 for each in log if each == f"{name} tries") < fails:
            log.append(f"{name} tries")
            raise ValueError("not yet")
        log.append(f"{name} up")

    def terminate(self, reason: Any) -> None:
        self.log.append(f"{self.title} {reason.kind}")


@pytest.fixture(autouse=True)
def log() -> list[str]:
    LOG.clear()
    return LOG


def spec(name: str, *more: Any, **fields: Any) -> ProcessSpec:
    return ProcessSpec(name, Child, arguments=(name, LOG, *more), register=True, **fields)


def supervisor(shard: StillShard, *specs: ProcessSpec, strategy: Any = "one_for_one", **flags: Any) -> Pid:
    class Example(ProcessSupervisor):
        def init(self, *args: Any) -> Any:
            return SupervisorFlags(strategy, **flags), specs

    return shard.start(Example)


def test_children_start_in_order_and_stop_in_reverse(shard: StillShard, log: list[str]) -> None:
    pid = supervisor(shard, spec("a"), spec("b"), spec("c"))
    assert log == ["a up", "b up", "c up"]
    shard.info(pid).stop_children("done")  # type: ignore[union-attr]
    assert log[3:] == ["c shutdown", "b shutdown", "a shutdown"]
    assert shard.core.living == 0


@pytest.mark.parametrize(
    ("strategy", "after"),
    [
        ("one_for_one", ["b killed?", "b up"]),
        ("rest_for_one", ["b killed?", "c shutdown", "b up", "c up"]),
        ("one_for_all", ["b killed?", "c shutdown", "a shutdown", "a up", "b up", "c up"]),
    ],
)
def test_each_strategy_restarts_those_it_binds(
    shard: StillShard, log: list[str], strategy: str, after: list[str]
) -> None:
    supervisor(shard, spec("a"), spec("b"), spec("c"), strategy=strategy)
    shard.exit("b", "killed")
    shard.run_until_idle()
    assert log[3:] == after[1:]
    assert all(shard.call(name, ("told",)) is not None for name in "abc")


@pytest.mark.parametrize(
    ("restart", "word", "comes_back"),
    [
        ("permanent", "normal", True),
        ("transient", "normal", False),
        ("transient", "shutdown", False),
        ("transient", "killed", True),
        ("temporary", "killed", False),
    ],
)
def test_the_spec_says_which_end_is_answered_with_a_restart(
    shard: StillShard, restart: Any, word: str, comes_back: bool
) -> None:
    pid = supervisor(shard, spec("a", restart=restart))
    shard.stop("a", word)
    shard.run_until_idle()
    assert (shard.whereis("a") is not None) is comes_back
    assert shard.call(pid, CountChildren())["active"] == comes_back


def test_a_storm_of_crashes_ends_the_supervisor_with_a_word_of_who_it_was(shard: StillShard) -> None:
    watcher = shard.spawn(Witness)
    pid = supervisor(shard, spec("a"), spec("b"), intensity=3, period_s=10)
    shard.call(watcher, ("monitor", pid))
    for _ in range(4):
        shard.exit("a", "killed")
        shard.run_until_idle()
    [down] = shard.call(watcher, ("told",))
    assert isinstance(down.reason.error, RestartIntensityExceeded)
    assert down.reason.error.details["child"] == "a"
    assert shard.whereis("b") is None


def test_restarts_that_lie_apart_are_no_storm(shard: StillShard) -> None:
    pid = supervisor(shard, spec("a"), intensity=1, period_s=10)
    for _ in range(5):
        shard.exit("a", "killed")
        shard.after(11)
    [child] = shard.call(pid, WhichChildren())
    assert child["restarts"] == 5


def test_a_child_that_does_not_start_fails_the_supervisors_start_after_the_others_were_stopped(
    shard: StillShard, log: list[str]
) -> None:
    with pytest.raises(StartFailed, match="not yet"):
        supervisor(shard, spec("a"), spec("b", 99), spec("c"))
    assert log == ["a up", "b tries", "a shutdown"]
    assert shard.core.living == shard.core.timer_count == 0


def test_a_restart_that_fails_is_tried_again_after_a_pause(shard: StillShard, log: list[str]) -> None:
    log.extend(["late tries"] * 3)
    supervisor(shard, spec("late", 3))
    del log[:]
    shard.exit("late", "killed")
    shard.run_until_idle()
    assert log == ["late tries"]
    shard.after(0.09)
    assert log == ["late tries"]
    shard.after(0.02)
    assert log == ["late tries"] * 2
    shard.after(1)
    assert log[-1] == "late up"


def test_a_start_that_takes_too_long_has_failed(shard: StillShard) -> None:
    class Slow(GenServer):
        async def init(self) -> None:
            await self.sleep(100)

    answers: list[Any] = []
    pid = supervisor(shard)
    shard.call_soon(pid, StartChild(ProcessSpec("slow", Slow, start_timeout_s=1)), None, answers.append)
    shard.after(2)
    assert isinstance(answers[0].outcome[1], StartFailed)
    assert shard.call(pid, CountChildren())["specs"] == 0


def test_requests_are_answered_as_otp_does(shard: StillShard, log: list[str]) -> None:
    pid = supervisor(shard, spec("a"))
    made = shard.call(pid, StartChild(spec("b")))
    assert shard.whereis("b") == made
    with pytest.raises(ChildExists):
        shard.call(pid, StartChild(spec("b")))
    with pytest.raises(ChildExists):
        shard.call(pid, DeleteChild("b"))
    shard.call(pid, TerminateChild(made))
    assert [child["state"] for child in shard.call(pid, WhichChildren())] == ["up", "down"]
    assert shard.call(pid, RestartChild("b")) == shard.whereis("b") != made
    shard.call(pid, TerminateChild("b"))
    shard.call(pid, DeleteChild("b"))
    with pytest.raises(NoSuchChild):
        shard.call(pid, RestartChild("b"))
    with pytest.raises(NotSupported):
        shard.call(pid, StartChild(arguments=(1,)))
    with pytest.raises(InvalidChildSpec):
        shard.call(pid, StartChild("what"))  # type: ignore[arg-type]
    with pytest.raises(NotSupported):
        shard.call(pid, "what")
    assert log[-1] == "b shutdown"


def test_a_wrong_spec_is_refused_where_it_is_made() -> None:
    for fields in ({"kind": 7}, {"kind": "nowhere"}, {"id": "A"}, {"restart": "often"}, {"shutdown": -1}):
        with pytest.raises(InvalidChildSpec):
            ProcessSpec(**{"id": "a", "kind": Child, **fields})


def test_a_kind_may_be_named_and_one_that_is_not_there_fails_the_start(shard: StillShard) -> None:
    pid = supervisor(shard, ProcessSpec("w", "tests.light.conftest:Witness"))
    assert shard.call(pid, CountChildren())["active"] == 1
    with pytest.raises(StartFailed, match="cannot be loaded"):
        shard.call(pid, StartChild(ProcessSpec("x", "tests.light.conftest:Nobody")))


def test_a_killed_supervisor_takes_its_children_along(shard: StillShard, log: list[str]) -> None:
    class Inner(ProcessSupervisor):
        def init(self, *args: Any) -> Any:
            return SupervisorFlags(), [spec("a"), spec("b")]

    outer = supervisor(shard, ProcessSpec("inner", Inner, type="supervisor", register=True))
    before = shard.whereis("a")
    shard.exit("inner", "killed")
    shard.run_until_idle()
    assert log == ["a up", "b up", "b shutdown", "a shutdown", "a up", "b up"]
    assert shard.whereis("a") != before
    shard.stop(outer, "killed")
    assert shard.core.living == 0


def test_a_child_that_traps_exits_is_asked_to_stop_and_killed_when_its_time_is_over(shard: StillShard) -> None:
    seen: list[Any] = []

    async def polite(me: Process) -> None:
        me.trap_exit = True
        seen.append(await me.receive(ProcessExit))

    async def deaf(me: Process) -> None:
        me.trap_exit = True
        await me.sleep(1000)

    pid = supervisor(shard, ProcessSpec("polite", polite), ProcessSpec("deaf", deaf, shutdown=2.0))
    answers: list[Any] = []
    shard.call_soon(pid, TerminateChild("polite"), None, answers.append)
    shard.run_until_idle()
    assert seen[0].reason.kind == "shutdown"
    assert len(answers) == 1
    shard.call_soon(pid, TerminateChild("deaf"), None, answers.append)
    shard.after(1.9)
    assert len(answers) == 1
    shard.after(0.2)
    assert len(answers) == 2
    assert shard.core.living == 1


def test_a_dynamic_supervisor_starts_any_number_from_one_spec(shard: StillShard, log: list[str]) -> None:
    pid = shard.start(DynamicSupervisor, ProcessSpec("w", Child, "temporary"))
    made = [shard.call(pid, StartChild(arguments=(f"w{n}",))) for n in range(3)]
    assert log == ["w0 up", "w1 up", "w2 up"]
    assert [child["name"] for child in shard.call(pid, WhichChildren())] == ["w:1", "w:2", "w:3"]
    shard.stop(made[0])
    shard.call(pid, TerminateChild(made[1]))
    assert shard.call(pid, CountChildren()) == {"specs": 1, "active": 1, "supervisors": 0, "workers": 1}
    with pytest.raises(InvalidChildSpec):
        shard.start(DynamicSupervisor, "what")
    with pytest.raises(InvalidChildSpec):
        shard.start(ProcessSupervisor)


def test_thousands_of_children_of_one_supervisor_stop_without_looking_at_all_each_time(shard: StillShard) -> None:
    pid = shard.start(DynamicSupervisor, ProcessSpec("w", Witness, "temporary"))
    for _ in range(40):
        for _ in range(500):
            shard.call_soon(pid, StartChild(), None, lambda call: None)
        shard.run_until_idle()
    assert shard.call(pid, CountChildren())["active"] == 20_000
    shard.info(pid).stop_children("enough")  # type: ignore[union-attr]
    assert shard.core.living == 0


def test_a_shared_purpose_ends_with_its_significant_child(shard: StillShard) -> None:
    watcher = shard.spawn(Witness)
    pid = supervisor(
        shard, spec("a"), spec("b", restart="transient", significant=True), auto_shutdown="any_significant"
    )
    shard.call(watcher, ("monitor", pid))
    shard.stop("b", "normal")
    [down] = shard.call(watcher, ("told",))
    assert down.reason.kind == "shutdown"
    assert shard.whereis("a") is None
