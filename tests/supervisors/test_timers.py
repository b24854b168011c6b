from __future__ import annotations

import pytest

from actorgrid.supervisors import timers as timers_module
from actorgrid.supervisors.timers import Timers


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.alarms: list[float] = []

    def set_alarm(self, delay_s: float) -> None:
        self.alarms.append(self.now + delay_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timers_module, "monotonic", lambda: clock.now)
    return clock


def always() -> bool:
    return True


def test_timers_fire_in_order_of_their_time(clock: Clock) -> None:
    timers, fired = Timers(clock.set_alarm), []
    for delay_s in (3.0, 1.0, 2.0):
        timers.after(delay_s, lambda delay_s=delay_s: fired.append(delay_s))
    clock.now += 2.0
    timers.run_due(always)
    assert fired == [1.0, 2.0]
    clock.now += 5.0
    timers.run_due(always)
    assert fired == [1.0, 2.0, 3.0]


def test_a_cancelled_timer_does_not_fire(clock: Clock) -> None:
    timers, fired = Timers(clock.set_alarm), []
    timer = timers.after(1.0, lambda: fired.append(1))
    timer.cancel()
    timer.cancel()
    clock.now += 2.0
    timers.run_due(always)
    assert fired == [] and timers.cancelled == 0


def test_alarms_are_set_only_for_what_comes_earlier(clock: Clock) -> None:
    timers = Timers(clock.set_alarm)
    for _ in range(1000):
        timers.after(5.0, lambda: None)
    assert clock.alarms == [105.0]
    timers.after(1.0, lambda: None)
    assert clock.alarms == [105.0, 101.0]
    clock.now = 101.0
    timers.run_due(always)
    assert clock.alarms == [105.0, 101.0]  # the alarm at 105 is still to come


def test_cancelled_timers_do_not_pile_up(clock: Clock) -> None:
    timers = Timers(clock.set_alarm)
    for _ in range(100_000):
        timers.after(5.0, lambda: None).cancel()
    assert len(timers._heap) < 1000


def test_a_stop_ends_the_round(clock: Clock) -> None:
    timers, fired = Timers(clock.set_alarm), []
    for n in range(3):
        timers.after(0.0, lambda n=n: fired.append(n))
    timers.run_due(lambda: not fired)
    assert fired == [0]
