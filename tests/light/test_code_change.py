"""New code for living processes: nothing is lost, and a change that fails leaves them as they were."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest
from actorgrid.supervisors.process import GenServer, Process, ProcessSpec, ProcessSupervisor, Shard, change_code
from tests.light.conftest import StillShard


class Counter(GenServer):
    version = "1"

    def init(self, start: int = 0) -> None:
        self.total = start

    def handle_call(self, request: Any, caller: Any) -> Any:
        if request == "crash":
            raise ValueError("boom")
        self.total += 1
        return (type(self).version, self.total)


class Doubled(Counter):
    version = "2"
    step: int

    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        self.step = 2 if old_version == "1" else state["step"]

    def handle_call(self, request: Any, caller: Any) -> Any:
        if request == "crash":
            raise ValueError("boom")
        self.total += self.step
        return (self.version, self.total)


def test_a_changed_process_keeps_its_pid_its_attributes_and_its_mail(shard: StillShard) -> None:
    pid = shard.start(Counter, 10)
    answers: list[Any] = []
    shard.call_soon(pid, 1, None, answers.append)
    change = change_code(shard, Counter, Doubled)
    shard.call_soon(pid, 1, None, answers.append)
    assert not change.done
    shard.run_until_idle()
    assert [call.outcome[0] for call in answers] == [("1", 11), ("2", 13)]
    assert (change.done, change.changed, change.failed) == (True, 1, [])


def test_those_that_are_begun_from_then_on_are_of_the_new_class(shard: StillShard) -> None:
    supervisor = shard.start(ProcessSupervisor, [ProcessSpec("counter", Counter, register=True)])
    change_code(shard, Counter, CounterTwo)
    shard.run_until_idle()
    assert shard.call("counter", 1) == ("two", 1)
    shard.exit("counter", "killed")
    assert shard.call("counter", 1) == ("two", 1)
    assert shard.info(supervisor) is not None


class CounterTwo(Counter):
    version = "two"


class Raises(Counter):
    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        self.total = -1
        self.more = 5
        raise ValueError("it cannot be")


class Loses(Counter):
    total: int

    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        del self.total


def test_attributes_in_slots_are_state_too(shard: StillShard) -> None:
    class Small(GenServer):
        __slots__ = ("total",)

        def init(self) -> None:
            self.total = 7

        def handle_call(self, request: Any, caller: Any) -> Any:
            return self.total

    class Smaller(Small):
        __slots__ = ()

        def code_change(self, old_version: str, state: dict[str, Any]) -> None:
            assert state == {"total": 7}
            self.total = 8
            raise ValueError("no")

    pid = shard.start(Small)
    change = change_code(shard, Small, Smaller)
    shard.run_until_idle()
    assert change.taken_back
    assert shard.call(pid, 1) == 7
    assert shard.info(pid).format_state() == {"total": 7}  # type: ignore[union-attr]


@pytest.mark.parametrize("new", [Raises, Loses, type("Other", (Counter,), {"__slots__": ("x",)})])
def test_a_change_that_fails_leaves_the_process_as_it_was_and_is_taken_back(shard: StillShard, new: Any) -> None:
    pids = [shard.start(Counter, n) for n in range(3)]
    change = change_code(shard, Counter, new)
    shard.run_until_idle()
    assert [shard.call(pid, 1) for pid in pids] == [("1", n + 1) for n in range(3)]
    assert [shard.info(pid).format_state() for pid in pids] == [{"total": n + 1} for n in range(3)]  # type: ignore[union-attr]
    assert change.done
    assert change.taken_back
    assert {failed.pid for failed in change.failed} <= set(pids)
    assert shard.call(shard.start(Counter), 1) == ("1", 1)
    with pytest.raises(BadRequest):
        change.widen(1.0)


def test_a_canary_is_a_share_and_crashes_take_the_change_back(shard: StillShard) -> None:
    pids = [shard.start(Counter) for _ in range(20)]
    change = change_code(shard, Counter, Doubled, share=0.1, crashes_max=1)
    shard.run_until_idle()
    kinds = [type(shard.info(pid)) for pid in pids]
    assert kinds.count(Doubled) == change.changed == 2
    change.widen(0.5)
    shard.run_until_idle()
    assert [type(shard.info(pid)) for pid in pids].count(Doubled) == 10
    doubled = [pid for pid in pids if type(shard.info(pid)) is Doubled]
    for pid in doubled[:2]:
        with pytest.raises(ActorDown):
            shard.call(pid, "crash")
    shard.run_until_idle()
    assert change.taken_back
    assert change.crashed == 2
    left = [shard.info(pid) for pid in pids if shard.info(pid) is not None]
    assert len(left) == 18
    assert {type(process) for process in left} == {Counter}
    assert all(shard.call(pid, 1)[0] == "1" for pid in pids if shard.info(pid) is not None)


def test_a_share_of_few_is_one_at_least(shard: StillShard) -> None:
    pids = [shard.start(Counter) for _ in range(3)]
    change = change_code(shard, Counter, Doubled, share=0.1)
    shard.run_until_idle()
    assert [type(shard.info(pid)) for pid in pids].count(Doubled) == change.changed == 1


def test_a_change_that_hangs_is_interrupted_and_taken_back_and_hangs_for_nobody_else() -> None:
    tried: list[int] = []

    class Hangs(Counter):
        def code_change(self, old_version: str, state: dict[str, Any]) -> None:
            tried.append(self.total)
            while True:
                pass

    with Shard(report_after_s=0.05, interrupt_after_s=0.1) as shard:
        pids = [shard.start(Counter, n) for n in range(50)]
        change = change_code(shard, Counter, Hangs)
        assert shard.wait_until(lambda: change.done, 60)
        assert change.taken_back and tried == [0]
        assert "longer than it may" in str(change.failed[0].error)
        assert [shard.call(pid, 1) for pid in pids] == [("1", n + 1) for n in range(50)]


def test_a_hundred_versions_under_calls_lose_none(shard: StillShard) -> None:
    pids = [shard.start(Counter) for _ in range(50)]
    old: type[Process] = Counter
    answers: list[Any] = []
    for number in range(100):
        new = type(f"Counter{number}", (Counter,), {"version": str(number)})
        for _ in range(2):
            for pid in pids:
                shard.call_soon(pid, 1, None, answers.append)
        change_code(shard, old, new)
        for pid in pids:
            shard.call_soon(pid, 1, None, answers.append)
        old = new
        shard.core.run(10)
        with pytest.raises(BadRequest, match="wait until"):
            change_code(shard, new, Counter)
        shard.run_until_idle()
    assert all(call.outcome[1] is None for call in answers)
    assert [shard.info(pid).total for pid in pids] == [300] * 50  # type: ignore[union-attr]
    assert {type(shard.info(pid)).__name__ for pid in pids} == {"Counter99"}


def test_what_cannot_change_is_refused_or_left_alone(shard: StillShard) -> None:
    async def coroutine(me: Process) -> None:
        await me.receive()

    class Living(Process):
        async def run(self) -> None:
            await self.receive()

    for old, new in ((Living, Counter), (Counter, Living), (int, Counter), (Counter, "what"), (coroutine, Counter)):
        with pytest.raises(BadRequest):
            change_code(shard, old, new)  # type: ignore[arg-type]
    for share in (0, 2, "all"):
        with pytest.raises(BadRequest):
            change_code(shard, Counter, Doubled, share)  # type: ignore[arg-type]
