"""What light processes must bear: a million of them, mass death, storms; in one process of the operating system."""

from __future__ import annotations

import gc
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from actorgrid.supervisors.process import (
    DynamicSupervisor,
    GenServer,
    Pid,
    ProcessDown,
    ProcessExit,
    ProcessSpec,
    ProcessSupervisor,
    Shard,
    StartChild,
    SupervisorFlags,
)
from tests.light.conftest import StillShard

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MILLION = 1_000_000


class Cell(GenServer):
    """As small as they come."""

    __slots__ = ()

    def init(self) -> None:
        pass

    def handle_call(self, request: Any, caller: Any) -> Any:
        return request

    def handle_info(self, message: Any) -> None:
        if message == "crash":
            raise ValueError(message)


class Watcher(GenServer):
    """Counts whose end it is told, and how often."""

    def init(self) -> None:
        self.trap_exit = True
        self.down: Counter[Pid] = Counter()
        self.exits: Counter[Pid] = Counter()

    def handle_info(self, message: Any) -> None:
        if isinstance(message, ProcessDown):
            self.down[message.pid] += 1  # type: ignore[index]
        elif isinstance(message, ProcessExit):
            self.exits[message.pid] += 1  # type: ignore[index]

    def handle_call(self, request: Any, caller: Any) -> Any:
        what, pids = request
        for pid in pids:
            getattr(self, what)(pid)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


class Town(ProcessSupervisor):
    """Districts of their own, each with a supervisor."""

    def init(self, *args: Any) -> Any:
        (districts,) = args
        cell = ProcessSpec("cell", Cell, "temporary")
        return SupervisorFlags(), [
            ProcessSpec(f"d{n}", DynamicSupervisor, type="supervisor", arguments=(cell,), register=True)
            for n in range(districts)
        ]


def test_a_million_live_and_a_tree_over_them_answers() -> None:
    with Shard() as shard:
        gc.collect()
        before = resident_bytes()
        pids = [shard.spawn(Cell) for _ in range(MILLION)]
        shard.run_until_idle()
        assert shard.core.living == MILLION
        assert (resident_bytes() - before) / MILLION < 270  # with the list of pids
        town = shard.start(Town, 20)
        for district in range(20):
            for _ in range(100):
                for _ in range(5):
                    shard.call_soon(f"d{district}", StartChild(), None, lambda call: None)
                shard.run_until_idle()
        assert shard.core.living == MILLION + 20 * 501 + 1
        shard.exit("d7", "killed")
        assert shard.call("d7", StartChild()) is not None
        for pid in random.Random(1).sample(pids, 1000):
            assert shard.call(pid, pid.id) == pid.id
        shard.info(town).stop_children("done")  # type: ignore[union-attr]
        assert shard.core.living == MILLION
    assert shard.core.living == 0


def test_of_a_hundred_thousand_killed_at_random_everybody_is_told_once() -> None:
    dice = random.Random(11)
    with StillShard() as shard:
        pids = [shard.spawn(Cell) for _ in range(150_000)]
        watchers = [shard.start(Watcher) for _ in range(50)]
        mine: dict[Pid, tuple[list[Pid], list[Pid]]] = {}
        for watcher in watchers:
            mine[watcher] = dice.sample(pids, 5_000), dice.sample(pids, 5_000)
            shard.call(watcher, ("monitor", mine[watcher][0]))
            shard.call(watcher, ("link", mine[watcher][1]))
        for first, second in zip(pids[::2], pids[1::2], strict=True):
            shard.link(shard.core.find(first), second)  # type: ignore[arg-type]
        dice.shuffle(pids)
        for pid in pids[:100_000]:
            shard.exit(pid, "killed")
        shard.run_until_idle()
        dead = {pid for pid in pids if shard.core.find(pid) is None}
        assert len(dead) >= 100_000  # those linked to the killed went with them
        for watcher, (monitored, linked) in mine.items():
            told: Any = shard.info(watcher)
            assert told.down == Counter(pid for pid in monitored if pid in dead)
            assert told.exits == Counter(pid for pid in linked if pid in dead)
        assert shard.core.living == 150_000 + 50 - len(dead)


def test_a_storm_of_crashes_leaves_the_others_alone_and_keeps_nothing() -> None:
    with StillShard() as shard:
        steady = shard.start(Cell)
        gc.collect()
        objects = len(gc.get_objects())
        for _ in range(10):
            for _ in range(5_000):
                shard.send(shard.spawn(Cell), "crash")
            shard.run_until_idle()
            assert shard.call(steady, "still here") == "still here"
            shard.after(1)
        gc.collect()
        assert shard.crash_log.crashes == 50_000
        assert shard.core.living == 1
        assert len(gc.get_objects()) < objects + 1_000


def test_a_million_timers_come_each_once_and_in_order() -> None:
    dice = random.Random(3)
    seen: list[int] = []

    class Clerk(GenServer):
        def handle_info(self, message: Any) -> None:
            seen.append(message)

    with StillShard() as shard:
        clerk = shard.start(Clerk, timeout_s=60)
        shard.core.find(clerk)
        due = [dice.randrange(1_000_000) for _ in range(MILLION)]
        timers = [shard.core.send_after(at / 1e5, clerk, at) for at in due]
        cancelled = dice.sample(range(MILLION), 200_000)
        assert all(timers[n].cancel() for n in cancelled)
        assert shard.core.timer_count == 800_000
        for _ in range(200):
            shard.hand.now_ns += 50_000_000
            shard.run_until_idle()
        shard.after(1)
        expected = Counter(due)
        expected.subtract(Counter(due[n] for n in cancelled))
        assert Counter(seen) == +expected
        assert all(later - earlier > -10 for earlier, later in pairwise(seen))
        assert shard.core.timer_count == 0


def test_a_flood_is_refused_at_the_bound_and_the_shard_serves_on() -> None:
    with StillShard() as shard:
        flooded, steady = shard.start(Cell), shard.start(Cell)
        taken = sum(shard.send(flooded, n) for n in range(MILLION))
        assert taken == Cell.mailbox_limit
        assert shard.core.refused == MILLION - taken
        assert shard.call(steady, 1) == 1
        shard.run_until_idle()
        assert shard.send(flooded, 1)


def test_memory_does_not_grow_with_the_processes_that_were() -> None:
    with StillShard() as shard:
        server = shard.start(Cell)

        def generation() -> None:
            for n in range(20_000):
                pid = shard.spawn(Cell)
                shard.send(pid, n)
                shard.core.send_after(0.5, pid, n)
                shard.call_soon(server, n, 5.0, lambda call: None)
                shard.core.call_after(0.01, lambda pid=pid: shard.exit(pid, "killed"))  # type: ignore[misc]
            shard.after(1)
            assert shard.core.living == 1

        for _ in range(3):
            generation()
        gc.collect()
        before = resident_bytes()
        for _ in range(15):
            generation()
        gc.collect()
        assert resident_bytes() - before < 8_000_000
        assert shard.core.timer_count == 0
