"""New code for processes whose life is a coroutine: they go on where the new class says, or as they were."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, ReceiveTimeout
from actorgrid.supervisors.process import GenServer, Process, ProcessCall, Shard, change_code
from actorgrid.supervisors.process.releases import ShardReleases
from tests.light.conftest import StillShard


class Teller(Process):
    version = "1"

    async def run(self, log: list[Any]) -> None:
        self.total, self.log = 0, log
        await self.resume()

    async def resume(self) -> None:
        try:
            while True:
                call = await self.receive(ProcessCall)
                if call.request == "crash":
                    raise ValueError("boom")
                if call.request == "nap":
                    await self.sleep(5)
                self.total += 1
                call.reply((self.version, self.total))
        finally:
            self.log.append(f"left {self.version}")


class Second(Teller):
    version = "2"
    step: int

    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        self.step = 10

    async def resume(self) -> None:
        while True:
            try:
                call = await self.receive(ProcessCall, timeout_s=60)
            except ReceiveTimeout:
                self.log.append("late")
                continue
            if call.request == "crash":
                raise ValueError("boom")
            self.total += self.step
            call.reply((self.version, self.total))


def test_it_goes_on_in_the_new_code_with_its_attributes_and_its_mail(shard: StillShard) -> None:
    log: list[Any] = []
    pid = shard.start(Teller, log)
    answers: list[Any] = []
    shard.send(pid, "not wanted")
    shard.call_soon(pid, 1, None, answers.append)
    change = change_code(shard, Teller, Second)
    shard.call_soon(pid, 1, None, answers.append)
    shard.run_until_idle()
    assert [call.outcome[0] for call in answers] == [("1", 1), ("2", 11)]
    assert (change.done, change.changed, change.skipped, change.failed) == (True, 1, 0, [])
    assert log == ["left 2"], "the old coroutine is closed, as the process that is of the new class now"
    assert shard.info(pid).mailbox_length == 1  # type: ignore[union-attr]
    shard.after(61)
    assert log == ["left 2", "late"], "the new one's times count"
    change.take_back()
    assert shard.call(pid, 1) == ("1", 12)
    shard.after(120)
    assert log == ["left 2", "late"], "and those of what was left do not"


def test_who_awaits_something_else_changes_when_it_has_that(shard: StillShard) -> None:
    pid = shard.start(Teller, [])
    answers: list[Any] = []
    shard.call_soon(pid, "nap", None, answers.append)
    shard.run_until_idle()
    change = change_code(shard, Teller, Second)
    shard.run_until_idle()
    assert not change.done
    shard.after(5)
    assert [call.outcome[0] for call in answers] == [("1", 1)]
    assert change.done
    assert shard.call(pid, 1) == ("2", 11)


class Raises(Second):
    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        self.total = self.step = -1
        raise ValueError("it cannot be")


class Loses(Second):
    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        pass  # step is declared


class NoCoroutine(Second):
    def resume(self) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize("new", [Raises, Loses, NoCoroutine])
def test_a_change_that_fails_leaves_its_coroutine_where_it_was(shard: StillShard, new: Any) -> None:
    log: list[Any] = []
    pid = shard.start(Teller, log)
    change = change_code(shard, Teller, new)
    shard.run_until_idle()
    assert change.done and change.taken_back and len(change.failed) == 1
    assert shard.call(pid, 1) == ("1", 1)
    assert log == []
    assert shard.info(pid).format_state() == {"total": 1, "log": []}  # type: ignore[union-attr]


def test_a_change_that_hangs_is_interrupted() -> None:
    class Hangs(Second):
        def code_change(self, old_version: str, state: dict[str, Any]) -> None:
            while True:
                pass

    with Shard(report_after_s=0.05, interrupt_after_s=0.1) as shard:
        pid = shard.start(Teller, [])
        change = change_code(shard, Teller, Hangs)
        assert shard.wait_until(lambda: change.done, 60)
        assert change.taken_back
        assert shard.call(pid, 1) == ("1", 1)


def test_crashes_of_the_new_take_it_back_and_who_ends_before_it_changes_holds_nobody_up(shard: StillShard) -> None:
    pids = [shard.start(Teller, []) for _ in range(6)]
    shard.call_soon(pids[5], "crash", None, lambda call: None)
    change = change_code(shard, Teller, Second, crashes_max=1)
    shard.run_until_idle()
    assert (change.done, change.changed) == (True, 5)
    for pid in pids[:2]:
        with pytest.raises(ActorDown):
            shard.call(pid, "crash")
    shard.run_until_idle()
    assert change.taken_back and change.done
    assert [shard.call(pid, 1) for pid in pids[2:5]] == [("1", 1)] * 3


def test_who_cannot_be_resumed_keeps_its_code_and_new_ones_have_the_new(shard: StillShard) -> None:
    class Old(Process):
        async def run(self) -> None:
            (await self.receive()).reply("old")

    class New(Old):
        async def run(self) -> None:
            (await self.receive()).reply("new")

    class Handlers(GenServer):
        pass

    pid = shard.start(Old)
    change = change_code(shard, Old, New)
    shard.run_until_idle()
    assert (change.done, change.changed, change.skipped) == (True, 0, 1)
    assert (shard.call(pid, 1), shard.call(shard.start(Old), 1)) == ("old", "new")
    for one, other in ((Old, Handlers), (Handlers, Old)):
        with pytest.raises(BadRequest, match="coroutine"):
            change_code(shard, one, other)


SOURCE = """
from actorgrid.supervisors.process import Process, ProcessCall
class Teller(Process):
    version = "3"
    def code_change(self, old_version, state):
        {change}
    async def run(self, log):
        self.total, self.log = 0, log
        await self.resume()
    async def resume(self):
        while True:
            call = await self.receive(ProcessCall)
            self.total += 1
            call.reply((self.version, self.total))
"""


def test_a_release_changes_them_too_or_none(shard: StillShard) -> None:
    releases = ShardReleases(shard)
    pids = [shard.start(Teller, []) for _ in range(10)]
    releases.begin(1, "tellers", SOURCE.format(change="raise ValueError(self.pid)"), 1.0)
    shard.after(1)
    assert releases.report(1).state == "taken back"
    assert {shard.call(pid, 1) for pid in pids} == {("1", 1)}
    releases.begin(2, "tellers", SOURCE.format(change="pass"), 1.0)
    shard.after(1)
    report = releases.report(2)
    assert (report.state, report.changed, report.skipped) == ("settled", 10, 0)
    assert {shard.call(pid, 1) for pid in pids} == {("3", 2)}
    with pytest.raises(BadRequest, match="coroutine"):
        releases.begin(3, "tellers", "from tests.light.conftest import Witness\nclass Teller(Witness): pass", 1.0)
