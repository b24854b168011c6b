"""New versions of a module in a living shard: side by side, in order, back where they fail, and nothing lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, BodyTooLarge, StaleToken, WrongState
from actorgrid.supervisors.process import GenServer
from actorgrid.supervisors.process.releases import ReleaseReport, ShardReleases
from tests.light.conftest import StillShard


class Counter(GenServer):
    version = "0"

    def init(self) -> None:
        self.total = 0

    def handle_call(self, request: Any, caller: Any) -> Any:
        self.total += 1
        return (self.version, self.total)


class Helper(GenServer):
    version = "0"

    def handle_call(self, request: Any, caller: Any) -> Any:
        return self.version


SOURCE = """
from actorgrid.supervisors.process import GenServer
class Helper(GenServer):
    version = "{n}"
    def code_change(self, old, state):
        {helper}
    def handle_call(self, request, caller):
        return self.version
class Counter(GenServer):
    version = "{n}"
    total: int
    def init(self):
        self.total = 0
    def code_change(self, old, state):
        {change}
    def handle_call(self, request, caller):
        {handle}
        self.total += 1
        return (self.version, self.total)
"""


def source(n: int, change: str = "pass", handle: str = "pass", helper: str = "pass") -> str:
    return SOURCE.format(n=n, change=change, handle=handle, helper=helper)


@pytest.fixture
def releases(shard: StillShard) -> ShardReleases:
    return ShardReleases(shard)


def settled(shard: StillShard, releases: ShardReleases, number: int) -> ReleaseReport:
    for _ in range(100):
        shard.after(0.05)
        if (report := releases.report(number)).state != "changing":
            return report
    raise AssertionError(report)


def test_a_hundred_versions_under_calls_lose_none(shard: StillShard, releases: ShardReleases) -> None:
    counters = [shard.start(Counter) for _ in range(5)]
    answers: list[Any] = []
    sent = itertools.count()
    for number in range(1, 101):
        for pid in counters:
            for _ in range(10):
                next(sent)
                shard.call_soon(pid, "next", None, answers.append)
        releases.begin(number, "counters", source(number), 1.0)
        for pid in counters:
            for _ in range(10):
                next(sent)
                shard.call_soon(pid, "next", None, answers.append)
        assert settled(shard, releases, number).state == "settled"
    assert len(answers) == next(sent) == 10_000
    outcomes = [call.outcome for call in answers]
    assert all(error is None for _, error in outcomes)
    assert [shard.call(pid, "next") for pid in counters] == [("100", 2001)] * 5
    assert shard.call(shard.start(Counter), "next")[0] == "100", "what is begun from now on, too"


def test_a_share_goes_first_and_then_all_or_none(shard: StillShard, releases: ShardReleases) -> None:
    counters = [shard.start(Counter) for _ in range(20)]
    releases.begin(1, "counters", source(1), 0.1)
    assert settled(shard, releases, 1).changed == 2
    assert sorted(shard.call(pid, "next")[0] for pid in counters) == ["0"] * 18 + ["1"] * 2
    with pytest.raises(WrongState):
        releases.begin(2, "counters", source(2), 1.0)
    releases.widen(1, 1.0)
    assert settled(shard, releases, 1).changed == 20
    releases.begin(2, "counters", source(2), 0.5)
    settled(shard, releases, 2)
    releases.take_back(2, "the person said so")
    shard.run_until_idle()
    assert {shard.call(pid, "next") for pid in counters} == {("1", 2)}
    with pytest.raises(StaleToken):
        releases.begin(1, "counters", source(1), 1.0)
    with pytest.raises(WrongState):
        releases.widen(2, 1.0)
    assert releases.begin(3, "counters", source(3), 1.0).number == 3


@pytest.mark.parametrize("change", ["raise ValueError('no')", "del self.total", "self.total = 7; raise KeyError(1)"])
def test_a_change_that_fails_is_taken_back_with_the_state_of_before(
    shard: StillShard, releases: ShardReleases, change: str
) -> None:
    helper, counter = shard.start(Helper), shard.start(Counter)
    shard.call(counter, "next")
    releases.begin(1, "counters", source(1, change=change), 1.0)
    report = settled(shard, releases, 1)
    assert report.state == "taken back" and "Counter" in report.why[0]
    assert shard.call(counter, "next") == ("0", 2)
    assert shard.call(helper, "version") == "0", "what had changed before it, too"


def test_crashes_of_the_new_take_it_back(shard: StillShard, releases: ShardReleases) -> None:
    counters = [shard.start(Counter) for _ in range(10)]
    crash = "1 / (request != 'crash')"
    releases.begin(1, "counters", source(1, handle=crash), 1.0, crashes_max=1)
    assert settled(shard, releases, 1).state == "settled"
    for pid in counters[:2]:
        with pytest.raises(ActorDown):
            shard.call(pid, "crash")
    shard.after(2)
    assert releases.report(1).state == "taken back" and "crashes" in releases.report(1).why[0]
    assert {shard.call(pid, "next")[0] for pid in counters[2:]} == {"0"}


def test_classes_change_in_the_order_of_the_file(shard: StillShard, releases: ShardReleases) -> None:
    counter, helper = shard.start(Counter), shard.start(Helper)
    releases.begin(1, "counters", source(1), 1.0)
    report = settled(shard, releases, 1)
    assert report.classes == ("Helper", "Counter") and report.changed == 2
    assert (shard.call(helper, 1), shard.call(counter, 1)[0]) == ("1", "1")


def test_what_is_no_version_is_refused(shard: StillShard, releases: ShardReleases) -> None:
    shard.start(Counter)
    for text in ("def", "raise ValueError(1)", "x = 1", "class Counter: pass"):
        with pytest.raises(BadRequest):
            releases.begin(1, "counters", text, 1.0)
    with pytest.raises(BodyTooLarge):
        releases.begin(1, "counters", "#" * (1 << 21), 1.0)
    with pytest.raises(BadRequest):
        releases.begin(1, "../x", source(1), 1.0)
    with pytest.raises(BadRequest):
        releases.report(9)
    assert not releases.releases
