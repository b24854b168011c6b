"""Ten minutes of births, calls, crashes, timers and deaths in one shard: nothing grows."""

from __future__ import annotations

import gc
import random
from time import monotonic
from typing import Any

import pytest

from actorgrid.supervisors.process import (
    CountChildren,
    DynamicSupervisor,
    ProcessSpec,
    Shard,
    StartChild,
    SupervisorFlags,
)
from tests.light.conftest import Witness
from tests.light.test_limits import resident_bytes

SOAK_S = 600.0
CHILDREN = 2_000


class Forgiving(DynamicSupervisor):
    flags = SupervisorFlags("simple_one_for_one", intensity=10_000, period_s=1.0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_minutes_leave_nothing_behind() -> None:
    dice = random.Random(5)
    with Shard() as shard:
        supervisor = shard.start(Forgiving, ProcessSpec("w", Witness))

        def grow() -> None:
            for _ in range(CHILDREN - shard.call(supervisor, CountChildren())["active"]):
                shard.call(supervisor, StartChild())

        def storm(rounds: int) -> None:
            pids = [process.pid for process in shard.core.processes() if isinstance(process, Witness)]
            for _ in range(rounds):
                one, other = dice.sample(pids, 2)
                what: Any = dice.choice(
                    [
                        ("monitor", other),
                        ("link", other),
                        ("register", f"n{dice.randrange(50)}"),
                        ("join", "g"),
                        ("crash",),
                    ]
                )
                shard.cast(one, what)
                shard.core.send_after(dice.random() / 10, one, 1)
                shard.call_soon(other, ("told",), 1.0, lambda call: None)
            shard.run_until_idle()

        def rest() -> None:
            grow()
            for process in shard.core.processes():
                if isinstance(process, Witness):
                    process.log.clear()
            shard.run_for(1.5)  # longer than any timer, and than any call may take
            gc.collect()

        for _ in range(50):
            grow()
            storm(1_000)
        rest()
        before, until = resident_bytes(), monotonic() + SOAK_S
        while monotonic() < until:
            for _ in range(20):
                grow()
                storm(1_000)
        rest()
        assert resident_bytes() - before < 20_000_000
        assert shard.core.timer_count == 0
        assert shard.core.ready_count == 0
